"""The reference service over real HTTP: payments, orders and notes take effect once; the rest is refused well."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest

from semel.reference.greeting import greeting
from semel.reference.provider import Provider
from semel.reference.settings import Settings
from tests.service.served import Served, await_true, serving

PAYMENT = {"customerId": "c-1", "amount": "10.00", "currency": "EUR"}
ORDER = {"sku": "book-1", "quantity": 2}
NOTE = {"text": "remember the milk"}
EACH: list[tuple[str, dict[str, Any], str]] = [
    ("/payments", PAYMENT, "paymentId"),
    ("/orders", ORDER, "orderId"),
    ("/notes", NOTE, "noteId"),
]
CODES = {
    "missing": "MISSING_IDEMPOTENCY_KEY",
    "reused": "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST",
    "unknown": "IDEMPOTENCY_OUTCOME_UNKNOWN",
}


def fresh() -> str:
    return str(uuid4())


def list_all(service: Served, path: str, token: str = "alice") -> list[dict[str, Any]]:
    found = service.get(path, token=token)
    assert found.status == 200
    assert isinstance(found.json, list)
    return found.json


@pytest.mark.parametrize(("path", "body", "name"), EACH)
def test_a_double_submit_takes_effect_once(service: Served, path: str, body: dict[str, Any], name: str) -> None:
    key, before = fresh(), len(list_all(service, path))
    first, second = service.post(path, body, key), service.post(path, body, key)
    assert (first.status, first.replayed) == (201, False)
    assert (second.status, second.replayed, second.body) == (201, True, first.body)
    assert [made[name] for made in list_all(service, path)[before:]] == [first.json[name]]


def test_a_payment_answers_as_promised(service: Served) -> None:
    made = service.post("/payments", PAYMENT, fresh())
    assert set(made.json) == {"paymentId", "status"}
    location = made.headers["location"]
    assert location == f"/payments/{made.json['paymentId']}"
    read = service.get(location)
    assert (read.status, read.json["amount"], read.json["currency"]) == (200, "10.00", "EUR")
    assert service.get(location, token="bob").status == 404
    charge = Provider(service.folder / "semel.db.provider.jsonl").charges()[-1]
    assert (charge.id, charge.amount, charge.caller) == (made.json["paymentId"], Decimal("10.00"), "alice")


@pytest.mark.parametrize(("path", "body", "name"), EACH)
def test_callers_have_separate_keys(service: Served, path: str, body: dict[str, Any], name: str) -> None:
    key = fresh()
    first, other = service.post(path, body, key), service.post(path, body, key, token="bob")
    assert (other.status, other.replayed) == (201, False)
    assert first.json[name] != other.json[name]
    assert other.json[name] not in {made[name] for made in list_all(service, path)}


@pytest.mark.parametrize(("path", "body", "name"), EACH)
def test_a_request_without_a_name_is_refused(service: Served, path: str, body: dict[str, Any], name: str) -> None:
    for token in (None, "mallory", ""):
        for answer in (service.post(path, body, fresh(), token=token), service.get(path, token=token)):
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    assert service.post(path, {"nonsense": 1}, fresh(), token=None).status == 401


def test_required_keys_are_required(service: Served) -> None:
    for path, body in (("/payments", PAYMENT), ("/orders", ORDER)):
        refused = service.post(path, body)
        assert (refused.status, refused.json["code"]) == (400, CODES["missing"])
    assert service.post("/notes", NOTE).status == 201


def test_another_payload_is_refused(service: Served) -> None:
    key, before = fresh(), len(list_all(service, "/payments"))
    assert service.post("/payments", PAYMENT, key).status == 201
    changed = service.post("/payments", {**PAYMENT, "amount": "10.01"}, key)
    assert (changed.status, changed.json["code"]) == (422, CODES["reused"])
    assert len(list_all(service, "/payments")) == before + 1


def test_ten_parallel_requests_make_one_payment(service: Served) -> None:
    key, before, gate = fresh(), len(list_all(service, "/payments")), Barrier(10)

    def click(_: int) -> bytes:
        gate.wait()
        answer = service.post("/payments", {**PAYMENT, "simulate": {"delayMs": 200}}, key)
        assert answer.status == 201
        return answer.body

    with ThreadPoolExecutor(10) as pool:
        assert len(set(pool.map(click, range(10)))) == 1
    assert len(list_all(service, "/payments")) == before + 1


WRONG = [
    ("/payments", {**PAYMENT, "amount": 0}),
    ("/payments", {**PAYMENT, "amount": -1}),
    ("/payments", {**PAYMENT, "amount": True}),
    ("/payments", {**PAYMENT, "amount": "ten"}),
    ("/payments", {**PAYMENT, "amount": "NaN"}),
    ("/payments", {**PAYMENT, "amount": "1e99"}),
    ("/payments", {**PAYMENT, "amount": "0.00001"}),
    ("/payments", {**PAYMENT, "currency": "eur"}),
    ("/payments", {**PAYMENT, "currency": "EURO"}),
    ("/payments", {**PAYMENT, "customerId": ""}),
    ("/payments", {**PAYMENT, "customerId": 7}),
    ("/payments", {**PAYMENT, "tip": 1}),
    ("/payments", {**PAYMENT, "simulate": {"crash": "during"}}),
    ("/payments", {**PAYMENT, "simulate": {"delayMs": 60_001}}),
    ("/payments", {**PAYMENT, "simulate": {"explode": True}}),
    ("/payments", [PAYMENT]),
    ("/orders", {**ORDER, "quantity": "2"}),
    ("/orders", {**ORDER, "quantity": 0}),
    ("/orders", {"sku": "x"}),
    ("/notes", {"text": ""}),
    ("/notes", {"text": "x" * 10_001}),
]


@pytest.mark.parametrize(("path", "body"), WRONG, ids=lambda value: json.dumps(value)[:60])
def test_a_wrong_body_is_refused_and_the_key_stays_free(service: Served, path: str, body: Any) -> None:
    key, before = fresh(), len(list_all(service, path))
    refused = service.post(path, body, key)
    assert refused.status == 422
    assert refused.json["detail"][0]["msg"]
    assert len(list_all(service, path)) == before
    assert service.post(path, next(good for to, good, _ in EACH if to == path), key).status == 201


@pytest.mark.parametrize("amount", [b"1e400", b"NaN", b"-Infinity", b'"\\ud800"', b"99999999999999999999"])
def test_an_amount_that_json_allows_but_money_does_not_is_refused(service: Served, amount: bytes) -> None:
    raw = b'{"customerId":"c-1","currency":"EUR","amount":' + amount + b"}"
    assert service.request("POST", "/payments", raw=raw, key=fresh()).status == 422


@pytest.mark.parametrize("amount", [10, 10.5, "10", "10.50"])
def test_an_amount_is_a_number_or_a_string(service: Served, amount: Any) -> None:
    made = service.post("/payments", {**PAYMENT, "amount": amount}, fresh())
    assert made.status == 201
    assert service.get(made.headers["location"]).json["amount"] == str(amount)


def test_a_failure_before_the_effect_releases_the_key(service: Served) -> None:
    key, body = fresh(), {**PAYMENT, "simulate": {"fail": "before"}}
    before = len(list_all(service, "/payments"))
    assert service.post("/payments", body, key).status == 503
    again = service.post("/payments", body, key)
    assert (again.status, again.replayed) == (201, False)
    assert len(list_all(service, "/payments")) == before + 1


@pytest.mark.parametrize(("fail", "status"), [("after", 500), ("timeout", 504)])
def test_a_failure_around_the_effect_is_unknown(service: Served, fail: str, status: int) -> None:
    key, body = fresh(), {**PAYMENT, "simulate": {"fail": fail}}
    before = len(list_all(service, "/payments"))
    assert service.post("/payments", body, key).status == status
    again = service.post("/payments", body, key)
    assert (again.status, again.json["code"]) == (409, CODES["unknown"])
    assert len(list_all(service, "/payments")) == before + 1


@pytest.mark.parametrize("fail", ["before", "after", "timeout"])
def test_an_order_that_fails_is_rolled_back_and_may_run_again(service: Served, fail: str) -> None:
    key, body = fresh(), {**ORDER, "simulate": {"fail": fail}}
    before = len(list_all(service, "/orders"))
    assert service.post("/orders", body, key).status in (500, 503, 504)
    assert len(list_all(service, "/orders")) == before
    assert service.post("/orders", body, key).status == 201
    assert len(list_all(service, "/orders")) == before + 1


@pytest.mark.parametrize("fail", ["before", "after", "timeout"])
def test_a_note_that_fails_is_written_once(service: Served, fail: str) -> None:
    key, body = fresh(), {**NOTE, "simulate": {"fail": fail}}
    before = len(list_all(service, "/notes"))
    assert service.post("/notes", body, key).status in (500, 503, 504)
    assert service.post("/notes", body, key).status == 201
    assert len(list_all(service, "/notes")) == before + 1


def test_an_operation_shows_its_state_only_to_its_caller(service: Served) -> None:
    key = fresh()
    service.post("/payments", {**PAYMENT, "simulate": {"fail": "after"}}, key)
    operation_id = service.post("/payments", {**PAYMENT, "simulate": {"fail": "after"}}, key).json["operationId"]
    by_id = service.get(f"/operations/{operation_id}")
    by_key = service.get(f"/operations?operation=payments.create&key={key}")
    assert (by_id.status, by_key.status) == (200, 200)
    assert by_id.json == by_key.json
    assert operation_id in by_id.body.decode()
    assert service.get(f"/operations/{operation_id}", token="bob").status == 404
    assert service.get(f"/operations/{operation_id}", token=None).status == 401
    assert service.get(f"/operations?operation=payments.create&key={fresh()}").status == 404


def test_a_suppliers_file_is_one_import_and_its_rows_are_orders(service: Served) -> None:
    path, file = "/suppliers/ACME/imports", b"sku,quantity\nA-1,2\nB-2,none\n"
    first = service.request("POST", path, raw=file, content_type="text/csv")
    assert (first.status, first.headers["semel-import"]) == (202, "created")
    again = service.request("POST", f"{path}?filename=other.csv", raw=file, content_type="text/csv", key=fresh())
    assert (again.status, again.headers["semel-import"], again.json["id"]) == (200, "existing", first.json["id"])
    job = first.headers["location"]
    await_true(lambda: service.get(job).json["state"] == "DONE", "the import's end")
    rows = service.get(f"{job}/rows").json["rows"]
    assert [(row["state"], row["line"], row["column"]) for row in rows] == [
        ("BOOKED", None, None),
        ("FAILED", 3, "quantity"),
    ]
    assert rows[0]["resultId"].startswith("ord_")
    assert service.get(f"/imports?key={first.json['key'][:11]}").json["imports"][0]["id"] == first.json["id"]
    assert service.get(job, token=None).status == 401
    assert service.request("POST", path, raw=file, content_type="text/csv", token=None).status == 401


def test_the_service_describes_itself(service: Served) -> None:
    assert service.get("/healthz", token=None).json == {"status": "ok"}
    document = service.get("/openapi.json", token=None).json
    assert {"/payments", "/orders", "/notes", "/operations", "/healthz"} <= set(document["paths"])
    post = document["paths"]["/payments"]["post"]
    assert {"201", "400", "409", "422", "503"} <= set(post["responses"])
    assert any(parameter["name"] == "Idempotency-Key" for parameter in post["parameters"])


def test_the_documentation_page_needs_nothing_from_the_internet(service: Served) -> None:
    page = service.get("/docs", token=None)
    assert page.status == 200
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
    assert len(sources) >= 3
    assert [source for source in sources if "://" in source] == []
    assert [service.get(source, token=None).status for source in sources] == [200] * len(sources)


def test_the_first_page_shows_what_to_try_at_this_address(service: Served) -> None:
    page = service.get("/", token=None)
    assert page.status == 200
    text = page.body.decode()
    assert f"curl -i {service.url}/payments" in text
    assert "POST /orders" in text
    assert "&quot;customerId&quot;" in text  # escaped
    assert "default-src 'self'" in page.headers["content-security-policy"]


def test_nothing_is_simulated_outside_a_demonstration(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-supervisor", demo=False) as quiet:
        for path, body, _ in EACH:
            refused = quiet.post(path, {**body, "simulate": {"delayMs": 1}}, fresh())
            assert refused.status == 422
            assert "SEMEL_DEMO" in refused.body.decode()
            assert quiet.post(path, body, fresh()).status == 201


def test_each_command_to_try_stands_indented_on_its_lines() -> None:
    lines = greeting("http://127.0.0.1:8080", Settings.read({"SEMEL_DEMO": "1"}))
    tries = lines[lines.index("Try it (copy and paste):") + 1 :]
    assert [line for line in tries if line and not line.startswith("  ")] == []
    assert any(r"printf 'sku,quantity\nA-1,2\nB-2,1\n' | curl" in line for line in tries)
