"""Dramatiq's own worker on Valkey: killed between effect and acknowledgement, failing, and asked twice. 4 s."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import Retries

from semel import Engine, Inbox
from semel.errors import ConfigurationError, HandlerError
from semel.inbox.brokers.dramatiq import InboxMiddleware
from semel.inbox.run import Message
from tests.bulk.fellows import Home, sqlite_home
from tests.inbox.dramatiq_worker import QUEUE, application
from tests.servers import redis as redis_server
from tests.servers.running import stop

actor: Any = dramatiq.actor  # whose types know nothing of an argument that the inbox gives


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return sqlite_home(str(tmp_path / "inbox.db"))


@pytest.fixture
def inbox(home: Home) -> Inbox:
    return Inbox(Engine(home.backend("sqlite")), consumer="billing", tries_max=2)


def test_a_worker_is_killed_between_effect_and_acknowledgement(inbox: Inbox, home: Home, tmp_path: Path) -> None:
    server = redis_server.start(tmp_path / "redis")
    try:
        broker, bill = application(server.port, inbox)
        for n in range(5):
            broker.enqueue(bill.message(n).copy(message_id=f"m-{n}"))
        broker.enqueue(bill.message(0).copy(message_id="m-0"))
        command = [sys.executable, "-m", "tests.inbox.dramatiq_worker", str(server.port), str(tmp_path / "inbox.db")]
        told: list[str] = []
        for dies in (["dies"], []):
            done = subprocess.run([*command, *dies], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
            assert done.returncode == (-signal.SIGKILL if dies else 0)
            told += done.stdout.splitlines()
        assert broker.client.hlen(f"dramatiq:{QUEUE}.XQ.msgs") == 0  # nothing was given up by Dramatiq
        broker.close()
    finally:
        stop(server)
    assert home.effects() == [0, 1, 2, 3]
    assert sorted(told) == sorted(
        ["0 0", "0 skipped", "1 1", "2 2", "2 skipped", "3 ValueError", "3 3", "4 ValueError", "4 skipped"]
    )
    [parked] = inbox.find_parked()
    assert (parked.message_id, parked.tries, parked.reason) == ("m-4", 2, "ValueError: no luck with 4")


def _run_worker(asked: Any, *messages: Any) -> None:
    """A worker takes them, in a thread."""
    broker = asked.broker
    for message in messages:
        broker.enqueue(message)
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=10)
    worker.start()
    broker.join(asked.queue_name, timeout=30_000, fail_fast=False)
    worker.join()
    worker.stop()
    broker.close()


def test_a_duplicate_calls_no_callback_and_a_business_key_identifies_a_message(inbox: Inbox, home: Home) -> None:
    broker, ran = StubBroker(), []
    broker.add_middleware(InboxMiddleware())

    @actor(broker=broker, inbox=inbox, id_of=lambda order: f"order-{order}")  # type: ignore[untyped-decorator]
    def bill(message: Message, order: int) -> str:
        message.connection.execute("INSERT INTO effect VALUES (?)", (order,))
        return message.id

    @dramatiq.actor(broker=broker)
    def after(message: Any, result: str) -> None:
        ran.append(result)

    _run_worker(bill, *(bill.message_with_options(args=(7,), on_success=after) for _ in range(2)))
    assert ran == ["order-7"]
    assert bill(8) == "order-8"  # called, and it has its own name
    assert bill(8) is None  # which skips no message whose actor calls it
    assert home.effects() == [7, 8]


def test_a_message_without_a_business_id_is_retried_and_parked_under_its_own_id(inbox: Inbox) -> None:
    broker = StubBroker()
    broker.add_middleware(InboxMiddleware())

    @actor(broker=broker, inbox=inbox, id_of=lambda order: order["id"], min_backoff=1, max_backoff=1)  # type: ignore[untyped-decorator]
    def bill(message: Message, order: dict[str, int]) -> None:
        raise AssertionError("this must not run")

    sent = bill.message({})
    _run_worker(bill, sent)
    [parked] = inbox.find_parked()
    assert (parked.message_id, parked.tries, parked.reason) == (sent.message_id, 2, "KeyError: 'id'")
    with pytest.raises(KeyError):
        bill({})


def test_an_actor_that_another_one_calls_is_not_handled_as_its_message(inbox: Inbox, home: Home) -> None:
    broker, told = StubBroker(), []
    broker.add_middleware(InboxMiddleware())

    @actor(broker=broker, inbox=inbox)  # type: ignore[untyped-decorator]
    def bill(message: Message) -> None:
        raise AssertionError("this must not run")

    @dramatiq.actor(broker=broker)
    def month() -> None:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="was called, not sent") as error:
                bill()
            told.append(str(error.value))

    _run_worker(month, month.message())
    assert len(told) == 2
    assert home.fetch("SELECT count(*) FROM semel_inbox") == [(0,)]


def test_a_message_beyond_its_time_limit_is_counted(inbox: Inbox, home: Home) -> None:
    broker = StubBroker()
    broker.add_middleware(InboxMiddleware())

    @actor(broker=broker, inbox=inbox, min_backoff=1, max_backoff=2)  # type: ignore[untyped-decorator]
    def bill(message: Message) -> None:
        raise dramatiq.middleware.TimeLimitExceeded

    _run_worker(bill, bill.message().copy(message_id="m-1"))
    assert [(each.message_id, each.reason) for each in inbox.find_parked()] == [
        ("m-1", "TimeoutError: it took longer than its time limit")
    ]


@pytest.mark.parametrize("options", [{"max_retries": 3}, {"retry_when": bool}, {"throws": ValueError}])
def test_an_actor_that_would_give_up_before_its_inbox_is_refused(inbox: Inbox, options: dict[str, Any]) -> None:
    broker = StubBroker()
    broker.add_middleware(InboxMiddleware())
    with pytest.raises(ConfigurationError, match=f"says {next(iter(options))}=.*tries_max"):

        @actor(broker=broker, inbox=inbox, **options)  # type: ignore[untyped-decorator]
        def bill(message: Message) -> None:
            raise AssertionError("this must not run")


def test_an_actor_that_cannot_be_handled_once_is_refused_with_the_reason(inbox: Inbox) -> None:
    broker = StubBroker(middleware=[InboxMiddleware()])

    def plain(message: Message) -> None:
        raise AssertionError("this must not run")

    async def consume(message: Message) -> None:
        raise AssertionError("this must not run")

    with pytest.raises(ConfigurationError, match="Retries"):
        actor(plain, broker=broker, inbox=inbox)
    broker.add_middleware(Retries())
    with pytest.raises(ConfigurationError, match="a plain function"):
        actor(consume, broker=broker, inbox=inbox)
    hidden = actor(lambda message: consume(message), broker=broker, inbox=inbox, actor_name="hidden", id_of=lambda: "m")
    with pytest.raises(HandlerError, match="its work has not begun"):
        hidden()
    called = actor(plain, broker=broker, inbox=inbox, actor_name="plain-2")
    with pytest.raises(ConfigurationError, match=r"was called, not sent.*id_of="):
        called()
