"""One watch of a socket serves all answers that are awaited on it, and leaves no descriptor behind."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
import uvloop
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready

from semel import Answer, Permit
from semel.stores.postgres.psycopg.timeout import PatientAsyncConnection, Watch
from tests.engine.shells import MADE, command, until
from tests.postgres.conftest import ATOMIC, Fellow, Kind, Outside, Writes

MakeFellow = Callable[..., Fellow]
LOOPS = pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


async def handler(permit: Permit, db: Writes) -> Answer:
    if permit.unit is not None:
        await db.execute("SELECT 1")
    return MADE


def look_at(watch: Watch) -> tuple[bool, bool]:
    """Return whether the watch is free, and whether it is over."""
    return watch.is_free(asyncio.get_running_loop()), watch.is_over


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        yield here, there


def test_a_watch_reports_each_time_that_the_socket_is_readable() -> None:
    async def story() -> None:
        with pair() as (here, there):
            watch = Watch(asyncio.get_running_loop(), here.fileno())
            for _ in range(5):
                there.send(b"x")
                assert look_at(watch) == (True, False)
                assert await watch.until_readable(None) == Ready.R
                here.recv(100)
                await asyncio.sleep(0)
            assert look_at(watch) == (True, False)
            assert not await watch.until_readable(asyncio.get_running_loop().time())  # in time, or nothing
            waiting = asyncio.ensure_future(watch.until_readable(None))
            await asyncio.sleep(0)
            assert look_at(watch) == (False, False)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert look_at(watch) == (True, False)
            watch.end()
            assert look_at(watch) == (True, True)

    asyncio.run(story())


def test_a_watch_ends_if_no_waiter_reads_a_readable_socket() -> None:
    """A server that goes away would keep the loop busy: its end can be read for ever."""

    async def story() -> None:
        with pair() as (here, there):
            watch = Watch(asyncio.get_running_loop(), here.fileno())
            there.close()
            for _ in range(10):  # turns of the loop: two of them find data that no answer awaits
                await asyncio.sleep(0)
            assert watch.is_over

    before = os.listdir("/dev/fd")
    asyncio.run(story())
    assert os.listdir("/dev/fd") == before


def test_a_watch_may_outlive_its_loop_and_its_socket() -> None:
    async def begin() -> Watch:
        with pair() as (here, _):
            return Watch(asyncio.get_running_loop(), here.fileno())

    before = os.listdir("/dev/fd")
    watch = asyncio.run(begin())
    watch.end()
    del watch
    left = asyncio.run(begin())
    del left
    assert os.listdir("/dev/fd") == before


def test_ending_the_watch_wakes_its_waiter() -> None:
    async def story() -> None:
        with pair() as (here, _):
            watch = Watch(asyncio.get_running_loop(), here.fileno())
            waiting = asyncio.ensure_future(watch.until_readable(None))
            await asyncio.sleep(0)
            watch.end()
            assert await waiting == Ready.R

    asyncio.run(story())


@LOOPS
def test_a_forked_child_ends_none_of_its_parents(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def story() -> None:
        with pair() as (here, there):
            watch = Watch(asyncio.get_running_loop(), here.fileno())
            child = os.fork()
            if not child:
                watch.end()
                os._exit(0)
            os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
            there.send(b"x")
            assert await watch.until_readable(asyncio.get_running_loop().time() + 20) == Ready.R
            watch.end()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(story())


@LOOPS
def test_unawaited_notices_and_notifications_do_not_delay_the_next_answer(
    make_loop: Callable[[], asyncio.AbstractEventLoop], conninfo: str, outside: Outside
) -> None:
    async def story() -> None:
        before = len(os.listdir("/dev/fd"))
        connection = await PatientAsyncConnection.connect(conninfo, autocommit=True)
        heard: list[str] = []

        def hear(notify: psycopg.Notify) -> None:
            heard.append(notify.payload)

        connection.add_notify_handler(hear)
        await connection.execute("LISTEN semel_watch")
        for number in range(3):
            outside.connection.execute(f"NOTIFY semel_watch, '{number}'")
            for _ in range(10):  # turns of the loop
                await asyncio.sleep(0)
            cursor = await connection.execute("SELECT repeat('x', 1000000), %s", [number])
            assert [row[1] for row in await cursor.fetchall()] == [number]
        await connection.execute("SELECT 1")
        assert heard == ["0", "1", "2"]
        connection.remove_notify_handler(hear)
        async with (
            connection.cursor() as cursor,
            cursor.copy("COPY (SELECT generate_series(1, 50000)) TO STDOUT") as rows,
        ):
            assert sum([len(bytes(row).splitlines()) async for row in rows]) == 50_000
        outside.connection.execute("NOTIFY semel_watch, 'last'")
        assert [notify.payload async for notify in connection.notifies(timeout=20, stop_after=1)] == ["last"]
        await connection.close()
        assert len(os.listdir("/dev/fd")) == before

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(story())


@LOOPS
def test_a_connection_that_another_task_closes_ends_the_wait(
    make_loop: Callable[[], asyncio.AbstractEventLoop], conninfo: str, outside: Outside
) -> None:
    """And its session's locks: the server sees it closed."""

    async def story() -> None:
        connection = await PatientAsyncConnection.connect(conninfo, autocommit=True)
        await connection.execute("SELECT pg_advisory_lock(7302)")
        outside.connection.execute("SELECT pg_advisory_lock(7303)")
        waiting = asyncio.ensure_future(connection.execute("SELECT pg_advisory_lock(7303)"))
        await until(lambda: connection.info.transaction_status is TransactionStatus.ACTIVE)
        for _ in range(10):
            await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(psycopg.OperationalError):
            await asyncio.wait_for(waiting, 20)
        outside.connection.execute("SELECT pg_advisory_unlock(7303)")
        outside.connection.execute("SELECT pg_advisory_lock(7302)")
        outside.connection.execute("SELECT pg_advisory_unlock_all()")

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(story())


