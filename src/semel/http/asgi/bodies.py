"""Process a body that is already read: on the event loop if it is small, else in a thread."""

from __future__ import annotations

import asyncio

from semel.core.model import Answer
from semel.http.exchange import ON_LOOP_BYTES_MAX, Exchange
from semel.http.spool import Spool
from semel.policy import Command


async def command_of(exchange: Exchange, body: bytes) -> Command | Answer:
    """Return the command of a request whose body came in one piece, or the answer that refuses it."""
    if len(body) <= ON_LOOP_BYTES_MAX:
        return exchange.command(body)
    return await asyncio.to_thread(exchange.command, body)


async def finish(exchange: Exchange, spool: Spool) -> Command | Answer:
    """Return the command of a request whose body was fed and is held in ``spool``, or the answer that refuses it."""
    if spool.size <= ON_LOOP_BYTES_MAX:
        return exchange.finish(spool)
    return await asyncio.to_thread(exchange.finish, spool)
