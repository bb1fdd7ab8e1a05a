"""Cases of joined transactions: only the application's commit makes record and writes final."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from semel.core.model import Answer, State
from semel.errors import (
    EarlyCommit,
    InProgressError,
    JoinRefused,
    KeyReusedError,
    OutcomeUnknownError,
    PolicyError,
    SemelError,
    StoreReadOnly,
    StoreUnavailable,
    SupersededError,
)
from semel.policy import Command, Policy
from semel.testing.attempts import OK

if TYPE_CHECKING:
    from semel.testing.joins import JoinBench, JoinSubject, JoinUser


class Failed(Exception):
    """The application gives up."""


async def _makes(bench: JoinBench, user: JoinUser, key: str = "k", n: int = 1) -> None:
    """Join a command that runs, and write one row in it."""
    async with bench.join(user.target, bench.command(key)) as once:
        assert not once.replayed
        await user.insert(n)
        once.answer = OK


async def _replays(bench: JoinBench, user: JoinUser, key: str = "k") -> None:
    """Join a command that has been answered."""
    async with bench.join(user.target, bench.command(key)) as once:
        assert (once.replayed, once.answer) == (True, OK)


async def _never(bench: JoinBench, target: Any, command: Command | None = None) -> None:
    """Join a command that must not be entered."""
    async with bench.join(target, bench.command() if command is None else command):
        raise AssertionError("this must not run")


async def _catch(act: Awaitable[object]) -> BaseException:
    try:
        await act
    except BaseException as error:  # noqa: BLE001 - the case judges it
        return error
    raise AssertionError("nothing was raised")


async def the_users_commit_makes_the_record_and_the_writes_final(bench: JoinBench) -> None:
    """Nothing is visible before it, everything after it; a replay runs nothing; another payload is refused."""
    user = await bench.user()
    for n in (1, 2):
        await user.begin()
        await _makes(bench, user, f"k{n}", n)
        assert (bench.rows, bench.states) == ([*range(1, n)], [State.SUCCEEDED] * (n - 1))
        await user.commit()
        assert (bench.rows, bench.states) == ([*range(1, n + 1)], [State.SUCCEEDED] * n)
    await user.begin()
    await _replays(bench, user, "k1")
    await user.commit()
    await user.begin()
    assert isinstance(await _catch(_never(bench, user.target, bench.command("k1", request=1))), KeyReusedError)
    await user.insert(3)  # the transaction is still the user's
    await user.commit()
    assert bench.rows == [1, 2, 3]


async def without_the_users_commit_nothing_remains_and_the_key_is_free(bench: JoinBench) -> None:
    """The transaction may end by an exception in the block, a rollback after it, or a closed connection."""
    user = await bench.user()

    async def fails() -> None:
        async with bench.join(user.target, bench.command()):
            await user.insert()
            raise Failed

    await user.begin()
    assert isinstance(await _catch(fails()), Failed)
    await user.rollback()
    assert (bench.rows, bench.states) == ([], [])
    await user.begin()
    await _makes(bench, user)
    await user.rollback()
    assert (bench.rows, bench.states) == ([], [])
    await user.begin()
    await _makes(bench, user)
    await bench.leave(user)
    assert (bench.rows, bench.states) == ([], [])
    again = await bench.user()
    await again.begin()
    await _makes(bench, again)
    await again.commit()
    assert (bench.rows, bench.states) == ([1], [State.SUCCEEDED])


async def a_transaction_that_has_read_and_written_is_joined(bench: JoinBench) -> None:
    """What the user writes before and after the block is committed with it."""
    user = await bench.user()
    await user.begin()
    await user.execute("SELECT count(*) FROM effect")
    await user.insert(7)
    await _makes(bench, user)
    await user.insert(8)
    await user.commit()
    assert (bench.rows, bench.states) == ([1, 7, 8], [State.SUCCEEDED])


async def a_transaction_that_has_written_is_refused_untouched(bench: JoinBench) -> None:
    """If the claim must be a transaction's first statement, the join is refused, and the user's writes continue."""
    user = await bench.user()
    await user.begin()
    await user.insert(7)
    assert isinstance(await _catch(_never(bench, user.target)), JoinRefused)
    await user.commit()
    assert (bench.rows, bench.states) == ([7], [])


async def two_commands_are_one_transaction(bench: JoinBench) -> None:
    """Each has its record, one commit makes both final, and one of them is replayed inside of the same transaction."""
    user = await bench.user()
    await user.begin()
    await _makes(bench, user, "one", 1)
    await _makes(bench, user, "two", 2)
    await _replays(bench, user, "one")
    await user.commit()
    assert (bench.rows, bench.states) == ([1, 2], [State.SUCCEEDED, State.SUCCEEDED])


async def a_savepoint_inside_of_the_block_is_the_users_own(bench: JoinBench) -> None:
    """A rollback to it undoes only its own writes; a release keeps them."""
    user = await bench.user()

    async def undone() -> None:
        async with user.savepoint():
            await user.insert(7)
            raise Failed

    await user.begin()
    async with bench.join(user.target, bench.command()) as once:
        assert isinstance(await _catch(undone()), Failed)
        async with user.savepoint():
            await user.insert()
        once.answer = OK
    await user.commit()
    assert (bench.rows, bench.states) == ([1], [State.SUCCEEDED])


async def a_join_inside_of_a_savepoint_is_refused(bench: JoinBench) -> None:
    """A rollback to the savepoint would remove the record, and the command would run again."""
    user = await bench.user()
    await user.begin()
    if bench.subject.joins_begun:
        await user.insert(7)

    async def joins() -> None:
        async with user.savepoint():
            await _never(bench, user.target)

    assert isinstance(await _catch(joins()), JoinRefused)
    await user.commit()
    assert (bench.rows, bench.states) == ([7] if bench.subject.joins_begun else [], [])


async def a_savepoint_that_is_open_at_the_end_takes_nothing_back(bench: JoinBench) -> None:
    """The block refuses to settle after it, or releases it, so that no rollback to it can undo only the writes."""
    user = await bench.user()
    is_refused = bench.subject.open_savepoint == "refused"
    left_open: list[Any] = []

    async def leaves_it_open() -> None:
        async with bench.join(user.target, bench.command()) as once:
            left_open.append(user.savepoint())
            await left_open[0].__aenter__()
            await user.insert()
            once.answer = OK

    await user.begin()
    if is_refused:
        error = await _catch(leaves_it_open())
        assert isinstance(error, JoinRefused), error
        assert "still open" in str(error)
        with suppress(Exception):  # libraries may raise differently at the end of the savepoint
            await left_open[0].__aexit__(Failed, Failed(), None)
        await user.rollback()
    else:
        await leaves_it_open()
        assert isinstance(await _catch(user.execute("ROLLBACK TO SAVEPOINT mine")), Exception)
        with suppress(Exception):  # the block's own end raises it, too
            await left_open[0].__aexit__(None, None, None)
        await user.commit()
    assert (bench.rows, bench.states) == (([], []) if is_refused else ([1], [State.SUCCEEDED]))


async def without_a_transaction_it_is_refused(bench: JoinBench) -> None:
    """A connection with autocommit would commit the record alone."""
    user = await bench.user()
    assert isinstance(await _catch(_never(bench, user.target)), JoinRefused)
    assert (bench.rows, bench.states) == ([], [])


async def another_database_is_refused(bench: JoinBench) -> None:
    """Record and writes would be two commits. The user's transaction continues."""
    stranger = bench.subject.elsewhere()
    if stranger is None:
        return
    user = await bench.user(stranger)
    await user.begin()
    assert isinstance(await _catch(_never(bench, user.target)), JoinRefused)
    await user.execute("SELECT 1")
    await user.rollback()
    assert bench.states == []