def test_a_connection_may_be_used_by_another_loop(conninfo: str) -> None:
    async def ask(connection: PatientAsyncConnection, number: int) -> None:
        cursor = await connection.execute("SELECT %s::int", [number])
        assert await cursor.fetchall() == [(number,)]

    async def story() -> None:
        connection = await PatientAsyncConnection.connect(conninfo, autocommit=True)
        await ask(connection, 1)
        await asyncio.to_thread(asyncio.run, ask(connection, 2))
        await ask(connection, 3)
        await connection.close()

    asyncio.run(story())


@pytest.fixture
def warm_fellow(make_fellow: MakeFellow) -> Fellow:
    fellow = make_fellow()
    fellow.run(command("warm"), handler)
    fellow.run(command("warm-atomic", policy=ATOMIC), handler)
    return fellow


def test_trips_begin_no_watch_of_their_own(warm_fellow: Fellow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a unit, whose connection is another object for each command."""
    if warm_fellow.kind != "psycopg-async":
        return  # the others wait by themselves
    assert warm_fellow.runner is not None
    loop = warm_fellow.runner.get_loop()
    begun: list[int] = []
    monkeypatch.setattr(loop, "add_reader", lambda fd, *_: begun.append(fd))
    for number in range(5):
        warm_fellow.run(command(f"key-{number}"), handler)
        warm_fellow.run(command(f"unit-{number}", policy=ATOMIC), handler)
        assert warm_fellow.run(command(f"unit-{number}", policy=ATOMIC), handler).replayed
    assert begun == []


def test_a_connection_leaves_no_descriptor_behind(kind: Kind, outside: Outside, conninfo: str) -> None:
    """Whether it is closed here or by the server."""
    pids: list[int] = []

    async def noting(permit: Permit, db: Writes) -> Answer:
        [(pid,)] = await db.fetch("SELECT pg_backend_pid()")
        pids.append(pid)
        return MADE

    before = None  # until the first one has come and gone: what a process opens once is open then
    for ended in (False, False, True):
        again = Fellow(kind, conninfo)
        again.run(command(f"again-{len(pids)}"), handler)
        again.run(command(f"unit-{len(pids)}", policy=ATOMIC), noting)
        if ended:
            outside.connection.execute("SELECT pg_terminate_backend(%s, 5000)", (pids[-1],))
            again.run(command("after", policy=ATOMIC), noting)
        again.close()
        now = len(os.listdir("/dev/fd"))
        before = before or now
        assert now == before


def test_without_a_free_descriptor_each_answer_is_awaited_separately(
    make_fellow: MakeFellow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(loop: asyncio.AbstractEventLoop, socket: int) -> Watch:
        raise OSError(24, "Too many open files")

    fellow = make_fellow()
    monkeypatch.setattr("semel.stores.postgres.psycopg.timeout.Watch", none_left)
    assert fellow.run(command("one"), handler).answer == MADE
    assert fellow.run(command("one"), handler).replayed


def test_a_connection_that_is_lost_is_closed_at_once(conninfo: str) -> None:
    """The other end may wait for that: what it holds for this one, it holds until then."""

    async def story() -> None:
        before = len(os.listdir("/dev/fd"))
        connection = await PatientAsyncConnection.connect(conninfo, autocommit=True)
        await connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        assert len(os.listdir("/dev/fd")) == before
        await connection.close()

    asyncio.run(story())
