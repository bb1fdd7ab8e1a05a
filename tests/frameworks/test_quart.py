"""Quart's adapter: claimed in the view, captured around the application, on its test client and behind hypercorn."""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import sqlite3
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from quart import Blueprint, Quart, Response, abort, g, redirect, request
from quart.testing import QuartClient
from quart.views import MethodView
from sqlalchemy import text
from sqlalchemy.orm import Session

from semel import AsyncEngine, Engine, Permit
from semel.core.model import State
from semel.errors import ConfigurationError
from semel.http.caller import Caller
from semel.integrations.quart import Semel
from tests.frameworks.served import serving
from tests.service.served import await_true

F = TypeVar("F")


class Shop:
    """Views of each kind, and what they have done."""

    def __init__(self, url: str = "memory://?persistence=none", **options: Any) -> None:
        self.done: list[Any] = []
        self.app = Quart("shop")
        options.setdefault("caller", lambda: g.user)
        self.semel = Semel(self.app, AsyncEngine.connect(url), reap=False, **options)
        self._around()
        self._pay()
        self._other_views()

    def _around(self) -> None:
        app = self.app

        @app.before_request
        async def authenticate() -> None:
            g.user = request.headers.get("x-user", "alice")

        @app.errorhandler(LookupError)
        async def page(error: LookupError) -> str:
            return "a page"

        @app.after_request
        async def after(response: Response) -> Response:
            if "break-after" in request.headers:
                raise LookupError("behind the view")
            return response

    def _pay(self) -> None:
        app, semel, done = self.app, self.semel, self.done

        def check_amount(view: Callable[..., Awaitable[Any]]) -> Any:
            @functools.wraps(view)
            async def check(**kwargs: Any) -> Any:
                if not isinstance((await request.get_json()).get("amount"), int):
                    abort(400)
                return await view(**kwargs)

            return check

        @app.post("/pay")
        @check_amount
        @semel.command("pay")
        async def pay(permit: Permit = semel.permit) -> Any:
            done.append(permit.key_for("charge"))
            if (await request.get_json()).get("do") == "elsewhere":
                abort(cast("Any", redirect("/there")))
            return {"number": len(done)}, 201

    def _other_views(self) -> None:
        app, semel, done = self.app, self.semel, self.done

        @app.post("/plain-function")
        @semel.command("plain", effects="idempotent")
        def plain(permit: Permit = semel.permit) -> Any:
            done.append("plain")
            return {"attempt": permit.attempt}

        @app.post("/stream")
        @semel.command("stream")
        async def stream() -> Any:
            done.append("stream")

            async def pieces() -> AsyncIterator[bytes]:
                yield b"a"
                yield b"b"

            return pieces(), 200

        orders = Blueprint("orders", "orders", url_prefix="/orders")

        class Order(MethodView):
            @semel.command("orders.ship")
            async def post(self, number: int) -> Any:
                done.append(number)
                return {"number": number}

            async def get(self, number: int) -> Any:
                return {"number": number}

        orders.add_url_rule("/<int:number>", view_func=Order.as_view("order"))
        app.register_blueprint(orders)

    def states(self) -> list[State]:
        table: Any = self.semel.engine.backend.driver
        return [State(row.state) for row in table._table.rows()]

    def run(self, story: Callable[[QuartClient], Awaitable[None]]) -> None:
        """Run an application as a server does: start, serve, shut down."""

        async def whole() -> None:
            async with self.app.test_app() as app:
                await story(cast("QuartClient", app.test_client()))

        asyncio.run(whole())


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def ask(client: QuartClient, path: str, body: Any = None, key: str | None = "k", **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        named["Idempotency-Key"] = key
    answer: Any = await client.post(path, json=body, headers=named)
    answer.replayed = answer.headers.get("idempotency-replayed") == "true"
    return answer


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while True:
            found = is_so()
            if await found if asyncio.iscoroutine(found) else found:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.01)


def state_is(client: QuartClient, path: str, state: str) -> Callable[[], Any]:
    async def ask_state() -> bool:
        return bool((await (await client.get(path)).get_json())["state"] == state)

    return ask_state


def test_a_body_that_quart_refuses_leaves_no_record(shop: Shop) -> None:
    async def story(client: QuartClient) -> None:
        shop.app.config["MAX_CONTENT_LENGTH"] = 10
        assert (await ask(client, "/pay", {"amount": 10**12})).status_code == 413
        shop.app.config["MAX_CONTENT_LENGTH"] = 10**6
        assert shop.states() == []
        assert (await ask(client, "/pay", {"amount": 1})).status_code == 201

    shop.run(story)


