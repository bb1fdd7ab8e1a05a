"""Donations: Strawberry on Starlette, SQLAlchemy and SQLite. The key is an argument of each mutation's field.

``DONATIONS`` names the SQLite file, ``donations.db`` by default.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import strawberry
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.applications import Starlette
from strawberry.asgi import GraphQL
from strawberry.permission import BasePermission

from semel import AsyncEngine
from semel.integrations.strawberry import Caller, Idempotent, permit_of
from semel.stores.sql.sqlalchemy import session_on
from semel.workers import Reaper

URL = f"sqlite:///{Path(os.environ.get('DONATIONS', 'donations.db')).absolute()}"
engine = AsyncEngine.connect(URL)
charged: list[str] = []  # stands for your payment provider, which knows each charge by its key


class Base(DeclarativeBase):
    """The tables of this service."""


class Pledge(Base):
    """What a donor has promised."""

    __tablename__ = "pledge"
    id: Mapped[int] = mapped_column(primary_key=True)
    donor: Mapped[str]
    euros: Mapped[int]


def user_of(info: strawberry.Info) -> str:
    """The token is the name: replace this by your authentication."""
    return str(info.context["request"].headers.get("Authorization", "").removeprefix("Bearer "))


def caller_of(info: strawberry.Info) -> Caller:
    """Whose key it is."""
    return Caller("donations", user_of(info))


class Known(BasePermission):
    """Runs before the claim, and before each replay: who it refuses leaves no record."""

    message = "who are you?"

    def has_permission(self, source: Any, info: strawberry.Info, **kwargs: Any) -> bool:
        """Whether the user is known."""
        return user_of(info) in ("alice", "bob")


class CardDeclined(Exception):
    """A definite refusal: it is kept, and raised again."""

    extensions = {"code": "CARD_DECLINED"}  # noqa: RUF012 - what Strawberry reads


@strawberry.type
class Donation:
    """What a mutation answers with."""

    number: int
    euros: int


@strawberry.type
class Query:
    """What was given."""

    @strawberry.field
    def total(self) -> int:
        """In euros."""
        with Session(tables) as session:
            return session.scalar(select(func.coalesce(func.sum(Pledge.euros), 0))) or 0


@strawberry.type
class Mutation:
    """Each field is a command."""

    @strawberry.mutation(  # type: ignore[untyped-decorator]
        extensions=[Idempotent(engine, "donations.pledge", caller=caller_of, effects="atomic")],
        permission_classes=[Known],
    )
    async def pledge(self, info: strawberry.Info, euros: int, idempotency_key: str) -> Donation:
        """Write a row: it and the field's result are one commit."""
        with session_on(permit_of(info).connection) as session:
            pledge = Pledge(donor=user_of(info), euros=euros)
            session.add(pledge)
            session.commit()  # a savepoint's end; the COMMIT comes with the record
            return Donation(number=pledge.id, euros=euros)

    @strawberry.mutation(  # type: ignore[untyped-decorator]
        extensions=[
            Idempotent(engine, "donations.charge", caller=caller_of, effects="external", replays=(CardDeclined,))
        ],
        permission_classes=[Known],
    )
    async def charge(self, info: strawberry.Info, euros: int, card: str, idempotency_key: str) -> Donation:
        """Charge a card at the provider, which takes the permit's key."""
        if card == "declined":
            raise CardDeclined("the card was declined")
        charged.append(permit_of(info).key_for("charge"))  # the same in every attempt
        if card == "slow":
            raise TimeoutError("the provider did not answer in time")
        return Donation(number=len(charged), euros=euros)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Open the engine with the application."""
    async with engine, Reaper(engine):
        yield


tables = create_engine(URL)
Base.metadata.create_all(tables)
app = Starlette(lifespan=lifespan)
graphql: Any = GraphQL(strawberry.Schema(Query, Mutation))
app.add_route("/graphql", graphql, methods=["GET", "POST"])
