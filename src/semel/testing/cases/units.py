"""Cases of ATOMIC units: whatever a handler does to its transaction, the result is one commit, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from semel.core.model import Answer, State
from semel.errors import (
    EarlyCommit,
    HandlerRefused,
    InProgressError,
    KeyReusedError,
    NothingHappened,
    OutcomeUnknownError,
    SemelError,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from semel.policy import Policy
from semel.stores.backend import Backend
from semel.testing.attempts import ATOMIC, OK

if TYPE_CHECKING:
    from semel.testing.units import Handler, UnitBench, Writes

REFUSAL: Final = Answer(409, (), b"out of stock")
BROKEN: Final = Answer(500, (), b"")
_ASYNCHRONOUS: Final = ("__aenter__", "ensure_closed", "fetchrow")  # psycopg, asyncmy and asyncpg for a loop


class Failed(Exception):
    """The handler gives up."""


class Gone(BaseException):
    """An error that is not even an Exception."""


def _inserts(n: int = 1, end: Answer | BaseException = OK) -> Handler:
    async def handler(db: Writes) -> Answer:
        await db.insert(n)
        return _end(end)

    return handler


async def _never(db: Writes) -> Answer:
    raise AssertionError("a replay ran the handler again")


def _catch(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except BaseException as error:  # noqa: BLE001 - the case judges it
        return error
    raise AssertionError("nothing was raised")


def _ends(bench: UnitBench, key: str, handler: Handler, end: Answer | BaseException, policy: Policy = ATOMIC) -> None:
    """Run a command whose handler ends in this way, and check that its caller gets the same."""
    if isinstance(end, BaseException):
        assert _catch(lambda: bench.run(key, handler, policy)) is end
    else:
        assert bench.run(key, handler, policy).answer == end


def _end(end: Answer | BaseException) -> Answer:
    if isinstance(end, BaseException):
        raise end
    return end


async def _is_refused(db: Writes, statement: str) -> bool:
    try:
        await db.execute(statement)
    except Exception:  # noqa: BLE001 - each library has its own
        return True
    return False


def writes_record_and_answer_are_one_commit(bench: UnitBench) -> None:
    """Before the commit nothing is visible, after it everything; a replay runs nothing."""

    async def handler(db: Writes) -> Answer:
        await db.insert(1)
        await db.insert(2)
        assert (bench.rows, bench.states) == ([], [])
        return OK

    assert bench.run("k", handler).answer == OK
    assert (bench.rows, bench.states) == ([1, 2], [State.SUCCEEDED])
    again = bench.start().run("k", _never)
    assert (again.replayed, again.answer) == (True, OK)
    assert isinstance(_catch(partial(bench.process.run, "k", _never, request=1)), KeyReusedError)


def what_proves_nothing_is_rolled_back_and_runs_again(bench: UnitBench) -> None:
    """An exception of any kind, and an answer that asks for a retry, leave no record and no row."""
    ends: list[tuple[Answer | BaseException, Policy]] = [
        *((end, ATOMIC) for end in (Failed(), Gone(), NothingHappened(), BROKEN, Answer(429, (), b""))),
        (REFUSAL, Policy(effects="atomic", replay="2xx")),
    ]
    for n, (end, policy) in enumerate(ends, start=1):
        _ends(bench, f"k{n}", _inserts(n, end), end, policy)
        assert (bench.rows, len(bench.states)) == ([*range(1, n)], n - 1)
        assert not bench.run(f"k{n}", _inserts(n), policy).replayed
    assert bench.rows == [*range(1, len(ends) + 1)]


def a_refusal_keeps_the_record_and_not_the_rows(bench: UnitBench) -> None:
    """A definite refusal rolls the rows back; its record is stored separately."""
    assert bench.run("k", _inserts(end=REFUSAL)).answer == REFUSAL
    assert (bench.rows, bench.states) == ([], [State.FAILED_REPLAYABLE])
    again = bench.run("k", _never)
    assert (again.replayed, again.answer) == (True, REFUSAL)


def a_handlers_commit_survives_its_rollback_and_commits_nothing(bench: UnitBench) -> None:
    """``commit()`` keeps writes for Semel's commit; ``rollback()`` undoes later writes."""
    ends: list[Answer | Exception] = [OK, Failed(), REFUSAL]
    for n, end in enumerate(ends, start=1):

        async def handler(db: Writes, n: int = n, end: Answer | Exception = end) -> Answer:
            before = bench.rows, bench.states
            await db.insert(n)
            await db.commit()
            await db.commit()
            await db.insert(70 + n)
            await db.rollback()
            await db.rollback()
            assert (bench.rows, bench.states) == before
            return _end(end)

        _ends(bench, f"k{n}", handler, end)
    assert (bench.rows, bench.states) == ([1], [State.SUCCEEDED, State.FAILED_REPLAYABLE])


