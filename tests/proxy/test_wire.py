"""`semel proxy` on SQLite and PostgreSQL between real processes, which are killed and held in mid-command."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest

from semel.cli.main import main
from semel.client import Budget
from semel.client.answers import Answered
from semel.client.plan import Plan, Wait
from tests.proxy.running import Running
from tests.servers.ports import free_port
from tests.servers.postgres import postgres

ROOT = Path(__file__).resolve().parents[2]
COMMON = "lease_seconds = 1\nwait_seconds = 30\n"
CONFIG = f"""
caller = "none"
timeout_seconds = 60
[[operation]]
name = "pay"
path = "/payments"
{COMMON}
[[operation]]
name = "note"
path = "/notes"
effects = "idempotent"
{COMMON}
[[operation]]
name = "long"
path = "/long"
answer_bytes_max = 50
success = [201]
{COMMON}
[[operation]]
name = "slow"
path = "/slow"
timeout_seconds = 0.5
{COMMON}
[[operation]]
name = "slow note"
path = "/slow-notes"
effects = "idempotent"
timeout_seconds = 0.5
{COMMON}
"""
ONE_STORE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)  # what does not depend on the store
UNKNOWN = "IDEMPOTENCY_OUTCOME_UNKNOWN"


class Service:
    """The upstream's process, started again on the same port where it has died."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        world = {**os.environ, "SERVICE_FOLDER": str(self.folder), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "uvicorn", "tests.proxy.service:app", "--lifespan", "off"]
        self._process = subprocess.Popen(
            [*command, "--port", str(self.port), "--timeout-graceful-shutdown", "1"], stderr=subprocess.PIPE, env=world
        )
        assert self._process.stderr is not None
        with self._process.stderr as log:
            while b"running on" not in (line := log.readline()):
                assert line

    def wait(self) -> None:
        """Until it has died."""
        assert self._process is not None
        self._process.wait(30)

    def effects(self, key: str) -> int:
        """How many effects the command under a key has had."""
        file = self.folder / "effects.txt"
        return file.read_text().count(key) if file.exists() else 0

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)


