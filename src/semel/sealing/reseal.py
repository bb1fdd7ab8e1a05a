"""Operators' tools for sealed answers: which keys are in use, which are missing, and sealing again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from semel.admin.filters import pages
from semel.core.contract import DoctorFinding
from semel.core.identity import uuid_text
from semel.core.model import STORED_ANSWERS, Answer, AnswerKind, Find, Record, State
from semel.core.record import answer_of
from semel.engine.sync_engine import Engine
from semel.errors import SemelError
from semel.sealing.parts import newest_parts
from semel.sealing.rows import Reseal
from semel.sealing.rules import Seals, key_name, open_answer, seal_answer
from semel.sealing.sealer import Sealer
from semel.stores.findings import names_text

AT_ONCE: Final = 8  # an answer may have a megabyte: few are in memory at once
LOOKED_AT: Final = 1000  # by the doctor, the newest ones
NAMED_MAX: Final = 5
OWN: Final = "(a sealer of your own)"
ADD_KEY: Final = "add it after the others in the ring (SEMEL_SEAL_KEYS_FILE, and the application's Sealer)"


def key_of(answer: Answer) -> str:
    """Return the name of the key that a stored answer is sealed under."""
    return key_name(answer.body) or OWN


def open_stored_answer(record: Record, answer: Answer, sealer: Seals) -> Answer:
    """Decrypt a record's sealed answer. Raises the sealer's errors."""
    return open_answer(answer, record.id, State(record.state), sealer)


@dataclass(slots=True)
class Resealed:
    """The result of resealing: records read, answers sealed now, answers already current, and unreadable ones."""

    looked_at: int = 0
    resealed: int = 0
    plain: int = 0  # left plain, because sealing them was not requested
    changed: int = 0  # changed by others meanwhile; the next walk reads them
    keys: dict[str, int] = field(default_factory=dict)  # number found under each key
    unreadable: int = 0
    named: list[str] = field(default_factory=list)


def reseal(
    engine: Engine,
    sealer: Sealer,
    query: Find,
    *,
    plain: bool = False,
    dry_run: bool = False,
    tell: Callable[[Resealed], None] = lambda so_far: None,
) -> Resealed:
    """Reseal every stored answer that is sealed under another key than the ring's first, under that.

    Answers that are done already are only read, so an interrupted walk may simply start again.

    Parameters: ``query`` which records; ``plain`` seals unsealed answers too; ``dry_run`` only counts.
    """
    done = Resealed()
    for page in pages(engine, query):
        known = [each.id for each in page.records if each.answer_kind in STORED_ANSWERS]
        done.looked_at += len(page.records) - len(known)
        for start in range(0, len(known), AT_ONCE):
            ids = tuple(known[start : start + AT_ONCE])
            rows = engine.perform("read", lambda ids=ids: engine.store.read(ids))  # type: ignore[misc]
            changes = [change for change in (_change(row, sealer, done, plain=plain) for row in rows) if change]
            if changes and not dry_run:
                kept = engine.perform("reseal", lambda changes=changes: engine.store.reseal(changes))  # type: ignore[misc]
                done.resealed += sum(kept)
                done.changed += len(kept) - sum(kept)
            elif dry_run:
                done.resealed += len(changes)
            tell(done)
    return done


def _change(row: Record | None, sealer: Sealer, done: Resealed, *, plain: bool) -> Reseal | None:
    done.looked_at += 1
    if row is None or row.answer_kind not in STORED_ANSWERS:
        return None
    stored = answer_of(row)
    if stored is None or row.answer_digest is None:
        _note_unreadable(row, done, "damaged")
        return None
    if row.answer_kind == AnswerKind.KEPT:
        done.plain += 1
        if not plain:
            return None
        answer = stored
    else:
        key = key_of(stored)
        done.keys[key] = done.keys.get(key, 0) + 1
        if key == sealer.key_names[0]:
            return None
        try:
            answer = open_stored_answer(row, stored, sealer)
        except SemelError:
            _note_unreadable(row, done, f"sealed under {key!r}")
            return None
    sealed = seal_answer(answer, row.id, State(row.state), sealer)
    return Reseal(row.id, row.answer_digest, sealed, AnswerKind.SEALED)


def _note_unreadable(row: Record, done: Resealed, why: str) -> None:
    done.unreadable += 1
    if len(done.named) < NAMED_MAX:
        done.named.append(f"operation {uuid_text(row.operation_id)} ({row.operation}, {why})")


def look_at_sealing(engine: Engine) -> Iterator[DoctorFinding]:
    """Find the keys of the newest sealed answers, and check whether this process has them."""
    yield from _look_at_parts(engine)
    found = _newest(engine)
    keys: dict[str, int] = {}
    closed: list[str] = []
    sealer = engine.core.sealer
    for row in found:
        stored = answer_of(row)
        if stored is None:
            continue  # the doctor of the records reports the damage
        keys[key_of(stored)] = keys.get(key_of(stored), 0) + 1
        if sealer is not None and (not isinstance(sealer, Sealer) or key_of(stored) in sealer.key_names):
            try:
                open_stored_answer(row, stored, sealer)
            except SemelError:
                closed.append(uuid_text(row.operation_id))
    if not keys:
        return
    used = ", ".join(f"{name} ({count})" for name, count in sorted(keys.items()))
    of = f"of the newest {LOOKED_AT} records, answers are sealed under {used}"
    if sealer is None:
        remedy = "to check them, set SEMEL_SEAL_KEYS_FILE to the key ring's file"
        yield DoctorFinding("sealing", "note", f"{of}; no keys are given here", remedy)
        return
    names = sealer.key_names if isinstance(sealer, Sealer) else tuple(keys)
    missing = sorted(set(keys) - set(names))
    if missing:
        yield DoctorFinding("sealing", "problem", f"{of}; the ring has no key {names_text(missing)}", ADD_KEY)
    elif not closed:
        yield DoctorFinding("sealing", "ok", f"{of}, all in the ring")
    if closed:
        yield DoctorFinding(
            "sealing",
            "problem",
            f"{len(closed)} sealed answers cannot be decrypted: {names_text(closed)}",
            "they were changed, or the ring has a different key under the same name: restore the key or the row",
        )


def _look_at_parts(engine: Engine) -> Iterator[DoctorFinding]:
    """Find the keys of details, steps, requests and stored files that this process lacks."""
    sealer = engine.core.sealer
    known = sealer.key_names if isinstance(sealer, Sealer) else ()
    if sealer is not None and not known:
        return  # a sealer of the application's own
    missing: dict[str, set[str]] = {}
    for part in newest_parts(engine, LOOKED_AT):
        for key in part.keys:
            if key and key not in known:
                missing.setdefault(part.kind, set()).add(key)
    if not missing:
        return
    what = "; ".join(f"{kind} under {names_text(sorted(keys))}" for kind, keys in missing.items())
    if sealer is None:
        remedy = "to check them, set SEMEL_SEAL_KEYS_FILE to the key ring's file"
        yield DoctorFinding("sealed-parts", "note", f"other sealed data: {what}; no keys are given here", remedy)
        return
    yield DoctorFinding("sealed-parts", "problem", f"the ring lacks keys of other sealed data: {what}", ADD_KEY)


def _newest(engine: Engine) -> Sequence[Record]:
    page = engine.perform("find", lambda: engine.store.find(Find(limit=LOOKED_AT)))
    ids = [each.id for each in page.records if each.answer_kind == AnswerKind.SEALED]
    found: list[Record] = []
    for start in range(0, len(ids), AT_ONCE):
        some = tuple(ids[start : start + AT_ONCE])
        rows = engine.perform("read", lambda some=some: engine.store.read(some))  # type: ignore[misc]
        found += [row for row in rows if row is not None and row.answer_kind == AnswerKind.SEALED]
    return found
