"""The claims and answers of one tick on SQLite: written together where each is as usual, else each by its own rules."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from semel.core.model import (
    AlreadyMine,
    Answer,
    Claim,
    Grant,
    InProgress,
    KeyReused,
    Proceed,
    Record,
    Replay,
    Settled,
    Settlement,
    State,
    Superseded,
)
from semel.errors import SchemaError, StoreError, StoreTimeout, StoreUnavailable
from semel.policy import Policy
from semel.quota import Quota
from semel.stores.backend import Backend
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore
from semel.stores.sqlite.connection import open_connection
from semel.testing.attempts import IDEMPOTENT, OK, attempt, settlement
from semel.testing.clock import SettableClock
from semel.testing.faults import KINDS, Crash, Fault, Faults, Kind, When, every_fault, faulty_sqlite
from tests.engine.drivers import sqlite
from tests.servers.files import migrated_file


class Tick:
    """A store on SQLite whose asks are recorded, and requests that come to it in one tick of one loop.

    Parameters: ``slow`` whether commits are believed to be slow, so that a thread makes them; else the loop does.
    """

    def __init__(self, path: Path, *, before: Callable[[str], None] | None = None, slow: bool = False) -> None:
        if not path.exists():
            migrated_file(path)
        self.path = path
        self.slow = slow
        self.clock = SettableClock()
        self.said: list[str] = []
        self.before = before

        def note_statement(name: str) -> None:
            self.said.append(name)
            if self.before is not None:
                self.before(name)

        self.backend = sqlite(path, self.clock, before=note_statement)
        self.driver = self.backend.driver
        self.store = self.backend.store
        self.driver.run(lambda: self.store.migrate("store", b"none"))  # opens the writer: the loop commits from now on

    def ask(self, request: Claim | Settlement) -> Awaitable[Any]:
        return ask(self.backend, request)

    def at_once(self, *requests: Claim | Settlement, looks: bool = False) -> list[Any]:
        """The replies, or errors, to requests of one tick."""
        self.said.clear()
        self.driver._commit_seconds = 1.0 if self.slow else 0.0  # however slow this machine is

        async def main() -> list[Any]:
            return await gather_replies(self.backend, requests, looks=looks)

        return asyncio.run(main())

    def grant(self, key: str, **options: Any) -> Grant:
        [verdict] = self.at_once(attempt(key, **options))
        assert isinstance(verdict, Proceed)
        return verdict.grant

    def rows(self, *keys: str) -> list[Record | None]:
        rows: list[Record | None] = self.driver.run(lambda: self.store.read([attempt(key).id for key in keys]))
        return rows

    def close(self) -> None:
        self.driver.close()


def ask(backend: Backend, request: Claim | Settlement, *, looks: bool = False) -> Awaitable[Any]:
    claims = backend.store.claim if looks else backend.claim_unseen
    verb: Any = claims if isinstance(request, Claim) else backend.store.settle
    reply: Awaitable[Any] = backend.driver.ask_one("claim" if isinstance(request, Claim) else "settle", verb, request)
    return reply


async def gather_replies(backend: Backend, requests: Sequence[Claim | Settlement], *, looks: bool = False) -> list[Any]:
    """The replies, or errors, to tasks that ask in one tick. Claims that ``looks`` have not been looked for before."""

    async def ask_one(request: Claim | Settlement) -> Any:
        return await ask(backend, request, looks=looks)

    return list(await asyncio.gather(*map(ask_one, requests), return_exceptions=True))


@pytest.fixture(params=[False, True], ids=["served by the loop", "served by the thread"])
def tick(request: pytest.FixtureRequest, tmp_path: Path) -> Tick:
    return Tick(tmp_path / "semel.db", slow=request.param)


# --- as usual: one statement for each verb ---


def test_a_tick_is_one_statement_for_each_verb(tick: Tick) -> None:
    first = [attempt(f"a{n}") for n in range(20)]
    verdicts = tick.at_once(*first)
    assert tick.said == ["BEGIN", "now", "insert_claim", "COMMIT"]
    assert {type(verdict) for verdict in verdicts} == {Proceed}
    settlements = [settlement(verdict.grant) for verdict in verdicts]
    replies = tick.at_once(*settlements, *(attempt(f"b{n}") for n in range(20)))
    assert tick.said == ["BEGIN", "now", "settle_answered", "now", "insert_claim", "COMMIT"]
    assert replies[:20] == [Settled()] * 20
    assert {type(reply) for reply in replies[20:]} == {Proceed}
    assert {row.state for row in tick.rows(*(f"a{n}" for n in range(20))) if row} == {State.SUCCEEDED}
    tick.close()


def test_claims_without_a_look_are_written_together(tick: Tick) -> None:
    """An engine with an observer claims at once: each claim looks first, and those of new keys are one statement."""
    grant = tick.grant("done")
    tick.at_once(settlement(grant))
    given_back = tick.grant("given back", policy=IDEMPOTENT)
    tick.at_once(settlement(given_back, State.PROCESSING, doubt="error"))
    claims = [attempt(key, nonce=2, policy=IDEMPOTENT) for key in ("a", "done", "b", "given back", "c")]

    replies = tick.at_once(*claims, looks=True)
    assert [type(reply) for reply in replies] == [Proceed, Replay, Proceed, Proceed, Proceed]
    assert replies[3].grant.attempt == 2
    assert (tick.said.count("BEGIN"), tick.said.count("COMMIT")) == (1, 1)
    written = tick.said[tick.said.index("BEGIN") :]
    # One statement for the new keys; the record that is taken over is met by its own claim.
    takes_over = ["insert_claim", "read_record", "write_record"]
    assert [name for name in written if name != "now"] == ["BEGIN", "insert_claim", *takes_over, "COMMIT"]
    tick.close()


def test_a_single_request_takes_as_many_statements_as_a_tick(tick: Tick) -> None:
    grant = tick.grant("k")
    assert tick.said == ["BEGIN", "now", "insert_claim", "COMMIT"]
    assert tick.at_once(settlement(grant)) == [Settled()]
    assert tick.said == ["BEGIN", "now", "settle_answered", "COMMIT"]
    tick.close()


@pytest.mark.parametrize(
    "last",
    [
        lambda grant: settlement(grant, State.UNKNOWN, doubt="error"),
        lambda grant: settlement(grant, State.PROCESSING, doubt="error"),
        lambda grant: settlement(grant, State.FAILED_NOT_REPLAYABLE),
        lambda grant: settlement(grant, kept=False),
        lambda grant: settlement(grant)._replace(resource_type="payment", resource_id="1"),
    ],
    ids=["unknown", "given back", "nothing happened", "not kept", "with a resource"],
)
def test_unusual_requests_are_written_separately(tick: Tick, last: Callable[[Grant], Settlement]) -> None:
    usual, other = tick.grant("usual"), tick.grant("other", policy=IDEMPOTENT)
    assert tick.at_once(settlement(usual), last(other)) == [Settled(), Settled()]
    assert tick.said[tick.said.index("BEGIN") :][:3] == ["BEGIN", "now", "settle_answered"]
    assert (tick.said.count("BEGIN"), tick.said.count("COMMIT")) == (1, 1)
    [row] = tick.rows("other")
    assert row is not None
    assert (row.state, row.doubt, row.resource_id) == (last(other).state, last(other).doubt, last(other).resource_id)
    tick.close()


def test_counted_keys_are_written_separately(tick: Tick) -> None:
    allowance = Quota(new_keys=1, per_seconds=60).allowance(bytes(16), "alice", atomic=False)
    counted = [attempt(f"c{n}", nonce=n)._replace(quota=allowance) for n in range(2)]
    replies = tick.at_once(attempt("free"), *counted)
    assert [type(reply).__name__ for reply in replies] == ["Proceed", "Proceed", "QuotaExceeded"]
    tick.close()


# --- conflicts ---


def test_two_claims_of_one_key_in_a_tick(tick: Tick) -> None:
    replies = tick.at_once(attempt("k", nonce=1), attempt("k", nonce=2), attempt("k", nonce=3, request=1), attempt("o"))
    assert [type(reply) for reply in replies] == [Proceed, InProgress, KeyReused, Proceed]
    assert (tick.said.count("BEGIN"), tick.said.count("COMMIT")) == (1, 1)
    tick.close()


def test_the_same_claim_twice_in_a_tick_is_read_back(tick: Tick) -> None:
    first, second = tick.at_once(attempt("k"), attempt("k"))
    assert first == second
    tick.close()


def test_a_key_that_was_taken_meanwhile(tick: Tick) -> None:
    """Between the look and the write another process came."""
    done, running = tick.grant("done", nonce=7), tick.grant("running", nonce=7)
    tick.at_once(settlement(done))
    commits = tick.driver.commits
    replies = tick.at_once(attempt("new"), attempt("done"), attempt("running"), attempt("newer"), settlement(running))
    assert [type(reply) for reply in replies] == [Proceed, Replay, InProgress, Proceed, Settled]
    assert tick.said.count("COMMIT") == tick.driver.commits - commits == 1
    tick.close()


def test_a_claim_that_was_written_already_is_read_back(tick: Tick) -> None:
    grant = tick.grant("k")
    assert tick.at_once(attempt("k"), attempt("other"))[0] == Proceed(grant)
    tick.close()


def test_a_stale_fence_in_a_tick(tick: Tick) -> None:
    stale = tick.grant("k", policy=IDEMPOTENT)
    tick.clock.advance(seconds=120)
    again = tick.grant("k", nonce=2, policy=IDEMPOTENT)
    assert again.fence > stale.fence
    other = tick.grant("other")
    assert tick.at_once(settlement(stale, answer=Answer(500, (), b"late")), settlement(other)) == [
        Superseded(State.PROCESSING),
        Settled(),
    ]
    [row, beside] = tick.rows("k", "other")
    assert row is not None
    assert beside is not None
    assert (row.state, row.fence, beside.state) == (State.PROCESSING, again.fence, State.SUCCEEDED)
    assert tick.at_once(settlement(again), settlement(stale)) == [Settled(), Superseded(State.SUCCEEDED)]
    tick.close()


def test_one_settlement_sent_twice_in_a_tick(tick: Tick) -> None:
    grant, other = tick.grant("k"), tick.grant("other")
    assert tick.at_once(settlement(grant), settlement(grant), settlement(other)) == [
        Settled(),
        AlreadyMine(),
        Settled(),
    ]
    assert tick.at_once(settlement(grant), settlement(other, answer=Answer(500, (), b""))) == [
        AlreadyMine(),
        Superseded(State.SUCCEEDED),
    ]
    tick.close()


def test_a_claim_and_the_answer_of_one_key_in_a_tick(tick: Tick) -> None:
    """The answer's holder is another attempt: whichever comes first, the claim runs nothing."""
    grant = tick.grant("k")
    claimed, settled = tick.at_once(attempt("k", nonce=2), settlement(grant))
    assert settled == Settled()
    assert isinstance(claimed, InProgress | Replay)
    tick.close()


