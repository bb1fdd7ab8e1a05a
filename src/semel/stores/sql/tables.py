"""Everything beside records as whole rows: operations, bulks and their items, events, messages, steps, imports.

For `semel move`, which copies them to another store unchanged, and `semel export`. Times stay the same, because all
stores use wall-clock time. The target's rows are never overwritten, except for facts that can only become true: that an
event was published, and that a message was handled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from semel.core.flow import Flow
from semel.core.identity import uuid_text
from semel.stores.sql.dialect import Dialect, Values, dialect_of
from semel.stores.sql.statements import Row, Statement, Value

NOUN: Final = "copies"
STRETCH: Final = 20_000  # records that one statement reads, of which few match
_LAST_ID: Final = b"\xff" * 16


class Noun(NamedTuple):
    """One kind of rows.

    ``key`` names a row; ``first`` sorts before all of them; ``page`` is how many are read at once, since some have
    payloads; ``grows`` is the column that may become true in one store before the other; ``told`` are the columns that
    depend on a row's progress, not on its identity.
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    first: tuple[Value, ...]
    page: int
    grows: str | None = None
    told: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[str, ...]:
        """The columns of the page's order."""
        return ("seq",) if self.name == "events" else self.key


OPERATIONS: Final = Noun(
    "operations",
    (
        *("operation_id", "record_id", "tenant", "caller", "operation", "business_ref", "ref_id", "holds", "state"),
        *("resource_type", "resource_id", "error_code", "keep_us", "created_at", "settled_at", "forget_after"),
    ),
    ("operation_id",),
    (b"",),
    500,
)
BULKS: Final = Noun(
    "bulks",
    (
        *("operation_id", "total", "done", "succeeded", "failed", "retryable", "unknown", "created_at"),
        "touched_at",
    ),
    ("operation_id",),
    (b"",),
    500,
)
ITEMS: Final = Noun(
    "items",
    (
        *("operation_id", "place", "item_id", "state", "target_id", "result_id", "error_code", "retryable", "detail"),
        "settled_at",
    ),
    ("operation_id", "place"),
    (b"", -1),
    500,
)
EVENTS: Final = Noun(
    "events",
    (
        *("id", "aggregatetype", "aggregateid", "type", "payload", "topic", "headers", "tenant", "lane"),
        *("operation_id", "created_at", "tries", "next_at", "parked_at", "reason", "published_at"),
    ),
    ("id",),
    (0,),
    50,
    "published_at",
    ("tries", "next_at", "parked_at", "reason"),
)
MESSAGES: Final = Noun(
    "messages",
    ("consumer", "message_id", "handled_at", "tries", "parked_at", "reason", "forget_after"),
    ("consumer", "message_id"),
    ("", ""),
    500,
    "handled_at",
    ("tries", "parked_at", "reason", "forget_after"),
)
STEPS: Final = Noun("steps", ("id", "operation_id", "steps", "request"), ("id",), (b"",), 50)
IMPORTS: Final = Noun(
    "imports",
    (
        *("id", "tenant", "operation", "supplier", "idempotency_key", "generation", "sha256", "bytes", "media_type"),
        *("recipe", "state", "attempts", "next_at", "error_code", "reason", "row_count", "booked", "skipped", "failed"),
        *("unknown", "submissions", "bulk_id", "content_ref", "content_until", "keep_content_us", "keep_us"),
        *("created_at", "last_seen_at", "started_at", "ended_at", "forget_after"),
    ),
    ("id",),
    (b"",),
    500,
)
IMPORT_NAMES: Final = Noun(
    "import_names",
    ("import_id", "name", "times", "first_seen_at", "last_seen_at"),
    ("import_id", "name"),
    (b"", ""),
    500,
)
KNOWN_ROWS: Final = Noun("known_rows", ("id", "import_id", "place", "forget_after"), ("id",), (b"",), 500)
FILE_PARTS: Final = Noun("file_parts", ("sha256", "place", "body"), ("sha256", "place"), (b"", -1), 4)
FILES: Final = Noun("files", ("sha256", "bytes", "whole", "touched_at"), ("sha256",), (b"",), 500)
# A row comes after the rows that it refers to: a file after its parts, and its jobs after the file.
NOUNS: Final = (
    *(STEPS, OPERATIONS, BULKS, ITEMS, EVENTS, MESSAGES),
    *(FILE_PARTS, FILES, KNOWN_ROWS, IMPORT_NAMES, IMPORTS),
)


UNSAID: Final = frozenset({"last_event", "handled", "import_turns"})  # of the holdings: not counts of rows


