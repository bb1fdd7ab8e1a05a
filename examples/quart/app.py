"""Tickets: Quart, SQLAlchemy and SQLite. The ticket's row and the answer are one commit.

``TICKETS`` names the SQLite file, ``tickets.db`` by default.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from quart import Quart, abort, g, request
from sqlalchemy import create_engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from semel import AsyncEngine, Permit
from semel.integrations.quart import Semel

URL = f"sqlite:///{Path(os.environ.get('TICKETS', 'tickets.db')).absolute()}"
mails: list[str] = []  # stands for your mail provider

app = Quart("tickets")


@app.before_request
async def authenticate() -> None:
    """The token is the name: replace this by your authentication."""
    g.user = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if g.user not in ("alice", "bob"):
        abort(401)


semel = Semel(app, AsyncEngine.connect(URL), caller=lambda: g.user)


class Base(DeclarativeBase):
    """The tables of this service."""


class Ticket(Base):
    """A seat and its owner."""

    __tablename__ = "ticket"
    id: Mapped[int] = mapped_column(primary_key=True)
    seat: Mapped[int] = mapped_column(unique=True)
    owner: Mapped[str]


@app.post("/tickets")
@semel.command("tickets.buy", effects="atomic")
async def buy(session: Session = semel.atomic_session) -> Any:
    """Buy a seat, once."""
    ticket = Ticket(seat=(await request.get_json())["seat"], owner=g.user)
    session.add(ticket)
    try:
        session.flush()  # committed with the record, when the answer is known
    except IntegrityError:
        session.rollback()
        return {"error": "this seat is taken"}, 409
    return {"ticket": ticket.id, "seat": ticket.seat}, 201


@app.post("/tickets/<int:number>/mail")
@semel.command("tickets.mail", effects="external")
async def mail(number: int, permit: Permit = semel.permit) -> Any:
    """Send a ticket, once."""
    await asyncio.sleep(0)  # your provider's call
    mails.append(permit.key_for("mail"))  # a key for the provider, the same in every retry
    return {"ticket": number, "mails": len(mails)}, 202


@app.get("/tickets")
def list_tickets() -> Any:
    """List the tickets."""
    with Session(tables) as session:
        return [
            {"seat": each.seat, "owner": each.owner} for each in session.scalars(select(Ticket).order_by(Ticket.id))
        ]


tables = create_engine(URL)
Base.metadata.create_all(tables)
