"""Keys and business references that come with the request: on both middlewares and in FastAPI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette

from semel import AsyncEngine, KeyFormat, Permit, Policy
from semel.errors import ConfigurationError, InvalidBody, InvalidKey, PolicyError
from semel.http.openapi import describe_operation
from semel.http.routing import Operation
from semel.integrations.fastapi import Semel
from semel.operations.references import Source
from tests.integrations.driving import Webs, caller_of
from tests.web.conftest import MakeWeb, make_web
from tests.web.driving import KEY, Reply, Seen

__all__ = ["make_web"]
MISSING = "MISSING_IDEMPOTENCY_KEY"
INVALID = "INVALID_IDEMPOTENCY_KEY"
REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
UNREADABLE = "IDEMPOTENCY_REQUEST_INVALID"
DONE = "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE"
FROM_PATH = Operation("/orders/{orderId}", Policy(key_from="path:orderId"), methods=("PUT",))
FROM_BODY = Operation("/orders", Policy(key_from="body:/order/id"))
FROM_FORM = Operation("/checkout", Policy(key_from="form:_key"))
URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=b"


class Orders:
    """Counts what it was asked to do."""

    def __init__(self) -> None:
        self.ran = 0

    def __call__(self, seen: Seen) -> Reply:
        self.ran += 1
        return Reply()


def test_a_put_to_an_id_that_the_client_chose_needs_no_key(make_web: MakeWeb) -> None:
    orders = Orders()
    web = make_web(orders, operations=[FROM_PATH])
    first = web.call(path="/orders/A-1", method="PUT", body=b"{}", key=None)
    again = web.call(path="/orders/A-1", method="PUT", body=b"{}", key=None)
    assert (first.status, again.status, again.replayed, orders.ran) == (first.status, first.status, True, 1)
    assert web.call(path="/orders/A-2", method="PUT", body=b"{}", key=None).replayed is False
    assert web.call(path="/orders/A-1", method="PUT", body=b'{"sku": 1}', key=None).code == REUSED


def test_a_key_that_is_sent_as_well_is_ignored(make_web: MakeWeb) -> None:
    orders = Orders()
    web = make_web(orders, operations=[FROM_PATH, FROM_BODY])
    web.call(path="/orders/A-1", method="PUT", body=b"{}", key="one")
    assert web.call(path="/orders/A-1", method="PUT", body=b"{}", key="another").replayed
    assert web.call(path="/orders/A-1", method="PUT", body=b"{}", key="not, a key").replayed
    assert orders.ran == 1


def test_a_member_of_the_body_is_the_key_in_one_piece_or_many(make_web: MakeWeb) -> None:
    orders = Orders()
    web = make_web(orders, operations=[FROM_BODY])
    web.call(path="/orders", body=b'{"order": {"id": "A-1"}}', key=None)
    assert web.call(path="/orders", body=b'{"order": {"id": "A-1"}}', key=None).replayed
    assert web.call(path="/orders", body=[b'{"order": ', b'{"id": "A-1"}}'], key=None).replayed
    assert not web.call(path="/orders", body=b'{"order": {"id": 42}}', key=None).replayed
    assert web.call(path="/orders", body=b'{"order": {"id": 42}}', key=None).replayed
    assert orders.ran == 2


@pytest.mark.parametrize(
    ("sent", "code", "names"),
    [
        (b"{}", MISSING, "body member '/order/id', which is missing"),
        (b'{"order": 1}', MISSING, "missing"),
        (b'{"order": {"id": null}}', MISSING, "missing"),
        (b'{"order": {"id": ""}}', INVALID, "body member '/order/id' is this command's key; send 1 to 255"),
        (b'{"order": {"id": "a b"}}', INVALID, "visible ASCII"),
        (b'{"order": {"id": "%s"}}' % (b"x" * 256), INVALID, "255"),
        (b'{"order": {"id": "\xc3\xa9"}}', INVALID, "visible ASCII"),
        (b'{"order": {"id": true}}', UNREADABLE, "must be a text or a whole number"),
        (b'{"order": {"id": 1.5}}', UNREADABLE, "must be a text or a whole number"),
        (b'{"order": {"id": "a", "id": "b"}}', UNREADABLE, "names each member once"),
        (b"order=1", UNREADABLE, "not usable JSON: expecting value at character 0"),
        (b"", UNREADABLE, "send a JSON object"),
        (b"[" * 50, UNREADABLE, "not usable JSON"),
    ],
    ids=lambda value: value[:20].decode("ascii", "replace") if isinstance(value, bytes) else None,
)
def test_an_invalid_key_value_is_reported_by_its_source(make_web: MakeWeb, sent: bytes, code: str, names: str) -> None:
    orders = Orders()
    reply = make_web(orders, operations=[FROM_BODY]).call(path="/orders", body=sent, key=KEY)
    assert (reply.status, reply.code, orders.ran) == (400, code, 0)
    assert names in reply.problem["detail"]


def part(disposition: str, content: str) -> bytes:
    return f"--b\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{content}\r\n".encode()


@pytest.mark.parametrize(
    ("media_type", "first", "again", "other"),
    [
        (URLENCODED, b"sku=A-1&_key=k-1", [b"_key=k%2D", b"1&sku=A%2d1"], b"sku=A-1&_key=k-2"),
        (
            MULTIPART,
            part('name="sku"', "A-1") + part('name="_key"', "k-1") + b"--b--\r\n",
            part('name="_key"', "k-1") + part('name="sku"', "A-1") + b"--b--\r\n",
            part('name="sku"', "A-1") + part('name="_key"', "k-2") + b"--b--\r\n",
        ),
    ],
    ids=["urlencoded", "multipart"],
)
def test_a_hidden_field_of_a_form_is_the_key(
    make_web: MakeWeb, media_type: str, first: bytes, again: bytes | list[bytes], other: bytes
) -> None:
    orders = Orders()
    web = make_web(orders, operations=[FROM_FORM])

    def send(body: bytes | list[bytes]) -> Any:
        return web.call(path="/checkout", body=body, key=None, headers=[("Content-Type", media_type)])

    assert not send(first).replayed
    assert send(again).replayed
    assert not send(other).replayed
    assert orders.ran == 2


@pytest.mark.parametrize(
    ("media_type", "sent", "code"),
    [
        (URLENCODED, b"sku=A-1", MISSING),
        (URLENCODED, b"", MISSING),
        (URLENCODED, b"_key=", INVALID),
        (URLENCODED, b"_key=a+b", INVALID),
        (URLENCODED, b"_key=%C3%A9", INVALID),
        (URLENCODED, b"_key=a&_key=a", UNREADABLE),
        (URLENCODED, b"_key=a;b=c", UNREADABLE),
        (URLENCODED, b"_key=%zz", UNREADABLE),
        (URLENCODED, b"_key=%ff", UNREADABLE),
        ("text/plain", b"_key=a", UNREADABLE),
        ("", b"_key=a", UNREADABLE),
        (MULTIPART, part('name="sku"', "1") + b"--b--", MISSING),
        (MULTIPART, part('name="_key"', "a") * 2 + b"--b--", UNREADABLE),
        (MULTIPART, part('name="_key"; filename="a.txt"', "a") + b"--b--", UNREADABLE),
        (MULTIPART, part('name="_key"', "a"), UNREADABLE),
    ],
)
def test_an_invalid_form_key_is_reported_by_its_field(
    make_web: MakeWeb, media_type: str, sent: bytes, code: str
) -> None:
    orders = Orders()
    web = make_web(orders, operations=[FROM_FORM])
    reply = web.call(path="/checkout", body=sent, key=KEY, headers=[("Content-Type", media_type)])
    assert (reply.status, reply.code, orders.ran) == (400, code, 0)
    assert "form field '_key'" in reply.problem["detail"]


def test_a_body_with_a_key_has_a_size_limit(make_web: MakeWeb) -> None:
    reply = make_web(operations=[FROM_BODY]).call(path="/orders", body=b" " * (1024 * 1024 + 1), key=None)
    assert (reply.status, reply.code) == (413, "IDEMPOTENCY_REQUEST_TOO_LARGE")


def test_the_format_of_keys_counts_for_natural_ones(make_web: MakeWeb) -> None:
    policy = Policy(key_from="path:orderId", key_format=KeyFormat(length_min=5))
    web = make_web(operations=[Operation("/orders/{orderId}", policy, methods=("PUT",))])
    assert web.call(path="/orders/A-1", method="PUT", key=None).code == INVALID


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key_from": "orderId"}, "key_from must be 'path:orderId'"),
        ({"key_from": "body:orderId"}, "key_from must be 'path:orderId'"),
        ({"reference_from": 7}, "reference_from must be"),
        ({"key_from": "reference"}, "give reference_from too"),
        ({"key_from": "path:id", "key": "optional"}, "key='optional' means nothing"),
    ],
)
def test_impossible_sources_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        Policy.of(**options)


def test_a_path_without_the_parameter_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has no parameter 'orderId'; its parameters are id"):
        Operation("/orders/{id}", Policy(key_from="path:orderId"))
    with pytest.raises(ConfigurationError, match="it has none"):
        Operation("/orders", Policy(reference_from="path:orderId"))


def test_pointers_are_escaped_as_json_pointers() -> None:
    assert Source.of("key_from", "body:/a~1b/c~0d").find((), b'{"a/b": {"c~d": "x"}}') == "x"


def test_numbers_count_digit_by_digit() -> None:
    source = Source.of("key_from", "body:/id")
    digits = "9" * 5000
    assert source.find((), b'{"id": 42, "note": %s}' % digits.encode()) == "42"
    with pytest.raises(InvalidKey, match="body member '/id' is this command's key; send 1 to 255 visible ASCII"):
        source.key((), b'{"id": %s}' % digits.encode())
    for value in (b"true", b"4.5", b"[1]"):
        with pytest.raises(InvalidBody, match="'/id' must be a text or a whole number"):
            source.find((), b'{"id": %s}' % value)


# --- FastAPI, with business references on a real store --------------------------------------


class Order(BaseModel):
    number: str


class Shop:
    """Two operations of a FastAPI application on SQLite."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.ran: list[str] = []
        self.semel = semel = Semel(engine, caller=caller_of)
        self.app = app = FastAPI()

        @app.put("/orders/{order_id}", status_code=201)
        @semel.command("orders.put", effects="external", key_from="path:order_id")
        async def put_order(order_id: str, order: Order, permit: Permit = semel.permit) -> dict[str, str]:
            return self.did(permit, order_id)

        @app.post("/invoices", status_code=201)
        @semel.command("invoices.pay", effects="external", reference_from="body:/number")
        async def pay(order: Order, permit: Permit = semel.permit) -> dict[str, str]:
            return self.did(permit, order.number)

        @app.post("/refunds", status_code=201)
        @semel.command("refunds.pay", effects="external", key_from="reference", reference_from="body:/number")
        async def refund(order: Order, permit: Permit = semel.permit) -> dict[str, str]:
            return self.did(permit, order.number)

        semel.install(app)

    def did(self, permit: Permit, what: str) -> dict[str, str]:
        self.ran.append(what)
        permit.result("payment", f"p-{len(self.ran)}")
        return {"did": what}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[Any, Shop]]:
    asyncio.run(_migrate(f"sqlite:///{tmp_path}/app.db"))
    engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/app.db")
    webs, made = Webs(), Shop(engine)
    app: Starlette = made.app
    yield webs.serve(app, engine), made
    webs.close()


