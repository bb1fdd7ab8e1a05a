"""Bookings: FastAPI, SQLAlchemy and PostgreSQL. The row, its event and the answer are one commit.

``DATABASE_URL`` names the database, such as ``postgresql://user:password@127.0.0.1/app``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from pydantic import BaseModel, Field
from sqlalchemy import UniqueConstraint, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from semel import AsyncEngine, Permit
from semel.http import from_state
from semel.integrations.fastapi import Semel

URL = os.environ["DATABASE_URL"]


class Base(DeclarativeBase):
    """The application's own tables, in the database that has Semel's."""


class Booking(Base):
    """A row of the business."""

    __tablename__ = "bookings"
    __table_args__ = (UniqueConstraint("room", "night"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    guest: Mapped[str]
    room: Mapped[int]
    night: Mapped[str]


class BookingIn(BaseModel):
    """What a guest asks for."""

    room: int = Field(gt=0)
    night: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")


class BookingOut(BookingIn):
    """A guest's booking."""

    id: int


alchemy = create_async_engine(URL.replace("postgresql:", "postgresql+psycopg:", 1))  # for what is no command


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """The application's tables are made when it opens; Semel's are made by ``semel migrate``."""
    async with alchemy.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await alchemy.dispose()


async def authenticate(request: Request, authorization: str = Header("")) -> None:
    """The token is the name: replace this by your authentication."""
    if authorization not in ("Bearer alice", "Bearer bob"):
        raise HTTPException(401, "send Authorization: Bearer alice (or bob)")
    request.state.caller = authorization.removeprefix("Bearer ")


app = FastAPI(title="Bookings", lifespan=lifespan)
semel = Semel(AsyncEngine.connect(URL), caller=from_state("caller"))
AUTHENTICATED = [Depends(authenticate)]


@app.post("/bookings", status_code=201, dependencies=AUTHENTICATED)
@semel.command("bookings.create", effects="atomic")
async def book(
    wanted: BookingIn, session: AsyncSession = semel.atomic_session, permit: Permit = semel.permit
) -> BookingOut:
    """Book a room for a night, once."""
    booking = Booking(guest=permit.command.scope.caller, **wanted.model_dump())
    session.add(booking)
    try:
        await session.flush()
    except IntegrityError:
        raise HTTPException(409, "this room is taken that night") from None
    permit.emit("bookings.made", {"id": booking.id, "room": booking.room}, aggregate=("booking", str(booking.id)))
    return BookingOut(id=booking.id, **wanted.model_dump())


@app.get("/bookings")
async def list_bookings() -> list[BookingOut]:
    """List the bookings."""
    async with AsyncSession(alchemy) as session:
        found = await session.scalars(select(Booking).order_by(Booking.id))
        return [BookingOut(id=each.id, room=each.room, night=each.night) for each in found]


semel.install(app, dependencies=AUTHENTICATED)
