"""Sealed data other than answers, for operators: details of items and rows, steps, requests and stored files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from semel.core.flow import Flow
from semel.core.identity import uuid_text
from semel.engine.sync_engine import Engine
from semel.errors import SemelError
from semel.imports.sealed import LENGTH, about_frame
from semel.imports.store import FORM_PLACES
from semel.operations.flow import is_kept_by
from semel.sealing.rules import MARK, about_item, about_step, key_name
from semel.sealing.sealer import Sealer
from semel.steps.rules import Unpackable, pack_steps, unpack_steps
from semel.stores.sql.dialect import Dialect, Values, dialect_of
from semel.stores.sql.statements import Row
from semel.stores.sql.tables import rare_rows

NOUN: Final = "seals"
KINDS: Final = ("details", "steps", "requests", "files")
NAMED_MAX: Final = 5
_PAGES: Final = {"details": 200, "records": 50, "files": 4}  # a request has a mebibyte at most, a part a quarter of it
_FIRST: Final[dict[str, Values]] = {
    "details": {"operation_id": b"", "place": -1},
    "records": {"id": b""},
    "files": {"digest": b"", "place": -1},
}


class SealedPart(NamedTuple):
    """Sealed texts that are written together: their kind, and the binding of each.

    Parameters: ``put`` turns the new texts into a write: the statement, and the row's names and contents.
    """

    kind: str
    name: str
    texts: tuple[tuple[bytes, bytes], ...]
    put: Callable[[list[bytes]], tuple[str, Values]]

    @property
    def keys(self) -> list[str]:
        """The names of the keys; "" for the application's own sealer."""
        return [key_name(sealed) or "" for sealed, _ in self.texts]


@dataclass(slots=True)
class PartsResealed:
    """The result of resealing parts: rows by kind, texts by key, rows changed by others, and unreadable ones."""

    resealed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    keys: dict[str, int] = field(default_factory=dict)
    changed: int = 0
    unreadable: int = 0
    named: list[str] = field(default_factory=list)


def reseal_parts(engine: Engine, sealer: Sealer, *, dry_run: bool = False) -> PartsResealed:
    """Seal data under the ring's first key if it is sealed under another one. Unsealed data does not change.

    Each page is written in its own transaction, and a row only if it is unchanged since it was read: a walk is safe
    beside live traffic, and may be repeated.
    """
    done = PartsResealed()
    if not is_kept_by(engine.store):
        return done
    rows = _Rows(engine.store)
    for noun in _PAGES:
        for page in rows.pages(engine, noun):
            changes = [change for part in _parts_of(noun, page) if (change := _change(part, sealer, done)) is not None]
            replies = [1] * len(changes)
            if changes and not dry_run:
                replies = engine.perform("reseal", lambda: rows.put(changes))  # noqa: B023 - performed at once
            for (kind, _, _), reply in zip(changes, replies, strict=True):
                done.resealed[kind] += reply
                done.changed += 1 - reply
    return done


def _change(part: SealedPart, sealer: Sealer, done: PartsResealed) -> tuple[str, str, Values] | None:
    for key in part.keys:
        done.keys[key] = done.keys.get(key, 0) + 1
    if set(part.keys) == {sealer.key_names[0]}:
        return None
    try:
        texts = [sealer.seal(sealer.open(sealed, about), about) for sealed, about in part.texts]
    except SemelError:
        done.unreadable += 1
        if len(done.named) < NAMED_MAX:
            done.named.append(f"{part.name} (sealed under {', '.join(sorted(map(repr, set(part.keys))))})")
        return None
    return (part.kind, *part.put(texts))


def newest_parts(engine: Engine, limit: int) -> Iterator[SealedPart]:
    """Read the sealed heads of the newest items, of executions that may continue, and of the newest files."""
    if not is_kept_by(engine.store):
        return
    rows = _Rows(engine.store)
    for noun, statement in (("details", "details_newest"), ("records", "records_open"), ("files", "files_newest")):
        found = engine.perform("read", lambda statement=statement: rows.some(statement, limit))  # type: ignore[misc]
        yield from _parts_of(noun, found)