async def _migrate(url: str) -> None:
    engine = AsyncEngine.connect(url)
    await engine.migrate()
    await engine.close()


def test_fastapi_takes_its_key_from_the_path(shop: tuple[Any, Shop]) -> None:
    web, made = shop
    assert web.call("/orders/A-1", {"number": "1"}, method="PUT", key=None).status == 201
    assert web.call("/orders/A-1", {"number": "1"}, method="PUT", key=None).replayed
    assert made.ran == ["A-1"]


def test_a_business_reference_protects_under_any_key(shop: tuple[Any, Shop]) -> None:
    web, made = shop
    assert web.call("/invoices", {"number": "INV-1"}, key="k-1").status == 201
    assert web.call("/invoices", {"number": "INV-1"}, key="k-1").replayed
    other = web.call("/invoices", {"number": "INV-1"}, key="k-2")
    assert (other.status, other.code) == (409, DONE)
    assert made.ran == ["INV-1"]
    bad = web.call("/invoices", {"number": "INV\n2"}, key="k-3")
    assert (bad.status, bad.code) == (400, UNREADABLE)


def test_a_business_reference_may_be_the_key(shop: tuple[Any, Shop]) -> None:
    web, made = shop
    assert web.call("/refunds", {"number": "INV-1"}, key=None).status == 201
    assert web.call("/refunds", {"number": "INV-1"}, key=None).replayed
    assert made.ran == ["INV-1"]


def test_openapi_states_where_keys_come_from(shop: tuple[Any, Shop]) -> None:
    _, made = shop
    paths = made.app.openapi()["paths"]
    put = paths["/orders/{order_id}"]["put"]
    assert [parameter["name"] for parameter in put["parameters"]] == ["order_id"]
    assert put["parameters"][0]["description"].startswith("This command's idempotency key")
    assert put["x-semel"]["keyFrom"] == "path:order_id"
    pay = paths["/invoices"]["post"]
    assert [parameter["name"] for parameter in pay["parameters"]] == ["Idempotency-Key"]
    assert pay["x-semel"]["referenceFrom"] == "body:/number"
    plain: dict[str, Any] = {}
    describe_operation(plain, "pay", Policy())
    assert "keyFrom" not in plain["x-semel"]
