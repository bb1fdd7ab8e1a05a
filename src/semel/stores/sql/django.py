"""Joining the transaction of Django's connection: ``with transaction.atomic(): with engine.atomic(connection, …)``.

Django owns BEGIN and COMMIT. The record belongs to the outermost ``atomic()`` block; inside a ``TestCase``, whose
own blocks are around every test, to the outermost of the test's, which is a savepoint there. What the two databases
need beyond that is in ``django_postgres`` and ``django_sqlite``.
"""

from __future__ import annotations

from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from semel.errors import JoinRefused

_OUTSIDE: Final = (
    "no transaction is open on Django's connection {alias!r}, so nothing would be committed together; join inside "
    "with transaction.atomic(): …"
)
_NESTED: Final = (
    "this atomic() block is a savepoint inside another one: rolling back to it would take the record along and leave "
    "what was written before it; join in the outermost block"
)
_FAILED: Final = "this atomic() block has failed and will be rolled back; join in a new one"
_ELSEWHERE: Final = "this store is {store}, Django's connection {alias!r} is {vendor}: two databases"


def is_django(connection: Any) -> bool:
    """Whether it is a connection of Django's, or the proxy ``django.db.connection``."""
    return isinstance(connection, (BaseDatabaseWrapper, ConnectionProxy))


def check_block(connection: Any, vendor: str, store: str) -> bool:
    """Whether the open block is inside a TestCase's.

    Raises JoinRefused where the database is of another kind, or no outermost block is open.
    """
    if connection.vendor != vendor:
        raise JoinRefused(_ELSEWHERE.format(store=store, alias=connection.alias, vendor=connection.vendor))
    connection.ensure_connection()
    tests = sum(bool(block._from_testcase) for block in connection.atomic_blocks)
    depth = len(connection.atomic_blocks) - tests
    if depth == 0:
        raise JoinRefused(_OUTSIDE.format(alias=connection.alias))
    if depth > 1:
        raise JoinRefused(_NESTED)
    if connection.needs_rollback:
        raise JoinRefused(_FAILED)
    return tests > 0