def a_rollback_of_all_writes_keeps_the_claim(bench: UnitBench) -> None:
    """``rollback()`` before any commit undoes only the handler's writes."""

    async def handler(db: Writes) -> Answer:
        await db.insert(7)
        await db.rollback()
        await db.insert(1)
        return OK

    assert bench.run("k", handler).answer == OK
    assert (bench.rows, bench.states) == ([1], [State.SUCCEEDED])


def a_savepoint_of_the_handlers_is_its_own(bench: UnitBench) -> None:
    """A savepoint that is rolled back to and left open harms neither the other writes nor the record."""

    async def handler(db: Writes) -> Answer:
        await db.insert(1)
        await db.execute("SAVEPOINT mine")
        await db.insert(7)
        await db.execute("ROLLBACK TO SAVEPOINT mine")
        assert (bench.rows, bench.states) == ([], [])
        return OK

    assert bench.run("k", handler).answer == OK
    assert (bench.rows, bench.states) == ([1], [State.SUCCEEDED])


def an_early_commit_is_unknown_however_the_handler_ends(bench: UnitBench) -> None:
    """A record that is visible without its answer is neither a success nor a refusal, and never runs again."""
    ends: list[Answer | Exception] = [OK, REFUSAL, BROKEN, Failed(), NothingHappened()]
    for n, end in enumerate(ends, start=1):

        async def handler(db: Writes, n: int = n, end: Answer | Exception = end) -> Answer:
            await db.insert(n)
            await db.end_early("COMMIT")
            return _end(end)

        assert type(_catch(partial(bench.run, f"k{n}", handler))) is EarlyCommit
        for process in (bench.process, bench.start()):
            met = _catch(partial(process.run, f"k{n}", _never))
            assert isinstance(met, OutcomeUnknownError), met
            assert "committed-early" in str(met)
    assert (bench.rows, bench.states) == ([1, 2, 3, 4, 5], [State.UNKNOWN] * 5)


def an_early_rollback_leaves_nothing(bench: UnitBench) -> None:
    """The rollback also removed the record: later writes must not be committed alone."""

    async def handler(db: Writes) -> Answer:
        await db.insert(1)
        await db.end_early("ROLLBACK")
        return OK

    assert isinstance(_catch(lambda: bench.run("k", handler)), StoreUnavailable)
    assert (bench.rows, bench.states) == ([], [])
    assert not bench.run("k", _inserts()).replayed
    assert bench.rows == [1]


def a_write_after_the_end_fails(bench: UnitBench) -> None:
    """A handler cannot use its connection after its end, and does not disturb the next command."""
    ends: list[Answer | Exception] = [OK, Failed(), REFUSAL]
    for n, end in enumerate(ends, start=1):
        kept: list[Writes] = []

        async def handler(db: Writes, n: int = n, end: Answer | Exception = end, kept: list[Writes] = kept) -> Answer:
            kept.append(db)
            await db.insert(n)
            return _end(end)

        async def late(db: Writes, kept: list[Writes] = kept) -> Answer:
            assert await _is_refused(kept[0], "INSERT INTO effect VALUES (90)")
            return OK

        _ends(bench, f"k{n}", handler, end)
        assert bench.run(f"late{n}", late).answer == OK
    assert bench.rows == [1]


