"""SIGKILL of the client at each write of its journal, and two processes on one journal: one effect, one answer."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from semel.client import Budget, Client, Done, Journal

# One payment; the process is killed before or after the n-th committed write of the journal.
PROGRAM = """
import os, signal, sys
from semel.client import Budget, Client, Journal, journal as journal_module

url, file, when, nth = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
right, writes = journal_module._transaction, [0]

from contextlib import contextmanager

@contextmanager
def dying(connection):
    with right(connection):
        yield
        writes[0] += 1
        if when == "before" and writes[0] == nth:
            os.kill(os.getpid(), signal.SIGKILL)
    if when == "after" and writes[0] == nth:
        os.kill(os.getpid(), signal.SIGKILL)

journal = Journal(f"sqlite:///{file}", payloads=True)
journal_module._transaction = dying
with Client(url, journal=journal, budget=Budget(pause_seconds=0.01)) as api:
    print(api.intent("POST", "/payments", json={"amount": "5.00"}, name="rent").send(), writes[0])
"""
RACER = """
import sys
from semel.client import Budget, Client, Journal

journal = Journal(f"sqlite:///{sys.argv[2]}", payloads=True)
print("ready", flush=True)
sys.stdin.readline()
with Client(sys.argv[1], journal=journal, budget=Budget(attempts=1)) as api:
    print(*[type(outcome).__name__ for _, outcome in api.resume()])
"""


class Idempotent(ThreadingHTTPServer):
    """Remembers the answer of each key; the first request of a key has the effect, and its answer may be lost."""

    daemon_threads = True

    def __init__(self, lose_first: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.lose_first = lose_first
        self.answers: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.at_once: dict[str, int] = {}
        self.most_at_once = 0
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    server: Idempotent

    def log_message(self, *_: object) -> None: ...

    def do_POST(self) -> None:
        body, key = self.rfile.read(int(self.headers["Content-Length"])), self.headers["Idempotency-Key"]
        with self.server.lock:
            is_first = key not in self.server.answers
            answer = self.server.answers.setdefault(key, json.dumps({"id": len(self.server.answers)}).encode())
            self.server.requests.append(key)
            self.server.at_once[key] = self.server.at_once.get(key, 0) + 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once[key])
        threading.Event().wait(0.01)  # long enough for another sender to be seen beside this one
        with self.server.lock:
            self.server.at_once[key] -= 1
        if is_first and self.server.lose_first:
            self.close_connection = True
            return
        assert body
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@contextmanager
def serving(*, lose_first: bool) -> Iterator[Idempotent]:
    server = Idempotent(lose_first)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)


# The writes of one send() whose first answer is lost: add, claim, attempt, attempt, conclude.
WRITES = 5


def test_a_send_makes_a_known_number_of_writes(tmp_path: Path) -> None:
    """Or the kills below would miss a write."""
    with serving(lose_first=True) as server:
        done = run(PROGRAM, server.url, str(tmp_path / "intents.db"), "never", "0")
    assert done.stdout.startswith("Done("), done.stderr
    assert done.stdout.split()[-1] == str(WRITES)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, WRITES + 1))
def test_a_client_killed_at_any_write_continues_with_its_key(tmp_path: Path, when: str, nth: int) -> None:
    file = tmp_path / "intents.db"
    with serving(lose_first=True) as server:
        killed = run(PROGRAM, server.url, str(file), when, str(nth))
        assert killed.returncode == -9, killed.stderr
        journal = Journal(f"sqlite:///{file}", payloads=True)
        entry = journal.find(name="rent")
        assert (entry is None) == (nth == 1 and when == "before")
        if entry is None:
            assert server.requests == []  # nothing left before the journal knew it
        with Client(server.url, journal=journal, budget=Budget(pause_seconds=0.01)) as api:
            resumed = api.resume()
            assert all(isinstance(outcome, Done) for _, outcome in resumed)
            outcome = api.intent("POST", "/payments", json={"amount": "5.00"}, name="rent").send()
    assert isinstance(outcome, Done)
    assert outcome.answer is not None
    assert [outcome.answer.body] == list(server.answers.values())  # one effect, and its own answer
    assert journal.open() == []


def test_two_processes_on_one_journal_never_send_an_intent_at_once(tmp_path: Path) -> None:
    file = tmp_path / "intents.db"
    journal = Journal(f"sqlite:///{file}", payloads=True)
    with serving(lose_first=False) as server:
        with Client(server.url, journal=journal) as api:
            for number in range(15):
                api.intent("POST", "/payments", json={"n": number})
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", RACER, server.url, str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(3)
        ]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        said = []
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        for racer in racers:
            said.append(racer.communicate(timeout=60)[0])
            assert racer.returncode == 0
    assert server.most_at_once == 1
    assert len(server.requests) == len(set(server.requests)) == 15
    assert journal.open() == []


def test_a_stale_connection_costs_an_attempt_and_is_not_retried_silently(tmp_path: Path) -> None:
    """The server takes the second request of a kept connection and hangs up: nothing below the plan sends it again."""
    answer = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
    received: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for replies in ([answer, b""], [answer]):
            connection, _ = listener.accept()
            with connection:
                for reply in replies:
                    received.append(_read_request(connection))
                    connection.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    journal = Journal(f"sqlite:///{tmp_path / 'intents.db'}")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with Client(url, journal=journal, budget=Budget(pause_seconds=0.01)) as api:
        for name in ("first", "second"):
            assert isinstance(api.intent("POST", "/", json={}, name=name).send(), Done)
    thread.join()
    listener.close()
    entry = journal.find(name="second")
    assert entry is not None
    assert entry.sends == 2
    assert len(received) == 3


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\n{}"):
        part = connection.recv(65536)
        assert part
        data += part
    return data
