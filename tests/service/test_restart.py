"""SIGHUP: the workers are replaced one by one, by others that already serve, and no request is lost."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.service.served import DEADLINE_SECONDS, Served, await_true, serving

NOTE = {"text": "remember the milk"}
PAYMENT = {"customerId": "c-1", "amount": "10.00", "currency": "EUR"}
CLIENTS = 3


@contextmanager
def asking(service: Served) -> Iterator[list[int]]:
    """Clients that send one note after the other, each with its own key; the statuses they got."""
    over, statuses = threading.Event(), list[int]()

    def client(number: int) -> None:
        count = 0
        while not over.is_set():
            statuses.append(service.post("/notes", NOTE, f"note-{number}-{count}").status)
            count += 1

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client, number) for number in range(CLIENTS)]
        try:
            yield statuses
        finally:
            over.set()
        for one in clients:
            one.result(DEADLINE_SECONDS)


def records(folder: Path) -> int:
    connection = sqlite3.connect(folder / "semel.db")
    try:
        [count] = connection.execute("SELECT count(*) FROM semel_record").fetchone()
        return int(count)
    finally:
        connection.close()


def live(service: Served) -> set[int]:
    """The workers that are there, by what the system says."""
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(service.process.pid)], capture_output=True, check=False)
    return {int(word) for word in done.stdout.split()}


def test_every_worker_is_replaced_and_no_request_is_lost(tmp_path: Path) -> None:
    with serving(tmp_path, workers=2) as service:
        service.events(lambda event: len(event.get("pids", ())) == 2)
        former = live(service)
        assert len(former) == 2
        with asking(service) as statuses:
            await_true(lambda: len(statuses) > 5, "the clients to begin")
            service.process.send_signal(signal.SIGHUP)
            await_true(lambda: not former & live(service), "the former workers to end")
            answered = len(statuses)
            await_true(lambda: len(statuses) > answered + 5, "the new workers to answer")
        assert set(statuses) == {201}
        assert len(live(service)) == 2
        assert "ended" not in service.log()


def test_a_running_request_is_finished_by_its_worker(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        [former] = live(service)
        with ThreadPoolExecutor(1) as pool:
            body = {**PAYMENT, "simulate": {"delayMs": 2500}}
            slow = pool.submit(service.post, "/payments", body, "a-key-of-its-own")
            await_true(lambda: records(tmp_path) == 1, "the command to begin")
            service.process.send_signal(signal.SIGHUP)
            await_true(lambda: len(live(service)) == 2, "the new worker to start")
            assert slow.result(DEADLINE_SECONDS).status == 201
        await_true(lambda: former not in live(service), "the former worker to end")
        assert service.post("/payments", body, "a-key-of-its-own").replayed


def test_workers_that_cannot_start_do_not_replace_those_that_serve(tmp_path: Path) -> None:
    broken = tmp_path / "path"
    broken.mkdir()
    with serving(tmp_path, environment={"PYTHONPATH": str(broken)}) as service:
        former = live(service)
        (broken / "uvicorn.py").write_text("raise RuntimeError('broken')")
        service.process.send_signal(signal.SIGHUP)
        await_true(lambda: "the former ones continue" in service.log(), "the supervisor to give up")
        assert live(service) == former
        (broken / "uvicorn.py").unlink()
        service.process.send_signal(signal.SIGHUP)
        await_true(lambda: not former & live(service), "the former worker to end")
        assert service.ready()


def test_a_closed_terminal_ends_the_service(tmp_path: Path) -> None:
    """There SIGHUP means that its terminal has gone."""
    program = "import pty, sys; pty.spawn(sys.argv[1:])"
    serve = [sys.executable, "-m", "semel.cli", "serve", "--json", "--host", "127.0.0.1", "--port", "0"]
    environment: dict[str, Any] = {**os.environ, "SEMEL_URL": f"sqlite:///{tmp_path / 'semel.db'}"}
    terminal = subprocess.Popen(
        [sys.executable, "-c", program, *serve],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    service = Served(terminal, tmp_path, "")
    try:
        event = service.events(lambda event: event["event"] == "serving")
        service.url = event["url"]
        await_true(service.ready, "the first worker")
    finally:
        terminal.kill()
        terminal.wait(DEADLINE_SECONDS)
        service.reader.join(DEADLINE_SECONDS)
    await_true(lambda: service.get("/healthz").status == 0, "the service to end")
