"""Random schedules of faults between both clients and the real reference service, and what must be true afterwards."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from semel.client import AsyncClient, Budget, Client, Done, Journal, Outcome, Refused
from tests.client.breaking import FAULTS, breaking
from tests.service.served import Served, await_true, serving

HEADERS = {"Authorization": "Bearer alice"}
ATTEMPT_SECONDS = 1.5
BUDGET = Budget(
    attempts=8,
    seconds=5.0,
    attempt_seconds=ATTEMPT_SECONDS,
    pause_seconds=0.01,
    pause_seconds_max=0.1,
    retries_at_once=1_000_000,
)
AFTERWARDS = replace(BUDGET, attempts=100, seconds=1.5, pause_seconds_max=0.5)
LEASE_SECONDS = 5.0  # of the service in its demo mode: how long a killed worker's claim holds


class Schedule:
    """What one intent wants, and what its attempts meet, from one seed."""

    def __init__(self, seed: int, crashes: bool) -> None:
        chosen = random.Random(seed)
        self.seed = seed
        self.name = f"intent-{seed}"
        self.is_async = chosen.random() < 0.3
        wishes: list[tuple[str, dict[str, Any]]] = [
            ("/payments", {"customerId": self.name, "amount": "5.00", "currency": "EUR"}),
            ("/orders", {"sku": self.name, "quantity": 1}),
            ("/notes", {"text": self.name}),
        ]
        self.path, self.body = chosen.choice(wishes)
        trouble = chosen.random()
        if trouble < 0.1:
            self.body = {**self.body, "simulate": {"fail": chosen.choice(["before", "after", "timeout"])}}
        elif crashes and trouble < 0.13:
            self.body = {**self.body, "simulate": {"crash": chosen.choice(["before", "after"])}}
        elif trouble < 0.18:
            self.body = {**self.body, "unknown": "member"}  # refused by the service
        weights = [6 if fault == "pass" else 0.2 if fault == "late" else 1 for fault in FAULTS]
        self.faults = chosen.choices(FAULTS, weights, k=12)


class Round:
    """A service, a proxy and a journal, through which schedules are played."""

    def __init__(self, folder: Path, *, crashes: bool) -> None:
        self._folder = folder
        self._crashes = crashes
        self.outcomes: Counter[str] = Counter()
        self._schedules: dict[str, Schedule] = {}  # by key
        self._left: dict[str, list[str]] = {}
        self._ended: dict[str, Outcome] = {}
        self._lock = threading.Lock()
        self._is_calm = False

    def play(self, seeds: range, *, parallel: int = 6) -> Counter[str]:
        """Play these schedules; raises AssertionError with the seeds of those that broke a promise."""
        journal = Journal(f"sqlite:///{self._folder / 'intents.db'}", payloads=True)
        with (
            serving(self._folder, workers=2) as service,
            breaking(service.url, self._fault_of, ATTEMPT_SECONDS * 1.2) as proxy,
        ):
            with (
                Client(proxy.url, journal=journal, budget=BUDGET, headers=HEADERS) as api,
                ThreadPoolExecutor(parallel) as pool,
            ):
                for outcome in pool.map(lambda seed: self._play_one(api, journal, seed), seeds):
                    self.outcomes[type(outcome).__name__] += 1
            self._is_calm = True
            await_true(service.ready, "the service")
            seconds = AFTERWARDS.seconds + (LEASE_SECONDS + 1 if self._crashes else 0)
            with Client(
                proxy.url, journal=journal, budget=replace(AFTERWARDS, seconds=seconds), headers=HEADERS
            ) as api:
                for intent, outcome in api.resume(limit=len(seeds)):
                    self._ended[intent.key] = outcome
            self._judge(service, proxy.answers)
            self.outcomes.update({f"met {fault}": count for fault, count in proxy.met.items()})
        return self.outcomes

    def _play_one(self, api: Client, journal: Journal, seed: int) -> Outcome:
        schedule = Schedule(seed, self._crashes)
        intent = api.intent("POST", schedule.path, json=schedule.body, name=schedule.name)
        with self._lock:
            self._schedules[intent.key] = schedule
            self._left[intent.key] = list(schedule.faults)
        if schedule.is_async:
            outcome = anyio.run(self._send_async, api.core.base_url, journal, schedule)
        else:
            outcome = intent.send()
        self._ended[intent.key] = outcome
        return outcome

    async def _send_async(self, url: str, journal: Journal, schedule: Schedule) -> Outcome:
        async with AsyncClient(url, journal=journal, budget=BUDGET, headers=HEADERS) as api:
            intent = await api.intent("POST", schedule.path, json=schedule.body, name=schedule.name)
            return await intent.send()

    def _fault_of(self, key: str) -> str:
        with self._lock:
            left = self._left.get(key.partition(":")[0])  # a control may spoil its keys
            return left.pop(0) if left and not self._is_calm else "pass"

    def _judge(self, service: Served, answers: dict[str, list[tuple[int, bytes]]]) -> None:
        effects = Counter(charge["customerId"] for charge in service.get("/payments").json)
        effects.update(order["sku"] for order in service.get("/orders").json)
        effects.update(note["text"] for note in service.get("/notes").json)
        broken = []
        for key, outcome in self._ended.items():
            schedule = self._schedules[key]
            happened = effects[schedule.name]
            first = next((body for status, body in answers[key] if status == 201), None)
            if happened > 1:
                broken.append((schedule.seed, f"{happened} effects"))
            if isinstance(outcome, Done) and (happened != 1 or outcome.answer is None or outcome.answer.body != first):
                broken.append((schedule.seed, f"done with {happened} effects, {outcome.answer} and first {first!r}"))
            if isinstance(outcome, Refused) and happened and outcome.code != "HTTP_500":
                broken.append((schedule.seed, f"refused as {outcome.code} after an effect"))
            if first is not None and not isinstance(outcome, Done):
                broken.append((schedule.seed, f"answered 201, but ended {outcome}"))
        assert broken == [], broken


def play(folder: Path, seeds: range, *, crashes: bool) -> Counter[str]:
    """Play the schedules of these seeds in a new service."""
    found: Any = Round(folder, crashes=crashes).play(seeds)
    assert isinstance(found, Counter)
    return found
