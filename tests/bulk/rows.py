"""The application's own table, as SQLAlchemy maps it."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from semel.bulk.declaration import BulkItem
from semel.stores.sql.sqlalchemy import session_on


class Base(DeclarativeBase):
    """The application's tables."""


class Effect(Base):
    """A row of the application's own."""

    __tablename__ = "effect"
    n: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


def add_row(item: BulkItem) -> None:
    """Write the item's row by a session on its connection."""
    with session_on(item.connection) as session:
        session.add(Effect(n=item.value["n"]))
        session.commit()
