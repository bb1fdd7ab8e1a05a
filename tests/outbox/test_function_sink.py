"""A function as a sink: which of its errors refuse an event, and which show that its broker is unavailable. 1 s."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator, Sequence

import httpx
import pytest
import redis as redis_client
from kombu.connection import Connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from semel import AsyncEngine
from semel.outbox.event import Event
from semel.outbox.sinks.base import Refused, Reply, SinkUnreached, Unreached
from semel.outbox.sinks.function import FunctionSink
from semel.outbox.worker import Relay
from tests.outbox.conftest import Place
from tests.outbox.sink_stories import event, run_story
from tests.servers.running import free_port


class TheirOwn(Exception):
    """As the errors of clients that derive from no OSError: redis-py's, kombu's, httpx's."""


class TheirRefusal(OSError):
    """As requests' HTTPError and smtplib's refusals, which derive from OSError."""


def _raise(error: Exception, cause: Exception | None = None, *, hides: bool = False) -> None:
    if cause is None:
        raise error
    if hides:
        try:
            raise cause
        except Exception:  # noqa: BLE001 - any exception that a test wants hidden
            raise error from None
    raise error from cause


OUTAGES: dict[str, Callable[[], None]] = {
    "refused connection": lambda: _raise(ConnectionRefusedError(111, "Connection refused")),
    "no answer": lambda: _raise(TimeoutError()),
    "unknown host": lambda: _raise(socket.gaierror(-2, "Name or service not known")),
    "no route": lambda: _raise(OSError(errno.EHOSTUNREACH, "No route to host")),
    "every address": lambda: _raise(OSError("Multiple exceptions: [Errno 111], [Errno 111]")),
    "a client's own": lambda: _raise(TheirOwn("away"), ConnectionResetError(104, "reset")),
    "a client's own, twice": lambda: _raise(TheirOwn("away"), TheirOwnBelow()),
    "told": lambda: _raise(SinkUnreached("the mail server closed the connection")),
}
REFUSALS: dict[str, Callable[[], None]] = {
    "value": lambda: _raise(ValueError("no")),
    "file": lambda: _raise(FileNotFoundError(2, "No such file")),
    "answer 400": lambda: _raise(TheirRefusal("400 Client Error")),
    "hidden": lambda: _raise(ValueError("no"), ConnectionResetError(104, "reset"), hides=True),
}


class TheirOwnBelow(TheirOwn):
    """An error whose context is the socket's."""

    def __init__(self) -> None:
        super().__init__("below")
        self.__context__ = TimeoutError()


def _replies(each: Callable[[], None], *, awaits: bool) -> list[Reply]:
    async def later(_: Event) -> None:
        each()

    found: list[Reply] = []

    async def story() -> None:
        found.extend(await FunctionSink(later if awaits else lambda _: each()).publish([event("a")]))

    run_story(story)
    return found


def test_a_function_that_has_yet_to_run_when_it_returns_delivers_nothing() -> None:
    replies: list[Reply] = []

    def pieces(_: Event) -> Iterator[int]:
        yield 1

    async def story() -> None:
        replies.extend(await FunctionSink(pieces).publish([event("a")]))

    run_story(story)
    [reply] = replies
    assert reply is not None
    assert "returned a generator, which has not run" in str(reply)


@pytest.mark.parametrize("awaits", [False, True], ids=["thread", "loop"])
@pytest.mark.parametrize("name", OUTAGES)
def test_a_connection_error_of_a_function_is_an_outage(name: str, awaits: bool) -> None:
    [reply] = _replies(OUTAGES[name], awaits=awaits)
    assert isinstance(reply, Unreached)
    assert reply.reason


@pytest.mark.parametrize("awaits", [False, True], ids=["thread", "loop"])
@pytest.mark.parametrize("name", REFUSALS)
def test_a_function_that_raises_anything_else_refuses_the_event(name: str, awaits: bool) -> None:
    [reply] = _replies(REFUSALS[name], awaits=awaits)
    assert isinstance(reply, Refused)


@pytest.mark.parametrize("library", ["redis", "httpx", "kombu"])
def test_the_connection_errors_of_client_libraries_are_outages(library: str) -> None:
    """The clients' own exceptions, as they raise them: most derive from no OSError, and have one as their cause."""

    def call() -> None:
        port = free_port()
        if library == "redis":
            redis_client.Redis(port=port, retry=Retry(NoBackoff(), 0)).ping()
        elif library == "httpx":
            httpx.get(f"http://127.0.0.1:{port}/")
        else:
            with Connection(f"amqp://127.0.0.1:{port}//") as connection:  # type: ignore[no-untyped-call]
                connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)

    [reply] = _replies(call, awaits=False)
    assert isinstance(reply, Unreached)


def test_an_outage_of_a_functions_broker_parks_nothing(place: Place) -> None:
    made = place.fill(4, aggregates=2)
    arrived: list[str] = []
    away = True

    def deliver(each: Event) -> None:
        if away:
            raise ConnectionRefusedError(111, "Connection refused")
        arrived.append(each.id)

    async def story() -> None:
        nonlocal away
        async with AsyncEngine.connect(place.url) as engine:
            relay = Relay(engine, FunctionSink(deliver), tries_max=1)
            for _ in range(3):
                assert await relay.run_once() == 0
                assert relay.outage == "ConnectionRefusedError: [Errno 111] Connection refused"
            away = False
            assert await relay.run_once() == 4
            assert relay.parked == 0

    run_story(story)
    assert sorted(arrived) == sorted(event.id for event in made)


class Careless:
    """A user's sink that lets its client's errors through."""

    name = "careless"

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        raise ConnectionRefusedError(111, "Connection refused")

    async def close(self) -> None:
        """Nothing is held."""


def test_an_outage_that_an_own_sink_raises_parks_nothing(quick_place: Place) -> None:
    quick_place.fill(4, aggregates=2)

    async def story() -> None:
        async with AsyncEngine.connect(quick_place.url) as engine:
            relay = Relay(engine, Careless(), tries_max=1)
            assert await relay.run_once() == 0
            assert (relay.parked, relay.outage) == (0, "ConnectionRefusedError: [Errno 111] Connection refused")

    run_story(story)
