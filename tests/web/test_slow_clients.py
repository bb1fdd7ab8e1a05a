"""What slow clients and waiting duplicates hold of real servers: a bounded part, for a bounded time."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.crash.processes import ROOT
from tests.servers.ports import free_port
from tests.service.served import await_true

THREADS = 8
GUNICORN = ["-m", "gunicorn", "--threads", str(THREADS), "--log-level", "critical"]
APPS = {"gunicorn": "tests.web.slow_shop:wsgi()", "gunicorn-flask": "tests.web.slow_shop:flask()"}


@contextmanager
def serve_app(server: str) -> Iterator[int]:
    port = free_port()
    arguments = ["-m", "tests.web.slow_shop", server, str(port)]
    if server in APPS:
        arguments = [*GUNICORN, "--bind", f"127.0.0.1:{port}", APPS[server]]
    quiet = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=quiet, stderr=quiet) as process:
        try:
            await_true(lambda: _listens(port), f"{server} to listen")
            yield port
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _ask(port: int, method: str, path: str) -> tuple[int, str | None]:
    """One request, and whether it was answered with a stored answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, b"{}", {"Idempotency-Key": "the-key", "Prefer": "wait=30"})
        got = connection.getresponse()
        return got.status, got.getheader("idempotency-replayed")
    finally:
        connection.close()


def test_waiting_duplicates_leave_threads_to_others() -> None:
    with serve_app("gunicorn") as port, ThreadPoolExecutor(THREADS) as clients:
        asked = [clients.submit(_ask, port, "POST", "/slow") for _ in range(THREADS)]
        # Half of the threads wait at most, and one of them runs the command.
        await_true(lambda: sum(each.done() for each in asked) >= THREADS - 1 - THREADS // 2, "the others to be refused")
        assert {each.result()[0] for each in asked if each.done()} == {409}
        assert _ask(port, "GET", "/others")[0] == 201
        assert _ask(port, "GET", "/end")[0] == 201
        answers = [each.result() for each in asked]
    assert answers.count((201, None)) == 1
    assert {status for status, _ in answers} == {201, 409}


def _is_closed(line: socket.socket) -> bool:
    line.settimeout(20)
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "server", ["gunicorn", "gunicorn-flask", "werkzeug", "flask", "uvicorn-h11", "uvicorn-httptools"]
)
@pytest.mark.parametrize("length", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
def test_a_dripping_body_is_refused(server: str, length: str) -> None:
    with serve_app(server) as port, socket.create_connection(("127.0.0.1", port)) as line:
        lines = ["POST /notes HTTP/1.1", "Host: a", "Idempotency-Key: the-key", length]
        line.sendall("\r\n".join([*lines, "", ""]).encode())
        line.settimeout(0.1)
        got, drops = b"", 0
        while b"}" not in got:
            try:
                piece = line.recv(65536)
                assert piece, got
                got += piece
            except TimeoutError:
                drops += 1
                assert drops < 200, "nobody gave it up"
                line.sendall(b"x" if "Length" in length else b"1\r\nx\r\n")
        assert got.startswith(b"HTTP/1.1 408 "), got
        assert b"IDEMPOTENCY_BODY_TOO_SLOW" in got
        assert _is_closed(line)
        assert _ask(port, "POST", "/notes") == (201, None)
