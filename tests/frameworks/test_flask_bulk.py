"""Lists of items in Flask: the answers of the ASGI endpoints, in threads."""

from __future__ import annotations

import json
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, request
from flask_sqlalchemy import SQLAlchemy

from semel import Engine, ItemFailed
from semel.bulk.declaration import BulkItem
from semel.check.discovery import discover
from semel.errors import ConfigurationError, HandlerError, PolicyError
from semel.http.wsgi.threads import Accepted
from semel.integrations.flask import Semel
from tests.integrations.test_bulk import BAD, CASES, JSON, LINES, REUSED, jsonl
from tests.service.served import await_true


class Shop:
    """An application with one bulk on its own file."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.file = folder / "app.db"
        url = f"sqlite:///{self.file}"
        with closing(Engine.connect(url)) as plain:
            plain.migrate()
        with closing(sqlite3.connect(self.file)) as db:
            db.execute("CREATE TABLE effect (n INTEGER PRIMARY KEY)")
        self.engine = Engine.connect(url)
        self.seen: list[int] = []
        self.gate: threading.Event | None = None
        self.raises: Exception | None = None
        app = self.app = Flask("bulk")
        semel = Semel(caller=lambda: request.headers.get("X-User"))  # before its application, as a factory does
        given = {"effects": "atomic", "items_max": 100, "body_bytes_max": 10_000, **options}
        self.bulk = semel.bulk("cases.approve", self.approve, **given)
        app.post("/cases/<store>")(self.bulk.answer)
        semel.init_app(app, self.engine)
        self.semel = semel
        self.key = uuid.uuid4().hex

    def approve(self, item: BulkItem) -> str:
        assert current_app.name == "bulk"
        self.seen.append(item.place)
        if self.raises is not None:
            raise self.raises
        n = item.value["n"]
        if n == 3:
            raise ItemFailed("LOCKED", retryable=True, written=False)
        item.connection.execute("INSERT INTO effect VALUES (?)", (n,))
        if self.gate is not None:
            assert self.gate.wait(20)
        return f"r-{n}"

    def post(self, body: Any, headers: Any = JSON, *, path: str = "/cases/7", **more: Any) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"X-User": more.pop("caller", "alice"), "Idempotency-Key": more.pop("key", self.key), **dict(headers)}
        sent = {name: value for name, value in given.items() if value is not None}
        return self.app.test_client().post(path, data=data, headers=sent, buffered=True, **more)

    @property
    def effects(self) -> list[int]:
        with closing(sqlite3.connect(self.file)) as db:
            return [n for (n,) in db.execute("SELECT n FROM effect ORDER BY n")]

    @property
    def records(self) -> int:
        with closing(sqlite3.connect(self.file)) as db:
            return int(db.execute("SELECT count(*) FROM semel_record").fetchone()[0])

    def close(self) -> None:
        self.bulk.close()
        self.engine.close()


@pytest.fixture
def open_shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def make(**options: Any) -> Shop:
        (folder := tmp_path / str(len(made))).mkdir()
        made.append(Shop(folder, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def shop(open_shop: Callable[..., Shop]) -> Shop:
    return open_shop()


def test_every_item_has_its_outcome_and_a_retry_gets_the_same_answer(shop: Shop) -> None:
    first = shop.post(CASES)
    assert (first.status_code, first.headers.get("Idempotency-Replayed")) == (207, None)
    assert [item["resultId"] for item in first.get_json()["items"]] == ["r-0", "r-1", "r-2", None, "r-4"]
    again = shop.post(jsonl(CASES), LINES)  # the same list in another form
    assert (again.status_code, again.data, again.headers["Idempotency-Replayed"]) == (207, first.data, "true")
    assert (shop.seen, shop.effects) == ([0, 1, 2, 3, 4], [0, 1, 2, 4])
    for changed in (shop.post(CASES[::-1]), shop.post(CASES, path="/cases/8"), shop.post(CASES, path="/cases/7?a=1")):
        assert changed.headers["Semel-Code"] == REUSED
    assert "Idempotency-Replayed" not in shop.post([{"n": 9}], caller="bob").headers
    lines = shop.post(jsonl([{"n": 11}]), [*LINES, ("Accept", "application/jsonl")], key="lines")
    assert (lines.status_code, lines.data.count(b"\n")) == (200, 2)
    status = shop.app.test_client().get(f"/operations?key={shop.key}", headers={"X-User": "alice"}).get_json()
    assert (status["state"], status["progress"]["total"]) == ("SUCCEEDED", 5)


@pytest.mark.parametrize(("body", "headers", "status", "code", "members"), BAD)
def test_a_list_that_is_wrong_is_refused_as_a_whole(
    open_shop: Callable[..., Shop], body: bytes, headers: Any, status: int, code: str, members: dict[str, Any]
) -> None:
    shop = open_shop(item_bytes_max=500)
    refused = shop.post(body, headers)
    assert (refused.status_code, refused.headers["Semel-Code"]) == (status, code)
    told = {name: value for name, value in (refused.get_json() or {}).items() if name in ("place", "line", "member")}
    assert told == members
    assert (shop.seen, shop.records) == ([], 0)


def test_a_request_without_key_or_caller_is_refused(shop: Shop) -> None:
    assert shop.post(CASES, key=None).headers["Semel-Code"] == "MISSING_IDEMPOTENCY_KEY"
    assert shop.post(CASES, caller=None).headers["Semel-Code"] == "IDEMPOTENCY_CALLER_UNKNOWN"
    assert shop.post(CASES, [*JSON, ("Content-Digest", "sha-256=:AAAA:")]).status_code == 400
    assert shop.app.test_client().get("/cases/7").status_code == 405
    assert shop.records == 0


class Gone:
    """A client that goes away in the middle."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self._pieces = [jsonl(CASES)[: len(jsonl(CASES[:1]))]]

    def read(self, size: int = -1) -> bytes:
        if self._pieces:
            return self._pieces.pop()
        if self._error is not None:
            raise self._error
        return b""


