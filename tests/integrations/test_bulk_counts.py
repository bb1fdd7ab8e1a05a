"""What of a request counts beside a bulk's list: path, query, headers, the object around it; and its digest."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response as Answered
from starlette.routing import Route

from semel import AsyncBulk, AsyncEngine, Engine
from semel.bulk.body import AROUND_BYTES_MAX, ItemReader
from semel.bulk.declaration import BulkItem
from semel.bulk.http import items_pointer
from semel.errors import BulkRefused, ConfigurationError
from semel.integrations.fastapi import Semel as FastSemel
from semel.integrations.starlette import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import Web, caller_of
from tests.web.driving import Headers, Response

REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
LINES = [("Content-Type", "application/jsonl")]
JSON = [("Content-Type", "application/json")]
LIST = b'[{"n": 1}, {"n": 2}]'
Sent = dict[str, Any]


class Imports:
    """``POST /stores/{id}/imports``, on its own file."""

    def __init__(self, serve: Serve, folder: Path, framework: str, **options: Any) -> None:
        self.file = folder / "app.db"
        url = f"sqlite:///{self.file}"
        with closing(Engine.connect(url)) as plain:
            plain.migrate()
        self.calls = 0
        engine = AsyncEngine.connect(url)
        made: Any = Semel if framework == "starlette" else FastSemel
        semel = made(engine, caller=caller_of, counts=options.pop("application", ()))
        bulk = AsyncBulk(engine, operation="imports")
        endpoint = semel.bulk(bulk, self.take, **options)
        path = "/stores/{id}/imports"
        app: Any
        if framework == "starlette":
            app = Starlette(routes=[Route(path, endpoint.answer, methods=["POST"])])
        else:
            app = FastAPI()

            async def imports(id: int, request: Request) -> Answered:
                answer: Answered = await endpoint.answer(request)
                return answer

            app.post(path)(imports)

        semel.install(app)
        self.web: Web = serve(app, engine)

    async def take(self, item: BulkItem) -> None:
        self.calls += 1

    def post(self, body: Any = LIST, headers: Headers | None = None, store: int = 7, **how: Any) -> Response:
        return self.web.call(f"/stores/{store}/imports", body, headers=JSON if headers is None else headers, **how)

    def former(self) -> None:
        """Make the one record as the former version wrote it: the list alone counted."""
        with closing(sqlite3.connect(self.file)) as db:
            db.execute("UPDATE semel_record SET recipe = 'bulk-1'")
            db.commit()

    @property
    def records(self) -> int:
        with closing(sqlite3.connect(self.file)) as db:
            count: int = db.execute("SELECT count(*) FROM semel_record").fetchone()[0]
            return count


@pytest.fixture(params=["starlette", "fastapi"])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_path_and_query_count(serve: Serve, tmp_path: Path, framework: str) -> None:
    imports = Imports(serve, tmp_path, framework)
    assert imports.post().status == 200
    assert imports.post().replayed
    assert imports.post(b'{"n":1}\n{"n":2}\n', LINES).replayed  # the same list in lines
    for other in ({"store": 8}, {"query": "dryRun=true"}, {"headers": [("Content-Type", "application/json; v=2")]}):
        refused = imports.post(**other)
        assert (refused.status, refused.code) == (422, REUSED), other
    assert imports.post(headers=[("Content-Type", "application/json; charset=utf-8")]).replayed
    assert imports.calls == 2


def test_a_real_run_after_a_dry_run_is_another_request(serve: Serve, tmp_path: Path, framework: str) -> None:
    imports = Imports(serve, tmp_path, framework)
    assert imports.post(query="dryRun=true").status == 200
    assert imports.post().code == REUSED
    assert imports.post(query="dryRun=true").replayed
    assert imports.post(key="another").status == 200
    assert imports.calls == 4


@pytest.mark.parametrize("settings", [{"counts": ("x-batch",)}, {"application": ("X-Batch",)}])
def test_declared_headers_count(serve: Serve, tmp_path: Path, framework: str, settings: Any) -> None:
    imports = Imports(serve, tmp_path, framework, **settings)
    assert imports.post(headers=[*JSON, ("X-Batch", "1")]).status == 200
    assert imports.post(headers=[*JSON, ("X-Batch", "1")]).replayed
    assert imports.post(headers=[*JSON, ("X-Batch", "2")]).code == REUSED
    assert imports.post().code == REUSED


def test_a_former_record_is_never_used_for_another_request(serve: Serve, tmp_path: Path, framework: str) -> None:
    """Its record does not name its path: its retry is refused, and nothing runs again."""
    imports = Imports(serve, tmp_path, framework)
    imports.post()
    imports.former()
    for store in (7, 8):
        refused = imports.post(store=store)
        assert (refused.status, refused.code) == (500, "IDEMPOTENCY_RECORD_UNREADABLE")
    assert imports.calls == 2


# --- the digest of the content --------------------------------------------------------------------


def digest(body: bytes) -> Headers:
    return [("Content-Digest", f"sha-256=:{b64encode(hashlib.sha256(body).digest()).decode()}:")]


@pytest.mark.parametrize("pieces", [False, True])
def test_a_list_that_was_cut_in_transit_is_refused(serve: Serve, tmp_path: Path, framework: str, pieces: bool) -> None:
    imports = Imports(serve, tmp_path, framework)
    whole, cut = b"100\n200\n1234\n", b"100\n200\n12"
    sent: Any = [cut[:5], cut[5:]] if pieces else cut
    refused = imports.post(sent, [*LINES, *digest(whole)])
    assert (refused.status, refused.code) == (400, "IDEMPOTENCY_REQUEST_INVALID")
    malformed = imports.post(whole, [*LINES, ("Content-Digest", "sha-256=abc")])
    assert (malformed.status, malformed.code) == (400, "IDEMPOTENCY_REQUEST_INVALID")
    assert (imports.calls, imports.records) == (0, 0)
    assert imports.post(whole, [*LINES, *digest(whole)]).status == 200
    assert imports.post(whole, LINES).replayed


# --- lists in an object ---------------------------------------------------------------------------


def test_the_items_may_be_in_an_object(serve: Serve, tmp_path: Path, framework: str) -> None:
    imports = Imports(serve, tmp_path, framework, items_at="/items")
    first = imports.post(b'{"items": %s}' % LIST)
    assert (first.status, json.loads(first.body)["total"]) == (200, 2)
    assert imports.post(LIST).replayed  # alone it is the same list
    assert imports.post(b'{"items": %s, "dryRun": true}' % LIST).code == REUSED
    assert imports.post(b'{"dryRun":true,"items":%s}' % LIST, key="b").status == 200
    assert imports.post(b'{ "items": %s, "dryRun": true }' % LIST, key="b").replayed
    assert imports.post(b'{"items": %s, "dryRun": false}' % LIST, key="b").code == REUSED
    wrong = imports.post(b'{"items": [{"n": 1}, {"n": ]}', key="c")
    assert (wrong.status, wrong.code) == (400, "ITEM_MALFORMED")
    assert imports.calls == 4


def test_without_the_option_an_object_is_not_a_list(serve: Serve, tmp_path: Path, framework: str) -> None:
    assert Imports(serve, tmp_path, framework).post(b'{"items": [1]}').code == "ITEM_MALFORMED"


def read(body: bytes, size: int, items_at: tuple[str, ...] = ("items",)) -> tuple[list[bytes], bytes]:
    reader = ItemReader("array", 1000, items_at)
    found: list[bytes] = []
    for at in range(0, len(body), size):
        found += reader.feed(body[at : at + size])
    found += reader.end()
    return found, reader.envelope


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
@pytest.mark.parametrize(
    ("body", "items_at", "items", "envelope"),
    [
        (b'{"items":[1,2]}', ("items",), [b"1", b"2"], b""),
        (b' { "items" : [ ] } ', ("items",), [], b""),
        (b" [1]", ("items",), [b"1"], b""),
        (b'{"a":{"items":[9]},"items":[1]}', ("items",), [b"1"], b'{"a":{"items":[9]},"items":null}'),
        (
            b'{"a":["items",[3]],"it\\u0065ms":[1],"b":"]}"}',
            ("items",),
            [b"1"],
            b'{"a":["items",[3]],"b":"]}","items":null}',
        ),
        (b'{"data":{"list":[1]},"n":1}', ("data", "list"), [b"1"], b'{"data":{"list":null},"n":1}'),
        (b'{"data":{"list":[1]}}', ("data", "list"), [b"1"], b""),
        (b'{"x":"\\"items\\":[","items":["]"]}', ("items",), [b'"]"'], b'{"items":null,"x":"\\"items\\":["}'),
    ],
)
def test_items_are_found_in_any_pieces_of_the_body(
    size: int, body: bytes, items_at: tuple[str, ...], items: list[bytes], envelope: bytes
) -> None:
    assert read(body, size, items_at) == (items, envelope)


@pytest.mark.parametrize("size", [1, 5, 100_000])
@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"{}",
            b'{"items":1}',
            b'{"items":{}}',
            b'{"items":[1]',
            b'{"items":[1]}}',
            b'{"items":[1]} x',
            b"1",
            b'"x"',
        ),
        *(
            b'{"items":[1],"items":[2]}',
            b'{"items":[1],}',
            b'{"a":1 "items":[1]}',
            b'{"x":[{"items":[1]}]}',
            b'}{"items":[]}',
        ),
        *(b'{"\\x":[1]}', b'{"a":"%s","items":[1]}' % (b"x" * AROUND_BYTES_MAX)),
        b'{"items":[1],"a":"%s"}' % (b"x" * AROUND_BYTES_MAX),
        b'{"a":%s' % (b"[" * 1000),
        b'{"a":%s%s,"items":[1]}' % (b"[" * 100, b"]" * 100),
    ],
    ids=lambda body: body[:24].decode(),
)
def test_an_invalid_object_with_a_list_is_refused(body: bytes, size: int) -> None:
    with pytest.raises(BulkRefused):
        read(body, size)


@pytest.mark.parametrize("items_at", ["items", "", 1, ["items"]])
def test_an_invalid_items_at_is_refused(items_at: Any) -> None:
    with pytest.raises(ConfigurationError, match="items_at must be a JSON pointer"):
        items_pointer(items_at)
