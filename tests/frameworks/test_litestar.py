"""Litestar's adapter: claimed after guards and validation, captured around the handler, on its client and server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import pytest
from litestar import Controller, Litestar, MediaType, Request, Response, Router, delete, get, post
from litestar.background_tasks import BackgroundTask
from litestar.config.compression import CompressionConfig
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath, JSONBody
from litestar.response import Stream
from litestar.testing import TestClient
from msgspec import Struct
from pydantic import BaseModel

from semel import AsyncEngine, Engine, Permit
from semel.errors import ConfigurationError, PolicyError
from semel.http.caller import Caller, from_state
from semel.integrations.litestar import Semel

Client = TestClient[Litestar]
F = TypeVar("F")


@dataclass
class Pay:
    amount: int


class Receipt(Struct):
    number: int


class Told(BaseModel):
    told: str


def caller(request: Request[Any, Any, Any]) -> Caller:
    return Caller("shop", request.headers.get("x-user", "alice"))


def halve(n: FromPath[int]) -> float:
    return n / 2


def make_semel(url: str = "memory://?persistence=none", **options: Any) -> Semel:
    options.setdefault("caller", caller)
    return Semel(AsyncEngine.connect(url), reap=False, **options)


class Shop:
    """Handlers of each kind, and what they have done."""

    def __init__(self, semel: Semel) -> None:
        self.done: list[Any] = []
        self.semel = semel
        done = self.done

        @post("/pay")
        @semel.command("pay")
        async def pay(data: JSONBody[Pay]) -> Receipt:
            done.append(data.amount)
            return Receipt(len(done))

        @post("/told")
        @semel.command("told", effects="idempotent")
        def tell(data: JSONBody[Told], permit: Permit = semel.permit) -> Told:
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

        class Orders(Controller):
            path = "/orders"
            dependencies = MappingProxyType({"half": Provide(halve, sync_to_thread=False)})

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

        self.app = Litestar(
            [pay, tell, stream, behind, Orders],
            plugins=[semel],
            compression_config=CompressionConfig(backend="gzip", minimum_size=1_000_000),
        )


@pytest.fixture
def shop() -> Shop:
    return Shop(make_semel())


@pytest.fixture
def client(shop: Shop) -> Iterator[Client]:
    with TestClient(shop.app, raise_server_exceptions=False) as opened:
        yield opened


def ask(client: Client, path: str, body: Any = None, key: str | None = "k", **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        named["Idempotency-Key"] = key
    return client.post(path, json=body, headers=named)


def is_replay(answer: Any) -> bool:
    return bool(answer.headers.get("idempotency-replayed") == "true")


def test_handlers_of_each_kind_are_protected(client: Client, shop: Shop) -> None:
    for path, body, expected in (
        ("/pay", {"amount": 5}, {"number": 1}),
        ("/told", {"told": "x"}, {"told": "x"}),
        ("/orders/7", None, {"n": 7, "half": 3.5, "path": "/orders/7"}),
    ):
        first, again = ask(client, path, body), ask(client, path, body)
        assert (first.json(), again.json(), is_replay(again)) == (expected, expected, True)
    assert ask(client, "/orders/8").status_code == 422  # another path under the key
    assert ask(client, "/orders/007").json()["n"] == 7
    assert client.delete("/orders/7", headers={"Idempotency-Key": "k"}).json() == {"n": 7}
    for _ in range(2):
        assert ask(client, "/stream").text == "ab"
        assert ask(client, "/behind").status_code == 201
    assert shop.done == [5, "x", 7, -7, "stream", "behind"]


def test_from_state_reads_litestars_state() -> None:
    semel = make_semel(caller=from_state("user"))

    @post("/pay")
    @semel.command("pay")
    async def pay() -> int:
        return 1

    def set_caller(request: Request[Any, Any, Any]) -> None:
        request.state.user = Caller("shop", "alice")

    with TestClient(Litestar([pay], plugins=[semel], before_request=set_caller)) as client:
        assert ask(client, "/pay").status_code == 201
        assert is_replay(ask(client, "/pay"))


# --- ATOMIC ---


# --- misuse ---


def test_the_decorators_in_the_wrong_order_are_refused() -> None:
    semel = make_semel()
    with pytest.raises(ConfigurationError, match=r"below @post"):

        @semel.command("pay")
        @post("/pay")
        async def pay() -> None: ...

    async def other() -> None: ...

    semel.command("other")(other)
    with pytest.raises(ConfigurationError, match=r"below @post"):
        Litestar([post("/other")(other)], plugins=[semel])


def test_a_command_by_get_or_from_a_cache_is_refused() -> None:
    semel = make_semel()

    @get("/pay")
    @semel.command("pay")
    async def pay() -> None: ...

    with pytest.raises(ConfigurationError, match="routed to by GET"):
        Litestar([pay], plugins=[semel])
    semel = make_semel()

    @post("/paid", cache=True)
    @semel.command("paid")
    async def pay_cached() -> None: ...

    with pytest.raises(ConfigurationError, match="has cache="):
        Litestar([pay_cached], plugins=[semel])


def test_an_application_without_the_plugin_is_refused() -> None:
    semel = make_semel()

    @post("/pay")
    @semel.command("pay")
    async def pay() -> None: ...

    with TestClient(Litestar([pay], debug=True)) as client:
        assert "plugins=[semel]" in ask(client, "/pay").text


def test_one_handler_under_two_prefixes_is_two_commands() -> None:
    semel, done = make_semel(), []

    @post("/pay")
    @semel.command("pay")
    async def pay(request: Request[Any, Any, Any]) -> str:
        done.append(request.url.path)
        return request.url.path

    app = Litestar([Router("/a", route_handlers=[pay]), Router("/b", route_handlers=[pay])], plugins=[semel])
    with TestClient(app) as client:
        assert ask(client, "/a/pay").status_code == 201
        assert ask(client, "/b/pay").status_code == 422
        assert is_replay(ask(client, "/a/pay"))
    assert done == ["/a/pay"]


@pytest.mark.parametrize("accepted", ["gzip", "identity", "deflate, gzip;q=0"])
def test_no_client_gets_a_coding_that_it_does_not_accept(accepted: str) -> None:
    """Litestar compresses inside of the capture."""
    semel = make_semel()

    @post("/pay", media_type=MediaType.TEXT)
    @semel.command("pay")
    async def pay() -> str:
        return "paid " * 500

    app = Litestar([pay], plugins=[semel], compression_config=CompressionConfig(backend="gzip", minimum_size=100))
    with TestClient(app) as client:
        first = ask(client, "/pay", accept_encoding="gzip")
        again = ask(client, "/pay", accept_encoding=accepted)
    coding = "gzip" if accepted == "gzip" else None
    assert (first.headers["content-encoding"], again.headers.get("content-encoding")) == ("gzip", coding)
    assert again.headers["vary"] == "Accept-Encoding"
    assert is_replay(again)
    assert first.text == again.text == "paid " * 500


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs an AsyncEngine"):
        Semel(Engine.connect("memory://?persistence=none"), caller=caller)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="caller"):
        Semel(AsyncEngine.connect("memory://?persistence=none"))
    with pytest.raises(PolicyError, match="did you mean 'lease_seconds'"):
        make_semel().command("pay", lease_second=3)  # type: ignore[call-arg]