@pytest.mark.parametrize("error", [None, ConnectionResetError("gone")])
@pytest.mark.parametrize("prefer", [None, "respond-async"])
def test_a_client_that_disconnects_during_its_list_has_done_nothing(
    shop: Shop, error: Exception | None, prefer: str | None
) -> None:
    headers = {**dict(LINES), "X-User": "alice", "Idempotency-Key": shop.key}
    if prefer:
        headers["Prefer"] = prefer
    cut = {"wsgi.input": Gone(error), "CONTENT_LENGTH": "500"}
    answer = shop.app.test_client().post("/cases/7", headers=headers, environ_overrides=cut)
    assert (answer.status_code, shop.seen, shop.records) == (400, [], 0)
    assert shop.post(jsonl(CASES), LINES).status_code == 207


def test_an_accepted_list_shows_its_progress_and_gets_the_same_answer(shop: Shop) -> None:
    shop.gate = threading.Event()
    asked = [*JSON, ("Prefer", "respond-async")]
    first = shop.post(CASES, asked)
    assert (first.status_code, first.headers["Preference-Applied"]) == (202, "respond-async")
    place = first.headers["Location"]
    await_true(lambda: shop.seen == [0], "the first item to begin")
    again = shop.post(CASES, asked)
    assert (again.status_code, again.headers["Location"]) == (202, place)
    busy = shop.post(CASES, [*JSON, ("Prefer", "wait=0")])
    assert busy.headers["Semel-Code"] == "IDEMPOTENCY_REQUEST_IN_PROGRESS"

    def status() -> Any:
        return shop.app.test_client().get(place, headers={"X-User": "alice"}).get_json()

    assert (status()["running"], status()["progress"]["total"]) == (True, 5)
    shop.gate.set()
    await_true(lambda: status()["state"] == "SUCCEEDED", "the list to end")
    ended = shop.post(CASES, asked)
    assert (ended.status_code, ended.headers["Idempotency-Replayed"]) == (207, "true")
    assert shop.effects == [0, 1, 2, 4]


