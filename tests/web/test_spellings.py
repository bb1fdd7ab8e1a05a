"""However a method and a path are spelled, no framework and no server runs a declared command unprotected."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.crash.processes import ROOT
from tests.servers.ports import free_port
from tests.service.served import await_true
from tests.web.spelled import SERVERS, WSGI_APPS

ALL = {name: apps for name, (_, apps) in SERVERS.items()} | {"gunicorn": WSGI_APPS}
SPELLINGS = [
    ("POST", "{}"),
    *[(method, "{}") for method in ("post", "Post", "pOST")],
    *[
        ("POST", path)
        for path in (
            *("/{}", "//{}", "{}/", "{}//", "/.{}", "/x/..{}", "{}/.", "{}/x/..", "{};v=1", "{}%3Bv=1"),
            *("{}%2F", "{}%2f", "/%2F{}", "{}%252F", "{}%0A", "{}%0D%0A", "{}%00", "{}%20", "{}%09", "{}+"),
            *("{}%C0%AF", "{}%FF", "{}%E2%80%8B", "{}%C2%A0", "{}%5C", "{}?", "{}#", "{}%3F", "{}%23x"),
            *("http://host{}", "http://host/{}", "HTTP://host{}", "http://host{}/"),
        )
    ],
    ("POST", "{upper}"),
    ("POST", "{encoded}"),
    ("POST", "{bare}"),
    ("POST", "{bare}/"),
    ("post", "/{}"),
]


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """Every server with every application, by the server's name."""
    found = {name: free_port() for name in ALL}
    threads = [sys.executable, "-m", "tests.web.spelled", *(str(found[name]) for name in SERVERS)]
    where = f"127.0.0.1:{found['gunicorn']}"
    gunicorn = [sys.executable, "-m", "gunicorn", "--threads", "2", "--bind", where, "tests.web.spelled:wsgi()"]
    with _process(threads), _process([*gunicorn, "--log-level", "critical"]):
        for name, port in found.items():
            await_true(lambda port=port: _listens(port), f"{name} to listen")  # type: ignore[misc]
        yield found


@contextmanager
def _process(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _ask(
    port: int, method: str, target: str, host: str, key: str | None = None, *, closes: bool = False
) -> tuple[int, bytes]:
    """One request, byte for byte as it is given: no client library would send some of them. 0: cut off.

    Parameters: ``closes`` says at once that no more comes: Werkzeug waits 10 ms for more behind each request.
    """
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Content-Length: 2", "Connection: close"]
    lines += [] if key is None else [f"Idempotency-Key: {key}"]
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall("\r\n".join([*lines, "", "{}"]).encode("latin-1"))
        if closes:
            line.shutdown(socket.SHUT_WR)
        got = b""
        try:
            while piece := line.recv(65536):
                got += piece
        except ConnectionResetError:  # a server that refuses a head does not read the body
            pass
    head, _, body = got.partition(b"\r\n\r\n")
    return (int(head[9:12]) if head.startswith(b"HTTP/") else 0), body


def _spell(pattern: str, path: str) -> str:
    return pattern.format(
        path, upper=path.upper(), bare=path[1:], encoded=path[:-1] + "".join(f"%{ord(each):02X}" for each in path[-1])
    )


def _effects(port: int) -> dict[str, int]:
    body = _ask(port, "GET", "/", "effects")[1]
    found: dict[str, int] = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])
    return found


@pytest.mark.parametrize("server", ALL)
def test_no_spelling_has_a_second_effect(server: str, ports: dict[str, int]) -> None:
    port, done, closes = ports[server], 0, server == "werkzeug"
    for app in ALL[server]:
        for number, (method, pattern) in enumerate(SPELLINGS):
            key = f"{server}-{number}"
            for verb, target in ((method, _spell(pattern, "/pay")),) * 2 + (("POST", "/pay"),):
                _ask(port, verb, target, app, key, closes=closes)
            effects = _effects(port).get(f"{app} {key}")
            assert effects == 1, f"{app} on {server}: {method} {pattern!r} ran {effects} times"
            done += 1
    assert done == len(SPELLINGS) * len(ALL[server])


@pytest.mark.parametrize("server", ALL)
def test_a_key_in_the_path_is_one_key_however_it_is_spelled(server: str, ports: dict[str, int]) -> None:
    port, number, closes = ports[server], 10 + list(ALL).index(server), server == "werkzeug"
    for app in ALL[server]:
        for method, pattern in SPELLINGS:
            for spelled in (f"{number}", f"0{number}", f"{number}%0A", f"%31{number % 10}"):
                _ask(port, method, _spell(pattern, f"/invoices/{spelled}/pay"), app, closes=closes)
        assert _effects(port)[f"{app} invoice-{number}"] == 1, f"{app} on {server}"


@pytest.mark.parametrize(
    ("server", "app", "path"),
    [
        ("gunicorn", "flask", "/v2/pay"),
        ("gunicorn", "django", "/odd-way-to-pay"),
        ("hypercorn", "django-asgi", "/odd-way-to-pay"),
    ],
)
def test_a_protected_view_is_not_run_by_another_route(server: str, app: str, path: str, ports: dict[str, int]) -> None:
    status, body = _ask(ports[server], "POST", path, app, "another-route")
    assert (status, json.loads(body)["code"]) == (400, "IDEMPOTENCY_OPERATION_MISSPELLED")
    assert "POST /pay" in json.loads(body)["detail"]
    assert f"{app} another-route" not in _effects(ports[server])
