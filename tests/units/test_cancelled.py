"""A claim whose caller is cancelled, at each place where it waits: nothing of it is left to the next command."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import coroutine
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Policy
from semel.core.outcomes import Released
from semel.engine.permit import Permit
from semel.stores.backend import Backend
from semel.stores.mariadb.url import mariadb_backend
from semel.stores.postgres.url import postgres_backend
from tests.engine.shells import MADE, command
from tests.servers.mariadb import MARK, mariadb
from tests.servers.postgres import postgres, schema
from tests.units.subjects import Asyncmy, Asyncpg, AsyncPsycopg, AsyncSqlite, count_lent

ATOMIC = Policy(effects="atomic")
PLACES_MAX = 40  # a claim waits less often, also on a connection that is opened for it


@coroutine
def cancel_at(
    place: int, work: Coroutine[Any, Any, Any], *, is_answered: bool
) -> Generator[Any, None, tuple[bool, Any]]:
    """Perform ``work`` and cancel it where it waits for the ``place``-th time; whether it waited so often.

    Parameters: ``is_answered`` cancel it once what it waits for is there, in the moment before it could go on.
    """
    steps = work.__await__()
    waits = 0
    error: BaseException | None = None
    while True:
        try:
            future = steps.send(None) if error is None else steps.throw(error)
        except StopIteration as stop:
            return waits >= place, stop.value
        except asyncio.CancelledError:
            return True, None
        waits, error = waits + 1, None
        if waits != place:
            try:
                yield future
            except BaseException as raised:  # noqa: BLE001 -- the work's
                error = raised
            continue
        error = asyncio.CancelledError()
        if future is None:
            continue
        future._asyncio_future_blocking = False
        if not is_answered:
            future.cancel()
        while not future.done():
            yield
        yield  # the future's own callbacks come before its waiters


def one_connection(subject: Any) -> Backend:
    """The store, with a single connection for units: the next command has that of the cancelled one."""
    if isinstance(subject, Asyncmy):
        return mariadb_backend(replace(mariadb(), connections_max=1))
    if isinstance(subject, AsyncSqlite):
        return subject.open()
    return postgres_backend(postgres(), asyncpg=subject.by_asyncpg, schema=schema(), connections_max=1)


@pytest.mark.parametrize("is_answered", [False, True], ids=["unanswered", "answered"])
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "new"])
@pytest.mark.parametrize("kind", [AsyncSqlite, AsyncPsycopg, Asyncpg, pytest.param(Asyncmy, marks=MARK)])
def test_a_claim_cancelled_at_any_place_leaves_nothing_to_the_next_command(
    kind: Any, is_open: bool, is_answered: bool, tmp_path: Path
) -> None:
    subject = kind(tmp_path)
    reported: list[dict[str, Any]] = []

    async def make(permit: Permit) -> Answer:
        return MADE

    async def cancel_claim_at(engine: AsyncEngine, place: int) -> bool:
        if not is_open and kind is not AsyncSqlite:
            await engine.backend.unit_async.__self__.close()  # type: ignore[union-attr]
        waited, permit = await cancel_at(
            place, engine.claim(command(f"gone{place}", policy=ATOMIC)), is_answered=is_answered
        )
        if permit is not None:
            await engine.settle(permit, Released("the test's own", proven=True))
        return waited

    async def story() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        async with AsyncEngine(one_connection(subject)) as engine:
            await engine.run(command("first", policy=ATOMIC), make)
            for place in range(1, PLACES_MAX):
                waited = await cancel_claim_at(engine, place)
                for key in (f"next{place}", f"gone{place}"):
                    assert not (await engine.run(command(key, policy=ATOMIC), make)).replayed, (place, key)
                if kind is not AsyncSqlite:
                    assert count_lent(engine.backend, asynchronous=True) == 0
                if not waited:
                    return place
        raise AssertionError("the claim waits more often than that")

    with closing(subject):
        assert asyncio.run(story()) > 1
        assert subject.look("SELECT count(*) FROM semel_record WHERE state <> 3") == [(0,)]
        assert subject.is_free()
    assert reported == []
