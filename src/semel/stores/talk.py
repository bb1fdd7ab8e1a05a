"""A unit's calls to its server, written once for both colours: a thread makes the calls, an event loop awaits them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Talk = Generator[Callable[[], Any], Any, T]
"""What a unit does, in either colour: it yields each call that waits for the server, and is sent the call's result."""


def drive(talk: Talk[T]) -> T:
    """Make the calls, one after the other."""
    try:
        call = next(talk)
        while True:
            try:
                reply = call()
            except BaseException as error:  # noqa: BLE001 - the talk's to handle, or it comes out of it again
                call = talk.throw(error)
            else:
                call = talk.send(reply)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def drive_async(talk: Talk[T]) -> T:
    """Await the calls, one after the other."""
    try:
        call = next(talk)
        while True:
            try:
                reply = await call()
            except BaseException as error:  # noqa: BLE001 - the talk's to handle, or it comes out of it again
                call = talk.throw(error)
            else:
                call = talk.send(reply)
    except StopIteration as stop:
        result: T = stop.value
        return result
