"""A Strawberry shop whose worker dies where a file says so: ``uvicorn tests.frameworks.strawberry_shop:app``.

``SHOP_FOLDER`` names the folder of its SQLite file, in which a file ``to-die`` lets the worker die once.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import strawberry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from strawberry.asgi import GraphQL
from strawberry.file_uploads import Upload, UploadDefinition
from strawberry.schema.config import StrawberryConfig

from semel import AsyncEngine
from semel.integrations.strawberry import Caller, Idempotent, permit_of

FOLDER = Path(os.environ["SHOP_FOLDER"])
engine = AsyncEngine.connect(f"sqlite:///{FOLDER}/shop.db")


def die_once() -> None:
    """Kill this process as kill -9 does, if the file says so."""
    if (FOLDER / "to-die").exists():
        (FOLDER / "to-die").unlink()
        os._exit(9)


def caller(info: strawberry.Info) -> Caller | None:
    """Return the caller of the request."""
    who = info.context["request"].headers.get("authorization")
    return None if who is None else Caller("shop", who)


@strawberry.type
class Query:
    version: int = 1


@strawberry.type
class Mutation:
    @strawberry.mutation(
        extensions=[Idempotent(engine, "write", caller=caller, key="header:Idempotency-Key", effects="atomic")]
    )
    async def write(self, info: strawberry.Info, what: str, do: str = "") -> str:
        """Write a row; die before the commit."""
        permit_of(info).connection.execute("INSERT INTO effect VALUES (?)", (what,))
        if do == "kill":
            die_once()
        return what

    @strawberry.mutation(extensions=[Idempotent(engine, "attach", caller=caller, key="key", effects="atomic")])
    async def attach(self, info: strawberry.Info, key: str, files: list[Upload], do: str = "") -> list[int]:
        """Write how long each file is."""
        sizes = []
        for file in files:
            content: bytes = await file.read()  # type: ignore[attr-defined]
            permit_of(info).connection.execute("INSERT INTO effect VALUES (?)", (f"{len(content)} bytes",))
            sizes.append(len(content))
        if do == "kill":
            die_once()
        return sizes


schema = strawberry.Schema(Query, Mutation, config=StrawberryConfig(scalar_map={Upload: UploadDefinition}))


async def effects(request: Request) -> JSONResponse:
    """Return the effects that were written."""
    with closing(sqlite3.connect(FOLDER / "shop.db")) as db:
        return JSONResponse([what for (what,) in db.execute("SELECT what FROM effect")])


@asynccontextmanager
async def life(app: Starlette) -> AsyncIterator[None]:
    """The engine's life is the application's."""
    async with engine:
        yield


class DiesAfter:
    """A layer outside of everything, which sees the answer leave: that is behind the commit."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def leaving(message: Any) -> None:
            if message["type"] == "http.response.start" and scope["query_string"] == b"die=after":
                die_once()
            await send(message)

        await self.inner(scope, receive, leaving)


app = DiesAfter(
    Starlette(
        routes=[Route("/effects", effects), Mount("/graphql", GraphQL(schema, multipart_uploads_enabled=True))],
        lifespan=life,
    )
)
