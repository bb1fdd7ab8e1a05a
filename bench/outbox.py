"""The outbox, measured: ``python -m bench.outbox`` starts PostgreSQL and NATS and prints three figures as JSON.

*relay*: events a second from PostgreSQL to JetStream, with as many `semel worker` processes as asked for, over a table
that was filled before; the order of each aggregate is checked in the stream. *latency*: from the call of an ATOMIC
command to its event at a subscriber, one at a time. *emit*: ATOMIC commands a second with and without one event, in
alternation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import nats as nats_client
import psycopg

from semel import Answer, AsyncEngine, Permit, Policy
from semel.outbox.run import own_event
from semel.outbox.sinks.nats import NatsSink
from semel.outbox.store import Events
from semel.outbox.worker import Relay
from tests.engine.shells import command
from tests.servers import nats, postgres
from tests.servers.running import begin_run, end_run, share_server
from verification.subjects.postgres import empty_schema

ATOMIC: Final = Policy(effects="atomic")
SCHEMA: Final = "bench_outbox"
DURABLE: Final = (
    "fsync=on",
    "synchronous_commit=on",
    "checkpoint_timeout=1h",
    "max_wal_size=8GB",
    "shared_buffers=256MB",
)


@contextmanager
def servers() -> Iterator[tuple[str, str]]:
    """A migrated store on a PostgreSQL that flushes each commit, and a NATS with JetStream, as URLs."""
    folder = begin_run()
    try:
        running = share_server("bench-postgres", lambda home: postgres.start(home, *DURABLE))
        yield postgres.conninfo(running), nats.nats()
    finally:
        end_run(folder)


async def prepare(conninfo: str, broker: str) -> str:
    """Empty both; the store's URL."""
    empty_schema(conninfo, SCHEMA)
    url = f"{conninfo}?schema={SCHEMA}"
    engine = AsyncEngine.connect(url)
    await engine.migrate()
    await engine.close()
    client = await nats_client.connect(broker)
    context = client.jetstream()
    if "bench" in [stream.config.name for stream in await context.streams_info()]:
        await context.delete_stream("bench")
    await context.add_stream(name="bench", subjects=["bench.>"])
    await client.close()
    return url


async def fill(url: str, count: int, aggregates: int, size: int) -> None:
    """Events of so many aggregates in turn."""
    pad = "x" * size
    async with AsyncEngine.connect(url) as engine:
        events = Events(engine.store.dialect)  # type: ignore[attr-defined]
        for first in range(0, count, 1000):
            batch = [
                own_event(None, "bench.a", {"n": n, "pad": pad}, None, ("order", str(n % aggregates)), None, "")
                for n in range(first, min(first + 1000, count))
            ]
            await engine.perform("fill", lambda batch=batch: events.write(batch))  # type: ignore[misc]


