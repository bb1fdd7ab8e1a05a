"""Packs commands for a Redis server (RESP) and reads its replies, by hiredis where it is installed.

Without hiredis this module packs the commands, and redis-py reads the replies.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from semel.stores.redis.routes import Command

NOT_YET: Final = object()
"""A reader's result if the next reply has not arrived, or not all of it."""


def new_reader(make_error: Callable[[str], Exception], not_a_reply: type[Exception]) -> Any:
    """Make hiredis' reader of one connection's replies; None without hiredis.

    Parameters: ``make_error`` makes an exception of a server's error reply, which is returned like any other reply;
    ``not_a_reply`` is raised for data that is no reply at all.
    """
    if _pack_command() is None:
        return None
    return importlib.import_module("hiredis").Reader(
        protocolError=not_a_reply, replyError=make_error, notEnoughData=NOT_YET
    )


def pack(commands: Sequence[Command]) -> bytes:
    """Pack commands for the server, by hiredis where it is installed: redis-py takes several times as long."""
    pack_command = _pack_command()
    if pack_command is None:
        return pack_in_python(commands)
    return b"".join([pack_command(command) for command in commands])


@cache
def _pack_command() -> Callable[[Command], bytes] | None:
    """Look for hiredis once, at first use."""
    try:
        found: Callable[[Command], bytes] = importlib.import_module("hiredis").pack_command
    except (ImportError, AttributeError):  # not there, or older than its packing
        return None
    return found


def pack_in_python(commands: Sequence[Command]) -> bytes:
    """Pack commands without hiredis.

    >>> pack_in_python([("GET", b"k"), ("WAIT", 1)])
    b'*2\\r\\n$3\\r\\nGET\\r\\n$1\\r\\nk\\r\\n*2\\r\\n$4\\r\\nWAIT\\r\\n$1\\r\\n1\\r\\n'
    """
    parts: list[bytes] = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for value in command:
            data = value if type(value) is bytes else str(value).encode()
            parts.append(b"$%d\r\n" % len(data))
            parts.append(data)
            parts.append(b"\r\n")
    return b"".join(parts)