async def what_is_no_connection_is_refused(bench: JoinBench) -> None:
    """The error says what can be joined."""
    for thing in (None, "a text", object(), asyncio):
        assert isinstance(await _catch(_never(bench, thing)), JoinRefused)


async def a_command_that_is_not_atomic_is_refused(bench: JoinBench) -> None:
    """After an early commit, any other command would run again."""
    user = await bench.user()
    await user.begin()
    for effects in ("external", "idempotent"):
        command = bench.command(policy=Policy.of(effects=effects))
        assert isinstance(await _catch(_never(bench, user.target, command)), PolicyError)
    await user.rollback()
    assert bench.states == []


async def an_early_commit_is_told_and_unknown(bench: JoinBench) -> None:
    """A record that is visible without its answer never runs again."""
    user = await bench.user()

    async def commits() -> None:
        async with bench.join(user.target, bench.command()) as once:
            await user.insert()
            await user.commit()
            once.answer = OK

    await user.begin()
    assert isinstance(await _catch(commits()), EarlyCommit)
    if user.autobegins:
        await user.rollback()
    await user.begin()
    error = await _catch(_never(bench, user.target))
    assert isinstance(error, OutcomeUnknownError), error
    assert "committed-early" in str(error)
    await user.rollback()
    assert (bench.rows, bench.states) == ([1], [State.UNKNOWN])


