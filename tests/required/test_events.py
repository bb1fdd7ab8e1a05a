"""The events of one command are one set under the same ids, and each mistake in that is found and reported."""

from __future__ import annotations

import itertools
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI

from semel import AsyncEngine, Engine, Outbox, Permit
from semel.errors import ConfigurationError
from semel.functions import command
from semel.http.caller import single_caller
from semel.integrations.fastapi import Semel
from semel.outbox.event import Event
from semel.outbox.rules import make_event
from semel.testing.idempotent import CannotRun, Case, NotIdempotent, Report, check_idempotent, rows
from semel.testing.required import FunctionTarget, suite
from tests.testing_plugin.broken import Around

Tell = Callable[[Permit], object]
CHECK = "event_identity_stable_over_replay"
TOLD_NOTHING = "it published no events: there were no ids to compare"
sqlite = pytest.mark.semel_store("sqlite")


class Shop:
    """A handler with one effect, published in some way. ``told`` is its own broker."""

    def __init__(self, database: Path, effects: Any) -> None:
        self.effects = effects
        self.charged: dict[str, int] = {}
        self.told: list[Any] = []
        self.count: Any = self.charged
        if effects == "atomic":
            connection = sqlite3.connect(database)
            connection.execute("CREATE TABLE orders (number INTEGER)")
            connection.close()
            self.count = rows(database, "orders")

    def order(self, permit: Permit) -> None:
        if self.effects == "atomic":
            permit.connection.execute("INSERT INTO orders VALUES (1)")
        else:
            self.charged[permit.key_for("charge")] = 1

    def app(self, engine: AsyncEngine, tell: Tell, *dependencies: Any) -> FastAPI:
        app = FastAPI(title="shop")
        semel = Semel(engine, caller=single_caller)

        @app.post("/orders", dependencies=list(dependencies))
        @semel.command("orders.place", effects=self.effects)
        async def place(body: dict[str, int], permit: Permit = semel.permit) -> dict[str, int]:
            self.order(permit)
            tell(permit)
            return body

        semel.install(app)
        return app

    def run_check(self, app: Any, *, listed: bool = False) -> Report:
        events = (lambda: self.told) if listed else None
        return check_idempotent(app, "POST /orders", json={"n": 1}, effects=self.count, events=events)


def emit_mail(permit: Permit) -> None:
    permit.emit("orders.placed", {"n": 1}, aggregate=("order", "1"))
    permit.emit("mails.sent", {"n": 1})


def only(report: Report) -> str:
    """The one finding's text."""
    [finding] = report.findings
    assert finding.check == CHECK
    return finding.text()


@sqlite
@pytest.mark.parametrize("effects", ["external", "idempotent", "atomic"])
def test_events_of_a_permit_are_one_set(effects: Any, semel_async_engine: AsyncEngine, semel_database: Path) -> None:
    shop = Shop(semel_database, effects)
    report = shop.run_check(shop.app(semel_async_engine, emit_mail))
    assert CHECK in report.held, report.text()
    assert (report.findings, report.not_tried) == ((), ())
    assert TOLD_NOTHING not in report.remarks


@sqlite
def test_events_of_a_sync_function_are_one_set(semel_engine: Engine, semel_database: Path) -> None:
    shop = Shop(semel_database, "idempotent")

    @command(semel_engine, "orders.place", caller=single_caller, effects="idempotent")
    def place(n: int, permit: Permit) -> int:
        shop.order(permit)
        emit_mail(permit)
        return n

    report = check_idempotent(place, arguments={"n": 1}, effects=shop.count, single_caller=True)
    assert (len(report.held), report.findings, report.not_tried) == (14, (), ())
    assert TOLD_NOTHING not in report.remarks


@sqlite
def test_an_operation_without_events_passes_with_a_remark(
    semel_async_engine: AsyncEngine, semel_database: Path
) -> None:
    shop = Shop(semel_database, "idempotent")
    report = shop.run_check(shop.app(semel_async_engine, lambda permit: None))
    assert CHECK in report.held
    assert TOLD_NOTHING in report.remarks


