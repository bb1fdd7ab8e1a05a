"""The ground a round is played on: a store of its own, and a business table beside it where it has units."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from semel import Engine
from verification.soak.summary import SoakError

Row = tuple[bytes, int, bytes]  # record id, generation, the answer's body

KINDS: Final = ("external", "idempotent", "atomic")
# One spelling for every database; hexadecimal, so that no value needs a parameter, which each library spells otherwise.
TABLE: Final = "CREATE TABLE business (id VARCHAR(64) NOT NULL, generation INTEGER NOT NULL, body VARCHAR(64) NOT NULL)"
ROWS: Final = "SELECT id, generation, body FROM business"


class Ground(Protocol):
    """What a round needs of a store. No connection stays open in the process that calls these: it forks."""

    url: str
    kinds: tuple[str, ...]

    def prepare(self) -> None:
        """Make it, empty; what a round of the same name has left is dropped."""

    def read_committed(self) -> list[Row]:
        """The rows that ATOMIC commands have committed."""

    def drop(self) -> None:
        """Forget it, where it is not in the round's own folder."""


def insert(id: bytes, generation: int, body: bytes) -> str:
    """The statement of an ATOMIC effect."""
    return f"INSERT INTO business (id, generation, body) VALUES ('{id.hex()}', {generation:d}, '{body.hex()}')"


def decode(rows: Iterable[tuple[str, int, str]]) -> list[Row]:
    """The rows of the business table."""
    return [(bytes.fromhex(id), generation, bytes.fromhex(body)) for id, generation, body in rows]


def migrate(url: str) -> None:
    """Make Semel's own tables there."""
    engine = Engine.connect(url)
    try:
        engine.migrate()
    finally:
        engine.close()


def token(folder: Path) -> str:
    """A name that belongs to this folder alone, for what must have one on a shared server."""
    return "soak_" + hashlib.sha256(str(folder).encode()).hexdigest()[:12]


class SqliteGround:
    """A file in the round's folder."""

    kinds: tuple[str, ...] = KINDS

    def __init__(self, folder: Path, seed: int) -> None:
        synchronous = random.Random(seed).choice(("FULL", "NORMAL"))
        self.database = str(folder / "semel.db")
        self.url = f"sqlite:///{self.database}?synchronous={synchronous}&busy_seconds=3"

    def prepare(self) -> None:
        """The file and its tables."""
        migrate(self.url)
        connection = sqlite3.connect(self.database, isolation_level=None)
        connection.execute(TABLE)
        connection.close()

    def read_committed(self) -> list[Row]:
        """The rows of the business table."""
        connection = sqlite3.connect(self.database, timeout=10, isolation_level=None)
        try:
            return decode(connection.execute(ROWS).fetchall())
        finally:
            connection.close()

    def drop(self) -> None:
        """The folder is its owner's to delete."""


def ground(url: str | None, folder: Path, seed: int) -> Ground:
    """The ground for a round in this folder: a SQLite file of its own, or a place of its own on the server of ``url``.

    Raises SoakError: this URL is no server's, or has an option that the soak must choose itself.
    """
    if url is None:
        return SqliteGround(folder, seed)
    from verification.soak.ground_servers import server_ground

    return server_ground(url, token(folder))


__all__ = ["KINDS", "ROWS", "TABLE", "Ground", "Row", "SoakError", "decode", "ground", "insert", "migrate", "token"]
