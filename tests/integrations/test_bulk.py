"""Bulk commands over HTTP: the list as JSON array or JSON lines, one answer with every item, 202 and its progress."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from litestar import Litestar, post
from quart import Quart, request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response as Answered
from starlette.routing import Route

from semel import AsyncBulk, AsyncEngine, Engine, ItemFailed
from semel.bulk.body import ItemReader
from semel.bulk.declaration import BulkItem
from semel.bulk.http import BulkRequest, refuse
from semel.core.model import State
from semel.errors import (
    BulkRefused,
    ConfigurationError,
    HandlerError,
    InProgressError,
    KeyExpiredError,
    OutcomeUnknownError,
    RecordUnreadableError,
    SchemaError,
    StoreUnavailable,
    SupersededError,
)
from semel.http.caller import Caller
from semel.integrations.fastapi import Semel as FastSemel
from semel.integrations.litestar import Semel as LitestarSemel
from semel.integrations.quart import Semel as QuartSemel
from semel.integrations.starlette import Semel
from tests.engine.shells import until
from tests.integrations.conftest import Serve
from tests.integrations.driving import Web, Webs, caller_of
from tests.web.driving import Response

REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
CASES = [{"clientItemId": f"c-{n}", "n": n} for n in range(5)]
LINES = [("Content-Type", "application/jsonl")]
JSON = [("Content-Type", "application/json")]
NEVER = "018f2b7e-4a10-7c3e-9b1a-0c6f5a2d9e41"
ASYNC = [("Prefer", "respond-async")]


def starlette_app(engine: AsyncEngine, endpoint: Callable[[Any], Any]) -> Any:
    semel = Semel(engine, caller=caller_of)
    app = Starlette(routes=[Route("/cases", endpoint(semel).answer, methods=["POST"])])
    semel.install(app)
    return app


def fastapi_app(engine: AsyncEngine, endpoint: Callable[[Any], Any]) -> Any:
    semel = FastSemel(engine, caller=caller_of)
    cases, app = endpoint(semel), FastAPI()

    @app.post("/cases")
    async def take(request: Request) -> Answered:
        answer: Answered = await cases.answer(request)
        return answer

    semel.install(app)
    return app


def litestar_app(engine: AsyncEngine, endpoint: Callable[[Any], Any]) -> Any:
    semel = LitestarSemel(engine, caller=caller_of)
    return Litestar([post("/cases")(endpoint(semel).answer)], plugins=[semel])


def quart_app(engine: AsyncEngine, endpoint: Callable[[Any], Any]) -> Any:
    app = Quart("cases")
    semel = QuartSemel(app, engine, caller=lambda: caller_of(request))
    app.post("/cases")(endpoint(semel).answer)
    return app


APPLICATIONS = {"starlette": starlette_app, "fastapi": fastapi_app, "litestar": litestar_app, "quart": quart_app}


class Shop:
    """An application with one bulk command on its own file."""

    def __init__(self, serve: Serve, folder: Path, *, framework: str = "starlette", **options: Any) -> None:
        self.file = folder / "app.db"
        url = f"sqlite:///{self.file}"
        with closing(Engine.connect(url)) as plain:
            plain.migrate()
        with closing(sqlite3.connect(self.file)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS effect (n INTEGER PRIMARY KEY)")
        self.seen: list[int] = []
        self.gate: asyncio.Event | None = None
        self.raises: Exception | None = None
        engine = AsyncEngine.connect(url)
        limit = options.pop("body_bytes_max", 10_000)
        bulk = AsyncBulk(engine, **{"operation": "cases", "effects": "atomic", "items_max": 100, **options})

        def endpoint(semel: Any) -> Any:
            return semel.bulk(bulk, self.approve, body_bytes_max=limit)

        app = APPLICATIONS[framework](engine, endpoint)
        self.web: Web = serve(app, engine)

    async def approve(self, item: BulkItem) -> str:
        self.seen.append(item.place)
        if self.raises is not None:
            raise self.raises
        n = item.value["n"]
        if n == 3:
            raise ItemFailed("LOCKED", retryable=True, written=False)
        item.connection.execute("INSERT INTO effect VALUES (?)", (n,))
        if self.gate is not None:
            await self.gate.wait()
        return f"r-{n}"

    def post(self, body: Any, headers: list[tuple[str, str]] | None = None, **how: Any) -> Response:
        return self.web.call("/cases", body, headers=headers, **how)

    @property
    def effects(self) -> list[int]:
        with closing(sqlite3.connect(self.file)) as db:
            return [n for (n,) in db.execute("SELECT n FROM effect ORDER BY n")]

    @property
    def state(self) -> int:
        """Of the one record."""
        with closing(sqlite3.connect(self.file)) as db:
            [[state]] = db.execute("SELECT state FROM semel_record").fetchall()
            return int(state)

    @property
    def records(self) -> int:
        with closing(sqlite3.connect(self.file)) as db:
            count: int = db.execute("SELECT count(*) FROM semel_record").fetchone()[0]
            return count


@pytest.fixture(params=["starlette", "litestar", "quart"])
def shop(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> Shop:
    return Shop(serve, tmp_path, framework=request.param)


def jsonl(items: list[Any]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


@pytest.mark.parametrize("framework", APPLICATIONS)
def test_every_item_has_its_outcome_and_a_retry_gets_the_same_answer(
    serve: Serve, tmp_path: Path, framework: str
) -> None:
    shop = Shop(serve, tmp_path, framework=framework)
    first = shop.post(CASES)
    told = json.loads(first.body)
    assert (first.status, first.replayed) == (207, False)
    assert {name: told[name] for name in ("total", "done", "succeeded", "failed", "retryable", "unknown")} == {
        **{"total": 5, "done": 5, "succeeded": 4},
        **{"failed": 1, "retryable": 1, "unknown": 0},
    }
    assert told["items"][3] == {
        **{"place": 3, "id": "c-3", "state": "FAILED", "targetId": None, "resultId": None},
        **{"errorCode": "LOCKED", "retryable": True},
    }
    assert [item["resultId"] for item in told["items"]] == ["r-0", "r-1", "r-2", None, "r-4"]
    again = shop.post(CASES)
    assert (again.status, again.body, again.replayed) == (207, first.body, True)
    lines = shop.post([jsonl(CASES)[:37], b"\n", jsonl(CASES)[37:]][::2], LINES)  # the same list in another form
    assert (lines.body, lines.replayed) == (first.body, True)
    assert (shop.seen, shop.effects) == ([0, 1, 2, 3, 4], [0, 1, 2, 4])
    other = shop.post(CASES[::-1])
    assert (other.code, other.problem["state"], other.problem["keyAction"]) == (REUSED, "SUCCEEDED", "new")
    assert other.problem["operationId"] == json.loads(first.body)["operationId"]
    assert other.link() == first.link() is not None
    assert shop.post(CASES, caller="bob").replayed is False  # another caller's key


def test_a_full_success_is_200_and_json_lines_get_json_lines(shop: Shop) -> None:
    answer = shop.post(jsonl(CASES[:2]), [*LINES, ("Accept", "application/x-ndjson")])
    assert (answer.status, answer.header("content-type")) == (200, "application/jsonl")
    head, *items = [json.loads(line) for line in answer.body.splitlines()]
    assert (head["succeeded"], head["total"]) == (2, 2)
    assert [item["resultId"] for item in items] == ["r-0", "r-1"]
    assert answer.link() == f"/operations/{head['operationId']}"
    assert answer.header("idempotency-key-lifetime") == "86400"


NAMED = {"place": 1, "line": 2, "member": "clientItemId"}
BAD: list[tuple[bytes, list[tuple[str, str]], int, str, dict[str, Any]]] = [
    (b'{"n":0}\n\n{"n":\n{"n":2}\n', LINES, 400, "ITEM_MALFORMED", {"place": 1, "line": 3}),
    (b'{"clientItemId":"a"}\n{"clientItemId":"a"}', LINES, 400, "DUPLICATE_ITEM_ID", NAMED),
    (b'[{"clientItemId":""}]', JSON, 400, "ITEM_MALFORMED", {"place": 0, "member": "clientItemId"}),
    (b'[{"n":0},]', JSON, 400, "ITEM_MALFORMED", {"place": 1}),
    (b'[{"n":0}', JSON, 400, "ITEM_MALFORMED", {"place": 0}),
    (b'{"n":0}', JSON, 400, "ITEM_MALFORMED", {}),
    (b"[]", JSON, 400, "NO_ITEMS", {}),
    (b"\n\n", LINES, 400, "NO_ITEMS", {}),
    (b"[" + b"1," * 100 + b"1]", JSON, 413, "TOO_MANY_ITEMS", {}),
    (b'["' + b"x" * 600 + b'"]', JSON, 413, "ITEM_TOO_LARGE", {"place": 0}),
    (b"1\n" * 5001, LINES, 413, "IDEMPOTENCY_REQUEST_TOO_LARGE", {}),
    (b"[1]", [("Content-Type", "text/csv")], 415, "LIST_MEDIA_TYPE", {}),
    (b"[1]", [*JSON, ("Content-Encoding", "gzip")], 415, "LIST_MEDIA_TYPE", {}),
    (b"[1]", [*JSON, ("Early-Data", "1")], 425, "IDEMPOTENCY_TOO_EARLY", {}),
]


@pytest.mark.parametrize("stricter", [{"items_max": 2}, {"item_bytes_max": 5}, {"body_bytes_max": 20}])
@pytest.mark.parametrize("pieces", [0, 1])
def test_a_lists_retry_gets_its_answer_under_changed_limits(
    serve: Serve, tmp_path: Path, stricter: dict[str, Any], pieces: int
) -> None:
    body = json.dumps(CASES).encode()
    sent: Any = body if pieces == 0 else [body[:5], body[5:]]
    first = Shop(serve, tmp_path).post(sent, JSON)
    shop = Shop(serve, tmp_path, **stricter)
    again = shop.post(sent, JSON)
    assert (again.status, again.header("idempotency-replayed")) == (207, "true")
    assert json.loads(again.body)["items"] == json.loads(first.body)["items"]
    assert shop.seen == []
    assert shop.post(sent, JSON, key="another").status == 413


@pytest.mark.parametrize(("body", "headers", "status", "code", "members"), BAD)
@pytest.mark.parametrize("pieces", [0, 1])
@pytest.mark.parametrize("framework", ["starlette", "litestar", "quart"])
def test_a_list_that_is_wrong_is_refused_as_a_whole(
    serve: Serve,
    tmp_path: Path,
    framework: str,
    body: bytes,
    headers: list[tuple[str, str]],
    status: int,
    code: str,
    members: dict[str, Any],
    pieces: int,
) -> None:
    shop = Shop(serve, tmp_path, framework=framework, item_bytes_max=500)
    sent: Any = body if pieces == 0 else [body[:5], body[5:]]
    refused = shop.post(sent, headers)
    assert (refused.status, refused.code) == (status, code)
    told = {name: value for name, value in refused.problem.items() if name in ("place", "line", "member")}
    assert told == members
    assert (shop.seen, shop.effects, shop.records) == ([], [], 0)
    assert shop.post(CASES).status == 207  # the key is free


def test_a_request_without_key_or_caller_is_refused(shop: Shop) -> None:
    assert shop.post(CASES, key=None).code == "MISSING_IDEMPOTENCY_KEY"
    assert shop.post(CASES, key="a\x01").code == "INVALID_IDEMPOTENCY_KEY"
    assert shop.post(CASES, caller=None).code == "IDEMPOTENCY_CALLER_UNKNOWN"
    assert shop.records == 0


def test_a_client_that_disconnects_during_its_list_has_done_nothing(shop: Shop) -> None:
    shop.post([jsonl(CASES)[:40]], LINES, leaves=True)
    assert (shop.seen, shop.records) == ([], 0)
    assert shop.post(jsonl(CASES), LINES).status == 207


def test_an_accepted_list_shows_its_progress_and_gets_the_same_answer(shop: Shop) -> None:
    async def story() -> None:
        web, shop.gate = shop.web, asyncio.Event()
        first = await web.ask("/cases", CASES, headers=ASYNC)
        assert (first.status, first.header("preference-applied")) == (202, "respond-async")
        place = first.header("location")
        assert place is not None
        await until(lambda: shop.seen == [0])
        for _ in range(2):
            again = await web.ask("/cases", CASES, headers=ASYNC)
            assert (again.status, again.header("location")) == (202, place)
        assert (
            await web.ask("/cases", CASES, headers=[("Prefer", "wait=0")])
        ).code == "IDEMPOTENCY_REQUEST_IN_PROGRESS"
        running = json.loads((await web.ask(place, method="GET", key=None)).body)
        assert (running["running"], running["progress"]["total"], running["progress"]["done"]) == (True, 5, 0)
        assert running["state"] == json.loads(first.body)["state"] == "CLAIMED"
        shop.gate.set()
        await until(lambda: shop.state == State.SUCCEEDED)
        ended = json.loads((await web.ask(place, method="GET", key=None)).body)
        assert (ended["state"], ended["progress"]["succeeded"]) == ("SUCCEEDED", 4)
        assert (await web.ask(place, method="GET", key=None, caller="bob")).status == 404
        found = await web.ask("/operations", method="GET", key=None, query="key=8e03978e-40d5-43dd-bc93-6894a57f9324")
        assert json.loads(found.body)["operationId"] == ended["operationId"]

    shop.web.runner.run(story())
    whole = shop.post(CASES, ASYNC)
    assert (whole.status, whole.replayed, len(json.loads(whole.body)["items"])) == (207, True, 5)
    assert shop.seen == [0, 1, 2, 3, 4]


def test_an_accepted_list_interrupted_by_shutdown_continues(serve: Serve, tmp_path: Path) -> None:
    webs = Webs()
    shop = Shop(webs.serve, tmp_path)

    async def story() -> None:
        shop.gate = asyncio.Event()  # which is never opened
        assert (await shop.web.ask("/cases", CASES, headers=ASYNC)).status == 202
        await until(lambda: shop.seen == [0])

    shop.web.runner.run(story())
    webs.close()
    assert (shop.effects, shop.state) == ([], State.CLAIMED)
    again = Shop(serve, tmp_path).post(CASES)
    assert (again.status, again.replayed, shop.effects) == (207, False, [0, 1, 2, 4])


def test_a_wrong_handler_stops_the_bulk_and_the_next_call_continues(shop: Shop) -> None:
    shop.raises = HandlerError("it may not")
    assert shop.post(CASES).status == 500
    assert isinstance(shop.web.raised, HandlerError | None)  # Litestar and Quart answer it themselves
    shop.raises = None
    assert shop.post(CASES).status == 207


def test_an_impossible_endpoint_is_refused_when_the_application_is_built(tmp_path: Path) -> None:
    engine, other = (AsyncEngine.connect(f"sqlite:///{tmp_path}/{name}.db") for name in "ab")
    semel = Semel(engine, caller=caller_of)

    async def handler(item: BulkItem) -> None: ...

    with pytest.raises(ConfigurationError, match="on the engine of this Semel"):
        semel.bulk(AsyncBulk(other, operation="cases"), handler)
    with pytest.raises(ConfigurationError, match="must be a coroutine function"):
        semel.bulk(AsyncBulk(engine, operation="cases"), lambda item: None)  # type: ignore[arg-type, return-value]
    semel.bulk(AsyncBulk(engine, operation="cases"), handler)
    with pytest.raises(ConfigurationError, match="duplicate operation name 'cases'"):
        semel.bulk(AsyncBulk(engine, operation="cases"), handler)
    with pytest.raises(ConfigurationError, match="duplicate operation name 'cases'"):
        semel.command("cases")


@pytest.mark.parametrize(
    ("error", "status", "code", "after"),
    [
        (StoreUnavailable("host db-7 is away"), 503, "IDEMPOTENCY_STORE_UNAVAILABLE", True),
        (SchemaError("host db-7 has no tables"), 503, "IDEMPOTENCY_STORE_UNAVAILABLE", True),
        (SupersededError("taken over"), 409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", True),
        (OutcomeUnknownError("?", operation_id=NEVER), 409, "IDEMPOTENCY_OUTCOME_UNKNOWN", False),
        (KeyExpiredError("!", operation_id=NEVER), 409, "IDEMPOTENCY_RECORD_EXPIRED", False),
        (RecordUnreadableError("!", operation_id=NEVER), 500, "IDEMPOTENCY_RECORD_UNREADABLE", False),
        (
            InProgressError("!", operation_id=NEVER, retry_after_seconds=0.2),
            409,
            "IDEMPOTENCY_REQUEST_IN_PROGRESS",
            True,
        ),
    ],
)
def test_an_error_that_stops_a_bulk_is_a_problem_document(
    tmp_path: Path, error: Exception, status: int, code: str, after: bool
) -> None:
    surface = Semel(AsyncEngine.connect(f"sqlite:///{tmp_path}/a.db"), caller=caller_of).surface
    how = BulkRequest("k", Caller("acme", "alice"), ItemReader("array", 10), False, False, None)
    answer = refuse(surface, error, how)
    assert answer is not None
    document = json.loads(answer.body)
    assert (answer.status, document["code"], "retryAfter" in document) == (status, code, after)
    assert b"db-7" not in answer.body
    assert refuse(surface, ValueError("a bug"), how) is None


# --- the reader -------------------------------------------------------------------------------


def some(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(6 if depth < 3 else 4)
    if kind == 0:
        return chance.choice([1, -2.5, True, None])
    if kind <= 3:
        return "".join(chance.choice('a"\\[]{},é\n \u2028') for _ in range(chance.randrange(8)))
    if kind == 4:
        return [some(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {f"k{n}": some(chance, depth + 1) for n in range(chance.randrange(4))}


def pieces(body: bytes, chance: random.Random) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        size = chance.randrange(1, 9)
        yield body[at : at + size]
        at += size


@pytest.mark.parametrize("seed", range(4))
def test_arrays_are_split_into_the_same_items_in_any_pieces(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(150):
        items = [some(chance) for _ in range(chance.randrange(6))]
        body = json.dumps(items, indent=chance.choice([None, 1]), ensure_ascii=chance.random() < 0.5).encode()
        reader = ItemReader("array", 10**6)
        found = [raw for piece in pieces(body, chance) for raw in reader.feed(piece)]
        assert [json.loads(raw) for raw in [*found, *reader.end()]] == items, body


@pytest.mark.parametrize(
    "body", [b"[,1]", b"[1]]", b"[{]}", b"[1}", b'["a', b"[1,,2]", b"[]x", b"", b" ", b"x", b'["\\']
)
def test_a_body_that_is_not_an_array_is_refused(body: bytes) -> None:
    for cut in range(len(body) + 1):
        with pytest.raises(BulkRefused):
            read(ItemReader("array", 100), body[:cut], body[cut:])


def read(reader: ItemReader, *pieces: bytes) -> list[bytes]:
    """The items of a whole body."""
    found = [raw for piece in pieces for raw in reader.feed(piece)]
    return [*found, *reader.end()]


def test_a_line_without_an_end_fills_no_memory() -> None:
    with pytest.raises(BulkRefused, match="more than 1000 bytes"):
        read(ItemReader("lines", 1000), *[b"x" * 400] * 3, b"\n")
