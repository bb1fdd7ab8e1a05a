"""The service's pages: a checkout that shows Semel's effect in a browser, and a plain form without scripts."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from decimal import Decimal, InvalidOperation
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from semel import Permit
from semel.http import StaticApp, form_key
from semel.integrations.fastapi import Semel
from semel.reference.greeting import commands
from semel.reference.models import AMOUNT_MAX
from semel.reference.provider import Charge
from semel.reference.settings import Settings

COOKIE: Final = "semel-demo-caller"  # the plain form's user: a page without scripts sends no Authorization header
_FOLDER: Final = Path(__file__).parent
_FILES: Final = {"checkout.js": "text/javascript", "checkout.css": "text/css"}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_PLAIN: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/demo/checkout.css">
</head>
<body>
<main>
<h1>{title}</h1>
{content}
<p><a href="/">The page with scripts</a></p>
</main>
</body>
</html>
"""
_FORM: Final = """<p>No script runs here. The hidden field <code>_key</code> belongs to this form's address.</p>
<form action="/checkout" method="post">
<input type="hidden" name="_key" value="{key}">
<label>Customer <input name="customerId" value="c-1" required maxlength="100" autocomplete="off"></label>
<label>Amount in EUR <input name="amount" value="10.00" required inputmode="decimal" autocomplete="off"></label>
<button>Pay</button>
</form>
"""
_RECEIPT: Final = """<p id="receipt">{amount} {currency} from {customer}: <code>{id}</code></p>
<p>Go back and submit the form again: this receipt is shown again, and nothing is charged.</p>
"""

Charging = Callable[[str, str, Decimal, str], Awaitable[Charge]]
Finding = Callable[[str, str], Awaitable[Charge | None]]


def add(app: FastAPI, settings: Settings, semel: Semel, lease_seconds: float, charge: Charging, find: Finding) -> None:
    """Serve the pages.

    Parameters: ``charge`` charges a customer (derived key, caller, amount, customer); ``find`` finds a caller's charge.
    """
    app.mount("/semel", StaticApp())

    @app.get("/", include_in_schema=False)
    async def first_page(request: Request) -> HTMLResponse:
        shown = commands(str(request.base_url).rstrip("/"), settings).strip("\n")
        text = (_FOLDER / "checkout.html").read_text("utf-8")
        values = {
            "store": escape(settings.url.partition("://")[0]),
            "demo": "" if settings.demo else " disabled",
            "commands": escape(shown),
        }
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", value)
        return HTMLResponse(text, headers=_HEADERS)

    @app.get("/demo/{name}", include_in_schema=False)
    async def demo_file(name: str) -> Response:
        if name not in _FILES:
            return Response(status_code=404)
        return FileResponse(_FOLDER / name, media_type=_FILES[name], headers={**_HEADERS, "Cache-Control": "no-cache"})

    @app.get("/checkout", include_in_schema=False)
    async def begin() -> Response:
        return RedirectResponse(f"/checkout/forms/{secrets.token_hex(8)}", 303, headers={"Cache-Control": "no-store"})

    @app.get("/checkout/forms/{number}", include_in_schema=False)
    async def plain_form(number: str) -> HTMLResponse:
        # Each form has its own address and key, also when the browser goes back and fetches it again.
        page = _page("Checkout without scripts", _FORM.format(key=form_key("checkout", number)))
        page.set_cookie(COOKIE, "alice", path="/checkout", httponly=True, samesite="strict")
        return page

    @app.post("/checkout", include_in_schema=False)
    @semel.command("checkout.pay", effects="external", key_from="form:_key", lease_seconds=lease_seconds)
    async def pay(request: Request, permit: Permit = semel.permit) -> Response:
        """Charge, then lead to the receipt: post, redirect, get."""
        fields = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
        customer, amount = fields.get("customerId", ""), _amount(fields.get("amount", ""))
        if amount is None or not 0 < len(customer) <= 100:
            sentence = "<p>Send a customer and an amount such as 10.00; go back and correct the form.</p>"
            return _page("Not paid", sentence, 400)
        made = await charge(permit.key_for("charge"), permit.command.scope.caller, amount, customer)
        permit.result("payment", made.id)
        return RedirectResponse(f"/checkout/receipts/{made.id}", 303)

    @app.get("/checkout/receipts/{payment_id}", include_in_schema=False)
    async def receipt(request: Request, payment_id: str) -> HTMLResponse:
        found = await find(request.cookies.get(COOKIE, ""), payment_id)
        if found is None:
            return _page("No such receipt", "<p>This caller has none with that number.</p>", 404)
        texts = {"amount": str(found.amount), "currency": found.currency, "customer": found.customer, "id": found.id}
        return _page("Paid", _RECEIPT.format(**{name: escape(text) for name, text in texts.items()}))


def _page(title: str, content: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(_PLAIN.format(title=title, content=content), status, headers=_HEADERS)


def _amount(text: str) -> Decimal | None:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and 0 < amount <= AMOUNT_MAX else None
