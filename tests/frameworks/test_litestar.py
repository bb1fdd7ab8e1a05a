"""Litestar's adapter: claimed after guards and validation, captured around the handler, on its client and server."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pytest
from litestar import Controller, Litestar, MediaType, Request, Response, Router, delete, get, post
from litestar.background_tasks import BackgroundTask
from litestar.config.compression import CompressionConfig
from litestar.connection import ASGIConnection
from litestar.datastructures import UploadFile
from litestar.di import NamedDependency, Provide
from litestar.exceptions import HTTPException, NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, JSONBody, MultipartBody
from litestar.response import Stream
from litestar.testing import AsyncTestClient, TestClient
from msgspec import Struct
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.orm import Session

from semel import AsyncEngine, Engine, NothingHappened, Permit
from semel.core.model import State
from semel.errors import ConfigurationError, PolicyError
from semel.http.caller import Caller, from_state
from semel.integrations.litestar import Semel
from tests.frameworks.served import Served, serving
from tests.service.served import await_true

Client = TestClient[Litestar]
F = TypeVar("F")


@dataclass
class Pay:
    amount: int
    do: str = ""


class Receipt(Struct):
    number: int


class Told(BaseModel):
    told: str


def caller(request: Request[Any, Any, Any]) -> Caller:
    return Caller("shop", request.headers.get("x-user", "alice"))


def guarded(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    if connection.headers.get("x-user") == "nobody":
        raise NotAuthorizedException


def halved(n: FromPath[int]) -> float:
    return n / 2


def made(url: str = "memory://?persistence=none", **options: Any) -> Semel:
    options.setdefault("caller", caller)
    return Semel(AsyncEngine.connect(url), reap=False, **options)


class Shop:
    """Handlers of each kind, and what they have done."""

    def __init__(self, semel: Semel) -> None:
        self.done: list[Any] = []
        self.semel = semel
        done = self.done

        @post("/pay", guards=[guarded])
        @semel.command("pay")
        async def pay(data: JSONBody[Pay], permit: Permit = semel.permit) -> Receipt:
            done.append(permit.key_for("charge"))
            match data.do:
                case "refuse":
                    raise HTTPException(status_code=409, detail="no")
                case "nothing":
                    raise NothingHappened("before the effect")
                case "fail":
                    raise RuntimeError("secret")
                case "swallowed":
                    raise LookupError("made a page of")
                case _:
                    return Receipt(len(done))

        @post("/told")
        @semel.command("told", effects="idempotent")
        def told(data: JSONBody[Told], permit: Permit = semel.permit) -> Told:
            done.append(data.told)
            return data

        @post("/stream", media_type=MediaType.TEXT)
        @semel.command("stream")
        async def stream() -> Stream:
            done.append("stream")
            return Stream(iter(["a", "b"]))

        @post("/behind")
        @semel.command("behind")
        async def behind() -> Response[str]:
            return Response("ok", background=BackgroundTask(done.append, "behind"))

        @post("/upload")
        @semel.command("upload")
        async def upload(data: MultipartBody[UploadFile]) -> int:
            done.append(data.filename)
            return len(await data.read())

        class Orders(Controller):
            path = "/orders"
            dependencies = MappingProxyType({"half": Provide(halved, sync_to_thread=False)})

            @post("/{n:int}")
            @semel.command("orders.ship")
            async def ship(
                self, n: FromPath[int], half: NamedDependency[float], request: Request[Any, Any, Any]
            ) -> dict[str, Any]:
                done.append(n)
                return {"n": n, "half": half, "path": request.url.path}

            @delete("/{n:int}", status_code=200)
            @semel.command("orders.cancel")
            async def cancel(self, n: FromPath[int]) -> dict[str, int]:
                done.append(-n)
                return {"n": n}

        @post("/plain")
        async def plain(data: JSONBody[Pay]) -> Pay:
            return data

        def page(request: Request[Any, Any, Any], error: Exception) -> Response[str]:
            return Response("a page", status_code=200, media_type=MediaType.TEXT)

        self.app = Litestar(
            [pay, told, stream, behind, upload, Orders, plain],
            plugins=[semel],
            exception_handlers={LookupError: page},
            compression_config=CompressionConfig(backend="gzip", minimum_size=1_000_000),
        )

    def states(self) -> list[State]:
        table: Any = self.semel.engine.backend.driver
        return [State(row.state) for row in table._table.records.values()]


@pytest.fixture
def shop() -> Shop:
    return Shop(made())


@pytest.fixture
def client(shop: Shop) -> Iterator[Client]:
    with TestClient(shop.app, raise_server_exceptions=False) as opened:
        yield opened


def ask(client: Client, path: str, body: Any = None, key: str | None = "k", **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        named["Idempotency-Key"] = key
    return client.post(path, json=body, headers=named)


def replayed(answer: Any) -> bool:
    return bool(answer.headers.get("idempotency-replayed") == "true")


def test_a_retry_gets_the_first_answer_and_another_payload_is_refused(client: Client, shop: Shop) -> None:
    first, again = ask(client, "/pay", {"amount": 1}), ask(client, "/pay", {"amount": 1})
    assert (first.status_code, first.json(), replayed(first)) == (201, {"number": 1}, False)
    assert (again.status_code, again.json(), replayed(again)) == (201, {"number": 1}, True)
    assert ask(client, "/pay", {"amount": 2}).json()["code"] == "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
    assert ask(client, "/pay", {"amount": 1}, x_user="bob").json() == {"number": 2}
    assert ask(client, "/pay", {"amount": 1}, key=None).json()["code"] == "MISSING_IDEMPOTENCY_KEY"
    assert len(set(shop.done)) == 2
    assert ask(client, "/plain", {"amount": 1}).json()["amount"] == 1


def test_what_a_guard_or_validation_refuses_leaves_no_record(client: Client, shop: Shop) -> None:
    assert ask(client, "/pay", {"amount": 1}, x_user="nobody").status_code == 401
    assert ask(client, "/pay", {"amount": "x"}).status_code == 400
    assert client.post("/pay", content=b"{", headers={"Idempotency-Key": "k"}).status_code == 400
    assert shop.states() == []
    assert ask(client, "/pay", {"amount": 1}).status_code == 201


@pytest.mark.parametrize(
    ("do", "status", "state", "again"),
    [
        ("refuse", 409, State.FAILED_REPLAYABLE, (409, True)),
        ("nothing", 500, State.FAILED_NOT_REPLAYABLE, (500, False)),
        ("fail", 500, State.UNKNOWN, (409, False)),
        ("swallowed", 200, State.UNKNOWN, (409, False)),
    ],
)
def test_how_a_handler_ends(
    client: Client, shop: Shop, do: str, status: int, state: State, again: tuple[int, bool]
) -> None:
    assert ask(client, "/pay", {"amount": 1, "do": do}).status_code == status
    assert shop.states() == [state]
    second = ask(client, "/pay", {"amount": 1, "do": do})
    assert (second.status_code, replayed(second)) == again
    assert "secret" not in second.text


def test_handlers_of_each_kind_are_protected(client: Client, shop: Shop) -> None:
    for path, body, expected in (
        ("/told", {"told": "x"}, {"told": "x"}),
        ("/orders/7", None, {"n": 7, "half": 3.5, "path": "/orders/7"}),
    ):
        first, again = ask(client, path, body), ask(client, path, body)
        assert (first.json(), again.json(), replayed(again)) == (expected, expected, True)
    assert ask(client, "/orders/8").status_code == 422  # another path under the key
    assert ask(client, "/orders/007").json()["n"] == 7
    assert client.delete("/orders/7", headers={"Idempotency-Key": "k"}).json() == {"n": 7}
    for _ in range(2):
        assert ask(client, "/stream").text == "ab"
        assert ask(client, "/behind").status_code == 201
    assert shop.done == ["x", 7, -7, "stream", "behind"]


def test_uploads_count_with_their_bytes(client: Client, shop: Shop) -> None:
    headers = {"Idempotency-Key": "k"}
    assert client.post("/upload", files={"data": ("a.txt", b"abc")}, headers=headers).json() == 3
    assert replayed(client.post("/upload", files={"data": ("a.txt", b"abc")}, headers=headers))
    assert client.post("/upload", files={"data": ("a.txt", b"abd")}, headers=headers).status_code == 422
    assert shop.done == ["a.txt"]


def test_spellings_of_a_path_are_one_operation(client: Client, shop: Shop) -> None:
    assert ask(client, "/pay", {"amount": 1}).status_code == 201
    for path in ("/pay/", "//pay", "/pay?"):
        again = ask(client, path, {"amount": 1})
        assert again.status_code in (404, 201)
        assert again.status_code == 404 or replayed(again)
    assert len(shop.done) == 1


def test_the_status_is_for_its_caller_alone(client: Client, shop: Shop) -> None:
    link = ask(client, "/pay", {"amount": 1}).headers["link"].partition(">")[0].lstrip("<")
    assert client.get(link).json()["state"] == "SUCCEEDED"
    assert client.get(link, headers={"x-user": "bob"}).status_code == 404
    assert client.get("/operations?key=k&operation=pay").json()["operation"] == "pay"
    assert client.get("/operations/problems").status_code == 200


def test_twenty_at_once_have_one_effect(shop: Shop) -> None:
    async def story() -> None:
        async with AsyncTestClient(shop.app) as client:
            headers = {"Idempotency-Key": "k"}
            answers = await asyncio.gather(
                *[client.post("/pay", json={"amount": 1}, headers=headers) for _ in range(20)]
            )
        assert {each.status_code for each in answers} == {201}
        assert sum(not replayed(each) for each in answers) == 1

    asyncio.run(story())
    assert len(shop.done) == 1


def test_a_client_that_does_not_wait_is_told_where_to_look(file: str) -> None:
    semel = made(file)

    @post("/jobs")
    @semel.command("jobs", steps=True, resumable=True)
    async def job(data: JSONBody[Pay], permit: Permit = semel.permit) -> int:
        return data.amount

    with TestClient(Litestar([job], plugins=[semel], debug=True)) as client:
        answer = ask(client, "/jobs", {"amount": 5}, prefer="respond-async")
        assert answer.status_code == 202, answer.text
        await_true(lambda: client.get(answer.headers["location"]).json()["state"] == "SUCCEEDED", "the job's end")
        again = ask(client, "/jobs", {"amount": 5})
        assert (again.json(), replayed(again)) == (5, True)


def test_callers_of_semels_own_read_litestars_state() -> None:
    semel = made(caller=from_state("user"))

    @post("/pay")
    @semel.command("pay")
    async def pay() -> int:
        return 1

    def known(request: Request[Any, Any, Any]) -> None:
        request.state.user = Caller("shop", "alice")

    with TestClient(Litestar([pay], plugins=[semel], before_request=known)) as client:
        assert ask(client, "/pay").status_code == 201
        assert replayed(ask(client, "/pay"))


# --- ATOMIC ---


@pytest.fixture
def file(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/shop.db"
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("CREATE TABLE effect (what TEXT)")
    return url


def test_rows_and_record_are_one_commit(file: str) -> None:
    semel = made(file)

    @post("/rows")
    @semel.command("rows", effects="atomic")
    async def rows(data: JSONBody[Pay], session: Session = semel.atomic_session) -> dict[str, int]:
        session.execute(text("INSERT INTO effect VALUES ('x')"))
        if data.do == "fail":
            raise RuntimeError
        return {"amount": data.amount}

    @get("/rows", sync_to_thread=False)
    def count() -> int:
        with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as db:
            [(found,)] = db.execute("SELECT count(*) FROM effect").fetchall()
        return int(found)

    with TestClient(Litestar([rows, count], plugins=[semel]), raise_server_exceptions=False) as client:
        assert ask(client, "/rows", {"amount": 1, "do": "fail"}, key="f").status_code == 500
        assert client.get("/rows").json() == 0
        assert ask(client, "/rows", {"amount": 1}).json() == {"amount": 1}
        assert replayed(ask(client, "/rows", {"amount": 1}))
        assert client.get("/rows").json() == 1


@pytest.mark.parametrize(("do", "path"), [("kill", "/atomic"), ("", "/atomic?die=after")])
def test_a_kill_around_the_commit_leaves_all_or_nothing(tmp_path: Path, file: str, do: str, path: str) -> None:
    what, key = uuid.uuid4().hex[:12], uuid.uuid4().hex
    command = ("uvicorn", "tests.frameworks.litestar_shop:app", "--port", "{port}", "--log-level", "warning")

    def served(story: Callable[[Served], F]) -> F:
        with serving(tmp_path, *command) as server:
            return story(server)

    (tmp_path / "to-die").touch()
    assert served(lambda server: server.ask(path, {"what": what, "do": do}, key=key).status) == 0
    assert not (tmp_path / "to-die").exists()

    def again(server: Served) -> None:
        answer = server.until_final(path, {"what": what, "do": do}, key)
        assert (answer.status, answer.replayed) == (201, do == "")
        assert server.effects() == [what]

    served(again)


# --- misuse ---


def test_the_decorators_in_the_wrong_order_are_refused() -> None:
    semel = made()
    with pytest.raises(ConfigurationError, match=r"below @post"):

        @semel.command("pay")
        @post("/pay")
        async def pay() -> None: ...

    async def other() -> None: ...

    semel.command("other")(other)
    with pytest.raises(ConfigurationError, match=r"below @post"):
        Litestar([post("/other")(other)], plugins=[semel])


def test_a_command_by_get_or_from_a_cache_is_refused() -> None:
    semel = made()

    @get("/pay")
    @semel.command("pay")
    async def pay() -> None: ...

    with pytest.raises(ConfigurationError, match="routed to by GET"):
        Litestar([pay], plugins=[semel])
    semel = made()

    @post("/paid", cache=True)
    @semel.command("paid")
    async def paid() -> None: ...

    with pytest.raises(ConfigurationError, match="has cache="):
        Litestar([paid], plugins=[semel])


def test_an_application_without_the_plugin_says_so() -> None:
    semel = made()

    @post("/pay")
    @semel.command("pay")
    async def pay() -> None: ...

    with TestClient(Litestar([pay], debug=True)) as client:
        assert "plugins=[semel]" in ask(client, "/pay").text


def test_one_handler_under_two_prefixes_is_two_commands() -> None:
    semel, done = made(), []

    @post("/pay")
    @semel.command("pay")
    async def pay(request: Request[Any, Any, Any]) -> str:
        done.append(request.url.path)
        return request.url.path

    app = Litestar([Router("/a", route_handlers=[pay]), Router("/b", route_handlers=[pay])], plugins=[semel])
    with TestClient(app) as client:
        assert ask(client, "/a/pay").status_code == 201
        assert ask(client, "/b/pay").status_code == 422
        assert replayed(ask(client, "/a/pay"))
    assert done == ["/a/pay"]


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs an AsyncEngine"):
        Semel(Engine.connect("memory://?persistence=none"), caller=caller)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="caller"):
        Semel(AsyncEngine.connect("memory://?persistence=none"))
    with pytest.raises(PolicyError, match="did you mean 'lease_seconds'"):
        made().command("pay", lease_second=3)  # type: ignore[call-arg]
