"""What Litestar's own OpenAPI document says of commands, lists and the status of operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar, delete, get, post
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, Operation, SecurityScheme
from litestar.params import FromPath, JSONBody
from litestar.testing import TestClient

from semel import AsyncBulk, AsyncEngine, Engine, KeyFormat, Recipe
from semel.bulk.declaration import BulkItem
from semel.http.caller import single_caller
from semel.integrations.litestar import Semel


class Marked(Operation):
    """An application's own operation class."""

    def to_schema(self) -> dict[str, Any]:
        return {**super().to_schema(), "x-own": True}


class Handlers:
    """Every kind of handler on one plugin, and how many applications were made of it."""

    def __init__(self, folder: Path) -> None:
        url = f"sqlite:///{folder}/app.db"
        with closing(Engine.connect(url)) as engine:
            engine.migrate()
        engine_ = AsyncEngine.connect(url)
        semel = self.semel = Semel(engine_, caller=single_caller)

        @post(["/pay", "/paid"], operation_class=Marked)
        @semel.command(
            "pay",
            effects="atomic",
            key_format=KeyFormat(uuid=True),
            answer_seconds=7200,
            fingerprint=Recipe(headers=("x-a",)),
        )
        async def pay(data: JSONBody[dict[str, int]]) -> dict[str, int]:
            return data

        @delete("/invoices/{number:int}", status_code=200)
        @semel.command("delete", effects="idempotent", key_from="path:number")
        async def remove(number: FromPath[int]) -> int:
            return number

        @get("/free", sync_to_thread=False)
        def free() -> str:
            return "free"

        async def approve(item: BulkItem) -> None: ...

        bulk = semel.bulk(AsyncBulk(engine_, operation="cases"), approve, items_at="/items")
        self.handlers: list[Any] = [pay, remove, free, post("/cases")(bulk.answer)]


@pytest.fixture
def handlers(tmp_path: Path) -> Handlers:
    return Handlers(tmp_path)


def document_of(app: Litestar) -> dict[str, Any]:
    with TestClient(app) as client:
        document: dict[str, Any] = client.get("/schema/openapi.json").json()
    assert document == app.openapi_schema.to_schema()  # as the command `litestar schema openapi` writes it
    return document


@pytest.fixture
def document(handlers: Handlers) -> dict[str, Any]:
    return document_of(Litestar(handlers.handlers, plugins=[handlers.semel]))


def refs(value: Any) -> Iterator[str]:
    """Every reference in a document."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "$ref":
                yield inner
            else:
                yield from refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from refs(inner)


def test_a_command_names_its_key_its_refusals_and_its_promise(document: dict[str, Any]) -> None:
    for path in ("/pay", "/paid"):
        operation = document["paths"][path]["post"]
        key, counted = operation["parameters"]
        assert (key["name"], key["in"], key["required"], key["schema"]["format"]) == (
            *("Idempotency-Key", "header", True),
            "uuid",
        )
        assert "2 hours" in key["description"]
        assert counted["name"] == "x-a"
        assert operation["x-own"] is True
        assert {"Idempotency-Replayed", "Idempotency-Key-Lifetime", "Link"} <= set(
            operation["responses"]["201"]["headers"]
        )
        assert {"400", "401", "409", "413", "422", "500", "503"} <= set(operation["responses"])
        invalid = operation["responses"]["400"]["content"]
        assert {"application/json", "application/problem+json"} <= set(invalid)  # Litestar's validation, and ours
        codes = operation["responses"]["422"]["content"]["application/problem+json"]["schema"]["allOf"][1]
        assert codes["properties"]["code"]["enum"] == ["IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"]
        assert "Retry-After" in operation["responses"]["503"]["headers"]
        assert (operation["x-semel"]["operation"], operation["x-semel"]["effects"]) == ("pay", "ATOMIC")


def test_a_key_that_is_derived_needs_no_header(document: dict[str, Any]) -> None:
    operation = document["paths"]["/invoices/{number}"]["delete"]
    [number] = operation["parameters"]
    assert (number["name"], number["in"]) == ("number", "path")
    assert "idempotency key" in number["description"]
    assert operation["x-semel"]["keyFrom"] == "path:number"


def test_other_handlers_keep_litestars_description(document: dict[str, Any]) -> None:
    free = document["paths"]["/free"]["get"]
    assert ("x-semel" in free, list(free["responses"])) == (False, ["200"])


def test_every_reference_in_the_document_resolves(document: dict[str, Any]) -> None:
    found = set(refs(document))
    assert "#/components/schemas/SemelProblem" in found
    for each in found:
        at: Any = document
        for part in each.removeprefix("#/").split("/"):
            at = at[part]
    problem = document["components"]["schemas"]["SemelProblem"]
    assert problem["properties"]["keyAction"]["enum"] == ["keep", "new", "query"]


def test_a_list_has_its_own_body_and_answers(document: dict[str, Any]) -> None:
    operation = document["paths"]["/cases"]["post"]
    assert {"application/json", "application/jsonl"} <= set(operation["requestBody"]["content"])
    assert {"200", "202", "207", "413", "415"} <= set(operation["responses"])
    assert "201" not in operation["responses"]
    assert operation["x-semel"]["effects"] == "BULK"


def test_the_status_of_operations_is_described(document: dict[str, Any]) -> None:
    assert [each["name"] for each in document["paths"]["/operations"]["get"]["parameters"]] == [
        *("key", "reference", "operation")
    ]
    one = document["paths"]["/operations/{operation_id}"]["get"]
    assert {"200", "400", "401", "404", "503"} <= set(one["responses"])
    assert one["parameters"][0]["name"] == "operation_id"
    assert "/operations/problems" not in document["paths"]


@pytest.mark.parametrize("several", [False, True])
def test_the_components_of_the_application_stay(handlers: Handlers, several: bool) -> None:
    bearer = Components(security_schemes={"bearer": SecurityScheme(type="http", scheme="bearer")})
    given = [bearer, Components(security_schemes={"basic": SecurityScheme(type="http", scheme="basic")})]
    config = OpenAPIConfig(title="Shop", version="1", components=given if several else bearer)
    document = document_of(Litestar(handlers.handlers, plugins=[handlers.semel], openapi_config=config))
    schemes = document["components"]["securitySchemes"]
    assert sorted(schemes) == (["basic", "bearer"] if several else ["bearer"])
    assert "SemelProblem" in document["components"]["schemas"]
    bare = Litestar([], openapi_config=config)  # the same configuration, without Semel
    assert "SemelProblem" not in str(bare.openapi_schema.to_schema())
    assert "SemelProblem" not in str(Litestar([]).openapi_schema.to_schema())


def test_an_application_without_a_document_works(handlers: Handlers) -> None:
    app = Litestar(handlers.handlers, plugins=[handlers.semel], openapi_config=None)
    with TestClient(app) as client:
        assert client.get("/free").text == "free"
