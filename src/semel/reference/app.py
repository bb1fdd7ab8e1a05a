"""The reference service: payments, orders and notes, each with different effects, protected by Semel.

This is the first example a user copies. Payments are EXTERNAL (a provider is charged), orders are ATOMIC
(a row in Semel's own database), notes are IDEMPOTENT (the other side deduplicates). Everything about keys,
replays and errors comes from the integration; the handlers below know nothing of it but their permit.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline

from semel import AsyncEngine, Permit, __version__
from semel.errors import ConfigurationError, StoreError
from semel.http import Caller
from semel.http.openapi import problem_content
from semel.http.problems import STORE_UNAVAILABLE, Problems
from semel.imports import Csv, Imports, Row
from semel.integrations.fastapi import Semel
from semel.integrations.starlette import response_of
from semel.reference import orders, page
from semel.reference.models import (
    Health,
    ImportedOrder,
    NoteIn,
    NoteOut,
    OrderIn,
    OrderOut,
    PaymentIn,
    PaymentListed,
    PaymentOut,
    RefusedRequest,
)
from semel.reference.notes import Notes
from semel.reference.provider import Charge, Provider
from semel.reference.settings import DEMO_LEASE_SECONDS, Settings
from semel.reference.simulation import DEMO, Broken, TimedOut, Troubles, Unreachable
from semel.stores.sqlite.driver import SqliteDriver
from semel.telemetry import Both, Logging, Observer, safe

TENANT: Final = "demo"
CALLERS: Final = ("alice", "bob")  # the token is the name: a placeholder for real authentication
LEASE_SECONDS: Final = 30.0
DEADLINE_SECONDS: Final = 60.0
IMPORT_BYTES_MAX: Final = 64 * 1024 * 1024
_STATUS: Final[dict[type[Exception], int]] = {Unreachable: 503, TimedOut: 504, Broken: 500}


@dataclass(frozen=True, slots=True)
class Parts:
    """The shared parts of one application's routes."""

    app: FastAPI
    engine: AsyncEngine
    semel: Semel
    provider: Provider
    notes: Notes
    troubles: Troubles
    lease_seconds: float


def caller_of(request: Request) -> Caller:
    """Return the caller, by the bearer token or the cookie of the form without scripts; 401 for all others."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if request.url.path == "/checkout" and not scheme:
        scheme, token = "bearer", request.cookies.get(page.COOKIE, "")
    if scheme.lower() != "bearer" or token not in CALLERS:
        raise HTTPException(401, "send Authorization: Bearer alice (or bob)", {"WWW-Authenticate": "Bearer"})
    return Caller(TENANT, token)


_BEARER: Final = Depends(HTTPBearer(auto_error=False, description="`alice` or `bob`"))  # for the document
AUTHENTICATED: Final = [Depends(caller_of), _BEARER]

# The application's own answers, for the document; Semel adds its problems.
_NOBODY: Final[dict[int | str, dict[str, Any]]] = {
    401: {"model": RefusedRequest, "description": "The caller is not known"}
}
_READ: Final = {**_NOBODY, 404: {"model": RefusedRequest, "description": "This caller has none with that id"}}
_STORED: Final[dict[int | str, dict[str, Any]]] = {
    503: {"description": "The store did not answer; ask again", "content": problem_content([STORE_UNAVAILABLE])}
}
_COMMAND: Final = {
    **_NOBODY,
    400: {"model": RefusedRequest, "description": "The body cannot be read, or its key cannot"},
}


def create_app(settings: Settings, *observers: Observer) -> FastAPI:
    """Create the service for these settings; it opens nothing before its lifespan begins.

    Parameters: ``observers`` that get the engine's events beside the log.

    Raises ConfigurationError where the store cannot hold orders in one transaction with their records.
    """
    observer = Both(Logging(logging.getLogger("semel")), *observers)
    engine = AsyncEngine.connect(settings.url, observer=observer, id_secret=settings.id_secret)
    engine.backend.check_atomic()

    async def mode() -> None:
        DEMO.set(settings.demo)

    # As FastAPI(), but with Swagger UI's files from a package: /docs works without the internet.
    app = FastAPIOffline(
        title="Semel reference service",
        version=__version__,
        summary="Ask twice with the same Idempotency-Key: it happens once, and both answers are the same.",
        dependencies=[Depends(mode)],
    )
    lease = DEMO_LEASE_SECONDS if settings.demo else LEASE_SECONDS
    provider, notes = Provider(ledger_path(engine, "provider")), Notes(ledger_path(engine, "notes"))
    troubles = Troubles(ledger_path(engine, "troubles"))
    parts = Parts(app, engine, Semel(engine, caller=caller_of), provider, notes, troubles, lease)
    for add in (_add_payments, _add_orders, _add_imports, _add_notes, _add_health):
        add(parts)
    _add_pages(parts, settings)
    for kind in _STATUS:
        app.add_exception_handler(kind, _explain)
    app.add_exception_handler(RequestValidationError, _refuse)
    app.add_exception_handler(StoreError, _unavailable)
    parts.semel.install(app, dependencies=AUTHENTICATED)
    return app


def _add_pages(parts: Parts, settings: Settings) -> None:
    provider = parts.provider

    async def charge(key: str, caller: str, amount: Decimal, customer: str) -> Charge:
        return await asyncio.to_thread(provider.charge, key, caller, amount, "EUR", customer=customer)

    async def find(caller: str, payment_id: str) -> Charge | None:
        charges = await asyncio.to_thread(provider.charges, caller)
        return next((charge for charge in charges if charge.id == payment_id), None)

    page.add(parts.app, settings, parts.semel, parts.lease_seconds, charge, find)


def ledger_path(engine: AsyncEngine, name: str) -> Path:
    """Return the path of the other system's ledger, beside the database."""
    driver = engine.backend.driver
    if not isinstance(driver, SqliteDriver):
        raise ConfigurationError(f"the reference service runs on sqlite:///, not on {engine.backend.name}")
    return Path(f"{driver.path}.{name}.jsonl")


