"""SQL as data: the asks of every SQL store, and the reader of ``.sql`` files with named statements.

Only ``int | bytes | str | None`` cross a driver, and rows are positional. The text has one neutral style (``:name``
parameters); a driver compiles it if its client library wants another style.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Final

from semel.core.flow import Ask

Value = int | bytes | str | None
Bound = tuple[Value | bytearray, ...]  # in a statement's order, as SQLite's client library takes them directly
Argument = Value | Sequence[Value]  # a column of a batch, where the database takes one
Row = tuple[Value, ...]
Params = Mapping[str, Argument]


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement: as written, with ``:name`` parameters; as ``?`` with their names in order; and as
    ``$1`` with each name once. ``planned_once``: a plan made at any size of its tables is right at every size, so that
    a server may keep it. ``batch``: the statement over columns that does the same outside a unit.
    """

    name: str
    text: str
    qmark: str
    names: tuple[str, ...]
    numbered: str = ""
    distinct: tuple[str, ...] = ()
    planned_once: bool = False
    batch: Statement | None = field(default=None, compare=False)

    def values(self, params: Params | Row) -> tuple[Argument, ...]:
        """Return the parameters in the statement's order. A tuple is in that order already."""
        return params if isinstance(params, tuple) else tuple([params[name] for name in self.names])


class Now(Ask[int]):
    """The store's time in microseconds. Databases inside this process use the host's clock."""

    __slots__ = ()


class TakeTurn(Ask[int | None]):
    """The next turn of a worker, as ``workers.rules.TakesTurns`` has it, where the database is a file of this host.

    The reply None: turns are impossible there.
    """

    __slots__ = ("every_us", "kind", "mine")

    def __init__(self, kind: str, mine: int | None, every_us: int) -> None:
        self.kind = kind
        self.mine = mine
        self.every_us = every_us


class Query(Ask[list[Row]]):
    """Rows of one statement. ``params`` by name, or a tuple in the statement's order where speed matters."""

    __slots__ = ("params", "statement")

    def __init__(self, statement: Statement, params: Params | Row) -> None:
        self.statement = statement
        self.params = params


class Execute(Ask[int]):
    """A writing statement; the reply is the number of rows it changed."""

    __slots__ = ("params", "statement")

    def __init__(self, statement: Statement, params: Params | Row) -> None:
        self.statement = statement
        self.params = params


class ExecuteMany(Ask[int]):
    """A writing statement, run for each row of parameters in order; the reply is the sum of the changed rows."""

    __slots__ = ("rows", "statement")

    def __init__(self, statement: Statement, rows: Sequence[Bound]) -> None:
        self.statement = statement
        self.rows = rows


class Script(Ask[None]):
    """A migration: several statements, inside the driver's transaction."""

    __slots__ = ("statements",)

    def __init__(self, statements: tuple[str, ...]) -> None:
        self.statements = statements


class Together(Ask[None]):
    """Run the rest of this flow as one transaction. A driver that always does so ignores it."""

    __slots__ = ()


TOGETHER: Final = Together()
NOW: Final = Now()
NOW_LOCKED: Final = Now()  # the same, once the write lock is held: a lease must not begin before its holder waited
_HEAD = re.compile(r"^-- name: (\w+)( \(planned once\))?\n", re.MULTILINE)
_INCLUDE = re.compile(r"^-- include: (\S+) (\S+)$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")


@cache
def statements(package: str, file: str) -> Mapping[str, Statement]:
    """Read the named statements of a ``.sql`` file in a package.

    ``-- include: PACKAGE FILE`` inserts the text of another file, which statements of two rooms share.
    """
    parts = _HEAD.split(_INCLUDE.sub(lambda match: _read(match[1], match[2]).rstrip(), _read(package, file)))
    found = {}
    for name, once, block in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        text = "\n".join(line for line in block.splitlines() if not line.startswith("--")).strip().rstrip(";")
        found[name] = compose(name, text, planned_once=once is not None)
    return found


def _read(package: str, file: str) -> str:
    return resources.files(package).joinpath(file).read_text("utf-8")


def compose(name: str, text: str, *, planned_once: bool = False) -> Statement:
    """Make a statement of a text with ``:name`` parameters."""
    names = tuple(_PARAMETER.findall(text))
    distinct = tuple(dict.fromkeys(names))
    numbers = {name: f"${number}" for number, name in enumerate(distinct, start=1)}
    numbered = _PARAMETER.sub(lambda match: numbers[match[1]], text)
    return Statement(name, text, _PARAMETER.sub("?", text), names, numbered, distinct, planned_once)


def by_number(statement: Statement) -> Statement:
    """Make a SQLite statement with ``?1``, ``?2``: each parameter is passed once, in the order of ``distinct``."""
    return replace(statement, qmark=statement.numbered.replace("$", "?"), names=statement.distinct)


def script(text: str) -> tuple[str, ...]:
    """Return the single statements of a migration, comments dropped. Migrations hold no ``;`` inside literals."""
    bare = "\n".join(line.split("--", 1)[0] for line in text.splitlines())
    return tuple(part.strip() for part in bare.split(";") if part.strip())
