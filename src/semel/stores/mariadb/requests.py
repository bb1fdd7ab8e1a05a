"""The MariaDB store's requests beyond single statements: several at once, and statements over several records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semel.core.flow import Ask
from semel.stores.sql.statements import Execute, Params, Query, Row, Statement


@dataclass(frozen=True, slots=True)
class RowValues:
    """A parameter that follows VALUES: several rows of values.

    Parameters: ``each`` the text of one row; ``own`` the parameters that differ between rows; ``values`` those of each
    row, in that order. All others are the statement's.
    """

    each: Statement
    own: tuple[str, ...]
    values: Sequence[tuple[Any, ...]]


class OfEach(tuple[tuple[bytes, Any], ...]):
    """A parameter with one value for each record, as pairs of an id and a value; a row reads its own record's."""

    __slots__ = ()


class SeveralStatements(Ask[list[Any]]):
    """Independent statements in one round trip and one commit; the replies in their order.

    If they exceed the server's packet size, they are sent in parts, each committed by itself.
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


class SettleTogether(Ask[bool]):
    """A writing statement in its own commit that must find so many rows; the reply is False if it did not.

    Then it has written no row. The reply is also False if it does not fit into a packet or a transaction is open.
    """

    __slots__ = ("count", "params", "statement")

    def __init__(self, statement: Statement, params: Params, count: int) -> None:
        self.statement = statement
        self.params = params
        self.count = count


class Reserve(Ask[list[Row] | None]):
    """A claiming statement; the reply is its rows, or None if a lock is held for too long: nothing was written.

    Parameters: ``divides`` whether it claims several records: then None also where it does not fit into a packet;
    ``is_compound`` whether it is a part of a compound statement, in a commit of its own unless a transaction is open.
    """

    __slots__ = ("divides", "is_compound", "query")

    def __init__(self, query: Query, *, divides: bool = False, is_compound: bool = False) -> None:
        self.query = query
        self.divides = divides
        self.is_compound = is_compound
