"""`semel gate` as a process, in front of an upstream that breaks the line on purpose."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from semel.cli.main import main
from tests.proxy.running import Breaking, Running

CONFIG = """
[[operation]]
name = "pay"
path = "/payments"
[[operation]]
name = "caf\u00e9"
path = "/caf\u00e9/{id}"
method = "PUT"
key = "optional"
[[operation]]
name = "invoice"
path = "/invoices/{id}/pay"
key_from = "path:id"
"""
CANARY = "canary-5d1c"
CREATED = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Breaking]:
    breaking = Breaking()
    yield breaking
    breaking.close()


@pytest.fixture(scope="module")
def gate(upstream: Breaking, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    config = tmp_path_factory.mktemp("gate") / "operations.toml"
    config.write_text(CONFIG, "utf-8")
    url = f"http://127.0.0.1:{upstream.port}"
    running = Running(["gate", "--config", str(config), "--upstream", url, "--port", "0", "--health", "0"])
    yield running
    running.end()
    assert CANARY.encode() not in running.log


@pytest.mark.parametrize(
    ("method", "path", "keys", "code"),
    [
        ("POST", "/payments", [], "MISSING_IDEMPOTENCY_KEY"),
        ("POST", "/Payments/", [], "MISSING_IDEMPOTENCY_KEY"),
        ("POST", "/pay%6dents;v=1", [], "MISSING_IDEMPOTENCY_KEY"),
        ("post", "/payments", [], "MISSING_IDEMPOTENCY_KEY"),
        ("POST", "/payments.json", [], "MISSING_IDEMPOTENCY_KEY"),
        ("POST", "/payments.x-json", [], "MISSING_IDEMPOTENCY_KEY"),
        ("POST", "/payments.v2.json", [], "MISSING_IDEMPOTENCY_KEY"),
        ("POST", "/Payments%2eXML", [], "MISSING_IDEMPOTENCY_KEY"),
        ("POST", "/payments", [""], "INVALID_IDEMPOTENCY_KEY"),
        ("POST", "/payments", [f"{CANARY} spaced"], "INVALID_IDEMPOTENCY_KEY"),
        ("POST", "/payments", [f"{CANARY},b"], "INVALID_IDEMPOTENCY_KEY"),
        ("POST", "/payments", [CANARY, CANARY], "INVALID_IDEMPOTENCY_KEY"),
        ("POST", "/payments", ["k" * 256], "INVALID_IDEMPOTENCY_KEY"),
        ("PUT", "/caf%C3%A9/7", ["a,b"], "INVALID_IDEMPOTENCY_KEY"),
        ("PUT", "/caf%C3%A9/7%2F8", ["a,b"], "INVALID_IDEMPOTENCY_KEY"),
    ],
)
def test_the_upstream_sees_no_command_whose_key_is_refused(
    gate: Running, upstream: Breaking, method: str, path: str, keys: list[str], code: str
) -> None:
    count = len(upstream.requests)
    fields = "".join(f"Idempotency-Key: {key}\r\n" for key in keys)
    head, _, body = gate.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: 0\r\n\r\n").partition(
        b"\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["code"] == code
    assert len(upstream.requests) == count


@pytest.mark.parametrize("key", [CANARY, f'"{CANARY}"', f'"{CANARY}";a=1', "k" * 255, '"' + "k" * 255 + '"'])
def test_a_key_is_forwarded_byte_by_byte(gate: Running, upstream: Breaking, key: str) -> None:
    upstream.answers.append(CREATED)
    answer = gate.send(
        f"POST /payments?q=1 HTTP/1.1\r\nHost: x\r\nIDEMPOTENCY-KEY:  {key} \r\nContent-Length: 2\r\n\r\n{{}}"
    )
    assert answer.startswith(b"HTTP/1.1 201 ")
    assert b"POST /payments?q=1 HTTP/1.1\r\n" in upstream.requests[-1]
    assert b"\r\nidempotency-key: " + key.encode() + b"\r\n" in upstream.requests[-1]
    assert upstream.requests[-1].endswith(b"{}")


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/caf\u00e9/7"), ("POST", "/invoices/7/pay"), ("POST", "/other"), ("DELETE", "/payments")],
)
def test_no_key_is_demanded_or_added_where_none_is_needed(
    gate: Running, upstream: Breaking, method: str, path: str
) -> None:
    upstream.answers.append(CREATED)
    assert gate.client.request(method, path).status_code == 201
    assert b"idempotency" not in upstream.requests[-1].lower()


@pytest.mark.parametrize("status", [409, 422, 425, 503])
@pytest.mark.parametrize("keyed", [True, False])
def test_a_refusal_of_the_service_passes_unchanged(gate: Running, upstream: Breaking, status: int, keyed: bool) -> None:
    upstream.answers.append(b"HTTP/1.1 %d Said\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\nno" % status)
    count = len(upstream.requests)
    path, headers = ("/payments", {"Idempotency-Key": CANARY}) if keyed else ("/other", {})
    answer = gate.client.post(path, headers=headers)
    assert (answer.status_code, answer.headers["Retry-After"], answer.content) == (status, "7", b"no")
    assert len(upstream.requests) == count + 1


@pytest.mark.parametrize("keyed", [True, False])
def test_a_command_that_was_sent_is_not_sent_again(gate: Running, upstream: Breaking, keyed: bool) -> None:
    upstream.answers.append(b"")  # the upstream dies after it has read the command
    count = len(upstream.requests)
    path, headers = ("/payments", {"Idempotency-Key": CANARY}) if keyed else ("/other", {})
    answer = gate.client.post(path, headers=headers)
    assert (answer.status_code, answer.json()["retryable"]) == (502, keyed)
    assert len(upstream.requests) == count + 1


def test_an_answer_that_broke_off_is_not_terminated(gate: Running, upstream: Breaking) -> None:
    upstream.answers.append(b"HTTP/1.1 201 Created\r\nContent-Length: 50\r\n\r\nhalf")
    with pytest.raises(httpx.RemoteProtocolError):
        gate.client.post("/payments", headers={"Idempotency-Key": CANARY})


def read_to_its_end(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


@pytest.mark.parametrize("path", ["/payments", "/other"])
def test_an_answer_that_broke_off_is_no_whole_one_to_a_client_of_http_1_0(
    gate: Running, upstream: Breaking, path: str
) -> None:
    """nginx speaks HTTP/1.0 by default, where an answer in chunks ends with its connection."""
    upstream.answers.append(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
    with socket.create_connection(("127.0.0.1", gate.port), timeout=60) as connection:
        connection.sendall(f"POST {path} HTTP/1.0\r\nIdempotency-Key: {CANARY}\r\nContent-Length: 0\r\n\r\n".encode())
        with pytest.raises(ConnectionResetError):
            read_to_its_end(connection)


def test_long_bodies_pass_both_ways(gate: Running, upstream: Breaking) -> None:
    body = b"0123456789abcdef" * 65_536
    upstream.answers.append(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    answer = gate.client.post("/payments", content=body, headers={"Idempotency-Key": CANARY})
    assert answer.content == body
    assert upstream.requests[-1].endswith(b"\r\n\r\n" + body)


def test_probes_report_the_service(gate: Running) -> None:
    found = re.search(rb"health: (http://[0-9.:]+)/readyz", gate.log)
    assert found is not None
    answer = httpx.get(f"{found[1].decode()}/readyz", timeout=60)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "upstream": "reachable"})


@pytest.mark.parametrize(
    ("more", "status", "code"),
    [
        ("Connection: Idempotency-Key", 400, "IDEMPOTENCY_REQUEST_INVALID"),
        ("Early-Data: 1", 425, "IDEMPOTENCY_TOO_EARLY"),
        ("X-HTTP-Method-Override: PUT", 400, "IDEMPOTENCY_OPERATION_MISSPELLED"),
        ("Connection: upgrade\r\nUpgrade: websocket", 501, "IDEMPOTENCY_NOT_PASSED_ON"),
    ],
)
def test_ambiguous_requests_reach_no_service(
    gate: Running, upstream: Breaking, more: str, status: int, code: str
) -> None:
    count = len(upstream.requests)
    head, _, body = gate.send(
        f"POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: abc\r\n{more}\r\nContent-Length: 0\r\n\r\n"
    ).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert (json.loads(body)["code"], len(upstream.requests)) == (code, count)


def test_ctrl_c_is_the_end_of_a_gate_and_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt  # as uvicorn does once it has shut down

    monkeypatch.setattr("semel.proxy.application._Server.run", interrupt)
    config = tmp_path / "operations.toml"
    config.write_text(CONFIG, "utf-8")
    assert main(["gate", "--config", str(config), "--upstream", "http://127.0.0.1:1"]) == 0
    assert "interrupted" not in capsys.readouterr().err


def test_check_shows_what_each_operation_demands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "operations.toml"
    config.write_text(CONFIG, "utf-8")
    assert main(["gate", "--config", str(config), "--check", "--json"]) == 0
    shown = {each["operation"]: each["key"] for each in json.loads(capsys.readouterr().out)["operations"]}
    assert shown == {"pay": "required", "caf\u00e9": "optional", "invoice": "none"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name the operations once"),
        (["shop:app", "--config", "operations.toml"], "name the operations once"),
        (["--config", "missing.toml"], "--config 'missing.toml' cannot be read"),
        (["--config", "operations.toml"], "--upstream is missing"),
        (["--config", "operations.toml", "--upstream", "http://shop/path"], "--upstream must be http://HOST:PORT"),
        (["--config", "derived.toml"], "nothing to check"),
        (["json:dumps"], "no ASGI or WSGI application"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "operations.toml").write_text(CONFIG, "utf-8")
    derived = '[[operation]]\nname = "a"\npath = "/a/{id}"\nkey_from = "path:id"\n'
    (tmp_path / "derived.toml").write_text(derived, "utf-8")
    assert main(["gate", *arguments]) == 2
    assert says in capsys.readouterr().err
