"""Written configurations on the real proxies, each before two services on one store."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from semel.errors import InvalidKey
from semel.gateway import Guarded
from semel.gateway.configurations import WRITERS, Edge
from semel.gateway.guarded import KEY
from semel.http.problems import INVALID_KEY, MISSING_KEY
from semel.keys import parse_key
from tests.servers.needed import needs, program
from tests.servers.ports import free_port
from tests.servers.running import Running, launch, stop

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (
    Guarded("payments.create", ("POST",), "/payments", seconds=20),
    Guarded("orders.place", ("POST",), "/orders", seconds=20),
    Guarded("orders.set", ("PUT",), "/orders/{order}/state", seconds=20),
)
PROXIES = [
    pytest.param("nginx", marks=needs("nginx")),
    pytest.param("haproxy", marks=needs("haproxy")),
    pytest.param("envoy"),
    pytest.param("caddy", marks=needs("caddy")),
]
CANARY = "canary-key-5f1d7c1c"


def command_of(proxy: str, file: Path, *, check: bool = False) -> list[str]:
    """How the proxy is started on a configuration, or only asked whether it can read it."""
    if proxy == "nginx":
        begin = [str(program("nginx")), "-p", str(file.parent), "-c", str(file)]
        return [*begin, "-t"] if check else [*begin, "-g", "daemon off;"]
    if proxy == "haproxy":
        return [str(program("haproxy")), *(["-c"] if check else ["-db"]), "-f", str(file)]
    if proxy == "envoy":
        found = find_spec("envoy")
        assert found is not None
        assert found.origin is not None
        begin = [str(Path(found.origin).parent / "_bin" / "envoy"), "-c", str(file)]
        # Memory to be handed to a next process of its would be left in /dev/shm.
        return [*begin, "--mode", "validate"] if check else [*begin, "--concurrency", "1", "--disable-hot-restart"]
    return [str(program("caddy")), "validate" if check else "run", "--config", str(file), "--adapter", "caddyfile"]


def name_of(proxy: str) -> str:
    return {"envoy": "envoy.yaml", "caddy": "Caddyfile"}.get(proxy, f"{proxy}.conf")


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@dataclass
class Shop:
    """Two services on one store, and a proxy before them."""

    folder: Path
    ports: tuple[int, int]
    services: dict[int, Running]
    proxy: str
    url: str

    def start_missing(self) -> None:
        """Start what has died."""
        for port in self.ports:
            if not answers(port):
                if port in self.services:
                    stop(self.services[port])
                home = self.folder / str(port)
                home.mkdir(exist_ok=True)
                command = [sys.executable, "-m", "uvicorn", "tests.gateway.shop:app", "--port", str(port)]
                world = {"SHOP_FOLDER": str(self.folder), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
                self.services[port] = launch(command, home, port, partial(answers, port), environment=world)

    def send(
        self, method: str, path: str, *, keys: tuple[str, ...] = (), more: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        headers = [*[("Idempotency-Key", key) for key in keys], *(more or {}).items()]
        with httpx.Client(base_url=self.url, trust_env=False, timeout=60) as client:
            return client.request(method, path, headers=headers, **options)

    def read_seen(self) -> list[dict[str, Any]]:
        """Read the requests that the services have received so far."""
        file = self.folder / "seen.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def effects(self, of: str) -> list[str]:
        file = self.folder / "effects.txt"
        return [line for line in file.read_text().splitlines() if line.startswith(of)] if file.exists() else []

    def next_one_dies(self, when: str = "dies") -> None:
        """The service that does the next effect is killed right after it; or when it answers: "dies-answering"."""
        (self.folder / when).touch()

    def orders(self, name: str) -> int:
        """How many rows the transactions of commands have left."""
        with closing(sqlite3.connect(self.folder / "semel.db")) as connection:
            [(count,)] = connection.execute("SELECT count(*) FROM orders WHERE name = ?", (name,))
            return int(count)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    subprocess.run(
        [sys.executable, "-m", "semel.cli", "migrate", "--url", f"sqlite:///{folder}/semel.db"],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=60,
    )
    made = Shop(folder, (free_port(), free_port()), {}, "", "")
    made.start_missing()
    yield made
    for running in made.services.values():
        stop(running)


@pytest.fixture(scope="module", params=PROXIES)
def before(services: Shop, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Shop]:
    """The proxy of this name before both services."""
    proxy: str = request.param
    folder, port = tmp_path_factory.mktemp(proxy), free_port()
    folder.chmod(0o755)
    file = folder / name_of(proxy)
    upstreams = [f"127.0.0.1:{each}" for each in services.ports]
    file.write_text(WRITERS[proxy](Edge(OPERATIONS, upstreams, f"127.0.0.1:{port}")))
    running = launch(command_of(proxy, file), folder, port, lambda: answers(port))
    services.start_missing()
    shop = Shop(services.folder, services.ports, services.services, proxy, f"http://127.0.0.1:{port}")
    yield shop
    shop.send("GET", "/is-it-logged")
    stop(running)
    logged = "".join(each.read_text(errors="replace") for each in folder.rglob("*log*") if each.is_file())
    assert "/is-it-logged" in logged or proxy in ("envoy", "haproxy")  # it does log
    assert CANARY not in logged


@pytest.fixture
def shop(before: Shop) -> Shop:
    before.start_missing()
    return before


def key() -> str:
    return f"{CANARY}-{uuid4()}"


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ((), MISSING_KEY.code),
        (("two words",), INVALID_KEY.code),
        (('"open',), INVALID_KEY.code),
        (("a,b",), INVALID_KEY.code),
        (("k" * 256,), INVALID_KEY.code),
        (("one-key", "another"), INVALID_KEY.code),
        (('"one"', '"another"'), INVALID_KEY.code),
    ],
)
def test_a_request_without_one_good_key_is_refused_and_reaches_no_service(
    shop: Shop, keys: tuple[str, ...], code: str
) -> None:
    known = len(shop.read_seen())
    for method, path in (("POST", "/payments"), ("PUT", "/orders/7/state"), ("POST", "/payments?dry=1")):
        refused = shop.send(method, path, keys=keys, json={"order": "refused"})
        assert (refused.status_code, refused.headers["Semel-Code"]) == (400, code)
        assert refused.headers["Content-Type"] == "application/problem+json"
        problem = refused.json()
        assert (problem["code"], problem["status"], problem["keyAction"]) == (code, 400, "new")
    if len(keys) == 2 and shop.proxy == "nginx":
        return  # before 1.23 it reads one of the two lines; the service has refused them
    assert len(shop.read_seen()) == known
    assert shop.effects("refused") == []


def test_keys_arrive_byte_by_byte_and_replays_come_back(shop: Shop) -> None:
    for sent in (key(), f'"{key()}"', f'"{CANARY} \\"{uuid4()}\\""'.replace(" ", "-"), key().ljust(255, "~")):
        order = uuid4().hex
        first = shop.send("POST", "/payments", keys=(sent,), json={"order": order})
        again = shop.send("POST", "/payments", keys=(sent,), json={"order": order})
        assert (first.status_code, again.status_code, again.content) == (201, 201, first.content)
        assert "Idempotency-Replayed" in again.headers
        assert shop.effects(order) == [order]
        assert {each["keys"][0] for each in shop.read_seen()[-2:]} == {sent}


def test_a_key_is_never_added(shop: Shop) -> None:
    for method in ("GET", "POST"):
        shop.send(method, "/notes/200")
        assert shop.read_seen()[-1] == {"method": method, "path": "/notes/200", "keys": [], "underscores": []}


@pytest.mark.parametrize("status", [409, 422, 425, 503])
def test_the_services_answer_passes_unchanged_and_once(shop: Shop, status: int) -> None:
    for keys in ((), (key(),)):
        known = len(shop.read_seen())
        answer = shop.send("POST", f"/notes/{status}", keys=keys)
        assert (answer.status_code, answer.text) == (status, f"status {status}")
        assert len(shop.read_seen()) == known + 1


def test_the_service_refuses_another_request_under_the_key(shop: Shop) -> None:
    sent = key()
    shop.send("POST", "/payments", keys=(sent,), json={"order": "first"})
    other = shop.send("POST", "/payments", keys=(sent,), json={"order": "second"})
    assert (other.status_code, other.json()["keyAction"]) == (422, "new")
    assert shop.effects("second") == []


def send_again_where_the_proxy_cannot(
    shop: Shop, answer: httpx.Response, method: str, path: str, sent: str, body: Any
) -> httpx.Response:
    """Caddy cannot send a body again: the client's retry does."""
    if shop.proxy != "caddy":
        return answer
    assert answer.status_code == 502
    return shop.send(method, path, keys=(sent,), json=body)