# --- what is wrong on purpose ---


@sqlite
def test_an_event_id_that_changes_at_each_run_fails(semel_async_engine: AsyncEngine, semel_database: Path) -> None:
    """Published by the handler itself, under a random id: two runs are two orders to the shipping system."""
    shop = Shop(semel_database, "idempotent")
    app = shop.app(semel_async_engine, lambda permit: shop.told.append({"id": uuid.uuid4(), "type": "orders.placed"}))
    assert only(shop.run_check(app, listed=True)) == (
        "   sent:   the request; the process died after the handler, before its answer was stored; a retry after the "
        "lease\n   came:   2 events, where one command tells one event: orders.placed under another id\n   means:  to "
        "its consumers that is another command: a consumer that ships on this event ships twice, and no inbox\n  "
        "         helps\n   change: emit it with permit.emit(...): its id comes from the key, and it is written "
        "once, in the commit that\n           stores the answer; where you publish yourself, take the event's id from "
        "permit.key_for('event')"
    )
    good = shop.app(semel_async_engine, lambda permit: shop.told.append(permit.key_for("event")))
    assert CHECK in shop.run_check(good, listed=True).held


@sqlite
def test_an_outbox_event_id_that_changes_at_each_run_fails(semel_engine: Engine, semel_database: Path) -> None:
    """Written on a connection of the handler's, in its own commit: seen in the database, without any events=."""
    shop = Shop(semel_database, "idempotent")
    outbox = Outbox(semel_engine)

    @command(semel_engine, "orders.place", caller=single_caller, effects="idempotent")
    def place(n: int, permit: Permit) -> int:
        shop.order(permit)
        connection = sqlite3.connect(semel_database)
        outbox.emit(connection, "orders.placed", {"n": n}, id=permit.key_for("event") if n == 2 else None)
        connection.commit()
        connection.close()
        return n

    report = check_idempotent(place, arguments={"n": 1}, effects=shop.count, single_caller=True)
    assert "2 events, where one command tells one event: orders.placed under another id" in only(report)
    assert CHECK in check_idempotent(place, arguments={"n": 2}, effects=shop.count).held


@sqlite
@pytest.mark.parametrize("effects", ["idempotent", "atomic"])
def test_an_event_name_that_changes_at_each_run_fails(
    effects: Any, semel_async_engine: AsyncEngine, semel_database: Path
) -> None:
    """One of them leaves, and not the one whose id the first run was given."""
    shop, numbers = Shop(semel_database, effects), itertools.count()
    app = shop.app(semel_async_engine, lambda permit: permit.emit("orders.placed", b"1", ordinal=next(numbers)))
    assert only(shop.run_check(app)) == (
        "   sent:   the request; the process died after the handler, before its answer was stored; a retry after the "
        "lease\n   came:   orders.placed, whose id in the first run differs from the id that was published\n   means: "
        " permit.emit returned an id in the first run that no event will ever have: a system that received it, "
        "such\n           as the provider, waits for an event that does not come\n   change: what an event's id is "
        "made of (the name and the ordinal of permit.emit, an id of your own) must be the\n           same at every "
        "run of one command: no random number, no clock, no counter of the process"
    )


@sqlite
def test_an_event_payload_that_changes_fails(semel_async_engine: AsyncEngine, semel_database: Path) -> None:
    """Of permit.emit one alone leaves, which is worth a remark; of one's own publishing both do."""
    shop, numbers = Shop(semel_database, "idempotent"), itertools.count()
    app = shop.app(semel_async_engine, lambda permit: permit.emit("orders.placed", {"at": next(numbers)}))
    report = shop.run_check(app)
    assert CHECK in report.held
    assert [each for each in report.remarks if "payload differs between two runs" in each]
    published = shop.app(
        semel_async_engine, lambda permit: shop.told.append({"id": permit.key_for("event"), "data": next(numbers)})
    )
    assert "the same id with two payloads" in only(shop.run_check(published, listed=True))


