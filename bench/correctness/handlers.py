"""The application of the correctness table: one handler, whose effects are counted outside its process.

An effect is a line appended to a file (``O_APPEND``, one ``write``): a kill afterwards cannot take it back. What a call
does is said by headers, which are the same in a retry: ``x-mark`` names the case and ``x-reply`` the answer; ``x-gate``
says where it waits until the gate is opened, ``before`` or ``after`` the effect.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from bench.setup import Handlers

ORDERS: Final = "/orders"
REPLY_BYTES: Final = 3_000_000
_GATE_SECONDS: Final = 0.005
_ANY_BYTES: Final = bytes(range(256)) * 8


class Book:
    """The effects of all cases, one line each, in a file that outlives every server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, mark: str) -> int:
        """A handler has begun; how many have, of this case."""
        _append(self._folder / f"{mark}.runs")
        return self.runs(mark)

    def add(self, mark: str) -> None:
        """An effect has happened."""
        _append(self._folder / f"{mark}.effects")

    def runs(self, mark: str) -> int:
        """How many handlers of this case have begun."""
        return _lines(self._folder / f"{mark}.runs")

    def count(self, mark: str) -> int:
        """How many effects this case has had."""
        return _lines(self._folder / f"{mark}.effects")

    def open_gate(self, mark: str) -> None:
        """Let the handlers of this case answer."""
        self._gate(mark).touch()

    def is_open(self, mark: str) -> bool:
        """Whether they may."""
        return self._gate(mark).exists()

    def _gate(self, mark: str) -> Path:
        return self._folder / f"{mark}.open"


def _append(page: Path) -> None:
    opened = os.open(page, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(opened, b"once\n")
    finally:
        os.close(opened)


def _lines(page: Path) -> int:
    try:
        return page.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def order_handlers(folder: Path) -> Handlers:
    """The handler, writing its effects into ``folder``."""
    book = Book(folder)

    async def wait_at_gate(request: Request, place: str, mark: str) -> None:
        while request.headers.get("x-gate") == place and not book.is_open(mark):  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(_GATE_SECONDS)

    async def order(request: Request) -> Response:
        await request.body()
        mark, kind = request.headers["x-mark"], request.headers.get("x-reply", "json")
        run = book.begin(mark)
        if kind == "raised-before" and run == 1:
            raise RuntimeError("the handler fails before its effect, as the case asks")
        await wait_at_gate(request, "before", mark)
        book.add(mark)
        await wait_at_gate(request, "after", mark)
        return reply(kind, run)

    return {ORDERS: order}


def reply(kind: str, run: int) -> Response:
    """An answer that no second run would give again: it carries a random number."""
    number = uuid.uuid4()
    if kind == "bytes":
        return Response(number.bytes + _ANY_BYTES, 201, media_type="application/octet-stream")
    if kind == "stream":
        return StreamingResponse(_pieces(number), 201, media_type="application/octet-stream")
    if kind == "large":
        return JSONResponse({"order": str(number), "filler": "x" * REPLY_BYTES}, 201)
    if kind == "refusal":
        return JSONResponse({"order": str(number), "error": "out of stock"}, 422)
    if kind == "error" and run == 1:
        return JSONResponse({"order": str(number), "error": "out of luck"}, 500)
    if kind == "raised" and run == 1:
        raise RuntimeError("the handler fails after its effect, as the case asks")
    return JSONResponse({"order": str(number)}, 201)


async def _pieces(number: uuid.UUID) -> AsyncIterator[bytes]:
    yield number.bytes
    for _ in range(4):
        await asyncio.sleep(0)
        yield _ANY_BYTES
