"""A message is handled once: its row, its effect and its acknowledgement, on every store and client library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.errors import ConfigurationError, HandlerError, InProgressError, PolicyError, StoreUnavailable
from semel.inbox.run import Message, Poison
from semel.inbox.store import Receipt
from semel.stores.urls import connect_backend
from tests.bulk.fellows import Home, write
from tests.engine.shells import command
from tests.inbox.conftest import Consumer

Make = Callable[..., Consumer]


class Killed(BaseException):
    """As far as the store is concerned, the process is dead."""


def writes(n: int) -> Callable[[Message], Any]:
    async def handler(message: Message) -> None:
        await write(message, n)  # it has a connection, too

    return handler


async def never(message: Message) -> None:
    raise AssertionError("this must not run")


def test_a_second_delivery_does_nothing(make_consumer: Make, home: Home) -> None:
    worker = make_consumer()
    assert worker.handle("m-1", writes(1)) is Receipt.HANDLED
    assert worker.handle("m-1", never) is Receipt.DUPLICATE
    assert make_consumer().handle("m-1", never, deliveries=9) is Receipt.DUPLICATE
    assert make_consumer(consumer="shipping").handle("m-1", writes(2)) is Receipt.HANDLED
    assert home.effects() == [1, 2]


@pytest.mark.parametrize("message_id", ["orders\\9", "orders\x009"])
def test_a_message_id_holds_any_character(make_consumer: Make, home: Home, message_id: str) -> None:
    worker = make_consumer(consumer="billing\\eu")
    assert worker.handle(message_id, writes(1)) is Receipt.HANDLED
    assert worker.handle(message_id, never) is Receipt.DUPLICATE
    assert home.effects() == [1]


def test_a_worker_that_dies_before_its_commit_has_done_nothing(make_consumer: Make, home: Home) -> None:
    async def dies(message: Message) -> None:
        await write(message, 1)
        raise Killed

    with pytest.raises(Killed):
        make_consumer().handle("m-1", dies)
    assert home.effects() == []
    assert make_consumer().handle("m-1", writes(1)) is Receipt.HANDLED
    assert home.effects() == [1]


def test_a_handler_that_has_yet_to_run_when_it_returns_handles_nothing(make_consumer: Make, home: Home) -> None:
    def plain(message: Message) -> None: ...

    def pieces(message: Message) -> Iterator[int]:
        yield 1

    async def later_pieces(message: Message) -> AsyncIterator[int]:
        yield 1

    worker = make_consumer(tries_max=1)
    for wrong in (plain if worker.runner else never, pieces, later_pieces):
        for _ in range(2):
            with pytest.raises(HandlerError, match="coroutine function"):
                worker.tell("handle", "m-1", wrong)
    assert worker.list_parked() == []
    assert worker.handle("m-1", writes(1)) is Receipt.HANDLED
    assert home.effects() == [1]


def test_a_message_that_fails_too_often_is_parked_with_its_reason(make_consumer: Make, home: Home) -> None:
    async def fails(message: Message) -> None:
        await write(message, 1)
        raise ValueError("no such currency\x00")

    worker = make_consumer(tries_max=3)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such currency"):
            worker.handle("m-1", fails)
    assert worker.handle("m-1", fails) is Receipt.PARKED
    assert worker.handle("m-1", never) is Receipt.PARKED
    assert home.effects() == []
    [parked] = worker.list_parked()
    assert (parked.message_id, parked.tries, parked.reason) == ("m-1", 3, "ValueError: no such currency\x00")
    assert worker.tell("release", "m-1")
    assert worker.handle("m-1", writes(1)) is Receipt.HANDLED
    assert not worker.tell("release", "m-1")


class Unspeakable(Exception):
    """As the errors of libraries that miss an attribute when they are written out."""

    def __str__(self) -> str:
        raise AttributeError("detail")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("order \udc80\x00 is unknown"), "ValueError: order \\udc80"),
        (Poison("order \ud800"), "order \\ud800"),
        (Unspeakable(), "Unspeakable: its text cannot be read (AttributeError)"),
    ],
    ids=["surrogate", "poison", "unspeakable"],
)
def test_a_failure_is_counted_whatever_its_exception_says(
    error: Exception, reason: str, make_consumer: Make, home: Home
) -> None:
    """JSON may hold half of a surrogate pair, and a handler may name what it got: no store takes such a text."""
    worker = make_consumer(tries_max=2)

    async def fails(message: Message) -> None:
        raise error

    if not isinstance(error, Poison):
        with pytest.raises(type(error)):
            worker.handle("m-1", fails)
    assert worker.handle("m-1", fails) is Receipt.PARKED
    [parked] = worker.list_parked()
    assert parked.reason.startswith(reason)


def test_poison_is_parked_at_once(make_consumer: Make) -> None:
    async def refuses(message: Message) -> None:
        raise Poison("its schema is version 9")

    worker = make_consumer()
    assert worker.handle("m-1", refuses) is Receipt.PARKED
    assert [parked.reason for parked in worker.list_parked()] == ["its schema is version 9"]


def test_a_message_that_kills_its_workers_is_parked_in_the_end(make_consumer: Make) -> None:
    async def kills(message: Message) -> None:
        raise Killed

    worker = make_consumer(tries_max=3)
    for deliveries in range(1, 7):  # from the fourth on each try is noted before it begins
        with pytest.raises(Killed):
            worker.handle("m-1", kills, deliveries=deliveries)
    assert worker.handle("m-1", never, deliveries=7) is Receipt.PARKED
    [parked] = worker.list_parked()
    assert (parked.tries, "delivered 7 times" in parked.reason) == (3, True)


@pytest.mark.parametrize("tries_max", [1, 3])
def test_deliveries_that_reach_no_handler_park_nothing(tries_max: int, make_consumer: Make, home: Home) -> None:
    """The broker counts those, too, that found the store away or another worker at it."""
    worker = make_consumer(tries_max=tries_max)
    assert worker.handle("m-1", writes(1), deliveries=50) is Receipt.HANDLED
    assert worker.handle("m-1", never, deliveries=51) is Receipt.DUPLICATE
    assert home.effects() == [1]


def test_failures_are_counted_by_the_inbox_and_not_by_the_broker(make_consumer: Make, home: Home) -> None:
    async def fails(message: Message) -> None:
        raise ValueError("no such currency")

    worker = make_consumer(tries_max=3)
    for deliveries in (50, 51):
        with pytest.raises(ValueError, match="no such currency"):
            worker.handle("m-1", fails, deliveries=deliveries)
    assert worker.handle("m-1", fails, deliveries=52) is Receipt.PARKED
    assert [(parked.tries, parked.reason) for parked in worker.list_parked()] == [(3, "ValueError: no such currency")]
    with pytest.raises(ValueError, match="no such currency"):
        worker.handle("m-2", fails, deliveries=3)


def test_a_message_that_failed_once_is_handled_later(make_consumer: Make, home: Home) -> None:
    async def fails(message: Message) -> None:
        raise OSError

    worker = make_consumer()
    with pytest.raises(OSError):  # noqa: PT011 - it has no message
        worker.handle("m-1", fails)
    assert worker.handle("m-1", writes(1)) is Receipt.HANDLED
    assert worker.handle("m-1", never) is Receipt.DUPLICATE


def test_a_redelivery_during_the_first_delivery_is_not_run(make_consumer: Make, home: Home) -> None:
    first = make_consumer()
    if first.runner is not None:  # the second worker would need a loop of its own inside the first's
        return
    second = make_consumer()
    met: list[Any] = []

    async def is_asked_again(message: Message) -> None:
        await write(message, 1)
        try:
            met.append(second.handle("m-1", never))
        except StoreUnavailable as error:  # SQLite's one writer, MariaDB's row lock
            met.append(isinstance(error, StoreUnavailable))

    assert first.handle("m-1", is_asked_again) is Receipt.HANDLED
    assert met in ([Receipt.BUSY], [True])
    assert home.effects() == [1]


def test_a_decorated_consumer_acknowledges_nothing_that_another_worker_is_at(make_consumer: Make, home: Home) -> None:
    """Its library acknowledges what returns: if the first worker dies then, the message would be lost."""
    first = make_consumer()
    if first.runner is not None:
        return
    consume = make_consumer().inbox.once(lambda event: event["id"])(never)
    met: list[Exception] = []

    async def is_redelivered_and_fails(message: Message) -> None:
        await write(message, 1)
        with pytest.raises((InProgressError, StoreUnavailable)) as raised:
            consume({"id": "m-1"})
        met.append(raised.value)
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        first.handle("m-1", is_redelivered_and_fails)
    assert home.effects() == []
    assert isinstance(met[0], InProgressError) == (first.kind == "psycopg")


def test_a_message_that_another_worker_handles_after_the_look_is_not_run(make_consumer: Make, home: Home) -> None:
    first, second = make_consumer(), make_consumer()
    if first.runner is not None:  # as above
        return
    backend = first.engine.backend
    begin = backend.unit

    def overtaken() -> Any:
        assert second.handle("m-1", writes(1)) is Receipt.HANDLED
        return begin()

    object.__setattr__(backend, "unit", overtaken)
    assert first.handle("m-1", never) is Receipt.DUPLICATE
    assert home.effects() == [1]


def test_expired_messages_are_deleted_in_chunks(make_consumer: Make, home: Home) -> None:
    worker = make_consumer(keep_seconds=0.000001)
    for n in range(5):
        worker.handle(f"m-{n}", writes(n))
    assert make_consumer(keep_seconds=60).handle("kept", writes(9)) is Receipt.HANDLED
    assert worker.tell("purge", chunk=2) == 5
    assert home.fetch("SELECT message_id FROM semel_inbox") in ([("kept",)], (("kept",),))


def test_ids_and_consumers_that_cannot_be_stored_are_refused(make_consumer: Make) -> None:
    worker = make_consumer()
    for wrong in ("", "x" * 501, "\ud800", None):
        with pytest.raises(PolicyError, match="a message's id"):
            worker.handle(wrong, never)  # type: ignore[arg-type]
    for options in ({"consumer": ""}, {"tries_max": 0}, {"keep_seconds": 0}):
        with pytest.raises(PolicyError, match=next(iter(options))):
            make_consumer(**options)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("retry_seconds", r"belongs to the broker's adapter, such as inbox_task\(inbox, retry_seconds="),
        ("try_max", "did you mean 'tries_max'"),
        ("colour", "known options: consumer, tries_max, keep_seconds"),
    ],
)
def test_an_unknown_option_says_where_it_belongs(make_consumer: Make, name: str, says: str) -> None:
    with pytest.raises(PolicyError, match=f"unknown option '{name}'; .*{says}"):
        make_consumer(**{name: 2})


@pytest.mark.parametrize("kind", ["sqlite", "sqlite-async"], indirect=True)
@pytest.mark.parametrize("engine", ["its own", "another one"])
def test_a_command_inside_a_handler_is_the_messages_failure_on_sqlite(
    kind: str, home: Home, engine: str, tmp_path: Path
) -> None:
    """It waits for its own caller's transaction, each time: no outage of the store, which would never be counted."""
    quick = Home(lambda kind: connect_backend(f"sqlite:///{tmp_path}/inbox.db?busy_seconds=0.05"), home.fetch)
    worker = Consumer(kind, quick, tries_max=2)
    inner: Any = type(worker.engine)(worker.engine.backend if engine == "its own" else quick.backend(kind))

    async def nests(message: Message) -> None:
        begun = inner.run(command("inner"), never)
        if worker.runner is not None:
            await begun

    with pytest.raises(StoreUnavailable):
        worker.handle("m-1", nests)
    assert worker.handle("m-1", nests) is Receipt.PARKED
    worker.close()


@pytest.mark.parametrize("error", [StoreUnavailable("locked, by another one"), ConfigurationError("no")])
@pytest.mark.parametrize("deliveries", [1, 9])
def test_what_is_no_fault_of_a_message_is_no_failure_of_it(
    error: Exception, deliveries: int, make_consumer: Make
) -> None:
    """Also where its try was counted before it began: its worker has come to an end of it."""

    async def away(message: Message) -> None:
        raise error

    worker = make_consumer(tries_max=1)
    for _ in range(3):
        with pytest.raises(type(error)):
            worker.handle("m-1", away, deliveries=deliveries)
    assert worker.handle("m-1", writes(1), deliveries=deliveries) is Receipt.HANDLED