def test_killed_after_the_effect_an_idempotent_command_is_finished_by_the_other_service(shop: Shop) -> None:
    order, sent = uuid4().hex, key()
    known, path = len(shop.read_seen()), f"/orders/{order}/state"
    shop.next_one_dies()
    answer = shop.send("PUT", path, keys=(sent,), json={})
    answer = send_again_where_the_proxy_cannot(shop, answer, "PUT", path, sent, {})
    assert answer.status_code == 201
    assert len(shop.read_seen()) == known + 2
    assert len(shop.effects(order)) == 2
    assert len(set(shop.effects(order))) == 1  # the same derived key: the other side knows it


def test_killed_after_the_effect_an_external_command_is_unknown_and_not_done_again(shop: Shop) -> None:
    order, sent = uuid4().hex, key()
    known = len(shop.read_seen())
    shop.next_one_dies()
    answer = shop.send("POST", "/payments", keys=(sent,), json={"order": order})
    answer = send_again_where_the_proxy_cannot(shop, answer, "POST", "/payments", sent, {"order": order})
    assert (answer.status_code, answer.json()["code"]) == (409, "IDEMPOTENCY_OUTCOME_UNKNOWN")
    assert len(shop.read_seen()) == known + 2
    assert shop.effects(order) == [order]


@pytest.mark.parametrize("when", ["dies", "dies-answering"])
def test_killed_around_its_commit_an_atomic_command_has_one_effect_and_one_answer(shop: Shop, when: str) -> None:
    order, sent = uuid4().hex, key()
    known, body = len(shop.read_seen()), {"order": order}
    shop.next_one_dies(when)
    answer = shop.send("POST", "/orders", keys=(sent,), json=body)
    answer = send_again_where_the_proxy_cannot(shop, answer, "POST", "/orders", sent, body)
    assert (answer.status_code, answer.json()) == (201, body)
    assert ("Idempotency-Replayed" in answer.headers) == (when == "dies-answering")
    assert len(shop.read_seen()) == known + 2
    assert shop.orders(order) == 1


