"""What is particular to units on MariaDB; what all databases have in common is in ``semel.testing.units``."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import closing

import asyncmy.errors
import pymysql
import pytest

from semel import Answer, Permit
from semel.core.model import State
from semel.errors import EarlyCommit, OutcomeUnknownError, StoreError, StoreUnavailable
from semel.testing.attempts import settlement
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import (
    ATOMIC,
    INSERT,
    PLAIN,
    WHAT,
    Fellow,
    Handler,
    Outside,
    Writes,
    insert_and_answer,
    never,
    plain,
)
from tests.servers.mariadb import MARK, connect
from tests.servers.relay import Relay

pytestmark = MARK

REFUSED = Answer(409, (), b"out of stock")
MakeFellow = Callable[..., Fellow]
DATABASE_ERRORS = (pymysql.MySQLError, asyncmy.errors.MySQLError)


class Failed(Exception):
    """The handler gives up."""


# --- what a handler may do by habit, and what it must not ---


async def _commits(db: Writes) -> None:
    await db.insert()
    await db.say("commit")
    await db.say("begin")
    await db.say("commit")


async def _swallows_an_error(db: Writes) -> None:
    await db.insert()
    with pytest.raises(DATABASE_ERRORS):
        await db.insert()


@pytest.mark.parametrize("habit", [_commits, _swallows_an_error])
def test_a_handlers_commit_or_rollback_does_not_end_the_unit(
    fellow: Fellow, outside: Outside, habit: Callable[[Writes], Awaitable[None]]
) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await habit(db)
        assert (outside.rows(), outside.states) == ([], [])
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


@pytest.mark.parametrize("word", ["COMMIT", "BEGIN", "CREATE OR REPLACE TABLE theirs (n int)", "SET autocommit = 1"])
def test_an_early_commit_is_reported_and_unknown(fellow: Fellow, outside: Outside, word: str) -> None:
    """DDL and BEGIN commit by themselves."""

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await db.execute(word)
        await db.say("commit")  # sets no savepoint in a transaction that is not the unit's
        return MADE

    with pytest.raises(EarlyCommit):
        fellow.run(WHAT, handler)
    assert (outside.rows(), outside.states) == ([1], [State.UNKNOWN])
    with pytest.raises(OutcomeUnknownError):
        fellow.run(WHAT, never)
    assert fellow.run(command("next", policy=ATOMIC), _inserts(2)).answer == MADE  # the connection is sound, or gone


def _inserts(n: int) -> Handler:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert(n)
        return MADE

    return handler


def test_a_rollback_in_sql_is_reported_and_leaves_nothing(fellow: Fellow, outside: Outside) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await db.execute("ROLLBACK")
        await db.insert(2)
        return MADE

    with pytest.raises(StoreUnavailable):
        fellow.run(WHAT, handler)
    assert (outside.rows(), outside.states) == ([], [])
    assert fellow.run(WHAT, insert_and_answer).answer == MADE


def test_an_open_unit_does_not_delay_other_claims(fellow: Fellow, outside: Outside) -> None:
    """One batch with the unit's own key in the middle: the others are granted, it is in progress."""
    names = ["a", "k", "c", "d", "e"]

    async def handler(permit: Permit, db: Writes) -> Answer:
        store = fellow.backend.store
        claims = [fellow.engine.core.attempt(command(name, policy=ATOMIC if name == "k" else None)) for name in names]
        done = threading.Thread(target=lambda: verdicts.extend(fellow.backend.driver.run(lambda: store.claim(claims))))
        done.start()
        done.join(20)
        return MADE

    verdicts: list[object] = []
    fellow.run(WHAT, handler)
    assert [type(verdict).__name__ for verdict in verdicts] == ["Proceed", "InProgress", *["Proceed"] * 3]


# --- conflicts ---


async def _fails(permit: Permit, db: Writes) -> Answer:
    raise Failed


def test_a_deadlock_is_run_again(make_fellow: MakeFellow, outside: Outside) -> None:
    outside.fetch("INSERT INTO effect VALUES (1), (2)")
    one, other = make_fellow(), make_fellow()
    meet = threading.Barrier(2, timeout=20)
    runs: list[str] = []

    def locks(first: int, second: int, name: str) -> Handler:
        async def handler(permit: Permit, db: Writes) -> Answer:
            runs.append(name)
            await db.execute(f"SELECT n FROM effect WHERE n = {first} FOR UPDATE")
            if runs.count(name) == 1:
                meet.wait()
            await db.execute(f"SELECT n FROM effect WHERE n = {second} FOR UPDATE")
            await db.insert(10 * first)
            return MADE

        return handler

    thread = threading.Thread(target=lambda: other.run(command("b", policy=ATOMIC), locks(2, 1, "other")))
    thread.start()
    assert one.run(command("a", policy=ATOMIC), locks(1, 2, "one")).answer == MADE
    thread.join(20)
    assert len(runs) == 3  # one of them was the victim, once
    assert outside.rows() == [1, 2, 10, 20]