@sqlite
def test_an_event_published_outside_of_the_command_fails(semel_async_engine: AsyncEngine, semel_database: Path) -> None:
    """A dependency tells it at every request, under one id: consumers without an inbox act each time."""
    shop = Shop(semel_database, "idempotent")
    app = shop.app(
        semel_async_engine,
        lambda permit: None,
        Depends(lambda: shop.told.append({"id": "order-1", "topic": "orders.placed"})),
    )
    text = only(shop.run_check(app, listed=True))
    assert "sent:   the same request three times, with the same key" in text
    assert "orders.placed again, under the same id" in text


@sqlite
def test_an_event_about_a_rolled_back_effect_fails(semel_async_engine: AsyncEngine, semel_database: Path) -> None:
    shop = Shop(semel_database, "atomic")
    app = shop.app(semel_async_engine, lambda permit: shop.told.append({"id": permit.key_for("event")}))
    text = only(shop.run_check(app, listed=True))
    assert "the process died before the transaction was committed" in text
    assert "consumers learn of an effect that was undone" in text


@sqlite
def test_an_event_published_after_the_settlement_may_be_lost(
    semel_async_engine: AsyncEngine, semel_database: Path
) -> None:
    """A layer publishes it after the answer: if the process dies before that, the event is lost."""
    shop = Shop(semel_database, "idempotent")
    inner = shop.app(semel_async_engine, lambda permit: None)

    async def telling(scope: Any, receive: Any, send: Any) -> None:
        answers: list[Any] = []

        async def looked_at(message: Any) -> None:
            answers.append(message)
            await send(message)

        await inner(scope, receive, looked_at)
        first = answers[0].get("status") == 200 and (b"idempotency-replayed", b"true") not in answers[0]["headers"]
        if first:
            shop.told.append({"id": str(len(shop.told)), "topic": "orders.placed"})

    text = only(shop.run_check(Around(inner, telling), listed=True))
    assert "no event, where one command tells one event" in text
    assert "the world never hears of it" in text


@sqlite
def test_the_suite_fails_by_name(semel_async_engine: AsyncEngine, semel_database: Path) -> None:
    shop = Shop(semel_database, "idempotent")
    app = shop.app(semel_async_engine, lambda permit: shop.told.append(str(uuid.uuid4())))
    case = Case(request="POST /orders", json={"n": 1}, effects=shop.count, events=lambda: shop.told)
    with pytest.raises(NotIdempotent, match="event identity stable over replay"):
        suite(app=app, operations=[case]).make_test(CHECK, case).run()


# --- what a test may give ---


def test_an_opaque_function_is_tried_as_far_as_possible() -> None:
    told: list[Event] = []
    done: list[str] = []

    def place(key: str, n: int) -> int:
        done.append(key)
        told.append(make_event(str(uuid.uuid4()), "orders.placed", {"n": n}, aggregate=("order", key)))
        return n

    report = check_idempotent(FunctionTarget(place), arguments={"n": 1}, effects=done, events=told, single_caller=True)
    [finding] = [each for each in report.findings if each.check == CHECK]
    assert "3 events, where one command tells one event" in finding.came
    assert CHECK in check_idempotent(place, arguments={"n": 1}, effects=done, events=(), single_caller=True).held


@pytest.mark.parametrize(
    ("events", "error", "message"),
    [
        ("told", ConfigurationError, "events= must be the list of published events"),
        (5, ConfigurationError, "events= must be the list of published events"),
        ([], CannotRun, "events= lists nothing after a command was done"),
        ([{"topic": "x"}], CannotRun, "an event that has no id: {'topic': 'x'}"),
        (lambda: 1 // 0, CannotRun, "the list of events failed: ZeroDivisionError"),
    ],
)
def test_an_invalid_list_of_events_is_refused(events: Any, error: type[Exception], message: str) -> None:
    done: list[int] = []
    options: dict[str, Any] = {"arguments": {"n": 1}, "effects": done, "events": events}
    with pytest.raises(error, match=message):
        suite(app=lambda key, n: done.append(n), operations=[Case(**options)]).make_test(CHECK, Case(**options)).run()
