"""A guard that refuses writes of Django's ORM while code runs in a transaction of Semel's.

Django writes on its own connection, which commits separately: such a write would remain if the transaction is rolled
back and run again, or exist without its record after a crash. In a view with ``effects="atomic"`` Semel joins Django's
own transaction: there it refuses the ORM's writes to other ``DATABASES``, for the same reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from semel.atomic.own_transaction import OwnTransaction
from semel.errors import ConfigurationError
from semel.stores.backend import Backend

_REFUSAL: Final = (
    "{name}: this code runs in a transaction of Semel's, and wrote on Django's connection {alias!r}, which commits for "
    "itself: a crash or a retry would leave one without the other, so Semel refused the write. Write on the connection "
    "that Semel gives to this code, or {instead}"
)
_OTHER: Final = (
    "this view's effects='atomic' commits with DATABASES[{joined!r}], and it wrote to DATABASES[{alias!r}], which "
    "commits for itself: a rollback or a crash would leave one without the other, so Semel refused the write. Write it "
    "in transaction.on_commit(...), or declare effects='external' or 'idempotent'; where each retry may write it "
    "again, such as a log, name the database: SEMEL = {{'BESIDE': [{alias!r}]}}"
)
_LEADING: Final = re.compile(r"(?:[\s(]|--[^\n]*\n|/\*.*?\*/)*", re.DOTALL)
_WRITES_WITHIN: Final = re.compile(r"\b(?:INSERT|UPDATE|DELETE|MERGE)\b", re.IGNORECASE)
# They write nothing, or end or nest a transaction without writes.
_HARMLESS: Final = frozenset(
    ("SELECT", "SHOW", "EXPLAIN", "PRAGMA", "SET", "BEGIN", "START", "SAVEPOINT", "RELEASE", "ROLLBACK", "COMMIT")
)
_VENDORS: Final = {"postgresql": "postgresql", "postgres": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
_inside: Final[ContextVar[OwnTransaction | None]] = ContextVar("semel_own_transaction", default=None)
_joined: Final[ContextVar[tuple[str, Collection[str]] | None]] = ContextVar("semel_joined_database", default=None)


@contextmanager
def refusing_writes(own: OwnTransaction) -> Iterator[None]:
    """Refuse Django's writes to the store's database during the block, with ConfigurationError.

    That includes the threads in which Django runs its async methods (``aupdate_or_create``).
    """
    token = _inside.set(own)
    try:
        yield
    finally:
        _inside.reset(token)


@contextmanager
def refusing_writes_beside(alias: str, allowed: Collection[str]) -> Iterator[None]:
    """Refuse Django's writes to any database but this one during the block, with ConfigurationError.

    Parameters: ``alias`` of the database whose transaction is the command's; ``allowed`` the aliases of other databases
    that may be written.
    """
    token = _joined.set((alias, allowed))
    try:
        yield
    finally:
        _joined.reset(token)


def check_statement(run: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
    """Check a statement, as an ``execute_wrapper`` of Django's. Raises ConfigurationError for a write to be refused."""
    own, joined, connection = _inside.get(), _joined.get(), context["connection"]
    alias = connection.alias
    if own is not None and _is_write(_text_of(sql, connection)) and _is_store_of(own.backend, connection):
        raise ConfigurationError(_REFUSAL.format(name=own.name, alias=alias, instead=own.instead))
    if joined is not None and alias not in (joined[0], *joined[1]) and _is_write(_text_of(sql, connection)):
        raise ConfigurationError(_OTHER.format(joined=joined[0], alias=alias))
    return run(sql, params, many, context)


def _text_of(sql: Any, connection: Any) -> str:
    """Read the text of a statement, which psycopg may have to compose (``psycopg.sql``)."""
    compose = getattr(sql, "as_string", None)
    return str(sql if compose is None else compose(connection.connection))


def _is_write(sql: str) -> bool:
    begun = _LEADING.match(sql)
    assert begun is not None
    word, *_ = sql[begun.end() :].split(None, 1) or [""]
    word = word.strip(";").upper()
    return _WRITES_WITHIN.search(sql) is not None if word == "WITH" else word not in _HARMLESS


def _is_store_of(backend: Backend, connection: Any) -> bool:
    """Return whether this connection may lead to the store's database, judged by its kind and name."""
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "sqlite":
        return backend.file is not None and Path(name).resolve() == Path(backend.file).resolve()
    url = urlsplit(backend.url)
    is_same_kind = _VENDORS.get(url.scheme.partition("+")[0]) == connection.vendor
    return is_same_kind and unquote(url.path[1:]) in (name, "")  # "": the URL leaves the name to the server
