"""What users get wrong, and type checkers find: each line with a comment is an error of the kind that it names.

It is read by mypy (``make types``), where a comment without its error is an error, and by Pyright
(``test_checkers.py``); and never run.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from taskiq import AsyncBroker

import semel
from semel import AsyncBulk, AsyncEngine, AsyncInbox, AsyncPermit, Bulk, Engine, Inbox, Permit, Policy
from semel.client import Client
from semel.functions import command, completer
from semel.http import Caller, Operation, single_caller
from semel.http.asgi import SemelMiddleware
from semel.http.wsgi import SemelMiddleware as WsgiMiddleware
from semel.imports.run import Imports
from semel.inbox.brokers.taskiq import inbox_task
from semel.inbox.run import Message
from semel.integrations import django, fastapi, flask, litestar, starlette
from semel.integrations.grpc import Rpc, SemelInterceptor
from semel.integrations.strawberry import Idempotent
from semel.testing.idempotent import assert_idempotent


def names() -> None:
    semel.Enginee  # type: ignore[attr-defined]  # noqa: B018
    semel.http.Callers  # type: ignore[attr-defined]  # noqa: B018


def engines() -> None:
    Engine.connect("memory://", waiter_max=10)  # type: ignore[call-arg]
    Engine.connect("memory://", waiters_max="10")  # type: ignore[arg-type]
    AsyncEngine.connect("memory://", require_durabel=True)  # type: ignore[call-arg]
    AsyncEngine.connect("memory://", quota=600)  # type: ignore[arg-type]


def policies() -> None:
    Policy(lease_second=5)  # type: ignore[call-arg]
    Policy(effects="atomical")  # type: ignore[arg-type]


def steps(permit: Permit) -> None:
    sent: str = permit.step("number", lambda: 5)  # type: ignore[assignment]
    permit.step("number", 5)  # type: ignore[call-overload]
    permit.step("number", lambda: 5, ordinals=2)  # type: ignore[call-overload]
    permit.local_step("number", lambda db: 5).upper()  # type: ignore[attr-defined]
    assert sent


async def async_steps(permit: AsyncPermit) -> None:
    permit.step("number", lambda: 5).upper()  # type: ignore[attr-defined]
    (await permit.step("number", lambda: 5)).upper()  # type: ignore[attr-defined]


def functions(engine: Engine, loop: AsyncEngine) -> None:
    command(engine, "pay", caller=single_caller, lease_second=5)  # type: ignore[call-overload]
    command(engine, "pay", caller=single_caller, effects="atomical")  # type: ignore[call-overload]
    command(engine, "pay", caller=single_caller, replay_headers=frozenset())  # type: ignore[call-overload]
    command(engine, "pay", caller=5)  # type: ignore[call-overload]

    @command(engine, "payments.charge", key="order", caller="customer")
    def pay(order: str, *, customer: str) -> int:
        return 1

    pay(5, customer="alice")  # type: ignore[arg-type]
    pay("o-1", custommer="alice")  # type: ignore[call-arg]
    pay("o-1", customer="alice").upper()  # type: ignore[attr-defined]
    pay.with_keys("k-1")  # type: ignore[attr-defined]
    completer(pay, every_second=5)  # type: ignore[call-arg]

    @command(loop, "payments.later", caller=single_caller)  # type: ignore[arg-type]
    def not_a_coroutine() -> int:
        return 1


async def application(scope: Any, receive: Any, send: Any) -> None: ...


def who(request: Request) -> Caller:
    return Caller("acme", "alice")


def middlewares(engine: AsyncEngine, threads: Engine) -> None:
    SemelMiddleware(application, engine, caller=single_caller, operation=[Operation("/a")])  # type: ignore[call-arg]
    SemelMiddleware(application, engine, caller=who)  # type: ignore[arg-type]
    SemelMiddleware(application, threads, caller=single_caller)  # type: ignore[arg-type]
    SemelMiddleware(application, engine, caller=single_caller, uncovered="refuze")  # type: ignore[arg-type]
    WsgiMiddleware(lambda *_: [], threads, caller=single_caller, waiter_max=3)  # type: ignore[call-arg]
    WsgiMiddleware(lambda *_: [], engine, caller=single_caller)  # type: ignore[arg-type]


def endpoints(engine: AsyncEngine, threads: Engine) -> None:
    fastapi.Semel(engine, caler=who)  # type: ignore[call-arg]
    fastapi.Semel(threads, caller=who)  # type: ignore[arg-type]
    once = fastapi.Semel(engine, caller=who)
    once.command("pay", effect="external")  # type: ignore[call-arg]
    once.command("pay", effects="outside")  # type: ignore[arg-type]
    once.command("pay", paths="two")  # type: ignore[arg-type]
    once.install(FastAPI(), operation_path="/operations")  # type: ignore[call-arg]

    @once.command("payments.create")
    async def create(amount: int) -> int:
        return amount

    create("5")  # type: ignore[arg-type,unused-coroutine]
    starlette.Semel(engine, caller=who, may=lambda request, wanted: True)  # type: ignore[call-arg]
    starlette.Semel(engine, caller=who).command("pay", wait_seconds="2")  # type: ignore[arg-type]
    litestar.Semel(engine, caller=single_caller, key_heder="Key")  # type: ignore[call-arg]
    litestar.Semel(engine, caller=single_caller).command("pay", answer="keep")  # type: ignore[call-arg]


def views(engine: Engine) -> None:
    once = flask.Semel(caller=lambda: "alice", wait_second_max=3)  # type: ignore[call-arg]
    once.command("pay", effect="external")  # type: ignore[call-arg]
    once.command("pay", steps="yes")  # type: ignore[arg-type]
    once.bulk("pay", lambda item: None, chunk_item=3)  # type: ignore[call-arg]
    django.command("pay", effect="external")  # type: ignore[call-arg]
    django.command("pay", lease_seconds="30")  # type: ignore[arg-type]
    django.bulk("pay", lambda item: None, at_once="3")  # type: ignore[arg-type]
    Idempotent(engine, "pay", caller=single_caller, lease_second=5)  # type: ignore[call-arg]
    Idempotent("memory://", "pay", caller=single_caller)  # type: ignore[arg-type]
    Rpc(policy=Policy(), key_fields="id")  # type: ignore[call-arg]
    SemelInterceptor(engine, operations={"/a.B/C": "external"})  # type: ignore[dict-item]


def lists(engine: Engine, loop: AsyncEngine) -> None:
    Bulk(engine, operation="pay", effect="atomic")  # type: ignore[call-arg]
    Bulk(loop, operation="pay")  # type: ignore[arg-type]
    AsyncBulk(loop, operation="pay", bad_item="skip")  # type: ignore[arg-type]
    Imports(loop, operation="stock", row="all")  # type: ignore[call-arg]
    Imports(loop, operation="stock", at_once="3")  # type: ignore[arg-type]


def messages(inbox: Inbox, loop: AsyncInbox, broker: AsyncBroker) -> None:
    @inbox.once(lambda order: str(order))
    def bill(message: Message, order: int) -> None: ...

    bill("5")  # type: ignore[arg-type]

    @inbox.once(lambda order: str(order))  # type: ignore[arg-type]
    def takes_no_message(order: int) -> None: ...

    @inbox_task(broker, loop)
    async def task(message: Message, order: int) -> None: ...

    task("5")  # type: ignore[arg-type,unused-coroutine]


def clients(client: Client) -> None:
    client.intent("POST", "/payments").child("mail", "POST", "/mails", jsn={})  # type: ignore[call-arg]
    client.intent("POST", "/payments").child("mail", "POST", "/mails", content=5)  # type: ignore[arg-type]


def kit(app: Any) -> None:
    assert_idempotent(app, "POST /payments", effects=[], single_callers=True)  # type: ignore[call-arg]
    assert_idempotent(app, "POST /payments", effects=[], header={})  # type: ignore[call-arg]
