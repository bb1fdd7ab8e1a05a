"""A Quart shop whose clients go away and whose worker dies: ``hypercorn tests.frameworks.quart_shop:app``.

``SHOP_FOLDER`` names the folder of its SQLite file, in which a file ``to-die`` lets the worker die once.
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

from quart import Quart, abort, request

from semel import AsyncEngine
from semel.integrations.quart import Semel
from tests.frameworks.listed import imports_on, list_on
from tests.service.served import await_true

FOLDER = Path(os.environ["SHOP_FOLDER"])

app = Quart("shop")
semel = Semel(
    app,
    AsyncEngine.connect(f"sqlite:///{FOLDER}/shop.db"),
    caller=lambda: request.headers["authorization"],
)


def die_once() -> None:
    """Kill this process as kill -9 does, if the file says so."""
    if (FOLDER / "to-die").exists():
        (FOLDER / "to-die").unlink()
        os._exit(9)


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
    """Send until the client is gone."""

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
    """Return the effects that were written."""
    with closing(sqlite3.connect(FOLDER / "shop.db")) as db:
        return [what for (what,) in db.execute("SELECT what FROM effect")]


@app.before_request
async def let_in() -> None:
    """The application's own authentication knows one caller of lists and files."""
    guarded = request.path.startswith(("/cases", "/suppliers", "/imports"))
    if guarded and request.headers.get("authorization") != "Bearer alice":
        abort(401)


app.post("/cases/<store>")(semel.bulk(*list_on(semel.engine, die_once)).answer)
semel.imports(
    app,
    imports_on(semel.engine, die_once),
    path="/suppliers/{supplier}/imports",
    supplier="path:supplier",
    may=lambda request, supplier: supplier == "ACME",
)


class Outermost:
    """A layer outside of everything: it sees a client leave, and may die when an answer leaves, behind the commit."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def leaving(message: Any) -> None:
            if message["type"] == "http.response.start" and scope["query_string"] == b"die=after":
                die_once()
            await send(message)

        async def receiving() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                (FOLDER / "gone").touch()
            return message

        await self.inner(scope, receiving, leaving)


app.asgi_app = Outermost(app.asgi_app)  # type: ignore[method-assign]
