"""The MariaDB store's requests beyond single statements: several at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.core.flow import Ask
from semel.stores.sql.statements import Execute, Query, Row


class SeveralStatements(Ask[list[Any]]):
    """Independent statements in one round trip and one commit; the replies in their order.

    Where they are more than one packet of the server's may hold, they are sent in parts, each committed by itself.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Query | Execute]) -> None:
        self.parts = parts


class SettleAnd(Execute):
    """A settlement inside an ATOMIC unit, and the rows to write after it if it succeeds."""

    __slots__ = ("also",)

    def __init__(self, settle: Execute, also: Sequence[Execute]) -> None:
        super().__init__(settle.statement, settle.params)
        self.also = also


class Reserve(Ask[list[list[Row]] | None]):
    """As :class:`SeveralStatements`; None, and nothing of it written, where a lock is held for too long."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Query]) -> None:
        self.parts = parts