async def an_early_rollback_is_told_and_leaves_no_record(bench: JoinBench) -> None:
    """Also if another transaction has begun since, and is committed against the advice."""
    user = await bench.user()

    async def rolls_back(*, again: bool) -> None:
        async with bench.join(user.target, bench.command()) as once:
            await user.insert(1)
            await user.rollback()
            if again:
                await user.begin()
                await user.insert(2)
            once.answer = OK

    for again in (False, True):
        await user.begin()
        error = await _catch(rolls_back(again=again))
        assert isinstance(error, (SupersededError, StoreUnavailable)), error
        with suppress(Exception):
            await user.commit()
        if user.autobegins:
            await user.rollback()
        assert (1 in bench.rows, bench.states) == (False, [])
    await user.begin()
    await _makes(bench, user, n=3)
    await user.commit()
    assert (bench.rows[-1], bench.states) == (3, [State.SUCCEEDED])


async def a_statement_error_that_is_swallowed_commits_nothing(bench: JoinBench) -> None:
    """If an error fails the transaction, the block raises, and no join begins in a failed transaction."""
    user = await bench.user()

    async def swallows() -> None:
        async with bench.join(user.target, bench.command()) as once:
            await user.insert()
            assert isinstance(await _catch(user.execute("SELECT 1/0")), Exception)
            once.answer = OK

    await user.begin()
    assert isinstance(await _catch(swallows()), StoreUnavailable)
    with suppress(Exception):
        await user.commit()  # against the advice
    if user.autobegins:
        await user.rollback()
    assert (bench.rows, bench.states) == ([], [])
    await user.begin()
    assert isinstance(await _catch(user.execute("SELECT 1/0")), Exception)
    assert isinstance(await _catch(_never(bench, user.target)), SemelError)
    await user.rollback()
    await user.begin()
    await _makes(bench, user)
    await user.commit()
    assert (bench.rows, bench.states) == ([1], [State.SUCCEEDED])


async def a_command_that_runs_elsewhere_is_not_entered(bench: JoinBench) -> None:
    """The join reports it without a long wait, and the user continues."""
    user = await bench.user()
    tells = bench.subject.tells_running

    async def meanwhile() -> None:
        await user.begin()
        error = await _catch(_never(bench, user.target))
        assert isinstance(error, InProgressError if tells else StoreUnavailable), error
        if tells:
            await user.insert(2)
            await user.commit()
            assert bench.rows == [2]
        else:
            await user.rollback()

    await bench.run_elsewhere(meanwhile, OK)
    assert (bench.rows, bench.states) == ([2] if tells else [], [State.SUCCEEDED])
    await user.begin()
    await _replays(bench, user)
    await user.rollback()


