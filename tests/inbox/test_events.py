"""Events that a handler writes go with its message: a duplicate, a failure and a death re-emit nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel.inbox.run import Message
from semel.inbox.store import Receipt
from semel.outbox.run import AsyncOutbox, Outbox
from tests.bulk.fellows import Home
from tests.inbox.conftest import Consumer


def test_a_duplicate_emits_nothing_again(make_consumer: Callable[..., Consumer], home: Home) -> None:
    worker = make_consumer()
    fails = [True]

    async def emits(message: Message) -> None:
        if worker.runner is None:
            Outbox(worker.engine).emit(message.connection, "bills", {"n": 1}, aggregate=("bill", "1"))
        else:
            await AsyncOutbox(worker.engine).emit(message.connection, "bills", {"n": 1}, aggregate=("bill", "1"))
        if fails.pop():
            raise OSError

    fails[:] = [False, True]
    with pytest.raises(OSError):  # noqa: PT011 - it has no message
        worker.handle("m-1", emits)
    assert list(home.fetch("SELECT count(*) FROM semel_event")) == [(0,)]
    assert worker.handle("m-1", emits) is Receipt.HANDLED
    assert worker.handle("m-1", emits) is Receipt.DUPLICATE
    assert list(home.fetch("SELECT topic FROM semel_event")) == [("bills",)]
