"""Named points at which a process can be made to die: ``after:settle:1`` is after the first settle.

They lie around every call that the real engine makes of its store, around the call of the provider, in the reaper, and
on the way in and out of HTTP. ``during:...`` is between a call's start and its reply.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from examples.payments import charging
from semel.core.requests import Begin, Commit, Rollback, SettleWithin, Within
from semel.engine.runner import AsyncPerformer
from semel.retention.worker import Reaper

TURNS = 20  # of the loop, in which a call is sent and its reply is not yet read


class Points:
    """Counts how often each point was passed, and ends the process at the chosen one."""

    def __init__(self, doom: str | None) -> None:
        self._doom = doom
        self._passed: Counter[str] = Counter()

    def passing(self, point: str) -> None:
        """Here the process may die."""
        self._passed[point] += 1
        if f"{point}:{self._passed[point]}" == self._doom:
            die()

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """A call with a point before it, one while it is under way, and one after it."""
        self.passing(f"before:{name}")
        if self._doom is not None and self._doom.startswith(f"during:{name}:"):
            task = asyncio.ensure_future(call())
            for _ in range(TURNS):
                await asyncio.sleep(0)
            self.passing(f"during:{name}")
            result = await task
        else:
            result = await call()
        self.passing(f"after:{name}")
        return result

    def install(self) -> None:
        """Put the points into this process."""
        begin, call, answer = AsyncPerformer.__init__, AsyncPerformer.store_call, AsyncPerformer._answer
        charge, find = charging.charge, charging.find

        def __init__(self: AsyncPerformer, *rest: Any) -> None:
            begin(self, *rest)
            one = self.ask_one

            async def ask_one(verb: str, *rest: Any) -> Any:
                return await points.around(verb, lambda: one(verb, *rest))

            self.ask_one = ask_one

        async def store_call(self: AsyncPerformer, verb: str, *rest: Any) -> Any:
            return await points.around(verb, lambda: call(self, verb, *rest))

        async def _answer(self: AsyncPerformer, needed: Any) -> Any:
            name = name_of(needed)
            return await (answer(self, needed) if name is None else points.around(name, lambda: answer(self, needed)))

        async def charge_at_point(*rest: Any) -> Any:
            return await points.around("charge", lambda: charge(*rest))

        async def found(*rest: Any) -> Any:
            return await points.around("find", lambda: find(*rest))

        def tell_at_point(self: Reaper, *rest: Any) -> None:
            points.passing("at:lapsed")
            tell(self, *rest)

        points, tell = self, Reaper._tell
        setattr(Reaper, "_tell", tell_at_point)  # noqa: B010 - as below
        for name, made in {"__init__": __init__, "store_call": store_call, "_answer": _answer}.items():
            setattr(AsyncPerformer, name, made)
        for name, made in {"charge": charge_at_point, "find": found}.items():
            setattr(charging, name, made)


def name_of(needed: Any) -> str | None:
    """Return the point's name of an ask of a unit; None for store calls, which go by their verb."""
    match needed:
        case Within():
            return f"unit-{needed.verb}"
        case SettleWithin() | Commit():
            return "commit"
        case Begin():
            return "begin"
        case Rollback():
            return "rollback"
        case _:
            return None


class OnTheWire:
    """ASGI middleware: points before a command is read, while its body arrives, and while its answer leaves."""

    def __init__(self, app: Any, points: Points) -> None:
        self._app = app
        self._points = points

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT"):
            await self._app(scope, receive, send)
            return
        self._points.passing("at:request")

        async def receive_at_point() -> Any:
            message = await receive()
            self._points.passing("at:body")
            return message

        async def send_at_point(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._points.passing("at:answer")
            elif message.get("body"):
                half = len(message["body"]) // 2
                await send({**message, "body": message["body"][:half], "more_body": True})
                self._points.passing("at:half-answer")
                message = {**message, "body": message["body"][half:]}
            await send(message)

        await self._app(scope, receive_at_point, send_at_point)


def die() -> NoReturn:
    """Kill this process without warning, as power loss would."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the process has outlived SIGKILL")