def test_a_deadlock_that_is_swallowed_commits_nothing(fellow: Fellow, outside: Outside) -> None:
    """The server has rolled everything back, the claim too; what is written after that must not stand alone."""
    outside.fetch("INSERT INTO effect VALUES (1), (2)")
    server = fellow.backend.driver.server
    theirs = connect(server.port, database=server.database)
    cursor = theirs.cursor()
    cursor.execute("BEGIN")
    cursor.execute("UPDATE effect SET n = 20 WHERE n = 2")  # the heavier one: it is not the victim
    cursor.execute("INSERT INTO effect VALUES (30), (31), (32), (33), (34), (35), (36)")

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.execute("SELECT n FROM effect WHERE n = 1 FOR UPDATE")
        thread = threading.Thread(target=lambda: cursor.execute("SELECT n FROM effect WHERE n = 1 FOR UPDATE"))
        thread.start()
        try:
            await db.execute("SELECT n FROM effect WHERE n = 2 FOR UPDATE")
        except DATABASE_ERRORS as error:
            seen.append(error.args[0])
        thread.join(20)
        await db.insert(9)
        return MADE

    seen: list[int] = []
    with closing(theirs):
        with pytest.raises(StoreUnavailable):
            fellow.run(WHAT, handler)
        assert seen == [1213]
    assert (outside.rows(), outside.states) == ([1, 2], [])


@pytest.mark.parametrize("when", ["before the settle", "in the handler"])
def test_a_killed_connection_leaves_nothing(fellow: Fellow, outside: Outside, when: str) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        [(id,)] = await db.execute("SELECT CONNECTION_ID()")
        await db.insert()
        outside.fetch(f"KILL {id}")
        if when == "in the handler":
            await db.insert(2)
        return MADE

    with pytest.raises(DATABASE_ERRORS if when == "in the handler" else StoreError):
        fellow.run(WHAT, handler)
    assert (outside.rows(), outside.states) == ([], [])
    assert fellow.run(WHAT, insert_and_answer).answer == MADE
    assert outside.rows() == [1]


def test_idle_connections_that_were_killed_are_replaced_unnoticed(fellow: Fellow, outside: Outside) -> None:
    fellow.run(WHAT, insert_and_answer)
    fellow.run(PLAIN, plain)
    for id in outside.others():
        outside.fetch(f"KILL {id}")
    assert fellow.run(command("next", policy=ATOMIC), _inserts(2)).answer == MADE
    assert fellow.run(command("after"), plain).answer == MADE
    assert outside.rows() == [1, 2]


def test_a_takeover_stays_when_the_handler_rolls_its_own_writes_back(fellow: Fellow, outside: Outside) -> None:
    """The savepoint stands behind all that the claim wrote, also behind a grant that replaced an old record."""

    async def refuses(permit: Permit, db: Writes) -> Answer:
        return Answer(429, (), b"")

    store = fellow.backend.store
    given_up = fellow.engine.core.attempt(WHAT)
    fellow.performs("claim", lambda: store.claim([given_up]))
    assert fellow.performs("abandon", lambda: store.abandon([(given_up.id, given_up.nonce)])) == [True]
    assert outside.states == [State.FAILED_NOT_REPLAYABLE]

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.execute(INSERT.format(7))
        await db.say("rollback")
        await db.insert()
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


# --- round trips, counted on the wire ---


def _words(trips: list[str]) -> list[str]:
    return [_word(text) for text in trips]


def _word(text: str) -> str:
    named = {
        "INSERT INTO semel_record": "claim",
        "UPDATE semel_record": "settle",
        "START TRANSACTION": "begin",
        "SAVEPOINT semel": "savepoint",
        "COMMIT": "commit",
        "INSERT INTO effect": "business",
        "WHERE id IN": "look",
    }
    return " + ".join(sorted(word for part, word in named.items() if part in text)) or text


def test_a_command_costs_what_the_page_says(make_fellow: MakeFellow, relay: Relay) -> None:
    fellow = make_fellow(port=relay.port)
    fellow.run(command("warm"), plain)
    fellow.run(command("warm-atomic", policy=ATOMIC), _inserts(100))
    seen = []
    for what, handler in ((PLAIN, plain), (PLAIN, plain), (WHAT, insert_and_answer), (WHAT, insert_and_answer)):
        relay.trips.clear()
        what = command("counted", policy=what.policy, caller="atomic" if what is WHAT else "plain")
        fellow.run(what, handler)
        seen.append(_words([text for trip in relay.trips for text in trip]))
    claims = fellow.runner is None  # an event loop's engine looks where it knows of an answer
    assert seen == [
        ["begin + claim + commit", "settle"],
        ["begin + claim + commit"] if claims else ["look"],
        ["begin + claim + savepoint", "business", "commit + savepoint + settle"],
        ["begin + claim + savepoint", "ROLLBACK"] if claims else ["look"],
    ]


def test_a_batch_is_one_round_trip_and_one_commit(make_fellow: MakeFellow, relay: Relay) -> None:
    fellow = make_fellow(port=relay.port)
    fellow.run(PLAIN, plain)
    store = fellow.backend.store
    claims = [fellow.engine.core.attempt(command(f"batch-{number}")) for number in range(40)]
    relay.trips.clear()
    verdicts = fellow.performs("claim", lambda: store.claim(claims))
    assert {type(verdict).__name__ for verdict in verdicts} == {"Proceed"}
    [[text]] = relay.trips
    assert (text.count("INSERT INTO semel_record"), text.count("COMMIT")) == (1, 1)
    relay.trips.clear()
    replies = fellow.performs("settle", lambda: store.settle([settlement(each.grant) for each in verdicts]))
    assert {type(reply).__name__ for reply in replies} == {"Settled"}
    [[text]] = relay.trips
    assert (text.count("UPDATE semel_record"), text.count("COMMIT")) == (1, 1)
