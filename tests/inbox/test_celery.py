"""Celery's own worker on Valkey: killed between effect and acknowledgement, failing, and asked twice. 6 s."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import MaxRetriesExceededError, Reject, Retry, SoftTimeLimitExceeded
from redis import Redis

from semel import Engine, Inbox
from semel.errors import ConfigurationError, HandlerError
from semel.inbox.brokers.celery import inbox_task
from semel.inbox.run import Message
from semel.inbox.store import Receipt
from tests.bulk.fellows import Home, sqlite_home
from tests.servers import redis as redis_server
from tests.servers.running import stop

WORKER = ("--pool", "prefork", "--concurrency", "2", "--without-gossip", "--without-mingle", "--without-heartbeat")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return sqlite_home(str(tmp_path / "inbox.db"))


@pytest.fixture
def inbox(home: Home) -> Inbox:
    return Inbox(Engine(home.backend("sqlite")), consumer="billing", tries_max=2)


def test_a_workers_process_is_killed_between_effect_and_acknowledgement(home: Home, tmp_path: Path) -> None:
    server = redis_server.start(tmp_path / "redis")
    try:
        told = _story(f"redis://127.0.0.1:{server.port}/0", server.port, home, tmp_path)
    finally:
        stop(server)
    assert home.effects() == [0, 1, 2, 3, 4, 5]
    # 2 came again and was ignored; 4 began twice; 5 was retried once, 6 twice, under its one id; 0 was sent twice.
    ends = {0: "IGNORED SUCCESS", 1: "SUCCESS", 2: "IGNORED", 3: "SUCCESS", 4: "SUCCESS", 5: "RETRY SUCCESS"}
    for n, end in {**ends, 6: "FAILURE RETRY RETRY"}.items():
        assert " ".join(sorted(line.split()[1] for line in told if line.startswith(f"{n} "))) == end, told
    # Whose delivery Celery marks as another one is counted before it begins: 4 might have killed every worker.
    tries = dict(home.fetch("SELECT message_id, tries FROM semel_inbox"))
    assert tries["t-4"] == 1
    with closing(Engine(home.backend("sqlite"))) as engine:
        [parked] = Inbox(engine, consumer="billing").find_parked()
    assert (parked.message_id, parked.tries, parked.reason) == ("t-6", 3, "ValueError: no luck with 6")


def _story(broker: str, port: int, home: Home, folder: Path) -> list[str]:
    """Send seven tasks, the first one twice, and run a worker until nothing is left; what became of each delivery."""
    with Celery(broker=broker) as sender:
        for n in (0, 0, 1, 2, 3, 4, 5, 6):
            sender.send_task("tests.inbox.celery_app.bill", [n], task_id=f"t-{n}", queue="semel-inbox")
    known = {"SEMEL_TEST_BROKER": broker, "SEMEL_TEST_DATABASE": str(folder / "inbox.db")}
    command = [sys.executable, "-m", "celery", "--app", "tests.inbox.celery_app", "worker", *WORKER]
    with (folder / "log").open("wb") as log:
        worker = subprocess.Popen(command, env={**os.environ, **known}, stdout=log, stderr=log)
    try:
        return _end_worker(worker, folder, port)
    finally:
        worker.kill()
        worker.wait(30)


def _end_worker(worker: subprocess.Popen[bytes], folder: Path, port: int) -> list[str]:
    """Wait until nothing is left, and end the worker."""
    told, log = folder / "told", folder / "log"
    ends = time.monotonic() + 60
    with Redis(port=port) as client:
        while not (told.exists() and len(told.read_text().splitlines()) >= 11 and not client.hlen("unacked")):
            assert worker.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < ends, (told.read_text() if told.exists() else "", log.read_text())
            select.select([], [], [], 0.02)
        assert not client.llen("semel-inbox")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    return told.read_text().splitlines()


def test_an_eager_task_returns_its_result_and_a_duplicate_none(inbox: Inbox, home: Home) -> None:
    app = Celery()

    @app.task(base=inbox_task(inbox, id_of=lambda n: f"order-{n}"), shared=False)  # type: ignore[untyped-decorator]
    def bill(message: Message, n: int) -> str:
        message.connection.execute("INSERT INTO effect VALUES (?)", (n,))
        return message.id

    first, again = bill.apply([7]), bill.apply([7])
    assert (first.result, first.state) == ("order-7", "SUCCESS")
    assert again.state == "IGNORED"
    assert bill(8) == "order-8"  # called, and it has its own name
    assert bill(8) is None  # which ignores no task that calls it
    assert home.effects() == [7, 8]


def test_a_task_that_has_yet_to_run_when_it_returns_is_refused_and_handles_nothing(inbox: Inbox) -> None:
    async def bill(message: Message) -> None:
        raise AssertionError("nobody awaits it")

    app = Celery()
    app.task(base=inbox_task(inbox), shared=False)(bill)
    with pytest.raises(ConfigurationError, match="must be a plain function: Celery awaits no task"):
        app.finalize()

    @Celery().task(base=inbox_task(inbox), shared=False)  # type: ignore[untyped-decorator]
    def hide_a_call(message: Message) -> Any:
        return bill(message)

    assert isinstance(hide_a_call.apply(task_id="t-7").result, HandlerError)
    assert inbox.handle("t-7", lambda message: None) is Receipt.HANDLED


def test_an_eager_task_that_propagates_raises_its_own_error(inbox: Inbox) -> None:
    app = Celery()
    app.conf.update(task_always_eager=True, task_eager_propagates=True)

    @app.task(base=inbox_task(inbox), shared=False)  # type: ignore[untyped-decorator]
    def bill(message: Message, n: int) -> None:
        raise ValueError(f"no luck with {n}")

    for _ in range(2):  # each is one try: nothing else would make a second one
        with pytest.raises(ValueError, match="no luck with 7"):
            bill.apply_async([7], task_id="t-7")
    assert [(each.message_id, each.tries) for each in inbox.find_parked()] == [("t-7", 2)]


def of_function(app: Celery, base: Any) -> Any:
    @app.task(base=base, shared=False, name="bill")  # type: ignore[untyped-decorator]
    def bill(message: Message, order: int) -> None: ...

    return bill


def of_retried_function(app: Celery, base: Any) -> Any:
    @app.task(base=base, shared=False, name="bill", autoretry_for=(OSError,))  # type: ignore[untyped-decorator]
    def bill(message: Message, order: int) -> None: ...

    return bill


def of_bound_function(app: Celery, base: Any) -> Any:
    @app.task(base=base, shared=False, name="bill", bind=True)  # type: ignore[untyped-decorator]
    def bill(task: Any, message: Message, order: int) -> None: ...

    return bill


def of_class(app: Celery, base: Any) -> Any:
    class Bill(base):  # type: ignore[misc]
        name = "bill"

        def run(self, message: Message, order: int) -> None: ...

    return app.register_task(Bill())


@pytest.mark.parametrize("make", [of_function, of_retried_function, of_bound_function, of_class])
def test_arguments_that_do_not_fit_are_refused_where_they_are_sent(
    inbox: Inbox, make: Callable[[Celery, Any], Any]
) -> None:
    """As Celery refuses those of its own tasks, which no worker has to try until they are parked."""
    app = Celery(broker="memory://", set_as_current=False)
    bill = make(app, inbox_task(inbox))
    bill.delay(9)
    bill.apply_async(kwargs={"order": 9})
    for args, named in (((), {}), ((9, 10), {}), ((9,), {"amount": 1})):
        with pytest.raises(TypeError, match=r"^bill: .*(missing|too many|unexpected)"):
            bill.delay(*args, **named)
    app.strict_typing = False
    bill.delay()


def test_a_decorator_of_the_users_may_add_arguments(inbox: Inbox) -> None:
    """What it passes on is none of the sender's business, whatever signature it shows."""
    handled: list[Any] = []

    def with_session(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def call(*args: Any, **named: Any) -> None:
            function(*args, session="session", **named)

        return call

    app = Celery(broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True

    @app.task(base=inbox_task(inbox), name="bill", shared=False)  # type: ignore[untyped-decorator]
    @with_session
    def bill(message: Message, order: int, session: str) -> None:
        handled.append((order, session))

    bill.delay(7)
    assert handled == [(7, "session")]


def test_what_was_sent_by_name_with_arguments_that_do_not_fit_is_retried_and_parked(inbox: Inbox) -> None:
    bill = of_function(Celery(broker="memory://", set_as_current=False), inbox_task(inbox))
    for tries, expected in enumerate((Retry, TypeError)):
        bill.push_request(id="t-1", called_directly=False, args=(9, 10), kwargs={}, delivery_info={}, retries=tries)
        with pytest.raises(expected):
            bill(9, 10)
    assert [each.tries for each in inbox.find_parked()] == [2]


def test_a_task_that_is_called_without_an_id_is_refused(inbox: Inbox) -> None:
    app = Celery()

    @app.task(base=inbox_task(inbox), shared=False)  # type: ignore[untyped-decorator]
    def bill(message: Message) -> None:
        raise AssertionError("this must not run")

    with pytest.raises(ConfigurationError, match=r"was called, not sent.*id_of="):
        bill()

    @app.task(base=inbox_task(inbox, retry_seconds=0), shared=False)  # type: ignore[untyped-decorator]
    def month(message: Message) -> None:
        bill()

    told = month.apply(task_id="t-1").result  # eager, and so not tried again without end
    assert isinstance(told, ConfigurationError)


@pytest.mark.parametrize(
    "options", [{"acks_late": False}, {"max_retries": 3}, {"reject_on_worker_lost": False}, {"acks_on_timeout": True}]
)
def test_a_task_that_acknowledges_early_is_refused(inbox: Inbox, options: dict[str, object]) -> None:
    app = Celery()

    @app.task(base=inbox_task(inbox), shared=False, **options)  # type: ignore[untyped-decorator]
    def bill(message: Message) -> None:
        raise AssertionError("this must not run")

    with pytest.raises(ConfigurationError, match=f"{next(iter(options))}=.*leave it out"):
        app.finalize()


def test_a_task_that_retries_itself_is_sent_again_once(inbox: Inbox, home: Home) -> None:
    app = Celery(broker="memory://", set_as_current=False)
    app.conf.task_default_queue = "retries-itself"

    @app.task(base=inbox_task(inbox), shared=False, autoretry_for=(ValueError,), retry_jitter=False)  # type: ignore[untyped-decorator]
    def bill(message: Message) -> None:
        raise ValueError("not yet")

    bill.push_request(id="t-1", called_directly=False, args=(), kwargs={}, delivery_info={}, retries=0)
    with pytest.raises(Retry):
        bill()
    with app.connection_for_write() as connection:
        assert connection.default_channel.queue_declare("retries-itself").message_count == 1
    assert home.fetch("SELECT message_id, tries FROM semel_inbox") == [("t-1", 1)]


@pytest.mark.parametrize("reason", [ValueError("no luck"), None])
def test_a_task_that_retries_itself_has_failed_once_it_is_parked(inbox: Inbox, reason: Exception | None) -> None:
    """Otherwise its state would stay RETRY, and a caller of get() would wait for ever."""
    app = Celery(broker="memory://", set_as_current=False)

    @app.task(base=inbox_task(inbox), shared=False, bind=True)  # type: ignore[untyped-decorator]
    def bill(task: Any, message: Message) -> None:
        raise task.retry(exc=reason)

    told = []
    for tries in range(2):
        bill.push_request(id="t-1", called_directly=False, args=(), kwargs={}, delivery_info={}, retries=tries)
        with pytest.raises(Exception) as raised:  # noqa: PT011 - which one is what is asked
            bill()
        told.append(raised.value)
    assert isinstance(told[0], Retry)
    assert told[1] is reason or isinstance(told[1], MaxRetriesExceededError)
    assert [each.tries for each in inbox.find_parked()] == [2]


def test_a_time_limit_while_a_message_is_sent_again_leaves_it_with_the_broker(inbox: Inbox) -> None:
    app = Celery(broker="memory://", set_as_current=False)

    @app.task(base=inbox_task(inbox), shared=False)  # type: ignore[untyped-decorator]
    def bill(message: Message) -> None:
        raise ValueError("not yet")

    def strike(record: logging.LogRecord) -> bool:
        raise SoftTimeLimitExceeded

    log = logging.getLogger("semel.consumers")
    bill.push_request(id="t-1", called_directly=False, args=(), kwargs={}, delivery_info={}, retries=0)
    log.addFilter(strike)
    try:
        with pytest.raises(Reject) as rejected:
            bill()
    finally:
        log.removeFilter(strike)
    assert rejected.value.requeue


def test_a_task_without_a_message_id_is_retried_and_parked_under_its_own_id(inbox: Inbox) -> None:
    app = Celery()

    @app.task(base=inbox_task(inbox, id_of=lambda order: order["id"], retry_seconds=0), shared=False)  # type: ignore[untyped-decorator]
    def bill(message: Message, order: dict[str, int]) -> None:
        raise AssertionError("this must not run")

    assert bill.apply([{}], task_id="t-1").state == "FAILURE"
    [parked] = inbox.find_parked()
    assert (parked.message_id, parked.tries, parked.reason) == ("t-1", 2, "KeyError: 'id'")
    with pytest.raises(KeyError):
        bill({})
