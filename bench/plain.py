"""The two statements of ``bench/pgbench`` from Python: the least that a claim and a completion can be."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bench.subjects import ANSWER_BODY

SCRIPTS: Final = Path(__file__).with_name("pgbench")
HEADERS: Final = b"h" * 60  # about what Semel keeps of an answer's headers
_CLAIM: Final = """
INSERT INTO bench_plain (k, fp, token, lease, expires, state)
VALUES ({0}, {1}, 1, now() + interval '30 s', now() + interval '24 h', 1)
ON CONFLICT (k) DO NOTHING RETURNING token
"""
_COMPLETE: Final = """
UPDATE bench_plain SET state = 2, status = 201, headers = {1}, body = {2}
WHERE k = {0} AND token = 1 AND state = 1
"""
_OF_PSYCOPG: Final = tuple(text.format("%b", "%b", "%b") for text in (_CLAIM, _COMPLETE))
_OF_ASYNCPG: Final = tuple(text.format("$1", "$2", "$3") for text in (_CLAIM, _COMPLETE))

Say = Callable[[Any, bytes], Awaitable[bool]]


def plain_id(key: str) -> bytes:
    """Return the id under which a key is stored."""
    return hashlib.sha256(key.encode()).digest()[:16]


def make_plain_table(url: str) -> None:
    """An empty table for the two statements."""
    import psycopg

    with psycopg.connect(url.replace("+asyncpg", "", 1), autocommit=True) as database:
        database.execute((SCRIPTS / "schema.sql").read_bytes())


async def _connect_psycopg(url: str) -> Any:
    import psycopg

    return await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=0)


async def _connect_asyncpg(url: str) -> Any:
    import asyncpg

    return await asyncpg.connect(url.replace("+asyncpg", "", 1))


async def _claim_psycopg(connection: Any, id: bytes) -> bool:
    said = await connection.execute(_OF_PSYCOPG[0], (id, bytes(32)), binary=True)
    return await said.fetchone() is not None


async def _complete_psycopg(connection: Any, id: bytes) -> bool:
    said = await connection.execute(_OF_PSYCOPG[1], (HEADERS, ANSWER_BODY, id), binary=True)
    return bool(said.rowcount == 1)


async def _claim_asyncpg(connection: Any, id: bytes) -> bool:
    return bool(await connection.fetch(_OF_ASYNCPG[0], id, bytes(32)))


async def _complete_asyncpg(connection: Any, id: bytes) -> bool:
    return bool(await connection.execute(_OF_ASYNCPG[1], id, HEADERS, ANSWER_BODY) == "UPDATE 1")


CONNECTS: Final[Mapping[str, Callable[[str], Awaitable[Any]]]] = {
    "postgresql": _connect_psycopg,
    "postgresql+asyncpg": _connect_asyncpg,
}
"""By the URL's scheme: a connection on which each statement is a commit, and prepared."""
CLAIMS: Final[Mapping[str, Say]] = {"postgresql": _claim_psycopg, "postgresql+asyncpg": _claim_asyncpg}
"""Likewise: claim this id on this connection. Whether it was new."""
COMPLETIONS: Final[Mapping[str, Say]] = {"postgresql": _complete_psycopg, "postgresql+asyncpg": _complete_asyncpg}
"""Likewise: complete what was claimed. Whether it was open."""
