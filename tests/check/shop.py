"""Applications and functions for `semel check`: named on its command line, imported, looked at."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI
from flask import Flask
from starlette.requests import Request
from starlette.responses import Response

from semel import AsyncBulk, AsyncEngine, BulkItem, Engine, KeyFormat, Policy, Recipe, Sealer
from semel.functions import command
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import Caller, from_state, from_user, single_caller
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.integrations.fastapi import Semel
from semel.recipe import DigestField, Members
from semel.telemetry import Logging
from semel.testing.required import Case as Tried
from semel.testing.required import suite
from semel.workers import Case, StillUnknown, reconciler
from tests.testing_plugin import good
from tests.testing_plugin.broken import BROKEN

observer = Logging(logging.getLogger("semel"))
engine = AsyncEngine.connect("sqlite:///shop.db", observer=observer, id_secret=b"0123456789abcdef")
sync_engine = Engine.connect("sqlite:///shop.db", observer=observer)

# --- everything as it should be ---

app = FastAPI()
semel = Semel(engine, caller=from_state("caller"))


@app.post("/payments")
@semel.command("payments.create", effects="atomic", key_format=KeyFormat(uuid=True, length_min=10))
async def create(body: dict[str, Any]) -> dict[str, Any]:
    return body


@app.get("/payments")
async def read() -> None: ...


semel.install(app)


# --- everything that can be asked about ---

risky = AsyncEngine.connect("memory://")


def by_header(request: Any) -> Caller:
    return Caller("acme", request.headers["x-user"])


mixed = FastAPI()
operations = [
    Operation("/a/{id}", Policy(key="optional", on_unprotected="mark", after_expiry="new", answer_seconds=60)),
    Operation("/b", Policy(effects="idempotent", fingerprint=Recipe(body=Members(("amount",)))), name="b"),
    Operation("/c", Policy(on_error="replay", fingerprint=Recipe(body=DigestField()), after_expiry="new")),
    Operation("/d", Policy(replay="2xx", answer_seconds=600, replay_headers=frozenset({"x-receipt"}))),
]


@mixed.post("/login")
async def login() -> None: ...


@mixed.put("/profile")
async def profile() -> None: ...


guarded = SemelMiddleware(mixed, risky, caller=by_header, operations=operations)
everything = SemelMiddleware(mixed, engine, caller=single_caller, default=Policy(), manage_engine=True)
by_user = SemelMiddleware(mixed, engine, caller=from_user("id"), operations=[Operation("/a")])
weak = SemelMiddleware(
    mixed,
    AsyncEngine.connect("sqlite:///weak.db?synchronous=NORMAL"),
    caller=single_caller,
    operations=[Operation("/a")],
)

forgotten = FastAPI()
uninstalled = Semel(AsyncEngine.connect("memory://"), caller=single_caller)


@forgotten.post("/payments")
@uninstalled.command("payments.create")
async def forgot() -> None: ...


reading = FastAPI()  # what is routed to after install is seen here, and refused when it starts
installed = Semel(AsyncEngine.connect("memory://"), caller=single_caller)
installed.install(reading)


@reading.api_route("/carts", methods=["GET", "POST"])
@installed.command("carts.list")
async def carts() -> None: ...


flask = Flask("shop")


@flask.post("/orders/<int:number>")
def order(number: int) -> str:
    return ""


@flask.post("/carts")
def cart() -> str:
    return ""


flask.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
    flask.wsgi_app, sync_engine, caller=single_caller, operations=[Operation("/orders/{number}")]
)


parcels = [Operation("/parcels", Policy(steps=True, resumable=True), name="parcels")]
ends = SemelMiddleware(mixed, engine, caller=single_caller, operations=parcels, manage_engine=True)
waits = WsgiMiddleware(flask.wsgi_app, sync_engine, caller=single_caller, operations=parcels)

ending = FastAPI()
ended = Semel(engine, caller=single_caller)


@ending.post("/parcels")
@ended.command("parcels", steps=True, resumable=True)
async def parcel() -> None: ...


ended.install(ending)


@command(sync_engine, "payments.charge", key="number", caller=single_caller, effects="external")
def charge(number: int) -> int:
    return number


# --- steps, references, kept requests, reconcilers ---

stepped = FastAPI()
plain_steps = Semel(engine, caller=from_state("caller"))
sealing = AsyncEngine.connect("sqlite:///shop.db", observer=observer, sealer=Sealer({"2026": bytes(32)}))
sealed_steps = Semel(sealing, caller=from_state("caller"))


@stepped.post("/orders/{number}")
@plain_steps.command(
    "orders.place",
    steps=True,
    resumable=True,
    key_from="path:number",
    reference_from="body:/invoice",
    operation_seconds=60 * 86_400,
)
async def place(number: str) -> None: ...


@stepped.post("/parcels")
@sealed_steps.command("orders.ship", steps=True, resumable=True)
async def ship() -> None: ...


plain_steps.install(stepped)
sealed_steps.install(stepped)


@reconciler("orders.place", quiet_for=120)
async def ask_provider(case: Case) -> StillUnknown:
    return StillUnknown("nobody was asked")


# --- lists ---


async def handle(item: BulkItem) -> None: ...


lists = FastAPI()
listing = Semel(engine, caller=from_state("caller"))
approvals = listing.bulk(AsyncBulk(engine, operation="cases.approve", effects="atomic"), handle)
bills = listing.bulk(AsyncBulk(engine, operation="bills.pay", at_once=4), handle)


@lists.post("/approvals")
async def approve(request: Request) -> Response:
    return await approvals.answer(request)


lists.add_route("/bills", bills.answer, methods=["POST"])
listing.install(lists)
mails = FastAPI()
mailing = Semel(engine, caller=from_state("caller"))
mail = mailing.bulk(AsyncBulk(engine, operation="mails.send", effects="idempotent"), handle)
mails.add_route("/mails", mail.answer, methods=["POST"])
mailing.install(mails)


def make_app() -> Any:
    return app


def breaks() -> Any:
    raise RuntimeError("no configuration")


nothing = 5

# --- suites to be run ---

provider = good.Provider()
case = Tried(
    request="POST /payments",
    json={"amount": 5},
    headers=good.ALICE,
    other_caller=good.BOB,
    effects=lambda: len(provider.charges),
)
safe = suite(make_app=lambda: good.fastapi_app(AsyncEngine.connect("memory://"), provider), operations=[case])
unsafe = suite(
    make_app=lambda: BROKEN["idempotent_in_name_only"](AsyncEngine.connect("memory://"), provider), operations=[case]
)
broken = suite(make_app=breaks, operations=[case])

# --- mounted applications ---

inner = FastAPI()


@inner.post("/pay")
async def pay() -> None: ...


@inner.post("/bare")
async def bare() -> None: ...


rest = FastAPI()


@rest.post("/anything")
async def anything() -> None: ...


outer = FastAPI()
outer.mount("/api", SemelMiddleware(inner, engine, caller=single_caller, operations=[Operation("/pay")]))
outer.mount("/v1", app)
outer.mount("/rest", SemelMiddleware(rest, engine, caller=single_caller, default=Policy()))