async def relay(conninfo: str, broker: str, count: int, aggregates: int, workers: int, size: int) -> dict[str, Any]:
    """How fast a full table is emptied."""
    url = await prepare(conninfo, broker)
    await fill(url, count, aggregates, size)
    options = ["worker", "--sink", broker, "--no-reaper", "--json"]
    began = time.monotonic()
    relays = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "semel.cli", "--url", url, *options, stdout=subprocess.DEVNULL
        )
        for _ in range(workers)
    ]
    marks: list[tuple[float, int]] = []
    with psycopg.connect(conninfo, autocommit=True, options=f"-c search_path={SCHEMA}") as watch:
        done = 0
        while done < count:
            await asyncio.sleep(0.1)
            if any(each.returncode is not None for each in relays):
                raise SystemExit("a worker has ended; its error is above")
            row = watch.execute("SELECT count(*) FROM semel_event WHERE published_at IS NOT NULL").fetchone()
            assert row is not None
            done = int(row[0])
            marks.append((time.monotonic() - began, done))
    for each in relays:
        each.send_signal(signal.SIGTERM)
        await each.wait()
    # From the first batch on: a process takes a while to start, and a relay runs for days.
    first = next(mark for mark in marks if mark[1] > 0)
    last = marks[-1]
    rate = (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0
    return {
        "events": count,
        "aggregates": aggregates,
        "workers": workers,
        "payloadBytes": size + 20,
        "eventsPerSecond": round(rate),
        "inOrder": await in_order(broker, count),
    }


async def in_order(broker: str, count: int) -> bool:
    """Whether the stream has each event, each aggregate's in order."""
    client = await nats_client.connect(broker)
    subscription = await client.jetstream().subscribe("bench.>", ordered_consumer=True)
    last: dict[str, int] = {}
    seen = 0
    good = True
    while seen < count:
        message = await subscription.next_msg(timeout=30)
        assert message.headers is not None
        n, about = json.loads(message.data)["n"], message.headers["semel-aggregate-id"]
        good = good and last.get(about, -1) < n
        last[about] = n
        seen += 1
    await client.close()
    return good


async def latency(conninfo: str, broker: str, times: int) -> dict[str, Any]:
    """From the call of a command to its event at a subscriber, in milliseconds."""
    url = await prepare(conninfo, broker)
    client = await nats_client.connect(broker)
    subscription = await client.subscribe("bench.>")
    took: list[float] = []
    async with (
        AsyncEngine.connect(url) as engine,
        AsyncEngine.connect(url) as other,
        Relay(other, NatsSink([broker]), poll_seconds=60),
    ):
        await asyncio.sleep(0.5)
        for n in range(times):
            began = time.monotonic()
            await engine.run(command(f"l{n}", policy=ATOMIC), emitting)
            await subscription.next_msg(timeout=90)
            took.append((time.monotonic() - began) * 1000)
            await asyncio.sleep(0.02)
    await client.close()
    took = sorted(took[5:])
    return {
        "events": len(took),
        "p50Milliseconds": round(statistics.median(took), 1),
        "p95Milliseconds": round(took[int(len(took) * 0.95)], 1),
    }


async def emitting(permit: Permit) -> Answer:
    """A handler that writes a row's worth of nothing and emits one event."""
    permit.emit("bench.a", {"n": 0}, aggregate=("order", permit.operation_id))
    return Answer(201, (), b"made")


async def silent(permit: Permit) -> Answer:
    """The same without."""
    return Answer(201, (), b"made")


async def emit(conninfo: str, broker: str, rounds: int, seconds: float, at_once: int) -> dict[str, Any]:
    """ATOMIC commands a second, with and without an event, in alternating rounds."""
    url = await prepare(conninfo, broker)
    rates: dict[bool, list[float]] = {False: [], True: []}
    numbers = iter(range(10**9))
    async with AsyncEngine.connect(f"{url}&connections_max={at_once}") as engine:

        async def client(emits: bool, ends: float) -> int:
            done = 0
            while time.monotonic() < ends:
                await engine.run(command(f"e{next(numbers)}", policy=ATOMIC), emitting if emits else silent)
                done += 1
            return done

        for place in range(2 * rounds + 2):
            emits = (place + place // 2) % 2 == 0  # ABBA: neither is always first
            began = time.monotonic()
            done = sum(await asyncio.gather(*(client(emits, began + seconds) for _ in range(at_once))))
            if place >= 2:  # the first of each warms up
                rates[emits].append(done / (time.monotonic() - began))
    plain, told = statistics.median(rates[False]), statistics.median(rates[True])
    return {
        "commandsPerSecond": round(plain),
        "withEventPerSecond": round(told),
        "costPercent": round(100 * (1 - told / plain), 1),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.outbox", description=__doc__)
    parser.add_argument("--only", choices=("relay", "latency", "emit"))
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--aggregates", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=8)
    options = parser.parse_args()
    found: dict[str, Any] = {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    with servers() as (conninfo, broker):
        if options.only in (None, "relay"):
            found["relay"] = await relay(
                conninfo, broker, options.events, options.aggregates, options.workers, options.bytes
            )
        if options.only in (None, "latency"):
            found["latency"] = await latency(conninfo, broker, options.times)
        if options.only in (None, "emit"):
            found["emit"] = await emit(conninfo, broker, options.rounds, options.seconds, options.at_once)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
