"""The gate in Python, and the command that writes configurations."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from semel.cli.main import main
from semel.errors import ConfigurationError
from semel.gateway import Guarded, KeyGate
from semel.gateway.configurations import WRITERS, Edge
from semel.gateway.guarded import KEY_HEADER
from semel.http.problems import MISSING_KEY, Problems

APPLICATION = """
from fastapi import FastAPI
from semel import AsyncEngine
from semel.http import single_caller
from semel.integrations.fastapi import Semel

app = FastAPI()
semel = Semel(AsyncEngine.connect("memory://?persistence=none"), caller=single_caller)

@app.post("/payments/{id:int}")
@semel.command("payments.create", effects="external", wait_seconds=90)
async def pay(id: int) -> dict[str, int]:
    return {"paid": id}

@app.post("/invoices/{invoice}/pay")
@semel.command("invoices.pay", effects="external", key_from="path:invoice")
async def pay_invoice(invoice: str) -> dict[str, str]:
    return {"paid": invoice}

semel.install(app)
"""


async def service(scope, receive, send):  # type: ignore[no-untyped-def]
    """Says which keys have arrived."""
    keys = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"idempotency-key"]
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(keys).encode()})


GATE = KeyGate(
    service,
    [
        Guarded("pay", ("POST",), "/payments"),
        Guarded("cancel", ("POST", "DELETE"), "/orders/{id}", required=False),
        Guarded("derived", ("POST",), "/invoices/{id}/pay", header=None),
    ],
    problems=Problems(type_base="https://shop.example/problems/"),
)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path", "keys", "expected"),
    [
        ("POST", "/payments", ["abc"], ["abc"]),
        ("POST", "/payments", ['"quoted"'], ['"quoted"']),
        ("POST", "/payments", [], "MISSING_IDEMPOTENCY_KEY"),
        ("POST", "/payments", ["two words"], "INVALID_IDEMPOTENCY_KEY"),
        ("POST", "/payments", ["one", "two"], "INVALID_IDEMPOTENCY_KEY"),
        ("POST", "/orders/7", [], []),
        ("DELETE", "/orders/7", ["a,b"], "INVALID_IDEMPOTENCY_KEY"),
        ("POST", "/orders/7/more", ["a,b"], ["a,b"]),
        ("POST", "/invoices/7/pay", [], []),
        ("GET", "/payments", ["a,b"], ["a,b"]),
    ],
)
async def test_the_gate_passes_a_request_unchanged_or_refuses_it_as_the_service_would(
    method: str, path: str, keys: list[str], expected: list[str] | str
) -> None:
    transport = httpx.ASGITransport(GATE)
    async with httpx.AsyncClient(transport=transport, base_url="http://edge") as client:
        answer = await client.request(method, path, headers=[(KEY_HEADER, key) for key in keys])
    if isinstance(expected, list):
        assert (answer.status_code, answer.json()) == (201, expected)
    else:
        assert (answer.status_code, answer.json()["code"], answer.headers["Semel-Code"]) == (400, expected, expected)
        assert answer.json()["type"].startswith("https://shop.example/problems/")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "value", "status"),
    [("Early-Data", "1", 425), ("Connection", "close, idempotency-key", 400), ("Connection", "close", 201)],
)
async def test_a_key_that_the_next_proxy_drops_and_early_data_are_refused(name: str, value: str, status: int) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(GATE), base_url="http://edge") as client:
        answer = await client.post("/payments", headers={KEY_HEADER: "abc", name: value})
    assert answer.status_code == status


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"edge_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(APPLICATION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name}:app"


@pytest.mark.parametrize("proxy", WRITERS)
def test_the_command_writes_what_the_application_declares(
    proxy: str, application: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["gateway", application, "--for", proxy, "--upstream", "a:80", "--upstream", "b:80"]
    assert main([*call, "--output", "proxy.conf"]) == 0
    said = capsys.readouterr()
    assert "written: proxy.conf" in said.out
    assert "payments.create" in said.err
    assert "one process only" in said.err
    text = (tmp_path / "proxy.conf").read_text()
    assert "^/payments/[^/]+" in text.replace("\\\\", "\\") or "/payments/[^/]+$" in text
    assert "120s" in text  # the longest wait, and time for the handler
    assert "required_alone" in text or proxy in ("envoy", "caddy")  # its store is in one process: no other is asked
    assert main([*call, "--output", "proxy.conf"]) == 1
    assert "--force" in capsys.readouterr().err
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["for"] == proxy


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--upstream", "nowhere"], "--upstream must be HOST:PORT"),
        (["--upstream", "a:99999"], "--upstream must be HOST:PORT"),
        (["--upstream", "a:80;}"], "--upstream must be HOST:PORT"),
        ([], "--upstream is missing"),
        (["--upstream", "a:80", "--listen", "80"], "--listen must be HOST:PORT"),
        (["--upstream", "a:80", "--timeout", "0"], "must be 1 to 86400 seconds"),
        (["--upstream", "a:80", "--force"], "give --output FILE"),
    ],
)
def test_an_unusable_argument_is_named(
    options: list[str], says: str, application: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gateway", application, "--for", "nginx", *options]) == 2
    assert says in capsys.readouterr().err


def test_an_application_without_operations_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nothing to guard"):
        Edge((), ["a:80"])
    with pytest.raises(ConfigurationError, match="different headers"):
        Edge([Guarded("a", ("POST",), "/a"), Guarded("b", ("POST",), "/b", header="X-Key")], ["a:80"])
    with pytest.raises(ConfigurationError, match="quote"):
        Edge([Guarded("a", ("POST",), "/a")], ["a:80"], problems=Problems(type_base="urn:it's:")).document(MISSING_KEY)
