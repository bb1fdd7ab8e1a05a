"""The shop of ``shop.toml`` in Python: an effect is a line in a file, and headers say how it answers."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from bench.setup import Handlers

EFFECTS: Final = "effects.log"
LARGE: Final = "x" * 100_000
HUGE: Final = "x" * 3_000_000


def shop_handlers(folder: Path) -> Handlers:
    """Orders and refunds, whose effects are lines of one file."""
    book = folder / EFFECTS
    book.touch()

    def handler(path: str) -> object:
        async def order(request: Request) -> Response:
            try:
                wanted = json.loads(await request.body())
            except (ValueError, RecursionError):
                return JSONResponse({"error": "no JSON"}, 400)
            if not isinstance(wanted, dict) or not isinstance(wanted.get("count"), int) or wanted["count"] < 1:
                return JSONResponse({"error": "count must be a number above 0"}, 422)
            _append(book)
            await asyncio.sleep(int(request.headers.get("x-delay", "0")) / 1000)
            return _reply(request.headers.get("x-reply", "json"), path)

        return order

    return {path: handler(path) for path in ("/orders", "/refunds")}  # type: ignore[misc]


def _append(book: Path) -> None:
    opened = os.open(book, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(opened, b"effect\n")
    finally:
        os.close(opened)


def _reply(kind: str, path: str) -> Response:
    number = str(uuid.uuid4())
    headers = {"location": f"{path}/{number}", "etag": f'"{number}"'}
    if kind == "empty":
        return Response(status_code=204, headers=headers)
    if kind == "binary":
        return Response(bytes(range(256)) + number.encode(), 201, headers, "application/octet-stream")
    if kind == "stream":
        return StreamingResponse(_pieces(number), 201, headers, "text/plain")
    if kind == "error":
        return JSONResponse({"error": "out of luck"}, 500)
    text = {"large": LARGE, "huge": HUGE}.get(kind, "")
    return JSONResponse({"id": number, "text": text}, 201, headers)


async def _pieces(number: str) -> AsyncIterator[str]:
    for piece in (number, "\nand", "\nmore\n"):
        yield piece
        await asyncio.sleep(0)
