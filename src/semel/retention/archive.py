"""Archives of exactly the rows that a purge is about to delete, and the purge as of the archive's time.

Time passes between an archive and its purge. So both judge every row at the archive's time: rows that become due
later wait for the next purge. A row that was due then and was claimed again meanwhile is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, TypeVar

from semel.admin.export_rows import KINDS, answer_document, document_of
from semel.admin.failures import UsageFailed
from semel.admin.filters import pages
from semel.admin.move.rows import pages_of
from semel.admin.words import Json
from semel.core.flow import Ask, Flow, MakeFlow
from semel.core.model import STORED_ANSWERS, Find, Record
from semel.core.timing import may_drop_answer, may_forget
from semel.engine.sync_engine import Engine
from semel.operations.flow import is_kept_by
from semel.stores.mariadb.requests import SeveralStatements
from semel.stores.memory.store import TableCall
from semel.stores.sql.damage import damage_of, repair
from semel.stores.sql.statements import Execute, Now, Query, Statement, compose

T = TypeVar("T")
ANSWERS_AT_ONCE: Final = 8  # an answer may take a megabyte
MOMENT: Final = "moment"


class Archive:
    """The rows that a purge at ``now`` deletes.

    Parameters: ``engine``, open; ``keep_us`` how long published events are kept.

    ``now`` is the time, in microseconds (the store's by default), at which the archive and its purge judge every row;
    ``bulks`` are,
    once :meth:`documents` has ended, the operation ids of the bulks whose items are in the archive.

    Raises UsageFailed on Redis, which expires records itself.
    """

    def __init__(self, engine: Engine, keep_us: int, now: int | None = None) -> None:
        if engine.store.capabilities.forgets_by_itself:
            raise UsageFailed(
                "--archive: Redis deletes a record itself at the end of its retention, so Semel cannot archive it "
                "first. Run semel export while the records exist"
            )
        self.engine = engine
        self.keep_us = keep_us
        self.now = engine.perform("now", engine.store.now) if now is None else now
        self.bulks: set[bytes] = set()

    def documents(self) -> Iterator[dict[str, Json]]:
        """Yield each row as `semel export --answers` writes it, with its kind in ``of``.

        ``answers`` are records that lose their answer and keep their tombstone.
        """
        forgotten: set[bytes] = set()
        for record in self._due():
            over = may_forget(record.forget_after, self.now)
            if over:
                forgotten.add(record.operation_id)
            of = "records" if over else "answers"
            yield {"of": of, **document_of(record, self.now), **answer_document(record)}
        if is_kept_by(self.engine.store):
            for kind in ("operations", "bulks", "items", "messages", "events"):
                yield from self._rows(kind, forgotten)

    def _due(self) -> Iterator[Record]:
        engine = self.engine
        for page in pages(engine, Find()):
            due = [record.id for record in page.records if self._is_due(record)]
            for start in range(0, len(due), ANSWERS_AT_ONCE):
                ids = tuple(due[start : start + ANSWERS_AT_ONCE])
                for whole in engine.perform("read", lambda ids=ids: engine.store.read(ids)):  # type: ignore[misc]
                    if whole is not None and self._is_due(whole):  # neither forgotten nor claimed again meanwhile
                        yield whole

    def _is_due(self, record: Record) -> bool:
        return may_forget(record.forget_after, self.now) or (
            record.answer_kind in STORED_ANSWERS and may_drop_answer(record.answer_until, self.now)
        )

    def _rows(self, kind: str, forgotten: set[bytes]) -> Iterator[dict[str, Json]]:
        noun, shown = KINDS[kind]
        for page in pages_of(self.engine, noun):
            rows: list[dict[str, Any]] = [dict(zip(noun.columns, row, strict=False)) for row in page]
            if kind == "bulks":
                self._find_orphans([row["operation_id"] for row in rows], forgotten)
            for values in rows:
                damage = damage_of(kind, values)
                readable = values if damage is None else repair(kind, values)
                if self._is_over(kind, readable):
                    said: dict[str, Json] = {} if damage is None else {"damage": damage}
                    yield {"of": kind, **said, **shown(readable, True)}

    def _find_orphans(self, ids: list[bytes], forgotten: set[bytes]) -> None:
        engine = self.engine
        read = engine.perform("read_operations", lambda: engine.store.read_operations(tuple(ids)))
        there = {record.operation_id for record in read if record is not None}
        self.bulks |= {id for id in ids if id in forgotten or id not in there}

    def _is_over(self, kind: str, row: Mapping[str, Any]) -> bool:
        match kind:
            case "operations":
                return may_forget(row["forget_after"], self.now)
            case "bulks" | "items":
                return row["operation_id"] in self.bulks
            case "messages":
                return row["parked_at"] is None and row["forget_after"] is not None and row["forget_after"] <= self.now
            case _:
                return row["published_at"] is not None and row["published_at"] < self.now - self.keep_us


def fix_now(now: int, make: MakeFlow[T]) -> MakeFlow[T]:
    """Return the same flow with the store's time fixed at ``now``, in microseconds, for every store."""

    def make_fixed() -> Flow[T]:
        flow = make()
        try:
            needed = next(flow)
            while True:
                reply = yield _at(now, needed)
                needed = flow.send(now if isinstance(needed, Now) else reply)
        except StopIteration as stop:
            result: T = stop.value
            return result

    return make_fixed


def _at(now: int, needed: Ask[Any]) -> Ask[Any]:
    match needed:
        case TableCall():
            act = needed.act
            return TableCall(needed.verb, lambda table, _: act(table, now))
        case SeveralStatements():
            return SeveralStatements([_statement_at(now, part) for part in needed.parts])
        case Query() | Execute():
            return _statement_at(now, needed)
        case _:
            return needed


def _statement_at(now: int, needed: Query | Execute) -> Query | Execute:
    """Return the request with the time as a value, in place of the server's own ``:now``."""
    if "now" not in needed.statement.names or isinstance(needed.params, tuple) or "now" in needed.params:
        return needed
    return type(needed)(_with_moment(needed.statement), {**needed.params, MOMENT: now})


@cache
def _with_moment(statement: Statement) -> Statement:
    return compose(f"{statement.name}_at", statement.text.replace(":now", f":{MOMENT}"))
