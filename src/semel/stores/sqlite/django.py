"""Joining Django's ``atomic()`` block on SQLite.

Django has begun it already, as DEFERRED unless its settings say ``"transaction_mode": "IMMEDIATE"``: a block that has
read before it joins may be refused the file's write lock at once, and then nothing happened.
"""

from __future__ import annotations

from typing import Any

from semel.errors import JoinRefused
from semel.stores.sql.django import check_block
from semel.stores.sqlite.join import ELSEWHERE, JoinedUnit, StoreFile, executing, is_of_file


class JoinedBlock(JoinedUnit):
    """The block with the record in it. Django commits or rolls back, also where the claim met a verdict."""

    def rollback(self) -> None:
        """Django's to do."""


def join_django(connection: Any, file: StoreFile) -> JoinedBlock:
    """Join Django's open block. Raises JoinRefused."""
    check_block(connection, "sqlite", "SQLite")
    block = connection.atomic_blocks[-1]
    execute = executing(connection.connection)
    if not is_of_file(execute, file):
        raise JoinRefused(ELSEWHERE)

    def is_nested() -> bool:
        return block in connection.atomic_blocks and connection.atomic_blocks[-1] is not block

    return JoinedBlock(connection, execute, file.clock, is_nested)
