"""What all shops have in common: their store, what they note outside of it, and how they end.

A body says how its command ends: ``{"what": "book", "do": "raise"}``. See :func:`end`.
"""

from __future__ import annotations

import email
import email.policy
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from semel import Engine, ItemFailed, NothingHappened, Policy
from semel.bulk.declaration import BulkItem
from semel.imports import Imports, Row

PAGE: Final = "a page for everybody"
STREAM_BYTES_MAX: Final = 10_000
SHIP: Final = Policy(steps=True, resumable=True, wait_seconds=0)
KILLED: Final = 9  # how a server's process ends that was to die
BARRED: Final = "mallory"  # whom every shop's guard refuses


class Swallowed(Exception):
    """The error that each shop's error handler turns into a page with the status 200."""


def folder() -> Path:
    return Path(os.environ["SHOP_FOLDER"])


def store() -> str:
    return f"sqlite:///{folder()}/shop.db"


def prepare() -> None:
    """Make the store's tables, and the one that ATOMIC commands write to."""
    with closing(Engine.connect(store())) as engine:
        engine.migrate()
    with closing(sqlite3.connect(folder() / "shop.db")) as db:
        db.execute("CREATE TABLE effect (id INTEGER PRIMARY KEY, what TEXT NOT NULL)")
        db.commit()


def user_of(authorization: str | None) -> str | None:
    """Return the user that a bearer token names."""
    scheme, _, token = (authorization or "").partition(" ")
    return token if scheme == "Bearer" and token else None


def is_valid(asked: object) -> bool:
    """Whether a body asks for something, for frameworks that do not validate."""
    return isinstance(asked, dict) and isinstance(asked.get("what"), str)


def note(what: str) -> None:
    """An effect that no rollback takes back."""
    with (folder() / "effects").open("a") as file:
        file.write(f"{what}\n")


def is_first(what: str) -> bool:
    """Whether this is asked for the first time."""
    try:
        (folder() / f"first {what}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def end(asked: Any) -> None:
    """End as the body says, where that is the same in every framework; a shop does ``refuse`` and ``cookie``."""
    what, do = asked["what"], asked.get("do", "")
    if do == "kill":
        die_once()
    if do.endswith(" once"):
        if not is_first(what):
            return
        do = do.removesuffix(" once")
    if do == "raise":
        raise RuntimeError("secret")
    if do == "late":
        raise TimeoutError
    if do == "swallow":
        raise Swallowed
    if do == "nothing":
        raise NothingHappened("it was out of stock")


def pay(asked: Any, permit: Any) -> dict[str, Any]:
    """The effect of a payment, and its answer."""
    note(asked["what"])
    end(asked)
    return {"what": asked["what"], "key": permit.key_for("charge"), "operation": permit.operation_id}


def ship(asked: Any, permit: Any) -> str:
    """Two steps, between which a command may end as its body says."""
    permit.step("charge", lambda: note(f"charge {asked['what']}"))
    end(asked)
    permit.step("ship", lambda: note(f"ship {asked['what']}"), repeat=True)
    return "shipped"


async def ship_async(asked: Any, permit: Any) -> str:
    """As :func:`ship`."""
    await permit.step("charge", lambda: note(f"charge {asked['what']}"))
    end(asked)
    await permit.step("ship", lambda: note(f"ship {asked['what']}"), repeat=True)
    return "shipped"


def pieces(asked: Any) -> Iterator[bytes]:
    """The pieces of a streamed answer."""
    yield b"first "
    if asked.get("do") == "break":
        raise RuntimeError("in the middle of its answer")
    yield b"x" * (2 * STREAM_BYTES_MAX) if asked.get("do") == "long" else b"second"


async def pieces_async(asked: Any) -> AsyncIterator[bytes]:
    for piece in pieces(asked):
        yield piece


def read_form(content_type: str, body: bytes) -> dict[str, bytes]:
    """The parts of a form by their names, for shops without a framework."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    parts = email.message_from_bytes(head + body, policy=email.policy.HTTP).iter_parts()
    return {str(part.get_param("name", header="content-disposition")): part.get_content().encode() for part in parts}


def approve(item: BulkItem) -> str:
    """Handle one item of a list."""
    if item.value == "locked":
        raise ItemFailed("LOCKED", retryable=True, written=False)
    note(item.value)
    return f"approved {item.value}"


async def approve_async(item: BulkItem) -> str:
    return approve(item)


def stock(engine: Any) -> Imports:
    """Imports that note each row."""
    made = Imports(engine, operation="stock.import")

    @made.row
    async def book(row: Row) -> None:
        note(row.value["what"])

    return made


IMPORTS: Final = "/suppliers/{supplier}/imports"


def may_upload(request: Any, supplier: str) -> bool:
    return supplier == "ACME"


# --- the end of a process -------------------------------------------------------------------------


def die_once() -> None:
    """End the process as kill -9 does, where a test has asked for it."""
    try:
        (folder() / "to-die").unlink()
    except FileNotFoundError:
        return
    os._exit(KILLED)


def dying_asgi(app: Any) -> Any:
    """A layer outside of everything, which may die when an answer leaves: that is behind the commit."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        async def leave(message: Any) -> None:
            if message["type"] == "http.response.start" and scope["query_string"] == b"die=after":
                die_once()
            await send(message)

        await app(scope, receive, leave)

    return call


def dying_wsgi(app: Callable[..., Any]) -> Callable[..., Any]:
    """As :func:`dying_asgi`."""

    def call(environ: Any, start_response: Any) -> Any:
        answered = app(environ, start_response)
        if environ.get("QUERY_STRING") == "die=after":
            die_once()
        return answered

    return call
