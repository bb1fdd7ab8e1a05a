"""A concurrent duplicate is not a failure: each consumer says so at INFO, and what fails is still a warning."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import dramatiq
import pytest
from celery import Celery
from dramatiq.brokers.stub import StubBroker
from dramatiq.errors import Retry

from semel.inbox.brokers.celery import inbox_task
from semel.inbox.brokers.delivery import Deliveries
from semel.inbox.brokers.dramatiq import InboxMiddleware
from semel.inbox.run import AsyncInbox, Inbox, Message
from semel.inbox.store import Receipt


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(each.levelno, each.getMessage()) for each in caplog.records if each.name == "semel.consumers"]


class Busy(Inbox):
    """Another worker is at the message when it comes first."""

    def __init__(self) -> None:
        self.consumer, self.tries_max, self.met = "billing", 5, 0

    def handle(self, message_id: str, handler: Callable[[Message], object], *, deliveries: int = 1) -> Receipt:
        self.met += 1
        if self.met == 1:
            return Receipt.BUSY
        handler(Message(self.consumer, message_id, None))
        return Receipt.HANDLED


def test_celery_reports_a_busy_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "semel.consumers")
    app = Celery(broker="memory://", set_as_current=False)

    @app.task(base=inbox_task(Busy(), retry_seconds=0), shared=False)  # type: ignore[untyped-decorator]
    def bill(message: Message, n: int) -> int:
        return n

    assert bill.apply(args=(7,), task_id="order-9\nplaced").get() == 7
    assert lines(caplog) == [
        (logging.INFO, "message order-9\\x0aplaced is being handled by another worker; it is tried again later")
    ]


def test_celery_reports_a_failed_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "semel.consumers")

    class Failing(Busy):
        def handle(self, message_id: str, handler: Callable[[Message], object], *, deliveries: int = 1) -> Receipt:
            self.met += 1
            if self.met == 1:
                raise ValueError("not today")
            handler(Message(self.consumer, message_id, None))
            return Receipt.HANDLED

    @Celery(broker="memory://", set_as_current=False).task(base=inbox_task(Failing(), retry_seconds=0), shared=False)  # type: ignore[untyped-decorator]
    def bill(message: Message, n: int) -> int:
        return n

    assert bill.apply(args=(7,), task_id="order-9").get() == 7
    assert lines(caplog) == [(logging.WARNING, "message order-9 failed (ValueError); it is delivered again")]


def test_dramatiq_reports_a_busy_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "semel.consumers")
    broker = StubBroker()
    broker.add_middleware(InboxMiddleware())

    @dramatiq.actor(broker=broker, inbox=Busy(), id_of=lambda n: f"order-{n}")
    def bill(message: Message, n: int) -> int:
        return n

    sent: Callable[[int], int] = cast("Any", bill.fn)  # the inbox adds the message
    with pytest.raises(Retry):
        sent(9)
    assert sent(9) == 9
    assert lines(caplog) == [
        (logging.INFO, "message order-9 is being handled by another worker; it is tried again later")
    ]


def test_consumers_report_a_busy_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "semel.consumers")

    class AsyncBusy:
        async def handle(self, message_id: str, handler: Any, *, deliveries: int = 1) -> Receipt:
            return Receipt.BUSY

    async def handler(message: Message, delivery: Any) -> None:
        raise AssertionError("another worker is at it")

    deliveries = Deliveries(cast("AsyncInbox", AsyncBusy()), handler)
    assert asyncio.run(deliveries.take("order-9", None, 1)) is None
    assert lines(caplog) == [
        (logging.INFO, "message order-9 is being handled by another worker; it is tried again later")
    ]
