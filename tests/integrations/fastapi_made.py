"""An application of FastAPI with one command, and what its handler has done."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from pydantic import BaseModel

from semel import AsyncEngine, Permit
from semel.integrations.fastapi import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import caller_of

PAYMENT = {"amount": 1250}


class Payment(BaseModel):
    amount: int


def authenticate(request: Request) -> None:
    if caller_of(request) is None:
        raise HTTPException(401, "who are you?", {"WWW-Authenticate": "Bearer"})


class Made:
    """An application with one command, ``POST /payments``, and what its handler has done."""

    def __init__(self, serve: Serve, engine: AsyncEngine, **options: Any) -> None:
        self.ran: list[int] = []
        self.fails: BaseException | None = None
        self.gate: asyncio.Event | None = None
        self.began = asyncio.Event()
        self.semel = semel = Semel(engine, caller=caller_of)
        self.app = app = FastAPI()

        @app.post("/payments", status_code=201, dependencies=[Depends(authenticate)])
        @semel.command("payments.create", **options)
        async def create_payment(payment: Payment, response: Response, permit: Permit = semel.permit) -> dict[str, int]:
            self.ran.append(payment.amount)
            self.began.set()
            if self.gate is not None:
                await self.gate.wait()
            if self.fails is not None:
                raise self.fails
            response.headers["Location"] = f"/payments/{len(self.ran)}"
            return {"amount": payment.amount, "attempt": permit.attempt}

        semel.install(app, dependencies=[Depends(authenticate)])
        self.web = serve(app, engine)