def one_request(chance: random.Random, grants: Sequence[Grant]) -> Claim | Settlement:
    key, nonce = f"k{chance.randrange(4)}", chance.randrange(3)
    if not grants or chance.random() < 0.5:
        return attempt(key, nonce=nonce, request=chance.randrange(8) // 7, policy=chance.choice([IDEMPOTENT, Policy()]))
    state = chance.choice([State.SUCCEEDED] * 4 + [State.FAILED_REPLAYABLE, State.UNKNOWN, State.FAILED_NOT_REPLAYABLE])
    last = settlement(
        chance.choice(grants), state, chance.choice([OK, Answer(409, (), b"no")]), kept=chance.random() < 0.8
    )
    return last._replace(fence=last.fence - 1) if chance.random() < 0.1 else last


@pytest.mark.parametrize("seed", range(40))
def test_a_tick_is_some_order_of_its_requests(tick: Tick, seed: int) -> None:
    """On the memory store, one after the other, some order of the same requests gives the same replies and records."""
    chance = random.Random(seed)
    history: list[Claim | Settlement] = []  # what has been said, in an order that explains it
    times: list[int] = []
    grants: list[Grant] = []
    for _ in range(6):
        tick.clock.advance(seconds=chance.choice([0, 1, 1, 120]))
        requests = [one_request(chance, grants) for _ in range(chance.randrange(1, 5))]
        replies = tick.at_once(*requests, looks=chance.random() < 0.5)
        rows = [None if row is None else tuple(row) for row in tick.rows("k0", "k1", "k2", "k3")]
        now = tick.clock()
        for order in permutations(range(len(requests))):
            told = [requests[place] for place in order]
            seen, written = one_by_one([*history, *told], [*times, *[now] * len(told)])
            if (seen[len(history) :], written) == ([replies[place] for place in order], rows):
                break
        else:
            raise AssertionError((requests, replies, rows))
        history += told
        times += [now] * len(told)
        grants += [reply.grant for reply in replies if isinstance(reply, Proceed)]
    tick.close()


def one_by_one(requests: Sequence[Claim | Settlement], times: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """The replies of the memory store, and its records."""
    clock, store = SettableClock(), MemoryStore()
    driver = LocalDriver(clock=clock)
    replies = []
    for request, now in zip(requests, times, strict=True):
        clock.set(now)
        verb: Any = store.claim if isinstance(request, Claim) else store.settle
        replies.append(driver.run(lambda: verb((request,)))[0])  # noqa: B023
    rows = driver.run(lambda: store.read([attempt(f"k{n}").id for n in range(4)]))
    return replies, [None if row is None else tuple(row) for row in rows]


# --- trouble ---


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("injected")
    error.sqlite_errorcode = code
    return error


def test_a_value_that_cannot_be_written_fails_alone(tick: Tick) -> None:
    broken = attempt("broken")._replace(holder="\ud800")
    first, error, second = tick.at_once(attempt("a"), broken, attempt("b"))
    assert isinstance(first, Proceed)
    assert isinstance(second, Proceed)
    assert isinstance(error, UnicodeEncodeError)
    assert tick.rows("broken") == [None]
    tick.close()


def test_a_full_disk_refuses_each_and_writes_nothing(tick: Tick) -> None:
    grant = tick.grant("old")

    def full(name: str) -> None:
        if name in ("insert_claim", "settle_answered"):
            raise sqlite_error(sqlite3.SQLITE_FULL)

    tick.before = full
    replies = tick.at_once(attempt("a"), attempt("b"), settlement(grant))
    assert [type(reply) for reply in replies] == [StoreUnavailable] * 3
    assert all("make room" in str(reply) for reply in replies)
    tick.before = None
    assert tick.at_once(attempt("a"), settlement(grant))[1] == Settled()
    assert tick.rows("b") == [None]
    tick.close()


def test_a_nearly_full_disk_stores_what_fits(tick: Tick) -> None:
    """A group that was too much is tried one by one."""
    failed: list[str] = []

    def full(name: str) -> None:
        if name == "COMMIT" and not failed:
            failed.append(name)
            raise sqlite_error(sqlite3.SQLITE_FULL)

    tick.before = full
    replies = tick.at_once(attempt("a"), attempt("b"), attempt("c"))
    assert [type(reply) for reply in replies] == [Proceed] * 3
    assert tick.said.count("COMMIT") == 4
    tick.close()


def test_a_commit_that_failed_in_the_middle_is_not_known(tick: Tick) -> None:
    """Each repeats its own write; where that fails as well, no caller hears that nothing was written."""

    def tear_commit(name: str) -> None:
        if name == "COMMIT":
            raise sqlite_error(sqlite3.SQLITE_IOERR)

    tick.before = tear_commit
    replies = tick.at_once(attempt("a"), attempt("b"))
    assert [type(reply) for reply in replies] == [StoreTimeout] * 2
    tick.before = None
    assert {type(reply) for reply in tick.at_once(attempt("a"), attempt("b"))} == {Proceed}
    tick.close()


def test_a_commit_that_took_effect_and_failed_is_read_back(tmp_path: Path) -> None:
    migrated_file(tmp_path / "semel.db")
    faults = Faults(Fault(Kind.TIMEOUT, When.AFTER, 4))
    faulty = faulty_sqlite(str(tmp_path / "semel.db"), SettableClock(), faults)

    async def main() -> list[Any]:
        return await gather_replies(faulty.backend, [attempt("a"), attempt("b")])

    first, second = asyncio.run(main())
    assert faults.asks[:4] == ["BEGIN", "now", "insert_claim", "COMMIT"]
    assert [first.grant.id, second.grant.id] == [attempt("a").id, attempt("b").id]
    assert (first.grant.attempt, first.grant.nonce) == (1, attempt("a").nonce)
    faulty.bury()


def test_a_commit_in_doubt_stays_so_where_its_repetition_never_begins(tick: Tick) -> None:
    """The first commit may have written it: "nothing was written" is true of the second try only."""
    grant = tick.grant("old")
    torn: list[str] = []

    def fails(name: str) -> None:
        if name == "COMMIT" and not torn:
            torn.append(name)
            raise sqlite_error(sqlite3.SQLITE_IOERR)
        if name == "BEGIN" and torn:
            raise sqlite_error(sqlite3.SQLITE_CANTOPEN)

    tick.before = fails
    replies = tick.at_once(attempt("a"), settlement(grant))
    assert [type(reply) for reply in replies] == [StoreTimeout] * 2
    assert "failed in the middle" in str(replies[0])
    tick.before = None
    assert [type(reply) for reply in tick.at_once(attempt("a"), settlement(grant))] == [Proceed, Settled]
    tick.close()


@pytest.mark.parametrize("known", [False, True])
def test_an_interrupt_confirms_no_rolled_back_write(known: bool, tick: Tick, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the thread that commits for all callers, after a failed group: each job is written whole or not."""
    tick.grant("known", nonce=7)
    monkeypatch.setattr(tick.driver, "_wake", lambda: None)  # this thread serves, and no other
    loop = asyncio.new_event_loop()
    failed: list[str] = []

    def interrupts(name: str) -> None:
        if name == "COMMIT":
            failed.append(name)
            if len(failed) == 1:
                raise sqlite_error(sqlite3.SQLITE_FULL)
            if len(failed) == 3:
                raise KeyboardInterrupt

    async def queue() -> list[Awaitable[Any]]:
        return [tick.ask(attempt(key)) for key in (("known", "a", "b", "c") if known else ("a", "b", "c", "d"))]

    async def gather_all(asked: Sequence[Awaitable[Any]]) -> list[Any]:
        return list(await asyncio.gather(*asked))

    with closing(loop):
        assert tick.driver._gate.acquire(timeout=5)  # the tick finds it taken
        asked = loop.run_until_complete(queue())
        loop.run_until_complete(asyncio.sleep(0))
        tick.before = interrupts
        with pytest.raises(KeyboardInterrupt):
            tick.driver._serve_group(wait=True)
        loop.run_until_complete(asyncio.sleep(0))
        assert [each.done() for each in asked] == [True, False, False, False]  # type: ignore[attr-defined]
        assert [row is None for row in tick.rows("a")] == [known]
        assert tick.rows("b", "c", "d") == [None] * 3
        tick.before, commits = None, tick.driver.commits
        assert len(tick.driver._queue) == 3  # what was committed is not written again
        assert tick.driver._gate.acquire(timeout=5)
        tick.driver._serve_group(wait=True)
        replies = loop.run_until_complete(gather_all(asked))
    assert [type(reply) for reply in replies] == [InProgress if known else Proceed, *[Proceed] * 3]
    assert tick.driver.commits == commits + 1
    monkeypatch.undo()
    tick.close()


def test_a_file_that_another_process_writes_is_waited_for(tick: Tick) -> None:
    tick.grant("warm")
    with closing(sqlite3.connect(tick.path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")

        def begins(name: str) -> None:  # the loop has been refused once; the writer's thread waits
            if name == "BEGIN" and tick.said.count("BEGIN") == 3:
                other.execute("ROLLBACK")

        tick.before = begins
        replies = tick.at_once(attempt("a"), attempt("b"))
    assert [type(reply) for reply in replies] == [Proceed] * 2
    assert tick.said.count("insert_claim") == 1
    tick.close()


def test_a_deleted_file_refuses_writes(tick: Tick) -> None:
    grant = tick.grant("old")
    os.remove(tick.path)
    replies = tick.at_once(attempt("a"), attempt("b"), settlement(grant))
    assert [type(reply) for reply in replies] == [StoreUnavailable] * 3
    assert not tick.path.exists()
    tick.close()


def test_a_file_without_tables_names_the_remedy(tick: Tick) -> None:
    """With the URL, which only the driver can add on this way."""
    grant = tick.grant("old")
    with closing(sqlite3.connect(tick.path)) as other:
        other.execute("DROP TABLE semel_record")
    for looks in (False, True):
        for error in tick.at_once(attempt("a"), settlement(grant), looks=looks):
            assert isinstance(error, SchemaError)
            assert str(error).endswith(f"no Semel tables; run: semel migrate --url sqlite:///{tick.path}")
    tick.close()


def test_a_cancelled_caller_changes_nothing_for_the_others(tick: Tick) -> None:
    grant = tick.grant("old")

    async def main() -> list[Any]:
        asked = [asyncio.ensure_future(tick.ask(each)) for each in (attempt("a"), settlement(grant), attempt("b"))]
        asked[0].cancel()
        asked[1].cancel()
        return list(await asyncio.gather(*asked, return_exceptions=True))

    claimed, settled, other = asyncio.run(main())
    assert (type(claimed), type(settled)) == (asyncio.CancelledError, asyncio.CancelledError)
    assert isinstance(other, Proceed)
    # A settlement is written although no caller waits for it; a caller that gave its claim up abandons it afterwards.
    [row, old] = tick.rows("a", "old")
    assert row is not None
    assert old is not None
    assert old.state == State.SUCCEEDED
    assert tick.driver.run(lambda: tick.store.abandon(((row.id, row.nonce),))) == [True]
    tick.close()


@pytest.mark.parametrize("commit_seconds", [0.0, 1.0], ids=["served by the loop", "served by the thread"])
@pytest.mark.parametrize(("kind", "when", "once"), KINDS, ids=lambda value: str(getattr(value, "value", value)))
def test_a_tick_happens_whole_or_not_at_all(
    kind: Kind, when: When, once: bool, commit_seconds: float, tmp_path: Path
) -> None:
    """Under every fault each request is written or it is not; who repeats it has it, and no claim is granted twice."""
    template = Tick(tmp_path / "template.db")
    done, open = template.grant("done"), template.grant("open")
    template.at_once(settlement(done))
    template.close()
    requests: list[Claim | Settlement] = [attempt("a"), settlement(open), attempt("done", nonce=2), attempt("b")]
    for fault in every_fault(kind, when, once=once):
        path = tmp_path / f"{fault.n}.db"
        shutil.copyfile(tmp_path / "template.db", path)
        faults = Faults(fault)
        faulty = faulty_sqlite(str(path), SettableClock(), faults)
        inner = faulty.backend.driver.inner
        inner._writer = open_connection(str(path), "OFF")  # else the first tick is the writer thread's
        inner._commit_seconds = commit_seconds

        async def main(backend: Backend = faulty.backend) -> list[Any]:
            return await gather_replies(backend, requests)

        with suppress(Crash):
            replies = asyncio.run(main())
            for reply in replies:
                expected = Proceed | Settled | AlreadyMine | Replay | StoreError | Crash
                assert isinstance(reply, expected), (fault, reply)
        faulty.bury()
        later = Tick(path)
        [first, settled, replayed, second] = later.at_once(*requests)
        assert [type(first), type(replayed), type(second)] == [Proceed, Replay, Proceed], fault
        assert isinstance(settled, Settled | AlreadyMine), fault
        rows = later.rows("a", "b", "open")
        assert [row.nonce for row in rows if row is not None] == [
            attempt("a").nonce,
            attempt("b").nonce,
            attempt("open").nonce,
        ]
        assert [row.attempt for row in rows if row is not None] == [1, 1, 1]
        later.close()
        if faults.clean:
            return