@pytest.mark.parametrize("path", ["/stream", "/orders/7"])
@pytest.mark.parametrize("is_announced", [False, True])
def test_a_body_that_is_too_long_is_not_held_whole(shop: Shop, path: str, is_announced: bool) -> None:
    piece, pieces, most = bytes(64 * 1024), 200, 500_000
    received: list[int] = []
    before: list[int] = []
    statuses: list[int] = []

    async def look() -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        before.append(len(received))

    async def receive() -> Any:
        await asyncio.sleep(0)
        received.append(len(piece))
        return {"type": "http.request", "body": piece, "more_body": len(received) < pieces}

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    async def story(client: QuartClient) -> None:
        headers = [(b"idempotency-key", b"k"), (b"host", b"shop")]
        if is_announced:
            headers.append((b"content-length", b"%d" % (len(piece) * pieces)))
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
        scope |= {
            "headers": headers,
            "query_string": b"",
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
            "extensions": {},
        }
        await shop.app(cast("Any", scope), receive, send)

    shop.app.before_request(look)
    shop.app.config["MAX_CONTENT_LENGTH"] = most
    shop.run(story)
    assert (before, statuses, shop.states(), shop.done) == ([1], [413], [], [])
    assert sum(received) <= (2 * len(piece) if is_announced else most + 2 * len(piece))


def test_a_slow_body_is_refused_and_leaves_no_record() -> None:
    shop = Shop(body_seconds_max=1)

    async def story(client: QuartClient) -> None:
        headers = {"idempotency-key": "k", "content-type": "application/json"}
        async with client.request("/orders/7", method="POST", headers=headers) as connection:
            await connection.send(b'{"amount":')
        answer = await connection.as_response()
        assert answer.status_code == 408
        assert answer.headers["semel-code"] == "IDEMPOTENCY_BODY_TOO_SLOW"
        assert (shop.states(), shop.done) == ([], [])

    shop.run(story)


def test_an_abort_with_a_redirect_is_the_answer(shop: Shop) -> None:
    async def story(client: QuartClient) -> None:
        for again in (False, True):
            answer = await ask(client, "/pay", {"amount": 1, "do": "elsewhere"})
            assert (answer.status_code, answer.replayed) == (302, again)
            assert shop.states() == [State.SUCCEEDED]

    shop.run(story)


def test_an_exception_after_the_view_is_not_a_success(shop: Shop) -> None:
    @shop.app.errorhandler(500)
    async def fine(error: Exception) -> Any:
        return "a page", 200

    async def story(client: QuartClient) -> None:
        assert (await ask(client, "/pay", {"amount": 1}, break_after="yes")).status_code == 200
        assert shop.states() == [State.UNKNOWN]

    shop.run(story)


def test_views_of_each_kind_are_protected(shop: Shop) -> None:
    async def story(client: QuartClient) -> None:
        for path, expected in (("/plain-function", {"attempt": 1}), ("/orders/7", {"number": 7})):
            first, again = await ask(client, path), await ask(client, path)
            assert (await first.get_json(), await again.get_json(), again.replayed) == (expected, expected, True)
        assert (await ask(client, "/orders/8")).status_code == 422  # another path under the key
        assert (await (await ask(client, "/orders/007")).get_json())["number"] == 7
        for _ in range(2):
            assert await (await ask(client, "/stream")).get_data() == b"ab"

    shop.run(story)
    assert shop.done == ["plain", 7, "stream"]


def test_one_view_under_two_rules_is_two_commands() -> None:
    shop = Shop()

    @shop.app.post("/a")
    @shop.app.post("/b")
    @shop.semel.command("twice")
    async def twice() -> Any:
        shop.done.append(request.path)
        return request.path

    async def story(client: QuartClient) -> None:
        assert (await ask(client, "/a")).status_code == 200
        assert (await ask(client, "/b")).status_code == 422
        assert (await ask(client, "/a")).replayed

    shop.run(story)
    assert shop.done == ["/a"]


def test_the_callers_that_a_function_may_return() -> None:
    for found, status in ((Caller("t", "x"), 200), ("x", 200), (7, 200), (None, 401), (b"x", 500)):
        shop = Shop(caller=lambda scope, found=found: found)

        async def story(client: QuartClient, status: int = status) -> None:
            assert (await ask(client, "/plain-function")).status_code == status

        shop.run(story)