class _Rows:
    """The flows of one store."""

    def __init__(self, store: Any) -> None:
        self._dialect: Dialect = dialect_of(store, "sealed details, steps and files")
        self._sql = self._dialect.statements(NOUN)

    def pages(self, engine: Engine, noun: str) -> Iterator[list[Row]]:
        """Read every row that may have sealed data, a page at a time."""
        after, limit = dict(_FIRST[noun]), _PAGES[noun]
        while True:
            page = engine.perform("read", lambda after=after: self._page(noun, after, limit))  # type: ignore[misc]
            if page:
                yield page
                after = dict(zip(after, page[-1], strict=False))
            if len(page) < limit:
                return

    def _page(self, noun: str, after: Values, limit: int) -> Flow[list[Row]]:
        if noun == "records":
            return (yield from rare_rows(self._dialect, self._sql["records_page"], after["id"], limit))
        params: Values = {**after, "limit": limit, **({"first": FORM_PLACES} if noun == "files" else {})}
        return (yield from self._dialect.rows(self._sql[f"{noun}_page"], params))

    def some(self, statement: str, limit: int) -> Flow[list[Row]]:
        """Read the rows of a statement for the newest ones."""
        params: Values = {"limit": limit, **({"first": FORM_PLACES} if statement == "files_newest" else {})}
        return (yield from self._dialect.rows(self._sql[statement], params))

    def put(self, changes: Sequence[tuple[str, str, Values]]) -> Flow[list[int]]:
        """Write rows in one commit; return 1 for each that was unchanged since it was read."""
        yield from self._dialect.commit_together()
        written = []
        for _, statement, params in changes:
            written.append((yield from self._dialect.write(self._sql[statement], params)))
        return written


def _parts_of(noun: str, rows: Sequence[Row]) -> Iterator[SealedPart]:
    of: dict[str, Callable[[Any], Iterator[SealedPart]]] = {"details": _detail, "records": _record, "files": _frame}
    for row in rows:
        yield from of[noun](row)


def _detail(row: tuple[bytes, int, bytes]) -> Iterator[SealedPart]:
    id, place, detail = row
    if isinstance(detail, bytes) and detail.startswith(MARK):
        where: Values = {"operation_id": id, "place": place, "was": detail}
        name = f"the detail of item {place} of operation {uuid_text(id)}"
        text = detail, about_item(id, place)
        yield SealedPart("details", name, (text,), lambda new: ("details_put", {**where, "new": new[0]}))


def _record(row: tuple[bytes, int, bytes | None, bytes | None]) -> Iterator[SealedPart]:
    id, generation, stored, request = row
    if isinstance(request, bytes) and request.startswith(MARK):
        asked: Values = {"id": id, "was": request}
        name = f"the request of record {id.hex()[:16]}"
        yield SealedPart("requests", name, ((request, id),), lambda new: ("requests_put", {**asked, "new": new[0]}))
    try:
        steps = unpack_steps(stored, generation)
    except Unpackable:
        return  # the doctor of the records reports the damage
    sealed = [step for step in steps if step.result.startswith(MARK)]
    if sealed:
        listed: Values = {"id": id, "was": stored}

        def put(new: list[bytes]) -> tuple[str, Values]:
            texts = {step.identity: text for step, text in zip(sealed, new, strict=True)}
            again = tuple(step._replace(result=texts.get(step.identity, step.result)) for step in steps)
            return "steps_put", {**listed, "new": pack_steps(generation, again)}

        name = f"the steps of record {id.hex()[:16]}"
        yield SealedPart("steps", name, tuple((step.result, about_step(id, step.shown)) for step in sealed), put)


def _frame(row: tuple[bytes, int, int, bytes]) -> Iterator[SealedPart]:
    digest, place, size, body = row
    frame = body[LENGTH.size :]
    where: Values = {"digest": digest, "place": place, "was": body}
    text = frame, about_frame(digest, place - FORM_PLACES, size)
    name = f"part {place - FORM_PLACES} of the kept file {digest.hex()[:16]}"

    def put(new: list[bytes]) -> tuple[str, Values]:
        return "files_put", {**where, "new": LENGTH.pack(len(new[0])) + new[0]}

    yield SealedPart("files", name, (text,), put)
