"""A database of its own for each test, and inboxes on it. Homes and connections are those of the tests of bulks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from semel import AsyncEngine, AsyncInbox, Engine, Inbox
from semel.inbox.run import Message
from semel.inbox.store import Parked, Receipt
from tests.bulk.fellows import KINDS, SYNC, Home, mariadb_home, postgres_home, sqlite_home
from tests.engine.telling import at_once

Handler = Callable[[Message], Coroutine[Any, Any, object]]


class Consumer:
    """One worker of a consumer, and its loop if it has one."""

    def __init__(self, kind: str, home: Home, **options: Any) -> None:
        self.kind = kind
        self.runner = None if kind in SYNC else asyncio.Runner()
        made: Any = Engine if self.runner is None else AsyncEngine
        self.engine: Any = made(home.backend(kind))
        form: Any = Inbox if self.runner is None else AsyncInbox
        self.inbox: Any = form(self.engine, **{"consumer": "billing", **options})

    def handle(self, message_id: str, handler: Handler, **options: Any) -> Receipt:
        reply: Receipt
        if self.runner is None:
            reply = self.inbox.handle(message_id, lambda message: at_once(handler(message)), **options)
        else:
            reply = self.runner.run(self.inbox.handle(message_id, handler, **options))
        return reply

    def tell(self, name: str, *given: Any, **named: Any) -> Any:
        """Return what one of its other methods answers."""
        reply = getattr(self.inbox, name)(*given, **named)
        return reply if self.runner is None else self.runner.run(reply)

    def list_parked(self) -> list[Parked]:
        found: list[Parked] = self.tell("find_parked")
        return found

    def close(self) -> None:
        if self.runner is None:
            self.engine.close()
        else:
            self.runner.run(self.engine.close())
            self.runner.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_home(kind: str, folder: Path) -> Home:
    """An empty database for this client library."""
    if kind.startswith("sqlite"):
        return sqlite_home(str(folder / "inbox.db"))
    return postgres_home() if "pg" in kind else mariadb_home()


@pytest.fixture
def home(kind: str, tmp_path: Path) -> Home:
    return make_home(kind, tmp_path)


@pytest.fixture
def make_consumer(kind: str, home: Home) -> Iterator[Callable[..., Consumer]]:
    """Workers, each as in its own process."""
    made: list[Consumer] = []

    def make(**options: Any) -> Consumer:
        made.append(Consumer(kind, home, **options))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()
