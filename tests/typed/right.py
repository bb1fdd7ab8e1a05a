"""What users write, as type checkers see it: no line of this is an error, and each type is the one that is asserted.

It is read by mypy (``make types``) and by Pyright (``test_checkers.py``), and never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from taskiq import AsyncBroker

import semel
from semel import (
    Answer,
    AsyncBulk,
    AsyncEngine,
    AsyncInbox,
    AsyncPermit,
    Bulk,
    Command,
    Engine,
    Inbox,
    Permit,
    Policy,
    Quota,
    Result,
)
from semel.client import AsyncClient, Client
from semel.functions import command, completer, this_permit
from semel.http import Caller, Operation, from_state, single_caller
from semel.http.asgi import SemelMiddleware
from semel.http.wsgi import SemelMiddleware as WsgiMiddleware
from semel.imports.run import Imports
from semel.inbox.brokers.taskiq import inbox_task
from semel.inbox.run import Message
from semel.inbox.store import Receipt
from semel.integrations import django, fastapi, flask, litestar, starlette
from semel.integrations.grpc import Rpc, SemelInterceptor
from semel.integrations.strawberry import Idempotent
from semel.testing.idempotent import assert_idempotent
from semel.workers import Completer


class Receipts:
    """A result of the user's own."""


def charge(amount: int) -> Receipts:
    return Receipts()


async def charge_later(amount: int) -> Receipts:
    return Receipts()


def engines() -> None:
    assert_type(Engine.connect("memory://", waiters_max=10, require_durable=True), Engine)
    assert_type(
        AsyncEngine.connect("memory://", id_secret=b"secret", quota=Quota(new_keys=10, per_seconds=60)), AsyncEngine
    )


def a_run(engine: Engine, wanted: Command) -> None:
    assert_type(engine.run(wanted, lambda permit: Answer(201, (), b"")), Result)


async def an_async_run(engine: AsyncEngine, wanted: Command) -> None:
    async def handler(permit: AsyncPermit) -> Answer:
        assert_type(await permit.step("charge", lambda: charge_later(5)), Receipts)
        assert_type(await permit.step("plain", lambda: charge(5)), Receipts)
        return Answer(201, (), b"")

    async def simple(permit: Permit) -> Answer:
        return Answer(201, (), permit.key_for("charge").encode())

    assert_type(await engine.run(wanted, handler), Result)
    assert_type(await engine.run(wanted, simple), Result)


# --- steps ----------------------------------------------------------------------------------------


def steps(permit: Permit) -> None:
    assert_type(permit.step("charge", lambda: charge(5)), Receipts)
    assert_type(permit.step("number", lambda: 5, repeat=True, ordinal=2), int)
    assert_type(permit.step("untyped", anything, returns=Receipts), Receipts)
    permit.step("untyped", anything).whatever()
    permit.step("union", anything, returns=int | None)
    assert_type(permit.local_step("reserve", lambda db: charge(5)), Receipts)
    permit.step("nothing", nothing)


async def async_steps(permit: Permit) -> None:
    """Annotated as Permit, coroutine functions are awaited there, too."""
    assert_type(await permit.step("charge", lambda: charge_later(5)), Receipts)
    assert_type(await permit.local_step("reserve", lambda db: charge_later(5)), Receipts)


async def all_steps_of_an_async_engine(permit: AsyncPermit) -> None:
    assert_type(await permit.step("later", lambda: charge_later(5)), Receipts)
    assert_type(await permit.step("now", lambda: charge(5)), Receipts)
    assert_type(await permit.local_step("reserve", lambda db: charge(5)), Receipts)
    assert_type(await permit.local_step("close", lambda db: charge(5), returns=list[int]), list[int])
    assert_type(await permit.step("untyped", anything_later, returns=Receipts), Receipts)
    await permit.step("nothing", nothing)


def anything() -> Any: ...


async def anything_later() -> Any: ...


def nothing() -> None: ...


# --- functions ------------------------------------------------------------------------------------


async def functions(engine: Engine, loop: AsyncEngine) -> None:
    @command(engine, "payments.charge", key="order", caller="customer", effects="external", lease_seconds=10)
    def pay(order: str, amount: int = 1, *, customer: str, permit: Permit = this_permit) -> Receipts:
        return permit.step("charge", lambda: charge(amount))

    assert_type(pay("o-1", 5, customer="alice"), Receipts)
    assert_type(pay.with_key("k-1")("o-1", customer="alice"), Receipts)
    assert_type(pay.unprotected("o-1", customer="alice"), Receipts)
    assert_type(completer(pay, every_seconds=0.5, at_once=2), Completer)

    @command(loop, "payments.later", key=("order", "amount"), caller=Caller("acme", "billing"), steps=True)
    async def pay_later(order: str, amount: int) -> Receipts:
        return await charge_later(amount)

    assert_type(await pay_later("o-1", 5), Receipts)

    @command(lambda: engine, "payments.lazy", caller=single_caller, policy=Policy(effects="idempotent"))
    def lazy(order: str) -> int:
        return 1

    assert_type(lazy("o-1"), int)

    class Shop:
        @command(engine, "shop.pay", key="order", caller=single_caller)
        def pay(self, order: str) -> Receipts:
            return Receipts()

    assert_type(Shop().pay("o-1"), Receipts)


