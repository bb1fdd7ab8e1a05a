"""Real relays, killed with SIGKILL while they publish to a real NATS, and a broker that dies meanwhile. 12 s.

What a consumer that deduplicates gets is each committed event once, each aggregate's in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nats as nats_client
import pytest

from tests.outbox.conftest import POSTGRES, SQLITE, Place, make_place
from tests.servers import nats, running

EVENTS = 200
AGGREGATES = 5


def relay(place: Place, url: str) -> subprocess.Popen[bytes]:
    """`semel worker`, as a process."""
    command = [sys.executable, "-m", "semel.cli", "--url", place.url, "worker", "--sink", f"{url}?prefix=k."]
    return subprocess.Popen([*command, "--batch", "20", "--no-reaper"], stdout=subprocess.DEVNULL)


@contextmanager
def commands(place: Place, count: int = EVENTS) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [place.url, str(count), str(AGGREGATES)]
    process = subprocess.Popen([sys.executable, "-m", "tests.outbox.worker_commands", *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def read_stream(url: str) -> list[dict[str, Any]]:
    """Everything the stream has, repetitions included."""
    client = await nats_client.connect(url)
    context = client.jetstream()
    count = (await context.stream_info("k")).state.messages
    subscription = await context.subscribe("k.>", ordered_consumer=True)
    found = []
    for _ in range(count):
        message = await subscription.next_msg(timeout=10)
        assert message.headers is not None
        found.append({"id": message.headers["semel-id"], "about": message.headers["semel-aggregate-id"]})
        found[-1]["n"] = json.loads(message.data)["n"]
    await client.close()
    return found


async def make_stream(url: str) -> None:
    client = await nats_client.connect(url)
    # A window so short that the stream drops nothing: the consumer alone tells repetitions.
    await client.jetstream().add_stream(name="k", subjects=["k.>"], duplicate_window=0.1)
    await client.close()


def until_published(place: Place, at_least: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until so many events are marked, by looking."""
    _until(place, "SELECT count(*) FROM semel_event WHERE published_at IS NOT NULL", at_least, process)


def until_attending(place: Place, process: subprocess.Popen[bytes]) -> None:
    """Wait until a relay has begun: before, it knows nothing of SIGTERM."""
    _until(place, f"SELECT count(*) FROM semel_relay WHERE holder LIKE '%:{process.pid}:%'", 1, process)


def _until(place: Place, query: str, at_least: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        [(count,)] = place.rows(query)
        if count >= at_least:
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)


def check_arrivals(place: Place, found: list[dict[str, Any]]) -> int:
    """How many repetitions there were; everything else is asserted."""
    seen: dict[str, dict[str, Any]] = {}
    for each in found:
        seen.setdefault(each["id"], each)
    assert set(seen) == set(place.ids)
    assert {each["n"] for each in seen.values()} == {n for (n,) in place.rows("SELECT n FROM effect")}
    for about in {each["about"] for each in seen.values()}:
        numbers = [each["n"] for each in seen.values() if each["about"] == about]
        assert numbers == sorted(numbers)
    return len(found) - len(seen)


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
def test_two_relays_are_killed_again_and_again_while_commands_commit(kind: str, tmp_path: Path) -> None:
    place = make_place(kind, tmp_path)
    broker = nats.start(tmp_path)
    url = nats.url(broker)
    generator = random.Random(7)
    relays: list[subprocess.Popen[bytes]] = []
    try:
        asyncio.run(make_stream(url))
        with commands(place) as writer:
            relays += [relay(place, url), relay(place, url)]
            for kills in range(1, 3):
                until_published(place, kills * 50 + generator.randrange(20), relays[-1])
                victim = relays.pop(generator.randrange(2))
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                place.change("UPDATE semel_lane SET lease_until = 1")  # as if ten seconds had passed
                relays.append(relay(place, url))
            assert writer.wait(120) == 0
        place.change("UPDATE semel_lane SET lease_until = 1")
        place.change("UPDATE semel_relay SET lease_until = 1")
        until_published(place, EVENTS, relays[-1])
        for each in relays:
            until_attending(place, each)
        for each in relays:
            each.send_signal(signal.SIGTERM)
        assert [each.wait(30) for each in relays] == [0, 0]
        found = asyncio.run(read_stream(url))
        print("repetitions:", check_arrivals(place, found))
    finally:
        for each in relays:
            if each.poll() is None:
                each.kill()
                each.wait()
        running.stop(broker)


def test_a_broker_that_is_down_for_a_while_delays_events_and_loses_none(tmp_path: Path) -> None:
    place = make_place(SQLITE, tmp_path)
    broker = nats.start(tmp_path)
    url = nats.url(broker)
    asyncio.run(make_stream(url))
    process = relay(place, url)
    try:
        with commands(place, 30) as writer:
            assert writer.wait(120) == 0
        until_published(place, 30, process)
        running.stop(broker)
        with commands(place) as writer:  # of which the first thirty are replays
            assert writer.wait(120) == 0  # commands are none the wiser
        [(left,)] = place.rows("SELECT count(*) FROM semel_event WHERE published_at IS NULL")
        assert left == EVENTS - 30
        broker = nats.start(tmp_path, port=broker.port)
        until_published(place, EVENTS, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        found = asyncio.run(read_stream(url))
        check_arrivals(place, found)
        assert place.rows("SELECT sum(tries) FROM semel_event") == [(0,)]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        running.stop(broker)


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
def test_after_a_relay_dies_between_publish_and_mark_another_publishes_again(kind: str, tmp_path: Path) -> None:
    place = make_place(kind, tmp_path)
    made = place.fill(10, aggregates=2)
    log = tmp_path / "delivered"
    environment = {**os.environ, "SEMEL_TEST_DELIVERED": str(log)}
    for dies in ("1", "0"):
        command = [sys.executable, "-m", "semel.cli", "--url", place.url, "worker", "--once", "--no-reaper", "--sink"]
        ended = subprocess.run(
            [*command, f"python:{__name__}:deliver"],
            env={**environment, "SEMEL_TEST_DIES": dies},
            stdout=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            check=False,
        )
        assert ended.returncode == (-signal.SIGKILL if dies == "1" else 0)
        place.change("UPDATE semel_lane SET lease_until = 1")  # as if ten seconds had passed
    delivered = log.read_text().split()
    assert delivered[:5] == delivered[5:10]  # of ten, five had been delivered and not marked
    assert set(delivered) == {event.id for event in made}
    assert place.waiting == []


def deliver(event: Any) -> None:
    """Write the event's id down; the first process dies after five, before it can mark one."""
    log = Path(os.environ["SEMEL_TEST_DELIVERED"])
    with log.open("a") as file:
        file.write(f"{event.id}\n")
    if os.environ["SEMEL_TEST_DIES"] == "1" and len(log.read_text().split()) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
