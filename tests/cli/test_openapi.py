"""`semel openapi`: the document of every kind of application, with what Semel promises of its operations."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from semel.cli.main import main

SHOPS = "tests.cli.openapi_shops"
Capture = pytest.CaptureFixture[str]


def document_of(capsys: Capture, name: str) -> Any:
    assert main(["openapi", f"{SHOPS}:{name}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["--json", "openapi", f"{SHOPS}:{name}"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert missing_references(found) == []
    return found


def missing_references(document: Any) -> list[str]:
    """Return the references of the document that do not resolve."""
    missing = []
    for place in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)):
        found = document
        for part in place.split("/"):
            found = found.get(part, {})
        if not found:
            missing.append(place)
    return missing


def codes(operation: Any, status: str) -> list[str]:
    content = operation["responses"][status]["content"]["application/problem+json"]
    found: list[str] = content["schema"]["allOf"][1]["properties"]["code"]["enum"]
    return found


def test_a_fastapi_application_keeps_its_own_document(capsys: Capture) -> None:
    document = document_of(capsys, "fastapi")
    assert document["info"]["title"] == "Shop"
    create = document["paths"]["/payments"]["post"]
    assert create["x-semel"]["operation"] == "payments.create"
    assert create["requestBody"]
    assert "403" not in create["responses"]
    assert set(document["paths"]) == {"/payments", "/operations", "/operations/{operation_id}"}


def test_a_fastapi_application_behind_a_middleware_is_completed(capsys: Capture) -> None:
    document = document_of(capsys, "behind")
    pay = document["paths"]["/orders/{number}/pay"]["post"]
    assert document["info"]["title"] == "Behind"
    assert pay["operationId"] == "pay_orders__number__pay_post"
    assert pay["x-semel"]["operation"] == "orders.pay"
    assert [each["name"] for each in pay["parameters"]] == ["number", "X-Key"]
    assert "IDEMPOTENCY_OPERATION_MISSPELLED" in codes(pay, "400")
    assert codes(pay, "403") == ["IDEMPOTENCY_CALLER_NOT_ALLOWED"]


def test_a_starlette_application_is_described_by_its_operations(capsys: Capture) -> None:
    paths = document_of(capsys, "starlette")["paths"]
    order = paths["/carts/{id}/order"]["post"]
    assert order["operationId"] == order["x-semel"]["operation"] == "carts.order"
    assert order["parameters"][0]["schema"] == {"type": "string", "format": "uuid"}
    assert "IDEMPOTENCY_OPERATION_MISSPELLED" not in codes(order, "400")
    assert "/operations/{operation_id}" in paths


def test_a_flask_application_is_described_by_its_operations(capsys: Capture) -> None:
    document = document_of(capsys, "flask")
    assert document["info"]["title"] == "flask-shop"
    paths = document["paths"]
    assert set(paths) == {"/orders/{number}/pay", "/notes", "/notes/", "/status/{operation_id}"}
    assert paths["/orders/{number}/pay"]["post"]["parameters"][0]["schema"] == {"type": "integer"}
    ids = [each["operationId"] for path in ("/notes", "/notes/") for each in paths[path].values()]
    assert len(set(ids)) == 4
    assert {each["x-semel"]["operation"] for each in paths["/notes/"].values()} == {"POST /notes", "PUT /notes"}


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing", "declares no operation that can be seen"), ("number", "no ASGI or WSGI application")],
)
def test_an_application_without_a_document_is_refused(capsys: Capture, name: str, message: str) -> None:
    assert main(["openapi", f"{SHOPS}:{name}"]) == 2
    assert message in capsys.readouterr().err
