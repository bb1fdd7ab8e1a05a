"""The OpenAPI document says what a command promises: its header, its refusals, its retention and its guarantee."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, FastAPI, Header, Request, Response
from pydantic import BaseModel

from semel import AsyncBulk, AsyncEngine, BulkItem, KeyFormat, Permit
from semel.integrations.fastapi import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import caller_of


class Thing(BaseModel):
    name: str


@pytest.fixture
def app(engine: AsyncEngine) -> FastAPI:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    inner, outer = APIRouter(prefix="/inner"), APIRouter(prefix="/outer", tags=["outer"])

    @app.post("/direct", responses={409: {"description": "Sold out"}})
    @semel.command("direct", effects="external", answer_seconds=7200, tombstone_seconds=7200)
    async def direct(thing: Thing, permit: Permit = semel.permit) -> Thing:
        return thing

    @outer.patch("/own/{number}")
    @semel.command("own", effects="idempotent", key="optional", key_format=KeyFormat(uuid=True))
    async def own(number: int, idempotency_key: Annotated[str | None, Header()] = None) -> None: ...

    @inner.put("/both")
    @semel.command("put", key_format=KeyFormat(length_min=20, pattern="[a-z]+"))
    async def put_it() -> None: ...

    @inner.delete("/both")
    @semel.command("delete")
    async def delete_it() -> None: ...

    @app.post("/plain")
    async def plain() -> None: ...

    outer.include_router(inner, prefix="/between")
    app.include_router(outer, prefix="/v1")
    semel.install(app)
    return app


@pytest.fixture
def document(serve: Serve, engine: AsyncEngine, app: FastAPI) -> dict[str, Any]:
    web = serve(app, engine)
    first, again = (web.call("/openapi.json", method="GET", key=None).body for _ in range(2))
    assert first == again
    read: dict[str, Any] = json.loads(first)
    return read


COMMANDS = [
    ("/direct", "post", "direct", True),
    ("/v1/outer/own/{number}", "patch", "own", False),
    ("/v1/outer/between/inner/both", "put", "put", True),
    ("/v1/outer/between/inner/both", "delete", "delete", True),
]


@pytest.mark.parametrize(("path", "method", "name", "required"), COMMANDS)
def test_every_command_is_described_wherever_it_is_included(
    document: dict[str, Any], path: str, method: str, name: str, required: bool
) -> None:
    operation = document["paths"][path][method]
    assert operation["x-semel"]["operation"] == name
    headers = [each for each in operation["parameters"] if each["name"].lower() == "idempotency-key"]
    assert len(headers) == 1
    assert (headers[0]["in"], headers[0]["required"]) == ("header", required)
    for status in ("400", "409", "422", "503"):
        problem, narrowed = operation["responses"][status]["content"]["application/problem+json"]["schema"]["allOf"]
        assert problem == {"$ref": "#/components/schemas/SemelProblem"}
        assert narrowed["properties"]["code"]["enum"]
    schema = document["components"]["schemas"]["SemelProblem"]
    assert set(schema["required"]) <= set(schema["properties"])
    assert "permit" not in json.dumps(operation)
    assert "semel_request" not in json.dumps(operation)


def test_the_applications_own_descriptions_stay(document: dict[str, Any]) -> None:
    responses = document["paths"]["/direct"]["post"]["responses"]
    assert responses["409"]["description"] == "Sold out"
    assert "application/json" in responses["422"]["content"]  # its own validation errors
    assert document["paths"]["/direct"]["post"]["requestBody"]["required"] is True


def test_retention_guarantee_and_key_format_are_reported(document: dict[str, Any]) -> None:
    direct = document["paths"]["/direct"]["post"]
    promised = direct["x-semel"]
    assert (promised["effects"], promised["answerRetentionSeconds"]) == ("EXTERNAL", 7200)
    assert "never run twice" in promised["guarantee"]
    assert "2 hours" in direct["parameters"][-1]["description"]
    both = document["paths"]["/v1/outer/between/inner/both"]["put"]["parameters"][-1]["schema"]
    assert (both["minLength"], both["maxLength"], both["pattern"]) == (20, 255, "[a-z]+")


def test_other_routes_are_not_described(document: dict[str, Any]) -> None:
    assert "x-semel" not in document["paths"]["/plain"]["post"]
    assert set(document["paths"]["/operations"]["get"]["tags"]) == {"operations"}
    assert [each["name"] for each in document["paths"]["/operations/{operation_id}"]["get"]["parameters"]] == [
        "operation_id"
    ]


def test_a_route_that_is_hidden_stays_hidden(engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()

    @app.post("/hidden", include_in_schema=False)
    @semel.command("hidden")
    async def run_hidden() -> None: ...

    semel.install(app, operations_path=None)
    assert app.openapi()["paths"] == {}


def test_an_application_without_a_document_works(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI(openapi_url=None)
    semel.install(app)
    assert serve(app, engine).call("/openapi.json", method="GET").status == 404


# --- lists ------------------------------------------------------------------------------------------


@pytest.fixture
def list_document(tmp_path: Path) -> dict[str, Any]:
    semel, app = Semel(AsyncEngine.connect(f"sqlite:///{tmp_path}/a.db"), caller=caller_of), FastAPI()
    plain = AsyncBulk(semel.engine, operation="approve", effects="atomic", items_max=7)
    around = AsyncBulk(semel.engine, operation="charge", effects="idempotent")

    async def handle(item: BulkItem) -> None: ...

    approvals = semel.bulk(plain, handle)
    charges = semel.bulk(around, handle, items_at="/data/items", counts=("X-Batch",))
    app.post("/approvals")(approvals.answer)
    inner = APIRouter(prefix="/inner")

    @inner.post("/charges/{shop}")
    async def charge(shop: int, request: Request) -> Response:
        answer: Response = await charges.answer(request)
        return answer

    @app.get("/charges")
    async def reads() -> str:
        return str(charges.bulk)

    app.include_router(inner)
    semel.install(app)
    document: dict[str, Any] = app.openapi()
    return document


def test_a_bulk_is_described_as_the_list_it_takes(list_document: dict[str, Any]) -> None:
    approvals = list_document["paths"]["/approvals"]["post"]
    content = approvals["requestBody"]["content"]
    assert content["application/json"]["schema"] == {"type": "array", "minItems": 1, "maxItems": 7, "items": {}}
    assert set(content) == {"application/json", "application/jsonl", "application/x-ndjson"}
    charges = list_document["paths"]["/inner/charges/{shop}"]["post"]
    array, around = charges["requestBody"]["content"]["application/json"]["schema"]["oneOf"]
    assert around["properties"]["data"]["properties"]["items"] == array
    assert [(each["in"], each["name"].lower()) for each in charges["parameters"]] == [
        *(("path", "shop"), ("header", "idempotency-key"), ("header", "x-batch"))
    ]


def test_a_bulks_answers_and_refusals_are_described(list_document: dict[str, Any]) -> None:
    operation = list_document["paths"]["/approvals"]["post"]
    assert set(operation["responses"]) == {
        *("200", "202", "207", "400", "401", "409", "413", "415", "422", "425", "429", "500", "503")
    }
    whole = operation["responses"]["207"]["content"]["application/json"]["schema"]
    assert {"operationId", "succeeded", "unknown", "items"} <= set(whole["required"])
    assert "Idempotency-Replayed" in operation["responses"]["200"]["headers"]
    _, narrowed = operation["responses"]["400"]["content"]["application/problem+json"]["schema"]["allOf"]
    codes = narrowed["properties"]["code"]["enum"]
    assert {"ITEM_MALFORMED", "MISSING_IDEMPOTENCY_KEY", "NO_ITEMS"} <= set(codes)
    said = operation["x-semel"]
    assert (said["operation"], said["effects"], said["itemEffects"]) == ("approve", "BULK", "ATOMIC")
    assert "x-semel" not in list_document["paths"]["/charges"]["get"]


def test_headers_that_count_are_parameters(engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of, counts=("stripe-account",)), FastAPI()

    @app.post("/own")
    @semel.command("own")
    async def own(stripe_account: Annotated[str | None, Header()] = None) -> None: ...

    @app.post("/other")
    @semel.command("other", counts=("If-Match",))
    async def other() -> None: ...

    semel.install(app)
    paths = app.openapi()["paths"]
    named = {path: [each["name"] for each in paths[path]["post"]["parameters"]] for path in ("/own", "/other")}
    assert named == {"/own": ["stripe-account", "Idempotency-Key"], "/other": ["Idempotency-Key", "if-match"]}