async def _explain(_: Request, error: Exception) -> Response:
    document = {"title": type(error).__name__, "status": _STATUS[type(error)], "detail": str(error)}
    return JSONResponse(document, _STATUS[type(error)], media_type="application/problem+json")


async def _unavailable(request: Request, error: Exception) -> Response:
    """Answer a read that failed at the store. A command's own answer reports its outcome."""
    if request.method != "GET" or not isinstance(error, StoreError):
        raise error
    logging.getLogger("semel").warning("%s could not be read: %s", safe(request.url.path), safe(str(error)))
    return response_of(Problems().of_error(error))


async def _refuse(_: Request, error: Exception) -> Response:
    # Without the client's input: Python reads some JSON that it cannot write back (1e400).
    assert isinstance(error, RequestValidationError)
    detail = [{"loc": found["loc"], "msg": found["msg"], "type": found["type"]} for found in error.errors()]
    return JSONResponse({"detail": detail}, 422)


def _add_payments(parts: Parts) -> None:
    semel, provider, troubles = parts.semel, parts.provider, parts.troubles

    @parts.app.post("/payments", status_code=201, dependencies=AUTHENTICATED, responses=_COMMAND)
    @semel.command(
        "payments.create",
        effects="external",
        lease_seconds=parts.lease_seconds,
        deadline_seconds=DEADLINE_SECONDS,
        nothing_happened=(Unreachable,),
    )
    async def create_payment(payment: PaymentIn, response: Response, permit: Permit = semel.permit) -> PaymentOut:
        """Charge the customer, once per key."""
        await troubles.before(payment.simulate, permit)
        charge = await asyncio.to_thread(
            provider.charge,
            permit.key_for("charge"),
            permit.command.scope.caller,
            payment.amount,
            payment.currency,
            customer=payment.customer_id,
        )
        await troubles.after(payment.simulate, permit)
        permit.result("payment", charge.id)
        response.headers["Location"] = f"/payments/{charge.id}"
        return PaymentOut(payment_id=charge.id, status="succeeded")

    @parts.app.get("/payments", dependencies=[_BEARER], responses=_NOBODY)
    async def list_payments(caller: Caller = Depends(caller_of)) -> list[PaymentListed]:
        """List the charges that the provider really has for this caller."""
        return [_list_item(charge) for charge in await asyncio.to_thread(provider.charges, caller.id)]

    @parts.app.get("/payments/{payment_id}", dependencies=[_BEARER], responses=_READ)
    async def read_payment(payment_id: str, caller: Caller = Depends(caller_of)) -> PaymentListed:
        """One of this caller's payments."""
        for charge in await asyncio.to_thread(provider.charges, caller.id):
            if charge.id == payment_id:
                return _list_item(charge)
        raise HTTPException(404, "no such payment of this caller")


def _list_item(charge: Charge) -> PaymentListed:
    return PaymentListed(
        payment_id=charge.id,
        status="succeeded",
        customer_id=charge.customer,
        amount=str(charge.amount),
        currency=charge.currency,
        provider_key=charge.key,
    )


