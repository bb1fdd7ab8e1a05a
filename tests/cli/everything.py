"""A store with one of everything that Semel keeps, and of events and messages one in each state."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import pytest

from semel import Answer, Bulk, Command, Engine, Inbox, ItemFailed, Permit, Policy
from semel.bulk.declaration import BulkItem
from semel.bulk.rules import Done, ItemOutcome, ItemState, ListedItem, content_id
from semel.imports.store import PLAIN, SEALED, ImportRows, KnownRows, NewJob
from semel.inbox.run import Message
from semel.inbox.store import Receipt
from semel.outbox.run import Outbox
from semel.outbox.store import Events
from tests.engine.shells import SCOPE, command

CASES = [{"clientItemId": f"case-{n}", "n": n} for n in range(5)]
STEPPED = command("stepped", policy=Policy(steps=True))
KEPT = Policy(operation_seconds=90 * 86_400)
DONE = Answer(201, (), b"done")


def invoice(key: str = "invoice") -> Command:
    """A command whose operation outlives its key, under a business reference."""
    return Command(SCOPE, key, bytes(32), "1.tests", KEPT, business_ref="INV-\\-1")


def handle(item: BulkItem) -> Done:
    if item.value["n"] == 3:
        raise ItemFailed("LOCKED", retryable=True, written=False)
    return Done(f"r-{item.place}", f"täget \x00 {item.place}", bytes([0, 255, item.place]))


def shop(permit: Permit, calls: list[str], *, lost: bool) -> Answer:
    """Charge and ship; the second gets no answer where it is lost."""

    def call(name: str) -> str:
        calls.append(name)
        if lost and name == "ship":
            raise TimeoutError("no answer")
        return f"{name}-1"

    for name in ("charge", "ship"):
        permit.step(name, lambda name=name: call(name))
    return DONE


def fill(url: str) -> None:
    """Write one of every kind of row, and an event and a message in each state."""
    with Engine.connect(url) as engine:
        engine.run(invoice(), lambda permit: DONE)
        with pytest.raises(TimeoutError):
            engine.run(STEPPED, lambda permit: shop(permit, [], lost=True))
        Bulk(engine, operation="cases", effects="external").run(CASES, handle, key="list", caller="alice")
        ids: list[str] = []

        def emits(message: Message) -> None:
            outbox = Outbox(engine)
            for n in range(6):
                about = ("order", str(n % 2))
                ids.append(outbox.emit(message.connection, "orders", {"n": n, "text": "\\ \x00"}, aggregate=about))

        inbox = Inbox(engine, consumer="mails", tries_max=2)
        inbox.handle("m-1", emits)
        for id in ("poison", "once-failed"):
            with pytest.raises(ValueError, match="no"):
                inbox.handle(id, raises)
        assert inbox.handle("poison", raises) is Receipt.PARKED
        events = Events(engine.store.dialect)  # type: ignore[attr-defined]
        first = engine.perform("find", lambda: events.find(0, 10, parked=False))
        engine.perform("published", lambda: events.mark_published([first[0].seq]))
        engine.perform("postpone", lambda: events.postpone(first[1].seq, 1, "the broker said no"))
        assert engine.perform("park", lambda: events.park(ids[5], "too large"))
        fill_imports(engine)


def fill_imports(engine: Engine) -> None:
    """Two jobs: one with bytes in the database in both forms, one with bytes elsewhere; and a row that was booked."""
    rows, jobs = ImportRows(engine.store), []
    for number, ref in ((1, "database sealed"), (2, "folder")):
        id, digest, media = bytes([number]) * 16, bytes([number]) * 32, "application/jsonl"
        key = f"ACME:{digest.hex()}"
        new = NewJob(id, "acme", "stock", "ACME", key, digest, 5, media, "{}", ref, 10**15, 10**15)
        jobs.append(engine.perform("import", partial(rows.submit, new, "täglich \\ 1.csv"))[0])
    digest = jobs[0].sha256
    engine.perform("import", lambda: rows.touch(digest, 5))
    for form in (PLAIN, SEALED):
        for place in range(3):
            engine.perform("import", partial(rows.put_part, digest, place, bytes([0, 255, place, form]), form))
        assert engine.perform("import", partial(rows.end_blob, digest, 3, form))
    known = KnownRows(engine.store, jobs[0], 10**15)
    listed = ListedItem(0, content_id(b"[1]", 1), b"[1]", None)
    outcome = ItemOutcome(0, listed.item_id, ItemState.SUCCEEDED)
    assert engine.perform("import", lambda: known.note([listed], [outcome]))


def raises(message: Message) -> None:
    raise ValueError("no")


def fresh(url: str) -> str:
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    return url