def test_a_command_in_early_data_has_no_effect(shop: Shop) -> None:
    order = uuid4().hex
    for method, path in (("POST", "/payments"), ("PUT", f"/orders/{order}/state"), ("POST", "/orders")):
        known = len(shop.read_seen())
        early = shop.send(method, path, keys=(key(),), json={"order": order}, more={"Early-Data": "1"})
        assert (early.status_code, early.headers["Semel-Code"]) == (425, "IDEMPOTENCY_TOO_EARLY")
        assert len(shop.read_seen()) == known + 1  # and no proxy sends it again
    assert (shop.effects(order), shop.orders(order)) == ([], 0)


def test_no_other_header_removes_or_replaces_the_key(shop: Shop) -> None:
    for more in ({"Connection": "Idempotency-Key"}, {"Connection": "close, idempotency-key"}):
        order, sent = uuid4().hex, key()
        answer = shop.send("POST", "/payments", keys=(sent,), json={"order": order}, more=more)
        if shop.proxy == "nginx":  # it passes on no Connection, and all headers
            assert (answer.status_code, shop.read_seen()[-1]["keys"]) == (201, [sent])
        else:
            assert (answer.status_code, shop.effects(order)) == (400, [])
    shop.send("POST", "/notes/200", more={"Idempotency_Key": "x"})
    assert shop.read_seen()[-1]["underscores"] == []


def test_a_service_is_reached_under_any_name_of_its_host(shop: Shop) -> None:
    answer = shop.send("GET", "/notes/200", more={"Host": "shop.example"})
    assert (answer.status_code, answer.text) == (200, "status 200")


def test_a_command_without_a_key_is_never_sent_twice(shop: Shop) -> None:
    for method in ("POST", "PUT") if shop.proxy == "nginx" else ("POST",):  # nginx takes PUT for repeatable
        shop.start_missing()
        before, known = len(shop.effects("note")), len(shop.read_seen())
        shop.next_one_dies()
        answer = shop.send(method, "/notes/200")
        assert answer.status_code in (502, 503, 504)
        assert (len(shop.effects("note")), len(shop.read_seen())) == (before + 1, known + 1)


@pytest.mark.parametrize("proxy", PROXIES)
def test_no_template_breaks_a_configuration(proxy: str, tmp_path: Path) -> None:
    nasty = (
        Guarded("it's $x ` {\n} #", ("POST", "PATCH"), "/a b/{id}/'\"$`\\;#{}|.*+?[é\n]", required=False),
        Guarded("rest", ("DELETE",), "/files/{rest:path}"),
        Guarded("any", ("POST",), "/*", required=False),
        Guarded("derived", ("POST",), "/invoices/{id}/pay", header=None),
    )
    file = tmp_path / name_of(proxy)
    file.write_text(WRITERS[proxy](Edge(nasty, ["127.0.0.1:1"], "127.0.0.1:2")))
    done = subprocess.run(
        command_of(proxy, file, check=True), capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_envoy_sends_all_commands_of_a_service_that_dies_to_the_other() -> None:
    """Its own limit is three at once; the others would get a 503."""
    text = WRITERS["envoy"](Edge(OPERATIONS, ["127.0.0.1:1", "127.0.0.1:2"], "127.0.0.1:3"))
    document = json.loads("".join(line for line in text.splitlines() if not line.startswith("#")))
    [cluster] = document["static_resources"]["clusters"]
    assert cluster["circuit_breakers"]["thresholds"] == [{"max_retries": 1024}]


def test_the_pattern_of_keys_accepts_what_the_service_accepts() -> None:

    for line in (
        "abc",
        '"abc"',
        '"a\\"b"',
        '"abc";v=1',
        "a" * 255,
        "~!#$%&'*+-.^_`|",
        "a b",
        "a,b",
        '"a',
        "é",
        "",
        ";",
    ):
        try:
            parse_key([line.encode()])
        except InvalidKey:
            is_key = False
        else:
            is_key = True
        assert (re.search(KEY, line) is not None) == is_key, line