class Holdings(NamedTuple):
    """The number of rows other than records. ``steps``: executions without an outcome that have recorded some.

    ``outside`` counts the imports whose kept bytes are in a folder or an object store; ``files`` the kept files in the
    database. ``last_event``, ``handled`` (of the messages) and ``import_turns`` reveal another process's writes even if
    no count grows.
    """

    operations: int
    bulks: int
    items: int
    waiting: int
    parked: int
    published: int
    messages: int
    steps: int
    last_event: int
    handled: int = 0
    imports: int = 0
    outside: int = 0
    files: int = 0
    known_rows: int = 0
    import_turns: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows."""
        return not any(count for name, count in self._asdict().items() if name not in UNSAID)


def rare_rows(dialect: Dialect, statement: Statement, after: Value, limit: int) -> Flow[list[Row]]:
    """Read a page of the few records that match, in the order of their ids; shorter than ``limit`` only at the end.

    Each statement reads a stretch of :data:`STRETCH` records, so that it ends in time however many there are.

    Parameters: ``statement`` returns rows that begin with the id, after ``:id`` and up to ``:reached``.
    """
    ends = dialect.statements(NOUN)["records_stretch"]
    found: list[Row] = []
    while True:
        stretch = yield from dialect.rows(ends, {"id": after, "skipped": STRETCH - 1})
        reached = cast(bytes, stretch[0][0]) if stretch else _LAST_ID
        found += yield from dialect.rows(statement, {"id": after, "reached": reached, "limit": limit - len(found)})
        if len(found) == limit or not stretch:
            return found
        after = reached


class Copies:
    """The rows of one store. Raises ConfigurationError where it is no SQL database."""

    def __init__(self, store: object) -> None:
        self._dialect: Dialect = dialect_of(store, "operations, events, messages, items and imports")
        self._sql = self._dialect.statements(NOUN)

    def holdings(self) -> Flow[Holdings]:
        """Count the rows. Reads all of them."""
        [row] = yield from self._dialect.rows(self._sql["tally"], {})
        return Holdings._make(cast("tuple[int, ...]", row))

    def relay_us(self) -> Flow[int]:
        """Return for how many microseconds a relay of this store still counts as alive; 0 without one."""
        rows = yield from self._dialect.rows(self._sql["relays"], {})
        return cast(int, rows[0][0]) if rows else 0

    def page(self, noun: Noun, after: Sequence[Value]) -> Flow[list[Row]]:
        """Read rows after a place: the columns of the noun, then those of its order if they differ."""
        if noun.name == STEPS.name:
            return (yield from rare_rows(self._dialect, self._sql["steps_page"], after[0], noun.page))
        params: Values = {**dict(zip(map(_parameter, noun.order), after, strict=True)), "limit": noun.page}
        return (yield from self._dialect.rows(self._sql[f"{noun.name}_page"], params))

    def there(self, noun: Noun, rows: Sequence[Row]) -> Flow[dict[tuple[Value, ...], Row]]:
        """Read the existing rows with the names of these, by name."""
        keys = [dict(zip(map(_parameter, noun.key), name_of(noun, row), strict=True)) for row in rows]
        found = yield from self._dialect.rows_all(self._sql[f"{noun.name}_there"], keys)
        return {name_of(noun, row): row for row in found}

    def put(self, noun: Noun, rows: Sequence[Row]) -> Flow[None]:
        """Write rows in their order, in one commit; existing rows stay unchanged."""
        yield from self._dialect.commit_together()
        names = [_parameter(column) for column in noun.columns]
        each = [dict(zip(names, row[: len(names)], strict=True)) for row in rows]
        yield from self._dialect.write_all(self._sql[f"{noun.name}_put"], each)


def _parameter(column: str) -> str:
    """Return a column's parameter name in a statement, which has only letters."""
    return "digest" if column == "sha256" else column


def name_of(noun: Noun, row: Row) -> tuple[Value, ...]:
    """Return the identifying values of a row."""
    return tuple(row[noun.columns.index(column)] for column in noun.key)


def place_of(noun: Noun, row: Row) -> tuple[Value, ...]:
    """Return the place of a row, after which the next page begins."""
    return (row[-1],) if noun.order != noun.key else name_of(noun, row)


def is_behind(noun: Noun, row: Row, copy: Row) -> bool:
    """Whether a copy lacks a later change of its original."""
    if noun.name == "steps":
        return row[1] == copy[1] and row != copy
    if noun.grows is None:
        return False
    at = noun.columns.index(noun.grows)
    return row[at] is not None and copy[at] is None


def is_alike(noun: Noun, row: Row, copy: Row) -> bool:
    """Whether a copy equals its original, or has progressed since."""
    if is_behind(noun, row, copy):
        return False
    free = () if noun.grows is None else (noun.grows, *noun.told)
    return all(row[at] == copy[at] for at, column in enumerate(noun.columns) if column not in free)


def describe_row(noun: Noun, row: Row) -> str:
    """Describe a row for people."""
    name, other = row[0], row[1]
    match noun.name:
        case "events":
            return f"the event {cast(str, name)}"
        case "messages":
            return f"a message of the consumer {name!r}"
        case "steps":
            return f"the steps of operation {uuid_text(cast(bytes, other))}"
        case "items":
            return f"item {other!r} of operation {uuid_text(cast(bytes, name))}"
        case "imports":
            return f"the import {uuid_text(cast(bytes, name))}"
        case "import_names":
            return f"a file name of the import {uuid_text(cast(bytes, name))}"
        case "known_rows":
            return f"a booked row of the import {uuid_text(cast(bytes, other))}"
        case "files" | "file_parts":
            return f"the kept file {cast(bytes, name).hex()}"
        case _:
            return f"operation {uuid_text(cast(bytes, name))}"