def a_constraint_that_only_the_commit_checks_leaves_nothing(bench: UnitBench) -> None:
    """The caller gets the constraint's error, and the key is free."""
    assert bench.subject.deferred is not None
    table, statement = bench.subject.deferred
    bench.subject.look(table)

    async def handler(db: Writes) -> Answer:
        await db.insert(1)
        await db.execute(statement)
        return OK

    for _ in range(2):
        met = _catch(lambda: bench.run("k", handler))
        assert isinstance(met, HandlerRefused), met
        assert "correct the handler" in str(met)
        assert (bench.rows, bench.states) == ([], [])
    assert not bench.run("k", _inserts()).replayed


def a_write_that_no_rollback_undoes_is_unknown(bench: UnitBench) -> None:
    """A table without transactions keeps a failed handler's writes: the key must not run again."""
    assert bench.subject.outlasting is not None
    table, statement = bench.subject.outlasting
    bench.subject.look(table)

    async def handler(db: Writes) -> Answer:
        await db.execute(statement)
        raise Failed

    assert type(_catch(lambda: bench.run("k", handler))) is EarlyCommit
    assert bench.states == [State.UNKNOWN]
    assert isinstance(_catch(lambda: bench.run("k", _never)), OutcomeUnknownError)


def what_reaches_beyond_the_transaction_is_refused(bench: UnitBench) -> None:
    """The connection refuses the statement, and the transaction continues."""

    async def handler(db: Writes) -> Answer:
        await db.insert(1)
        for statement in db.subject.refused:
            assert await _is_refused(db, statement), f"{statement} was not refused"
        assert (bench.rows, bench.states) == ([], [])
        return OK

    assert bench.run("k", handler).answer == OK
    assert (bench.rows, bench.states) == ([1], [State.SUCCEEDED])


def a_settle_that_was_superseded_commits_nothing(bench: UnitBench) -> None:
    """If the transaction ended early and another process has run the command, that process's outcome counts."""
    other = bench.start()
    stands = Answer(201, (), b"made by the other process")

    async def handler(db: Writes) -> Answer:
        await db.insert(7)
        await db.end_early("ROLLBACK")
        thread = threading.Thread(target=lambda: results.append(other.run("k", _inserts(end=stands))))
        thread.start()
        thread.join(30)
        return OK

    results: list[Any] = []
    try:
        met = bench.run("k", handler)
    except SemelError:
        pass
    else:
        assert met.answer == stands
    assert [result.replayed for result in results] == [False]
    assert (bench.rows, bench.states) == ([1], [State.SUCCEEDED])
    assert bench.run("k", _never).answer == stands


def a_running_command_is_not_run_by_another_process(bench: UnitBench) -> None:
    """Another process gets «in progress», and the winner's answer is its replay afterwards."""
    other = bench.start()
    met: list[BaseException] = []

    async def handler(db: Writes) -> Answer:
        await db.insert(1)
        thread = threading.Thread(target=lambda: met.append(_catch(lambda: other.run("k", _never))))
        thread.start()
        thread.join(30)
        return OK

    assert bench.run("k", handler).answer == OK
    [error] = met
    assert isinstance(error, InProgressError if bench.subject.tells_running else StoreUnavailable), error
    assert (bench.rows, bench.states) == ([1], [State.SUCCEEDED])
    assert other.run("k", _never).replayed