def test_a_superseded_view_is_cancelled_if_it_is_idempotent(shop: Shop) -> None:
    permits, cancelled = [], []

    @shop.app.post("/handed-over")
    @shop.semel.command("handed-over", effects="idempotent")
    async def hand_over(permit: Permit = shop.semel.permit) -> Any:
        if permit.attempt > 1:
            return "second"
        permits.append(permit)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(permit.attempt)
            raise

    async def story(client: QuartClient) -> None:
        first = asyncio.create_task(ask(client, "/handed-over"))
        await until(lambda: permits)
        driver: Any = shop.semel.engine.backend.driver
        [row] = driver._table.rows()
        driver._table.records[row.id] = row._replace(lease_until=0)
        second = await ask(client, "/handed-over")
        permits[0].lose()  # what the next renewal would learn
        assert [await answer.get_data() for answer in (await first, second)] == [b"second", b"second"]
        assert cancelled == [1]

    shop.run(story)


# --- SQLite: kept requests, ATOMIC ---


@pytest.fixture
def file(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/shop.db"
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("CREATE TABLE effect (what TEXT)")
    return url


def test_the_applications_completer_finishes_what_another_worker_abandoned(file: str) -> None:
    shop, left = Shop(file), asyncio.Event()

    @shop.app.post("/jobs")
    @shop.semel.command("jobs", steps=True, resumable=True)
    async def job(permit: Permit = shop.semel.permit) -> Any:
        shop.done.append(permit.attempt)
        if permit.attempt == 1:
            await left.wait()
        return {"amount": (await request.get_json())["amount"], "attempt": permit.attempt}

    async def story(client: QuartClient) -> None:
        first = asyncio.create_task(ask(client, "/jobs", {"amount": 5}))
        await until(lambda: shop.done == [1])
        with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as db, db:
            db.execute("UPDATE semel_record SET lease_until = 0")
        await until(lambda: shop.done == [1, 2])
        await until(state_is(client, "/operations?key=k", "SUCCEEDED"))
        left.set()
        for answer in (await first, await ask(client, "/jobs", {"amount": 5})):
            assert await answer.get_json() == {"amount": 5, "attempt": 2}

    shop.run(story)


def test_an_atomic_view_that_aborts_with_a_redirect_has_written_nothing(file: str) -> None:
    shop = Shop(file)

    @shop.app.post("/rows")
    @shop.semel.command("rows", effects="atomic")
    async def rows(session: Session = shop.semel.atomic_session) -> Any:
        session.execute(text("INSERT INTO effect VALUES ('x')"))
        abort(cast("Any", redirect("/there")))

    def count() -> int:
        with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as db:
            return int(db.execute("SELECT count(*) FROM effect").fetchone()[0])

    async def story(client: QuartClient) -> None:
        for _ in range(2):
            answer = await ask(client, "/rows")
            assert (answer.status_code, answer.replayed, count()) == (302, False, 0)

    shop.run(story)


HYPERCORN = ("hypercorn", "tests.frameworks.quart_shop:app", "--bind", "127.0.0.1:{port}")


def test_a_disconnected_client_ends_only_unprotected_views(tmp_path: Path, file: str) -> None:
    """A view that has claimed runs to its end; an endless stream ends behind its client."""
    what, key = uuid.uuid4().hex[:12], uuid.uuid4().hex
    with serving(tmp_path, *HYPERCORN) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        headers = {"Authorization": "Bearer alice", "Content-Type": "application/json", "Idempotency-Key": key}
        client.request("POST", "/slow", json.dumps({"what": what}), headers)
        await_true(lambda: (tmp_path / "begun").exists(), "the view to begin")
        client.close()
        await_true(lambda: (tmp_path / "gone").exists(), "the server to see its client gone")
        (tmp_path / "go").touch()
        answer = server.until_final("/slow", {"what": what}, key)
        assert (answer.status, answer.replayed, server.effects().count(what)) == (201, True, 1)

        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        client.request("POST", "/endless", "{}", {**headers, "Idempotency-Key": uuid.uuid4().hex})
        assert len(client.getresponse().read(3000)) == 3000
        client.close()
        await_true(lambda: (tmp_path / "stopped").exists(), "an endless stream to end behind its client")


# --- misuse ---


def test_a_second_semel_and_another_framework_are_refused() -> None:
    shop = Shop()
    with pytest.raises(ConfigurationError, match="has a Semel already"):
        shop.semel.init_app(shop.app)
    with pytest.raises(ConfigurationError, match="must be a Quart, not object"):
        Semel(object(), shop.semel.engine, caller=lambda: "x")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="plain function"):
        Shop(caller=_coroutine)


async def _coroutine() -> str:
    return "x"
