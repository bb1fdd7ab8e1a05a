"""Several workers on one SQLite file, under load: one is killed, all are replaced one after another."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.crash.work import Folder
from tests.processes.servers import Load, check_shop, sender, shop_server
from tests.service.served import Served, await_true, serving

KEYS = 30
KINDS = ("external", "idempotent", "atomic")  # the shop's paths; the shop itself is imported by servers alone
BODIES = {
    "payments": {"customerId": "c-1", "amount": "10.00", "currency": "EUR", "simulate": {"delayMs": 10}},
    "orders": {"sku": "book-1", "quantity": 2},
    "notes": {"text": "remember the milk", "simulate": {"delayMs": 10}},
}


# --- uvicorn --workers ---

UVICORN = ("uvicorn", "tests.processes.shop:app", "--workers", "3", "--port", "{port}", "--log-level", "warning")


def kill_one(load: Load) -> None:
    os.kill(load.pids()[0], signal.SIGKILL)


@pytest.mark.parametrize("disturbance", ["kill", "rolling-restart"])
def test_uvicorn_workers_answer_once_under_kills_and_restarts(disturbance: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with shop_server(folder, *UVICORN) as (process, send):
        load = Load(send, KINDS, KEYS)

        def roll(load: Load) -> None:
            former = set(load.pids())
            process.send_signal(signal.SIGHUP)
            await_true(lambda: len(set(load.pids()) - former) == 3, "three new workers to answer")

        load.run(kill_one if disturbance == "kill" else roll)
        check_shop(folder, load)
        report(disturbance, load)
        if disturbance == "rolling-restart":
            assert load.unknown() == set()


# --- semel serve ---


def evidence(service: Served, kind: str) -> int:
    return len(service.get(f"/{kind}").json)


def is_replacement_of(pid: int) -> Callable[[dict[str, Any]], bool]:
    return lambda event: pid not in event.get("pids", [pid]) and len(event["pids"]) == 3


@pytest.mark.parametrize("disturbance", ["kill", "rolling-restart"])
def test_the_reference_service_with_several_workers(disturbance: str, tmp_path: Path) -> None:
    with serving(tmp_path, workers=3) as service:
        service.events(lambda event: len(event.get("pids", ())) == 3)
        port = urlsplit(service.url).port
        assert port is not None
        headers = {"Authorization": "Bearer alice", "Content-Type": "application/json"}
        send = sender(port, headers, lambda kind: json.dumps(BODIES[kind]).encode())
        load = Load(send, tuple(BODIES), KEYS)

        def kill_first(load: Load) -> None:
            os.kill(service.workers[0], signal.SIGKILL)

        def one_after_another(load: Load) -> None:
            for pid in list(service.workers):
                os.kill(pid, signal.SIGTERM)  # it drains, and the supervisor starts another
                service.events(is_replacement_of(pid))

        load.run(kill_first if disturbance == "kill" else one_after_another)
        load.check_answers()
        told = Counter(kind for kind, key in load.told if key not in load.unknown())
        report(disturbance, load)
        assert evidence(service, "orders") == told["orders"] >= KEYS
        assert evidence(service, "notes") == told["notes"] >= KEYS
        charged = evidence(service, "payments")
        assert told["payments"] <= charged <= told["payments"] + len(load.unknown())
        if disturbance == "rolling-restart":
            assert load.unknown() == set()


def report(name: str, load: Load) -> None:
    print(f"{name}: {dict(load.statuses)}, {len(load.told)} commands, {len(load.unknown())} unknown")
