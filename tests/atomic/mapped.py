"""A mapped class, and the command that its rows belong to."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from semel import Policy
from tests.engine.shells import command

ATOMIC = Policy(effects="atomic")
WHAT = command(policy=ATOMIC)


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effect"
    n: Mapped[int] = mapped_column(primary_key=True)


class Visit(Base):
    __tablename__ = "visit"
    n: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]


class Failed(Exception):
    """The user's own."""