class _LosingUnit:
    """A unit whose settlement or commit is lost: on the way to the server, or on the way back."""

    def __init__(self, unit: Any, *, arrives: bool) -> None:
        self._unit = unit
        self._arrives = arrives

    def __getattr__(self, name: str) -> Any:
        return getattr(self._unit, name)

    def _lose(self, act: Callable[[], object]) -> Any:
        if self._arrives:
            act()
        else:
            self._unit.rollback()
        raise StoreTimeout("the commit was not answered")

    async def _lose_async(self, act: Callable[[], Any]) -> Any:
        if self._arrives:
            await act()
        else:
            await self._unit.rollback_async()
        raise StoreTimeout("the commit was not answered")

    def settle(self, needed: Any) -> Any:
        return self._lose(lambda: self._unit.settle(needed))

    def commit(self) -> Any:
        return self._lose(self._unit.commit)

    async def settle_async(self, needed: Any) -> Any:
        return await self._lose_async(lambda: self._unit.settle_async(needed))

    async def commit_async(self) -> Any:
        return await self._lose_async(self._unit.commit_async)


def _losing(backend: Backend, *, arrives: bool) -> Backend:
    async def begin_async() -> Any:
        return _LosingUnit(await backend.begin_async(), arrives=arrives)

    return replace(backend, unit=lambda: _LosingUnit(backend.begin(), arrives=arrives), unit_async=begin_async)


def a_commit_whose_answer_was_lost_is_read_back(bench: UnitBench) -> None:
    """The stored record is the evidence: the caller gets the answer, and a retry its replay."""
    process = bench.start(lambda backend: _losing(backend, arrives=True))
    assert process.run("k", _inserts()).answer == OK
    assert (bench.rows, bench.states) == ([1], [State.SUCCEEDED])
    assert bench.run("k", _never).replayed


def a_commit_that_never_arrived_leaves_nothing(bench: UnitBench) -> None:
    """The caller gets a retryable error, and the retry runs."""
    process = bench.start(lambda backend: _losing(backend, arrives=False))
    assert isinstance(_catch(lambda: process.run("k", _inserts())), StoreError)
    assert (bench.rows, bench.states) == ([], [])
    assert not bench.run("k", _inserts()).replayed
    assert bench.rows == [1]


def the_connection_blocks_as_the_store_declares(bench: UnitBench) -> None:
    """On an event loop, a handler awaits its writes, unless the store declares ``blocking_units``."""
    seen: list[bool] = []

    async def handler(db: Writes) -> Answer:
        seen.append(any(hasattr(db.connection, name) for name in _ASYNCHRONOUS))
        return OK

    bench.run("k", handler)
    blocking = bench.process.engine.store.capabilities.blocking_units
    assert seen == [bench.subject.asynchronous and not blocking]


ALL: Final = (
    the_connection_blocks_as_the_store_declares,
    writes_record_and_answer_are_one_commit,
    what_proves_nothing_is_rolled_back_and_runs_again,
    a_refusal_keeps_the_record_and_not_the_rows,
    a_handlers_commit_survives_its_rollback_and_commits_nothing,
    a_rollback_of_all_writes_keeps_the_claim,
    a_savepoint_of_the_handlers_is_its_own,
    an_early_commit_is_unknown_however_the_handler_ends,
    an_early_rollback_leaves_nothing,
    a_write_after_the_end_fails,
    a_constraint_that_only_the_commit_checks_leaves_nothing,
    a_write_that_no_rollback_undoes_is_unknown,
    what_reaches_beyond_the_transaction_is_refused,
    a_settle_that_was_superseded_commits_nothing,
    a_running_command_is_not_run_by_another_process,
    a_commit_whose_answer_was_lost_is_read_back,
    a_commit_that_never_arrived_leaves_nothing,
)
NEEDS: Final = {
    "a_handlers_commit_survives_its_rollback_and_commits_nothing": "has_commit",
    "a_rollback_of_all_writes_keeps_the_claim": "has_commit",
    "a_constraint_that_only_the_commit_checks_leaves_nothing": "deferred",
    "a_write_that_no_rollback_undoes_is_unknown": "outlasting",
    "what_reaches_beyond_the_transaction_is_refused": "refused",
}
"""What a subject declares for a case to concern it."""
