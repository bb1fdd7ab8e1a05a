"""A Quart shop with views whose clients go away: ``hypercorn tests.frameworks.quart_shop:app``.

``SHOP_FOLDER`` names the folder of its SQLite file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

from quart import Quart, request

from semel import AsyncEngine
from semel.integrations.quart import Semel
from tests.service.served import await_true

FOLDER = Path(os.environ["SHOP_FOLDER"])

app = Quart("shop")
semel = Semel(
    app,
    AsyncEngine.connect(f"sqlite:///{FOLDER}/shop.db"),
    caller=lambda: request.headers["authorization"],
)


@app.post("/slow")
@semel.command("shop.slow", effects="external")
async def slow() -> Any:
    """Have the effect once the client has gone."""
    data = await request.get_json()
    (FOLDER / "begun").touch()
    await asyncio.to_thread(await_true, (FOLDER / "go").exists, "the test to let it go")
    with closing(sqlite3.connect(FOLDER / "shop.db")) as db, db:
        db.execute("INSERT INTO effect VALUES (?)", (data["what"],))
    return data, 201


@app.post("/endless")
@semel.command("shop.endless", answer_bytes_max=1000)
async def endless() -> Any:
    """Send until nobody listens."""

    async def pieces() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 1000
                await asyncio.to_thread(threading.Event().wait, 0.01)
        finally:
            (FOLDER / "stopped").touch()

    return pieces(), 200, {"content-type": "text/event-stream"}


@app.get("/effects")
async def effects() -> list[str]:
    """What was written."""
    with closing(sqlite3.connect(FOLDER / "shop.db")) as db:
        return [what for (what,) in db.execute("SELECT what FROM effect")]


class SeesClientsGo:
    """A layer outside of everything, which sees a client leave."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def receiving() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                (FOLDER / "gone").touch()
            return message

        await self.inner(scope, receiving, send)


app.asgi_app = SeesClientsGo(app.asgi_app)  # type: ignore[method-assign]