def test_without_a_free_thread_the_client_waits(shop: Shop) -> None:
    shop.bulk._accepted = Accepted(at_once=0)
    assert shop.post(CASES, [*JSON, ("Prefer", "respond-async")]).status_code == 207


def test_a_list_that_failed_continues_with_a_retry(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.raises = HandlerError("wrong for all")
    assert shop.post(CASES).status_code == 500
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: told.append(what.exc_value))
    assert shop.post(CASES, [*JSON, ("Prefer", "respond-async")]).status_code == 202
    shop.bulk.close()
    assert told == [shop.raises]
    shop.raises = None
    assert shop.post(CASES).status_code == 207
    assert shop.effects == [0, 1, 2, 4]


def test_wrong_arguments_are_refused_at_once(shop: Shop) -> None:
    async def late(item: BulkItem) -> None:
        return None

    semel = shop.semel
    for name, handler, options, error in (
        ("cases.approve", shop.approve, {}, ConfigurationError),
        ("b", late, {}, ConfigurationError),
        ("c", shop.approve, {"body_bytes_max": 0}, ConfigurationError),
        ("d", shop.approve, {"items_at": "items"}, ConfigurationError),
        ("e", shop.approve, {"effects": "none"}, PolicyError),
    ):
        with pytest.raises(error):
            semel.bulk(name, handler, **options)
    with pytest.raises(ConfigurationError, match="duplicate operation name"):
        semel.command("cases.approve")
    with pytest.raises(ConfigurationError, match="no application"):
        _ = Semel(caller=lambda: "x").bulk("a", shop.approve).bulk


def test_semel_check_finds_the_list(shop: Shop) -> None:
    [found] = [each for each in discover(shop.app).operations if each.bulk is not None]
    assert (found.name, found.path, found.engine) == ("cases.approve", "/cases/<store>", shop.engine)
    described: dict[str, Any] = {}
    shop.bulk.describe(described)
    assert "207" in described["responses"]


def test_items_are_written_by_flask_sqlalchemys_session_and_committed_with_their_outcomes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    with closing(Engine.connect(url)) as plain:
        plain.migrate()
    app = Flask("orm")
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    db = SQLAlchemy(app)

    class Row(db.Model):  # type: ignore[name-defined,misc]
        n = db.Column(db.Integer, primary_key=True)

    def approve(item: BulkItem) -> None:
        n = item.value["n"]
        db.session.add(Row(n=n))
        db.session.flush()
        with closing(sqlite3.connect(tmp_path / "app.db")) as other:  # what another process sees
            assert other.execute("SELECT n FROM row WHERE n = ?", (n,)).fetchall() == []
        if n == 2:
            raise ItemFailed("NO", written=True)
        if n == 3:
            db.session.rollback()
            db.session.add(Row(n=30))
        if n != 4:
            db.session.commit()  # what is pending when the handler returns is kept as well

    semel = Semel(app, Engine.connect(url), caller=lambda: "alice")
    app.post("/rows")(semel.bulk("rows", approve, effects="atomic").answer)
    with app.app_context():
        db.create_all()
    sent = [{"n": n} for n in range(5)]
    for again in (False, True):
        answer = app.test_client().post("/rows", json=sent, headers={"Idempotency-Key": "key-1"})
        states = [item["state"] for item in answer.get_json()["items"]]
        assert states == ["SUCCEEDED", "SUCCEEDED", "FAILED", "SUCCEEDED", "SUCCEEDED"]
        assert (answer.headers.get("Idempotency-Replayed") == "true") is again
        with app.app_context():
            assert [row.n for row in db.session.query(Row).order_by(Row.n)] == [0, 1, 4, 30]
    with app.app_context():
        db.engine.dispose()
    semel.engine.close()  # type: ignore[union-attr]
