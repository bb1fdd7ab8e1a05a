"""A store with one of everything that Semel keeps, and of events and messages one in each state."""

from __future__ import annotations

from contextlib import closing

import pytest

from semel import Answer, Bulk, Command, Engine, Inbox, ItemFailed, Permit, Policy
from semel.bulk.declaration import BulkItem
from semel.bulk.rules import Done
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


def handled(item: BulkItem) -> Done:
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
        permit.step(name, lambda name=name: call(name))  # type: ignore[misc]
    return DONE


def fill(url: str) -> None:
    """One of everything, and of events and messages one in each state."""
    with Engine.connect(url) as engine:
        engine.run(invoice(), lambda permit: DONE)
        with pytest.raises(TimeoutError):
            engine.run(STEPPED, lambda permit: shop(permit, [], lost=True))
        Bulk(engine, operation="cases", effects="external").run(CASES, handled, key="list", caller="alice")
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
        engine.perform("published", lambda: events.published([first[0].seq]))
        engine.perform("postpone", lambda: events.postpone(first[1].seq, 1, "the broker said no"))
        assert engine.perform("park", lambda: events.park(ids[5], "too large"))


def raises(message: Message) -> None:
    raise ValueError("no")


def fresh(url: str) -> str:
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    return url
