"""One request of a declared operation, from its first byte to the last one of its answer.

Most of it is what every request pays for, also one that is only answered again; what a granted one needs
besides is in ``call.py``.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from semel.core.model import Answer
from semel.engine.permit import Permit
from semel.errors import SemelError
from semel.http.asgi.bodies import command_of, finish
from semel.http.asgi.call import (
    AsgiCall,
    HostMiddleware,
    Message,
    Receive,
    Scope,
    Send,
    send_answer,
    with_mark,
)
from semel.http.asgi.disconnects import KeptAlive, Listener
from semel.http.asgi.scope import capture_scope
from semel.http.body_time import BodyClock
from semel.http.exchange import Exchange, Unprotected
from semel.http.outage import UNCLAIMED
from semel.http.settings import HttpSettings
from semel.http.spool import Spool
from semel.policy import Command
from semel.stores.deadline import run_within


class DeclaringHost(HostMiddleware, Protocol):
    """The middleware that knows its application's operations.

    ``kept_alive`` runs to its end what must not end with its client; ``body_clock`` ends the reading of a body that
    comes too slowly.
    """

    surface: HttpSettings
    kept_alive: KeptAlive
    body_clock: BodyClock


class DeclaredCall(AsgiCall):
    """One request of a declared operation: read its body, claim, and only then call the application."""

    def __init__(self, place: DeclaringHost, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        self._place: DeclaringHost = place
        self._exchange = exchange
        self._scope = scope
        self._receive = receive
        self._send = send

    async def run(self) -> None:
        """The whole way, from reading the body to the last byte of the answer."""
        place, exchange = self._place, self._exchange
        command: Command | Answer | None = None
        until = 0.0
        receiving = self._receive().__await__()
        try:
            try:
                awaited = next(receiving)
            except StopIteration as received:  # it was there, as nearly every body
                message = received.value
            else:
                message, until = await place.body_clock.wait(receiving, awaited)
            if message.get("more_body") or message["type"] != "http.request":
                command = await self._read(message, until)
            else:
                self._message = message
                command = exchange.plain_command(message.get("body", b""))
                if command is None:
                    command = await command_of(exchange, message.get("body", b""))
        except TimeoutError:
            command = exchange.body_too_slow(self._scope)
        if command is not exchange and (command is None or isinstance(command, Answer)):  # type: ignore[comparison-overlap]
            if command is not None:
                await send_answer(self._send, command)
            return
        try:
            permit = await place.engine.claim(command, wait_seconds=exchange.wait_seconds)
        except UNCLAIMED as error:
            await self._go_unclaimed(error)
            return
        except BaseException:
            self._close_spool()
            raise
        if not isinstance(permit, Permit):
            if self._spool is not None:
                self._close_spool()
            answer = exchange.present(permit)
            if (
                exchange.allowed_at is not None
                and exchange.must_ask_again()
                and not await place.surface.allows_async(self._scope, exchange.wanted)
            ):
                answer = place.surface.problems.not_allowed()
            await send_answer(self._send, answer)
        elif place.kept_alive.is_needless(asyncio.current_task()):
            await self._proceed(permit)
        else:
            listener = Listener(self._send)
            self._send = listener.send
            await place.kept_alive.shield(self._proceed(permit), listener)

    async def _go_unclaimed(self, error: SemelError) -> None:
        """The store could not take the command: refuse it, or run it unprotected where that was declared."""
        try:
            refused = self._exchange.answer_unclaimed(error)
            if isinstance(refused, Unprotected):
                assert refused.mark is not None
                await self._place.app(self._scope, self._receive_unprotected, with_mark(self._send, refused.mark))
            else:
                await send_answer(self._send, refused)
        finally:
            self._close_spool()

    async def _proceed(self, permit: Permit) -> None:
        """Run the application under the permit."""
        error: BaseException | None = None
        try:
            if self._scope.get("extensions"):
                self._scope = capture_scope(self._scope)
            exchange = self._exchange
            self._begin(exchange, permit)
            if exchange.route.is_simple:
                await self._place.app(self._scope, self.receive, self.send)
            else:
                await self._run_otherwise(permit)
        except GeneratorExit:
            raise  # the loop is gone: nothing can be awaited any more, and the lease will lapse
        except BaseException as raised:  # noqa: BLE001 -- classified and settled, then raised again
            error = raised
        finally:
            if self._spool is not None:
                self._close_spool()
        try:
            await self._conclude(permit, error)
        finally:
            error = None  # it holds this frame

    async def _run_otherwise(self, permit: Permit) -> None:
        """Run the application where it may be cancelled, or has a limit, or its client does not wait."""
        route = self._exchange.route
        self._heed_loss(route, permit)
        if self._exchange.wants_async:
            await self._accept(permit)
        call = self._place.app(self._scope, self.receive, self.send)
        await (run_within(call, max(0.0, self._deadline - time.monotonic())) if route.atomic else call)

    async def _read(self, message: Message, until: float) -> Command | Answer | None:
        """Read a body of several pieces; None where the client went away before its end."""
        spool = self._spool = Spool()
        command: Command | Answer | None = None
        try:
            command = await self._spool_body(spool, message, until)
        finally:  # cancelled, mostly; from the claim on, the spool is the application's
            if type(command) is not Command:
                self._close_spool()
        return command

    async def _spool_body(self, spool: Spool, message: Message, until: float) -> Command | Answer | None:
        while message["type"] == "http.request":
            chunk = message.get("body", b"")
            refusal = self._exchange.feed(chunk)
            if refusal is not None:
                return refusal
            if spool.on_disk:
                await asyncio.to_thread(spool.write, chunk)
            else:
                spool.write(chunk)
            if not message.get("more_body", False):
                return await finish(self._exchange, spool)
            message, until = await self._place.body_clock.next_of(self._receive, until)
        return None

    async def _receive_unprotected(self) -> Message:
        message = self._message
        if message is None:
            piece = await self._next_piece()
            return piece if piece is not None else await self._receive()
        self._message = None
        return message
