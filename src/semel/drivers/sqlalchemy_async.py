"""Joining the transaction of a SQLAlchemy ``AsyncSession`` or ``AsyncConnection``, through its ``run_sync``.

A file of its own because SQLAlchemy's asyncio module needs greenlet, which synchronous users need not have.
"""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from semel.drivers.sqlalchemy import join_sqlalchemy
from semel.drivers.sqlite_join import JoinedUnit, StoreFile
from semel.flow import MakeFlow

__all__ = ["AsyncConnection", "AsyncSession", "join_sqlalchemy_async"]

T = TypeVar("T")


class AsyncJoinedUnit(JoinedUnit):
    """The same on an AsyncSession or AsyncConnection, through its ``run_sync``."""

    def __init__(self, target: AsyncSession | AsyncConnection, unit: JoinedUnit) -> None:
        super().__init__(target, unit.execute, unit.clock)
        self._unit = unit

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a store flow inside the transaction."""
        result: T = await self.connection.run_sync(lambda _: self._unit.run(make))
        return result

    async def rollback_async(self) -> None:
        """End the empty transaction that Semel began."""
        await self.connection.run_sync(lambda _: self._unit.rollback())


async def join_sqlalchemy_async(target: AsyncSession | AsyncConnection, file: StoreFile) -> AsyncJoinedUnit:
    """As :func:`join_sqlalchemy`, for asynchronous sessions and connections."""
    unit = await target.run_sync(lambda sync: join_sqlalchemy(sync, file))
    return AsyncJoinedUnit(target, unit)
