"""Orders: one transaction holds the order's row, its event and the record of the request.

A crash at any moment leaves all three or none, so nothing here is ever in doubt. ``SEMEL_URL`` names the database.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from pydantic import BaseModel, Field
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from semel import AsyncEngine, Permit
from semel.http import from_state
from semel.integrations.fastapi import Semel
from semel.stores.sql.sqlalchemy import session_on

URL = os.environ.get("SEMEL_URL", "sqlite:///orders.db")


class Base(DeclarativeBase):
    """The shop's own tables, in the database that has Semel's."""


class Order(Base):
    """A row of the business."""

    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    sku: Mapped[str]
    quantity: Mapped[int]


class OrderIn(BaseModel):
    """What a customer orders."""

    sku: str
    quantity: int = Field(gt=0, le=100)


class OrderOut(OrderIn):
    """A customer's order."""

    id: str


alchemy = create_engine(URL)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """The shop's tables are made when it opens; Semel's are made by ``semel migrate``."""
    Base.metadata.create_all(alchemy)
    yield
    alchemy.dispose()


async def authenticate(request: Request, authorization: str = Header("")) -> None:
    """The token is the name: replace this by your authentication."""
    if authorization not in ("Bearer alice", "Bearer bob"):
        raise HTTPException(401, "send Authorization: Bearer alice (or bob)")
    request.state.caller = authorization.removeprefix("Bearer ")


app = FastAPI(title="Orders", lifespan=lifespan)
semel = Semel(AsyncEngine.connect(URL), caller=from_state("caller"))
AUTHENTICATED = [Depends(authenticate)]


@app.put("/orders/{order_id}", status_code=201, dependencies=AUTHENTICATED)
@semel.command("orders.place", effects="atomic", key_from="path:order_id")
async def place_order(order_id: str, order: OrderIn, permit: Permit = semel.permit) -> OrderOut:
    """Place an order, once. The id that the client has chosen is its key."""
    with session_on(permit.connection) as session:
        session.add(Order(id=order_id, customer=permit.command.scope.caller, **order.model_dump()))
        session.commit()  # of what this handler wrote; the transaction is Semel's, and ends with the answer in it
    permit.emit("orders.placed", {"id": order_id, **order.model_dump()}, aggregate=("order", order_id))
    permit.result("order", order_id)
    return OrderOut(id=order_id, **order.model_dump())


@app.get("/orders")
def list_orders() -> list[OrderOut]:
    """List the orders."""
    with Session(alchemy) as session:
        return [OrderOut(id=each.id, sku=each.sku, quantity=each.quantity) for each in session.scalars(select(Order))]


semel.install(app, dependencies=AUTHENTICATED)
