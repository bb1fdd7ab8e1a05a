"""The application of the correctness table: one handler, whose effects are counted outside its process.

Every call appends a line to a file (``O_APPEND``, one ``write``) before it answers: a kill afterwards cannot take it
back. What a call does is said by headers, which are the same in a retry:
``x-mark`` names the case, ``x-reply`` the answer; ``x-gate: yes`` waits after the effect until the gate is opened.
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

    def add(self, mark: str) -> int:
        """Write an effect; how many there are now of this case."""
        page = os.open(self._page(mark), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(page, b"effect\n")
        finally:
            os.close(page)
        return self.count(mark)

    def count(self, mark: str) -> int:
        """How many effects this case has had."""
        try:
            return self._page(mark).read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def open_gate(self, mark: str) -> None:
        """Let the handlers of this case answer."""
        self._gate(mark).touch()

    def is_open(self, mark: str) -> bool:
        """Whether they may."""
        return self._gate(mark).exists()

    def _page(self, mark: str) -> Path:
        return self._folder / f"{mark}.effects"

    def _gate(self, mark: str) -> Path:
        return self._folder / f"{mark}.open"


def order_handlers(folder: Path) -> Handlers:
    """The handler, writing its effects into ``folder``."""
    book = Book(folder)

    async def order(request: Request) -> Response:
        await request.body()
        mark = request.headers["x-mark"]
        run = book.add(mark)
        while request.headers.get("x-gate") == "yes" and not book.is_open(mark):  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(_GATE_SECONDS)
        return reply(request.headers.get("x-reply", "json"), run)

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
