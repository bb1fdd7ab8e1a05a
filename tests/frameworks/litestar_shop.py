"""A Litestar shop whose worker dies where a file says so: ``uvicorn tests.frameworks.litestar_shop:app``.

``SHOP_FOLDER`` names the folder of its SQLite file, in which a file ``to-die`` lets the worker die once.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from litestar import Litestar, Request, get, post
from litestar.exceptions import NotAuthorizedException

from semel import AsyncEngine
from semel.http.caller import Caller
from semel.integrations.litestar import Semel
from tests.frameworks.listed import imports_on, list_on

FOLDER = Path(os.environ["SHOP_FOLDER"])
URL = f"sqlite:///{FOLDER}/shop.db"


def caller(request: Request[Any, Any, Any]) -> Caller:
    return Caller("shop", request.headers["authorization"])


semel = Semel(AsyncEngine.connect(URL), caller=caller)


def die_once() -> None:
    """Kill this process as kill -9 does, if the file says so."""
    if (FOLDER / "to-die").exists():
        (FOLDER / "to-die").unlink()
        os._exit(9)


async def leave(message: Any, scope: Any) -> None:
    """Die when the answer of a settled command is about to leave, which is behind the commit."""
    if message["type"] == "http.response.start" and scope["query_string"] == b"die=after":
        die_once()


@get("/effects")
async def effects() -> list[str]:
    """Return the effects that were written."""
    with closing(sqlite3.connect(FOLDER / "shop.db")) as db:
        return [what for (what,) in db.execute("SELECT what FROM effect")]


class DiesAfter:
    """A layer outside of everything, which sees the answer leave."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def leaving(message: Any) -> None:
            await leave(message, scope)
            await send(message)

        await self.app(scope, receive, leaving)


def let_in(connection: Any, handler: Any) -> None:
    """A guard that knows one caller."""
    if connection.headers.get("authorization") != "Bearer alice":
        raise NotAuthorizedException


def may(request: Request[Any, Any, Any], supplier: str) -> bool:
    """Whose files are taken."""
    return supplier == "ACME"


cases = semel.bulk(*list_on(semel.engine, die_once))
shop = Litestar(
    [effects, post("/cases/{store:str}", guards=[let_in])(cases.answer)],
    plugins=[semel],
)
semel.imports(
    shop,
    imports_on(semel.engine, die_once),
    path="/suppliers/{supplier}/imports",
    supplier="path:supplier",
    may=may,
    guards=[let_in],
)
app = DiesAfter(shop)