def _add_orders(parts: Parts) -> None:
    semel, engine, troubles = parts.semel, parts.engine, parts.troubles

    @parts.app.post("/orders", status_code=201, dependencies=AUTHENTICATED, responses=_COMMAND)
    @semel.command(
        "orders.create", effects="atomic", lease_seconds=parts.lease_seconds, deadline_seconds=DEADLINE_SECONDS
    )
    async def create_order(order: OrderIn, response: Response, permit: Permit = semel.permit) -> OrderOut:
        """Place the order: its row, its record and its answer are committed together."""
        await troubles.before(order.simulate, permit)
        placed = orders.place(permit.connection, permit.command.scope.caller, order.sku, order.quantity)
        await troubles.after(order.simulate, permit)
        permit.result("order", placed.id)
        response.headers["Location"] = f"/orders/{placed.id}"
        return OrderOut(order_id=placed.id, sku=placed.sku, quantity=placed.quantity)

    async def find_orders(caller: Caller) -> list[OrderOut]:
        found = await engine.perform("list_orders", lambda: orders.list_placed(caller.id))
        return [OrderOut(order_id=order.id, sku=order.sku, quantity=order.quantity) for order in found]

    @parts.app.get("/orders", dependencies=[_BEARER], responses={**_NOBODY, **_STORED})
    async def list_orders(caller: Caller = Depends(caller_of)) -> list[OrderOut]:
        """This caller's orders."""
        return await find_orders(caller)

    @parts.app.get("/orders/{order_id}", dependencies=[_BEARER], responses={**_READ, **_STORED})
    async def read_order(order_id: str, caller: Caller = Depends(caller_of)) -> OrderOut:
        """One of this caller's orders."""
        for order in await find_orders(caller):
            if order.order_id == order_id:
                return order
        raise HTTPException(404, "no such order of this caller")


def _add_imports(parts: Parts) -> None:
    engine = parts.engine
    imports = Imports(
        engine,
        operation="orders.import",
        formats=[Csv()],
        validate=ImportedOrder,
        rows="skip-known",
        file_bytes_max=IMPORT_BYTES_MAX,
        lease_seconds=parts.lease_seconds,
    )

    @imports.row
    async def place_order(row: Row) -> str:
        """Place an order of the supplier for one row; the order commits with the row's outcome."""
        return orders.place(row.connection, row.supplier, row.value.sku, row.value.quantity).id

    def may_upload(request: Request, supplier: str) -> bool:
        """Allow every known caller to send every supplier's files; a real service checks its own permissions."""
        return caller_of(request).tenant == TENANT

    parts.semel.imports(
        parts.app,
        imports,
        path="/suppliers/{supplier}/imports",
        supplier="path:supplier",
        may=may_upload,
        dependencies=AUTHENTICATED,
        responses=_NOBODY,
    )


def _add_notes(parts: Parts) -> None:
    semel, notes, troubles = parts.semel, parts.notes, parts.troubles

    @parts.app.post("/notes", status_code=201, dependencies=AUTHENTICATED, responses=_COMMAND)
    @semel.command(
        "notes.create",
        effects="idempotent",
        key="optional",
        lease_seconds=parts.lease_seconds,
        deadline_seconds=DEADLINE_SECONDS,
    )
    async def create_note(
        note: NoteIn, caller: Caller = Depends(caller_of), permit: Permit | None = semel.permit
    ) -> NoteOut:
        """Write the note; the other side deduplicates by the derived key, so running twice is harmless."""
        key = permit.key_for("note") if permit is not None else secrets.token_hex(16)  # its key is optional
        await troubles.before(note.simulate, permit)
        written = await asyncio.to_thread(notes.write, key, caller.id, note.text)
        await troubles.after(note.simulate, permit)
        if permit is not None:
            permit.result("note", written.id)
        return NoteOut(note_id=written.id, text=written.text)

    @parts.app.get("/notes", dependencies=[_BEARER], responses=_NOBODY)
    async def list_notes(caller: Caller = Depends(caller_of)) -> list[NoteOut]:
        """This caller's notes."""
        return [NoteOut(note_id=note.id, text=note.text) for note in await asyncio.to_thread(notes.notes_of, caller.id)]


def _add_health(parts: Parts) -> None:
    engine = parts.engine

    @parts.app.get("/healthz", responses={503: {"model": Health, "description": "The store cannot be used"}})
    async def healthz(response: Response) -> Health:
        """200 while the store answers."""
        try:
            engine.core.check_identity(await engine.perform("identity", engine.store.identity))
        except (StoreError, ConfigurationError):
            response.status_code = 503
            return Health(status="the store cannot be used; run: semel doctor")
        return Health(status="ok")