async def one_of_many_at_once_wins(bench: JoinBench) -> None:
    """Several transactions with one key have one effect; all others get "in progress" or the answer."""
    users = [await bench.user() for _ in range(bench.subject.users_max)]

    async def attempt(user: JoinUser) -> str:
        await user.begin()
        try:
            async with bench.join(user.target, bench.command()) as once:
                if not once.replayed:
                    await user.insert()
                    await asyncio.sleep(0)
                    once.answer = OK
            await user.commit()
        except (InProgressError, StoreUnavailable):
            await user.rollback()
            return "refused"
        return "replayed" if once.replayed else "made"

    met = await asyncio.gather(*[attempt(user) for user in users])
    assert met.count("made") == 1, met
    assert (bench.rows, bench.states) == ([1], [State.SUCCEEDED])


async def a_read_only_transaction_replays_and_runs_nothing(bench: JoinBench) -> None:
    """A stored answer is replayed; a new command is refused before its handler."""
    assert bench.subject.read_only is not None
    user = await bench.user()
    await user.begin()
    await _makes(bench, user)
    await user.commit()
    await user.begin()
    await user.execute(bench.subject.read_only)
    await _replays(bench, user)
    await user.rollback()
    await user.begin()
    await user.execute(bench.subject.read_only)
    assert isinstance(await _catch(_never(bench, user.target, bench.command("new"))), StoreReadOnly)
    await user.rollback()
    assert (bench.rows, bench.states) == ([1], [State.SUCCEEDED])


async def an_answer_that_was_not_set_is_an_empty_one(bench: JoinBench) -> None:
    """The record says that the command was done."""
    user = await bench.user()
    for replayed in (False, True):
        await user.begin()
        async with bench.join(user.target, bench.command()) as once:
            assert once.replayed is replayed
        assert once.answer == Answer(None, (), b"")
        await user.commit()


ALL: Final = (
    the_users_commit_makes_the_record_and_the_writes_final,
    without_the_users_commit_nothing_remains_and_the_key_is_free,
    a_transaction_that_has_read_and_written_is_joined,
    a_transaction_that_has_written_is_refused_untouched,
    two_commands_are_one_transaction,
    a_savepoint_inside_of_the_block_is_the_users_own,
    a_join_inside_of_a_savepoint_is_refused,
    a_savepoint_that_is_open_at_the_end_takes_nothing_back,
    without_a_transaction_it_is_refused,
    another_database_is_refused,
    what_is_no_connection_is_refused,
    a_command_that_is_not_atomic_is_refused,
    an_early_commit_is_told_and_unknown,
    an_early_rollback_is_told_and_leaves_no_record,
    a_statement_error_that_is_swallowed_commits_nothing,
    a_command_that_runs_elsewhere_is_not_entered,
    one_of_many_at_once_wins,
    a_read_only_transaction_replays_and_runs_nothing,
    an_answer_that_was_not_set_is_an_empty_one,
)
NEEDS: Final[Mapping[str, Callable[[type[JoinSubject]], bool]]] = {
    "a_transaction_that_has_read_and_written_is_joined": lambda subject: subject.joins_begun,
    "a_transaction_that_has_written_is_refused_untouched": lambda subject: not subject.joins_begun,
    "two_commands_are_one_transaction": lambda subject: subject.joins_begun,
    "a_join_inside_of_a_savepoint_is_refused": lambda subject: subject.sees_savepoints,
    "without_a_transaction_it_is_refused": lambda subject: subject.needs_block,
    "a_statement_error_that_is_swallowed_commits_nothing": lambda subject: subject.errors_doom,
    "one_of_many_at_once_wins": lambda subject: subject.users_max > 1,
    "a_read_only_transaction_replays_and_runs_nothing": lambda subject: subject.read_only is not None,
}
"""What a subject declares for a case to concern it."""
