"""What the speed of is measured: about 200 bytes of JSON in, about 100 out, and a number that tells the runs."""

from __future__ import annotations

import itertools

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bench.setup import Handlers
from bench.subjects import PATH


def payment_handlers() -> Handlers:
    """One handler. The number in its answer is how often it has run."""
    numbers = itertools.count(1)

    async def pay(request: Request) -> Response:
        order = await request.json()
        payment = {
            "paymentId": f"pay_{next(numbers):016d}",
            "status": "captured",
            "amount": order["amount"],
            "currency": order["currency"],
            "version": 1,
        }
        return JSONResponse(payment, status_code=201)

    return {PATH: pay}
