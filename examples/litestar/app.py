"""Tickets: Litestar, SQLAlchemy and SQLite. The ticket's row and the answer are one commit.

``TICKETS`` names the SQLite file, ``tickets.db`` by default.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litestar import Litestar, Request, Response, get, post
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, JSONBody
from sqlalchemy import create_engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from semel import AsyncEngine, Permit
from semel.http import Caller
from semel.integrations.litestar import Semel

URL = f"sqlite:///{Path(os.environ.get('TICKETS', 'tickets.db')).absolute()}"
mails: list[str] = []  # stands for your mail provider


def token(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    """The token is the name: replace this by your authentication."""
    return connection.headers.get("Authorization", "").removeprefix("Bearer ")


def require_known_caller(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A guard. A caller that it refuses leaves no record."""
    if token(connection) not in ("alice", "bob"):
        raise NotAuthorizedException


semel = Semel(
    AsyncEngine.connect(URL), caller=lambda request: Caller("tickets", token(request)), guards=[require_known_caller]
)


class Base(DeclarativeBase):
    """The tables of this service."""


class Ticket(Base):
    """A seat and its owner."""

    __tablename__ = "ticket"
    id: Mapped[int] = mapped_column(primary_key=True)
    seat: Mapped[int] = mapped_column(unique=True)
    owner: Mapped[str]


@dataclass
class Wanted:
    """What a client asks for."""

    seat: int


@post("/tickets", guards=[require_known_caller])
@semel.command("tickets.buy", effects="atomic")
async def buy(
    data: JSONBody[Wanted], request: Request[Any, Any, Any], session: Session = semel.atomic_session
) -> Response[dict[str, Any]]:
    """Buy a seat, once."""
    ticket = Ticket(seat=data.seat, owner=token(request))
    session.add(ticket)
    try:
        session.flush()  # committed with the record, when the answer is known
    except IntegrityError:
        session.rollback()
        return Response({"error": "this seat is taken"}, status_code=409)
    return Response({"ticket": ticket.id, "seat": ticket.seat}, status_code=201)


@post("/tickets/{number:int}/mail", guards=[require_known_caller], status_code=202)
@semel.command("tickets.mail", effects="external")
async def mail(number: FromPath[int], permit: Permit = semel.permit) -> dict[str, int]:
    """Send a ticket, once."""
    mails.append(permit.key_for("mail"))  # a key for the provider, the same in every retry
    return {"ticket": number, "mails": len(mails)}


@get("/tickets", guards=[require_known_caller], sync_to_thread=True)
def list_tickets() -> list[dict[str, Any]]:
    """List the tickets."""
    with Session(tables) as session:
        return [
            {"seat": each.seat, "owner": each.owner} for each in session.scalars(select(Ticket).order_by(Ticket.id))
        ]


tables = create_engine(URL)
Base.metadata.create_all(tables)
app = Litestar([buy, mail, list_tickets], plugins=[semel])
