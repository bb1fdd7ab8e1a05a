"""A real service with a page of metrics, what happens to it, and its series as promtool reads them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy, Scope
from semel.errors import CommandError, SchemaError, StoreError
from semel.exporters.prometheus import Prometheus
from semel.http import Caller
from semel.integrations.fastapi import Semel
from semel.outbox.event import Event
from semel.outbox.sinks.function import FunctionSink
from semel.outbox.worker import Relay
from semel.retention.worker import Reaper
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend

HOUR_US = 3_600_000_000
KEY = "canary-key-8e03978e"  # never to be found in anything that is exported

Sample = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class Shop:
    """The service, and its past."""

    path: Path
    metrics: Prometheus
    client: TestClient

    def pay(self, key: str, caller: str = "alice", amount: str = "10", **body: Any) -> int:
        """One request."""
        headers = {"Idempotency-Key": f"{KEY}-{key}", "Authorization": caller}
        return self.client.post("/payments", json={"amount": amount, **body}, headers=headers).status_code

    def engine(self, ago_us: int = 0) -> Engine:
        """An engine of another process, in the past, that reports to the same page."""
        driver = SqliteDriver(str(self.path), clock=lambda: time.time_ns() // 1000 - ago_us)
        return Engine(sqlite_backend(driver), observer=self.metrics)

    def command(self, key: str, caller: str = "alice", **options: Any) -> Command:
        return Command(Scope("acme", caller, "pay"), f"{KEY}-{key}", bytes(32), "test", Policy.of(**options))

    def abandon(self, key: str) -> None:
        """A process dies in the middle of a command, an hour ago."""
        with self.engine(HOUR_US) as engine:
            assert isinstance(engine.claim(self.command(key)), Permit)

    def retry_too_late(self, key: str) -> None:
        """A client comes back when its answer is forgotten."""
        command = self.command(key, answer_seconds=60, tombstone_seconds=86_400)
        with self.engine(HOUR_US) as engine:
            engine.run(command, pay)
        with self.engine() as engine, suppress(CommandError):
            engine.run(command, pay)

    def purge(self) -> None:
        """A reaper's purge, with something to drop."""
        with self.engine(2 * HOUR_US) as engine:
            engine.run(self.command("over", answer_seconds=60, tombstone_seconds=60), pay)

        async def purge() -> None:
            async with AsyncEngine.connect(f"sqlite:///{self.path}", observer=self.metrics) as engine:
                await Reaper(engine).purge()

        asyncio.run(purge())

    def relay(self, key: str, *, refuses: bool = False, tries_max: int = 1) -> None:
        """An event of an hour ago meets a relay, whose broker has it or refuses it."""

        def emit(permit: Permit) -> Answer:
            permit.emit("payments.created", {"amount": "10"})
            return pay(permit)

        with self.engine(HOUR_US) as engine:
            engine.run(self.command(key), emit)

        def deliver(event: Event) -> None:
            if refuses:
                raise ValueError("no such topic")

        async def publish() -> None:
            async with AsyncEngine.connect(f"sqlite:///{self.path}", observer=self.metrics) as engine:
                relay = Relay(engine, FunctionSink(deliver), tries_max=tries_max)
                await relay.run_once()
                await relay.gauge()

        asyncio.run(publish())

    def lose_the_store(self) -> None:
        """An engine that asks a store which is not there."""
        missing = Engine.connect(f"sqlite:///{self.path.parent}/no/such/folder/semel.db", observer=self.metrics)
        with suppress(StoreError, SchemaError):
            missing.run(self.command("lost"), pay)
        missing.close()

    def scrape(self) -> str:
        """The page."""
        answer = self.client.get("/metrics/")
        assert answer.status_code == 200
        return answer.text


def pay(permit: Permit) -> Answer:
    return Answer(201, (), b"paid")


@contextmanager
def shop(folder: Path, *, lost: bool = False) -> Iterator[Shop]:
    """A running service. Parameters: ``lost``: its page looks at a store that is not there."""
    path = folder / "semel.db"
    url = f"sqlite:///{path}"
    created = Engine.connect(url)
    created.migrate()
    created.close()
    seen = f"sqlite:///{folder}/lost/semel.db" if lost else url
    metrics = Prometheus(CollectorRegistry(), store=seen, store_seconds=0)
    engine = AsyncEngine.connect(url, observer=metrics)
    app = FastAPI()
    semel = Semel(engine, caller=lambda request: Caller("acme", request.headers["authorization"]))

    @app.post("/payments", status_code=201)
    @semel.command("payments.create", effects="external")
    async def create_payment(request: Request) -> dict[str, str]:
        body = await request.json()
        if "fail" in body:
            raise ConnectionError(body["fail"])
        return {"paid": body["amount"]}

    semel.install(app, reap=False)
    app.mount("/metrics", metrics.asgi())
    with TestClient(app, raise_server_exceptions=False) as client:
        try:
            yield Shop(path, metrics, client)
        finally:
            metrics.close()


def busy(shop: Shop) -> None:
    """Everything that a dashboard shows, again each time."""
    at = time.time_ns()
    for number in range(20):
        shop.pay(f"{at}-{number}")
        shop.pay(f"{at}-{number}")
        shop.pay(f"{at}-{number}", amount="11")
    shop.pay(f"{at}-fails", fail="the provider hung up")
    shop.abandon(f"{at}-abandoned")
    with shop.engine() as engine:
        command = shop.command(f"{at}-twice", wait_seconds=0)
        engine.claim(command)
        with suppress(CommandError):
            engine.run(command, pay)
        abandoned = shop.command(f"{at}-taken-over", effects="idempotent")
        with shop.engine(HOUR_US) as earlier:
            earlier.claim(abandoned)
        engine.run(abandoned, pay)
    shop.retry_too_late(f"{at}-late")
    shop.relay(f"{at}-tells")
    shop.relay(f"{at}-tells-in-vain", refuses=True)
    shop.purge()
    shop.lose_the_store()


# --- series for promtool ---------------------------------------------------------------------------


def samples(text: str) -> dict[Sample, float]:
    """Every sample of a page. A time since 1970 becomes one since now, as promtool's clock begins at 0."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            shift = time.time() if sample.name.endswith("_timestamp_seconds") else 0
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value - shift
    return found


def input_series(before: str, after: str, minutes: int) -> list[dict[str, str]]:
    """Ten minutes of the one page, then of the other."""
    first, last = samples(before), samples(after)
    series = []
    for sample in sorted({*first, *last}):
        name, labels = sample
        inside = ",".join(f'{label}="{_escape(value)}"' for label, value in labels)
        old = f"{first[sample]:.9f}x10" if sample in first else "_x10"
        new = f"{last[sample]:.9f}x{minutes - 11}" if sample in last else ""
        series.append({"series": f"{name}{{{inside}}}", "values": f"{old} {new}".strip()})
    return series


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


Story = Callable[[Shop], None]