# --- HTTP -----------------------------------------------------------------------------------------


def who(request: Request) -> Caller | None:
    return None


def who_by_scope(scope: Mapping[str, Any]) -> Caller | None:
    return None


def who_by_environ(environ: dict[str, Any]) -> Caller:
    return Caller("acme", environ["REMOTE_USER"])


async def application(scope: Any, receive: Any, send: Any) -> None: ...


def wsgi_application(environ: Any, start_response: Any) -> list[bytes]:
    return []


def middlewares(engine: AsyncEngine, threads: Engine) -> None:
    operations = [Operation("/payments", Policy(effects="external"))]
    SemelMiddleware(application, engine, caller=who_by_scope, operations=operations, manage_engine=True)
    SemelMiddleware(application, engine, caller=from_state("user"), uncovered="refuse", may=lambda scope, wanted: True)
    WsgiMiddleware(wsgi_application, threads, caller=who_by_environ, operations=operations, waiters_max=3)
    app = Starlette(middleware=[Middleware(SemelMiddleware, engine=engine, caller=single_caller)])
    app.add_middleware(SemelMiddleware, engine=engine, caller=single_caller, operations=operations)


async def endpoints(engine: AsyncEngine) -> None:
    app = FastAPI()
    once = fastapi.Semel(engine, caller=who, key_header="Request-Id", wait_seconds_max=5)

    @app.post("/payments")
    @once.command("payments.create", effects="external", steps=True, paths="one", key_from="body:/id")
    async def create(amount: int, permit: AsyncPermit = once.permit) -> Receipts:
        return await permit.step("charge", lambda: charge(amount))

    assert_type(await create(5), Receipts)
    once.install(app, operations_path=None, reap=False)

    plain = starlette.Semel(engine, caller=from_state("user"))

    @plain.command("notes.create", Policy(effects="idempotent"))
    async def note(request: Request) -> Response:
        return Response()

    litestar.Semel(engine, caller=single_caller, operations_path=None, body_seconds_max=5)


def views(engine: Engine) -> None:
    once = flask.Semel(caller=lambda: "alice", tenant="acme", waiters_max=3, lifetime_header=None)

    @once.command("notes.create", effects="atomic", answer_seconds=60)
    def note(number: int) -> str:
        return "noted"

    assert_type(note(5), str)
    once.bulk("cases.approve", lambda item: None, chunk_items=10, effects="atomic")

    @django.command("orders.pay", effects="atomic", using="default", quota=None)
    def pay(request: object, number: int) -> str:
        return "paid"

    assert_type(pay(object(), 5), str)
    django.bulk("cases.approve", lambda item: None, items_max=10)
    Idempotent(engine, "pay", caller=single_caller, key="key", lease_seconds=5, replays=(ValueError,))
    SemelInterceptor(engine, caller=single_caller, operations={"/shop.Pay/Create": Rpc(policy=Policy())})


# --- lists, files, messages, clients, tests -------------------------------------------------------


async def lists(engine: Engine, loop: AsyncEngine) -> None:
    Bulk(engine, operation="cases.approve", effects="atomic", chunk_items=10)
    AsyncBulk(loop, operation="cases.approve", effects="external", at_once=10)
    stock = Imports(loop, operation="stock.import", rows="skip-known", chunk_seconds=0.2)

    @stock.row
    async def book(row: Any) -> str:
        return "line"

    assert_type(await book(1), str)


async def messages(inbox: Inbox, loop: AsyncInbox, broker: AsyncBroker) -> None:
    @inbox.once(lambda order: str(order))
    def bill(message: Message, order: int) -> None: ...

    assert_type(bill(5), Receipt)

    @loop.once(lambda order: str(order))
    async def bill_later(message: Message, order: int) -> None: ...

    assert_type(await bill_later(5), Receipt)

    @inbox_task(broker, loop, task_name="bill", retry_seconds=2)
    async def task(message: Message, order: int) -> int:
        return order

    assert_type(await task(5), int | None)


async def clients(client: Client, later: AsyncClient) -> None:
    client.intent("POST", "/payments", json={"amount": 5}).child("mail", "POST", "/mails", json={}, ordinal=1)
    await (await later.intent("POST", "/payments", content=b"")).child("mail", "POST", "/mails", headers={})


def kit(app: Any) -> None:
    assert_idempotent(app, "POST /payments", json={"amount": 5}, effects=[], single_caller=True)
    assert_type(semel.Policy.of(effects="atomic"), Policy)
