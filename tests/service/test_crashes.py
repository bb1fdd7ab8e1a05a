"""Workers that die or are killed: what clients see, what remains, and who takes over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from semel.cli.main import main
from tests.service.served import DEADLINE_SECONDS, Served, await_true, serving

PAYMENT = {"customerId": "c-1", "amount": "10.00", "currency": "EUR"}
ORDER = {"sku": "book-1", "quantity": 2}
NOTE = {"text": "remember the milk"}
UNKNOWN = "IDEMPOTENCY_OUTCOME_UNKNOWN"


def crashing(body: dict[str, Any], moment: str) -> dict[str, Any]:
    return {**body, "simulate": {"crash": moment}}


def count(service: Served, path: str) -> int:
    answer = service.get(path)
    assert answer.status == 200
    return len(answer.json)


@pytest.mark.parametrize(("moment", "charged"), [("before", 0), ("after", 1)])
def test_a_payment_whose_worker_was_killed_is_unknown_until_it_is_settled(
    service: Served, moment: str, charged: int, capsys: pytest.CaptureFixture[str]
) -> None:
    key, body, before = str(uuid4()), crashing(PAYMENT, moment), count(service, "/payments")
    assert service.post("/payments", body, key).status == 0
    again = service.post("/payments", body, key)
    assert again.status == 409
    assert count(service, "/payments") == before + charged

    await_true(lambda: service.post("/payments", body, key).json["code"] == UNKNOWN, "UNKNOWN", 15)
    operation_id = service.post("/payments", body, key).json["operationId"]
    capsys.readouterr()
    word = ["--succeeded", "--status", "201"] if charged else ["--did-not-happen"]
    settle = ["settle", operation_id, "--reason", "looked", "--url", service.store, *word]
    assert main(settle) == 1
    assert main([*settle, "--force"]) == 0
    final = service.post("/payments", body, key)
    assert (final.status, final.replayed) == (201, bool(charged))
    assert count(service, "/payments") == before + 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_order_whose_worker_was_killed_simply_runs_again(service: Served, moment: str) -> None:
    key, body, before = str(uuid4()), crashing(ORDER, moment), count(service, "/orders")
    assert service.post("/orders", body, key).status == 0
    assert count(service, "/orders") == before
    assert service.post("/orders", body, key).status == 201
    assert count(service, "/orders") == before + 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_note_whose_worker_was_killed_is_written_once(service: Served, moment: str) -> None:
    key, body, before = str(uuid4()), crashing(NOTE, moment), count(service, "/notes")
    assert service.post("/notes", body, key).status == 0
    await_true(lambda: service.post("/notes", body, key).status == 201, "the lease to lapse", 15)
    assert count(service, "/notes") == before + 1


def test_the_supervisor_replaces_a_killed_worker(tmp_path: Path) -> None:
    with serving(tmp_path, workers=2) as service:
        service.events(lambda event: len(event.get("pids", ())) == 2)
        former = set(service.workers)
        for pid in former:
            os.kill(pid, signal.SIGKILL)
        service.events(lambda event: not former & set(event.get("pids", former)) and len(event["pids"]) == 2)
        await_true(service.ready, "the new workers")
        assert service.post("/payments", PAYMENT, "a-key-of-its-own").status == 201
        assert f"worker {min(former)} ended (SIGKILL)" in service.log()


def test_a_running_request_is_finished_before_the_end(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        with ThreadPoolExecutor(1) as pool:
            body = {**PAYMENT, "simulate": {"delayMs": 1500}}
            slow = pool.submit(service.post, "/payments", body, "a-key-of-its-own")
            await_true(lambda: bool(service_records(service)), "the command to begin")
            service.process.terminate()
            assert slow.result(DEADLINE_SECONDS).status == 201
        assert service.process.wait(DEADLINE_SECONDS) == 0
        assert [record["state"] for record in service_records(service)] == ["SUCCEEDED"]


def service_records(service: Served) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "semel.cli", "list", "--json", "--url", service.store],
        capture_output=True,
        timeout=DEADLINE_SECONDS,
        check=True,
    )
    records: list[dict[str, Any]] = json.loads(done.stdout)["records"]
    return records


def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        service.process.kill()
        service.process.wait(DEADLINE_SECONDS)
        await_true(lambda: service.get("/healthz").status == 0, "the worker to notice")


def test_a_port_that_is_taken_is_named(service: Served) -> None:
    port = service.url.rsplit(":", 1)[1]
    done = subprocess.run(
        [sys.executable, "-m", "semel.cli", "serve", "--host", "127.0.0.1", "--port", port, "--url", service.store],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert f"PORT {port}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_supervisor_gives_up_on_workers_that_cannot_start(tmp_path: Path) -> None:
    # A module that breaks every worker's start, found before the real one.
    (tmp_path / "uvicorn.py").write_text("raise RuntimeError('broken')")
    done = subprocess.run(
        [sys.executable, "-m", "semel.cli", "serve", "--host", "127.0.0.1", "--port", "0"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "SEMEL_URL": f"sqlite:///{tmp_path / 'semel.db'}"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "semel doctor" in done.stderr