class Held:
    """A command that the service holds: ``wait`` until it is there, then ``go`` or ``kill``."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(30)
        self.port: int = self._listener.getsockname()[1]

    def wait(self) -> socket.socket:
        connection, _ = self._listener.accept()
        return connection

    def close(self) -> None:
        self._listener.close()


@dataclass
class Place:
    """One store, the service, and a proxy between; further proxies on the same store are ended with it."""

    store: str
    service: Service
    folder: Path
    proxies: list[Running] = field(default_factory=list)

    def start_proxy(self) -> Running:
        config = self.folder / "operations.toml"
        config.write_text(CONFIG)
        url = f"http://127.0.0.1:{self.service.port}"
        made = Running(
            ["proxy", "--config", str(config), "--upstream", url, "--store", self.store, "--port", "0", "--health", "0"]
        )
        self.proxies.append(made)
        return made

    @property
    def proxy(self) -> Running:
        """A running proxy."""
        running = [each for each in self.proxies if each.process.poll() is None]
        return running[0] if running else self.start_proxy()


def database() -> Iterator[str]:
    name = f"proxy_{os.getpid()}"
    with psycopg.connect(postgres(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield f"{postgres().rpartition('/')[0]}/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        url = f"sqlite:///{folder}/semel.db"
        if request.param == "postgresql":
            made = database()
            url = next(made)
            stack.callback(lambda: next(made, None))
        assert main(["migrate", "--url", url]) == 0
        found = Place(url, Service(folder), folder)
        stack.callback(found.service.end)
        yield found
        for each in found.proxies:
            each.end()
        assert not any(b"Traceback" in each.log for each in found.proxies)


@pytest.fixture
def here(place: Place) -> Place:
    place.service.start()
    return place


@pytest.fixture
def holding_server() -> Iterator[Held]:
    with closing(Held()) as made:
        yield made


def post(running: Running, path: str, key: str, hold: str = "", **headers: str) -> httpx.Response:
    more = {"x-hold": hold} if hold else {}
    fields = {"idempotency-key": f'"{key}"', **more, **{name.replace("_", "-"): each for name, each in headers.items()}}
    return running.client.post(path, content=key, headers=fields)


def during(
    sends: list[Callable[[], httpx.Response]], held: Held, then: Callable[[list[socket.socket]], None]
) -> list[httpx.Response]:
    """The answers of commands that are all held by the service while ``then`` happens."""
    with ThreadPoolExecutor(len(sends)) as pool, ExitStack() as stack:
        answers = [pool.submit(send) for send in sends]
        then([stack.enter_context(held.wait()) for _ in sends])
        return [answer.result(60) for answer in answers]


def code(answer: httpx.Response) -> str:
    found: str = answer.json()["code"]
    assert answer.headers["semel-code"] == found
    assert 'rel="describedby"' in answer.headers["link"]
    return found


def then(answer: httpx.Response) -> str:
    """Return what semel.client does next: send again, or ask for the status."""
    plan = Plan(str(answer.url), Budget())
    plan.start(0.0)
    action = plan.after(Answered(answer.status_code, dict(answer.headers), answer.content), 0.1)
    assert isinstance(action, Wait)
    return action.then


@pytest.mark.parametrize("phase", ["before", "after"])
def test_a_service_killed_in_the_middle_leaves_no_second_effect(here: Place, holding_server: Held, phase: str) -> None:
    key, note = str(uuid4()), str(uuid4())
    lost, again = during(
        [
            lambda: post(here.proxy, "/payments", key, f"{phase}:{holding_server.port}"),
            lambda: post(here.proxy, "/notes", note, f"{phase}:{holding_server.port}"),
        ],
        holding_server,
        lambda connections: connections[0].sendall(b"k"),
    )
    for answer, retryable, action in ((lost, False, "ask"), (again, True, "send")):
        assert (answer.status_code, code(answer)) == (502, "IDEMPOTENCY_UPSTREAM_BROKE_OFF")
        assert (answer.json()["retryable"], then(answer)) == (retryable, action)
        assert answer.headers["link"].count('rel="status"') == 1
    here.service.wait()
    here.service.start()
    unknown = post(here.proxy, "/payments", key)
    assert (unknown.status_code, code(unknown)) == (409, UNKNOWN)
    assert here.proxy.client.get(lost.json()["operation"]).json()["state"] == "UNKNOWN"
    assert here.service.effects(key) == (phase == "after")
    assert post(here.proxy, "/notes", note).status_code == 201
    assert post(here.proxy, "/notes", note).headers["idempotency-replayed"] == "true"
    lines = [line for line in (here.folder / "effects.txt").read_text().splitlines() if note in line]
    assert len(lines) == 1 + (phase == "after")
    assert len(set(lines)) == 1  # under one downstream key: the service knows it


def test_another_proxy_takes_over_from_one_that_is_killed(here: Place, holding_server: Held) -> None:
    key, note, first = str(uuid4()), str(uuid4()), here.start_proxy()

    def kill(connections: list[socket.socket]) -> None:
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(30)
        for connection in connections:
            connection.sendall(b"g")

    def lose(path: str, key: str) -> httpx.Response:
        with pytest.raises(httpx.TransportError):
            post(first, path, key, f"before:{holding_server.port}")
        return httpx.Response(0)

    during([lambda: lose("/payments", key), lambda: lose("/notes", note)], holding_server, kill)
    unknown = post(here.proxy, "/payments", key)  # it waits until the dead one's lease is over
    assert (unknown.status_code, code(unknown)) == (409, UNKNOWN)
    assert post(here.proxy, "/notes", note).status_code == 201
    assert (here.service.effects(key), here.service.effects(note)) == (1, 2)


@ONE_STORE
def test_a_late_answer_leaves_the_outcome_in_doubt(here: Place, holding_server: Held) -> None:
    for path, retryable in (("/slow", False), ("/slow-notes", True)):
        key = str(uuid4())
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(post, here.proxy, path, key, f"after:{holding_server.port}")
            with holding_server.wait():
                late = sent.result(60)
        assert (late.status_code, code(late)) == (504, "IDEMPOTENCY_UPSTREAM_TIMEOUT")
        assert late.json()["retryable"] is retryable
        assert post(here.proxy, path, key).status_code == (201 if retryable else 409)


@ONE_STORE
def test_a_long_answer_settles_by_its_status_and_is_not_stored(here: Place, holding_server: Held) -> None:
    for status, again, state in ((201, "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE", "SUCCEEDED"), (202, UNKNOWN, "UNKNOWN")):
        key = str(uuid4())
        first = post(here.proxy, "/long", key, x_status=str(status))
        assert (first.status_code, first.content) == (status, b"first" * 20 + b"done")
        repeated = post(here.proxy, "/long", key)
        assert (repeated.status_code, code(repeated)) == (409, again)
        assert here.proxy.client.get(repeated.json()["operation"]).json()["state"] == state
        assert here.service.effects(key) == 1
    refused = post(here.proxy, "/long", key := str(uuid4()), x_status="404")
    assert (refused.status_code, refused.content[:5]) == (404, b"first")
    assert code(post(here.proxy, "/long", key)) == "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE"
    assert here.service.effects(key) == 1


@ONE_STORE
@pytest.mark.parametrize("path", ["/stream", "/long"])
def test_a_stream_is_forwarded_as_it_arrives(here: Place, holding_server: Held, path: str) -> None:
    headers = {"x-hold": f"streaming:{holding_server.port}", "idempotency-key": str(uuid4())}
    with here.proxy.client.stream("POST", path, content=b"1", headers=headers) as answer:
        pieces = answer.iter_raw()
        assert next(pieces).startswith(b"first")
        with holding_server.wait() as connection:
            connection.sendall(b"g")
        assert b"".join(pieces).endswith(b"done")


@ONE_STORE
def test_a_408_of_the_service_proves_nothing_and_a_429_frees_the_key(here: Place) -> None:
    for status, again in ((408, 409), (429, 201), (403, 201), (404, 404)):
        key = str(uuid4())
        assert post(here.proxy, "/payments", key, x_status=str(status)).status_code == status
        assert post(here.proxy, "/payments", key).status_code == again


@ONE_STORE
def test_other_methods_and_chunked_bodies_pass(here: Place) -> None:
    client, key = here.proxy.client, str(uuid4())
    head = client.head("/anything", headers={"x-status": "200"})
    assert (head.status_code, head.headers["x-service"], head.content) == (200, "yes", b"")
    assert client.options("/anything", headers={"x-status": "204"}).status_code == 204
    for path in ("/payments", "/other"):
        answer = client.post(path, content=iter([key.encode(), b"-", b"2"]), headers={"idempotency-key": key})
        assert answer.status_code == 201
    assert here.service.effects(f"POST /payments {key}-2") == 1
    assert here.service.effects(f"POST /other {key}-2") == 1


def test_a_client_that_disconnects_does_not_end_its_command(here: Place, holding_server: Held) -> None:
    key = str(uuid4())
    request = (
        f'POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: "{key}"\r\nX-Hold: before:{holding_server.port}\r\n'
        f"Content-Length: {len(key)}\r\n\r\n{key}"
    )
    with socket.create_connection(("127.0.0.1", here.proxy.port), 60) as client:
        client.sendall(request.encode())
        connection = holding_server.wait()
    with ThreadPoolExecutor(1) as pool, connection:
        again = pool.submit(lambda: post(here.proxy, "/payments", key))
        refused = post(here.proxy, "/payments", key, prefer="wait=0")  # it does not wait
        assert (refused.status_code, code(refused)) == (409, "IDEMPOTENCY_REQUEST_IN_PROGRESS")
        connection.sendall(b"g")
        assert again.result(60).headers["idempotency-replayed"] == "true"
    assert here.service.effects(key) == 1


@ONE_STORE
def test_sigterm_lets_a_command_end_and_logs_what_it_waits_for(here: Place, holding_server: Held) -> None:
    key, proxy = str(uuid4()), here.start_proxy()

    def end(connections: list[socket.socket]) -> None:
        proxy.process.terminate()
        assert proxy.process.stderr is not None
        while b"waiting for commands (1 pay)" not in proxy.log:
            line = proxy.process.stderr.readline()
            assert line, proxy.log
            proxy.log += line
        connections[0].sendall(b"g")

    [answer] = during([lambda: post(proxy, "/payments", key, f"before:{holding_server.port}")], holding_server, end)
    assert answer.status_code == 201
    assert proxy.process.wait(60) in (0, -signal.SIGTERM)
    assert post(here.proxy, "/payments", key).headers["idempotency-replayed"] == "true"


@ONE_STORE
def test_probes_report_the_store_and_the_service(here: Place) -> None:
    found = re.search(rb"health: (http://[0-9.:]+)/readyz", here.proxy.log)
    assert found is not None
    base = found[1].decode()
    ready = httpx.get(f"{base}/readyz", timeout=60)
    assert (ready.status_code, ready.json()["store"], ready.json()["upstream"]) == (200, "answers", "reachable")
    here.service.end()
    away = httpx.get(f"{base}/readyz", timeout=60)
    assert (away.status_code, away.json()["upstream"]) == (200, "unreachable")
    assert httpx.get(f"{base}/livez", timeout=60).json() == {"status": "ok"}


@ONE_STORE
def test_an_absent_service_is_distinguished_from_one_that_was_asked(here: Place) -> None:
    here.service.end()
    key = str(uuid4())
    for path in ("/payments", "/other"):
        away = post(here.proxy, path, key)
        assert (away.status_code, code(away), then(away)) == (502, "IDEMPOTENCY_UPSTREAM_UNREACHABLE", "send")
    here.service.start()
    assert post(here.proxy, "/payments", key).status_code == 201
