"""The schedules that break naive designs, by the numbers of the red team's list, on both engines where both can.

Each test is one order of events that once cost somebody a second charge, a lost answer or a stuck key.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy
from semel.drivers.sqlite_connection import COMMIT
from semel.engine import upkeep
from semel.engine.backend import Backend
from semel.errors import (
    EarlyCommit,
    IdentityMismatch,
    InProgressError,
    JoinRefused,
    OutcomeUnknownError,
    RecordUnreadableError,
    StoreTimeout,
    StoreUnavailable,
)
from semel.model import (
    Grant,
    KeyExpired,
    OutcomeUnknown,
    Proceed,
    Replay,
    Resolution,
    Resolved,
    Resolving,
    Settled,
    State,
    Superseded,
    TooEarly,
)
from semel.rules.classify import Released, Succeeded, Unprovable
from semel.stores.memory import MemoryStore
from semel.testing.attempts import bits
from semel.testing.clock import SettableClock
from semel.testing.faults import Fault, Faults, Kind, When, faulty_sqlite
from tests.engine.drivers import LateDelivery, memory, sqlite
from tests.engine.shells import MADE, SCOPE, Ledger, Mode, Shell, command

ATOMIC, IDEMPOTENT = Policy(effects="atomic"), Policy(effects="idempotent")
REFUSED = Answer(409, (), b"out of stock")


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a table of the application's own."""
    with closing(sqlite3.connect(tmp_path / "semel.db")) as connection:
        connection.execute("CREATE TABLE effect (n INTEGER)")
    return tmp_path / "semel.db"


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> Mode:
    given: Mode = request.param
    return given


@pytest.fixture
def shell(mode: Mode, file: Path, clock: SettableClock) -> Iterator[Shell]:
    """An engine on SQLite."""
    made = Shell(mode, sqlite(file, clock))
    made.open()
    yield made
    made.close()


def effects(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        [[count]] = connection.execute("SELECT count(*) FROM effect").fetchall()
    return int(count)


def migrated(file: Path, clock: SettableClock) -> None:
    engine = Engine(sqlite(file, clock))
    engine.migrate()
    engine.close()


def writes_effect(permit: Permit) -> Answer:
    permit.connection.execute("INSERT INTO effect VALUES (1)")
    return MADE


def never(permit: Permit) -> Answer:
    raise AssertionError("this must not run")


def resolve(shell: Shell, grant: Grant, *, happened: bool, forced: bool = False) -> Resolving:
    resolution = Resolution(grant.id, grant.fence, happened, MADE if happened else None, "olga", "asked", forced)
    reply: Resolving = shell.perform("resolve", lambda: shell.engine.store.resolve(resolution))
    return reply


# --- 1.1, 1.2: no blind rerun ---


def test_1_1_a_process_killed_after_its_effect(shell: Shell, clock: SettableClock) -> None:
    """The claim of a handler that starts at once says so durably: a lapse is UNKNOWN, never "nothing started"."""
    shell.permit(command())
    row = shell.row(command())
    assert row is not None
    assert row.state == State.PROCESSING  # before the handler's first line
    clock.advance(seconds=31)
    with pytest.raises(OutcomeUnknownError):
        shell.run(command(), never)


def test_1_2_a_timeout_of_the_provider_releases_nothing(shell: Shell) -> None:
    """A handler without steps that raises after its call: nobody knows, so nobody runs it again."""

    def handler(permit: Permit) -> Answer:
        raise TimeoutError("the provider did not answer")

    with pytest.raises(TimeoutError):
        shell.run(command(), handler)
    with pytest.raises(OutcomeUnknownError, match="error:TimeoutError"):
        shell.run(command(), never)


# --- 1.3: the early commit ---


def test_1_3_a_handlers_commit_by_habit_commits_nothing(shell: Shell, file: Path) -> None:
    """Where Semel opened the transaction, commit() keeps what was written inside it, and no more."""

    def handler(permit: Permit) -> Answer:
        permit.connection.execute("INSERT INTO effect VALUES (1)")
        permit.connection.commit()
        assert effects(file) == 0
        raise ValueError("after the commit")

    with pytest.raises(ValueError, match="after the commit"):
        shell.run(command(policy=ATOMIC), handler)
    assert effects(file) == 0
    assert shell.row(command(policy=ATOMIC)) is None
    assert shell.run(command(policy=ATOMIC), writes_effect).answer == MADE
    assert effects(file) == 1


def test_1_3_a_commit_as_sql_is_refused(shell: Shell, file: Path) -> None:
    def handler(permit: Permit) -> Answer:
        permit.connection.execute("INSERT INTO effect VALUES (1)")
        permit.connection.execute("COMMIT")
        return MADE

    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        shell.run(command(policy=ATOMIC), handler)
    assert effects(file) == 0


def test_1_3_a_visible_record_without_an_answer_is_the_evidence(file: Path, clock: SettableClock) -> None:
    """The user's own transaction, committed in the middle, then SIGKILL: UNKNOWN, never Proceed."""
    what = command(policy=ATOMIC)
    migrated(file, clock)
    with Engine(sqlite(file, clock)) as engine:
        with closing(sqlite3.connect(file)) as connection:
            block = engine.atomic(connection, what)
            block.__enter__()
            connection.execute("INSERT INTO effect VALUES (1)")
            connection.commit()  # by habit; and then the process is gone
        clock.advance(seconds=31)
        assert effects(file) == 1
        with pytest.raises(OutcomeUnknownError, match="committed-early"):
            engine.run(what, never)


def test_1_3_an_early_commit_is_seen_at_the_end_of_the_block(file: Path, clock: SettableClock) -> None:
    """The process lives: the settle looks from outside, refuses to pretend, and says UNKNOWN at once."""
    what = command(policy=ATOMIC)
    engine = Engine(sqlite(file, clock))
    engine.migrate()
    with engine, closing(sqlite3.connect(file)) as connection:

        def writes_and_commits() -> None:
            with engine.atomic(connection, what):
                connection.execute("INSERT INTO effect VALUES (1)")
                connection.commit()

        with pytest.raises(EarlyCommit):
            writes_and_commits()
        connection.rollback()
        with pytest.raises(OutcomeUnknownError, match="committed-early"):
            engine.run(what, never)


# --- 1.4, 1.6: what may follow a settle ---


def test_1_4_a_settle_that_does_not_stand_is_not_followed_by_a_commit(shell: Shell, file: Path) -> None:
    """The claim row is not this grant's any more: no row is settled, and nothing of the handler remains."""

    def handler(permit: Permit) -> Answer:
        permit.connection.execute("INSERT INTO effect VALUES (1)")
        permit.connection.execute("UPDATE semel_record SET fence = fence + 1")
        return MADE

    with pytest.raises(InProgressError):  # keep the key and ask again: there is no answer, and nothing happened
        shell.run(command(policy=ATOMIC), handler)
    assert effects(file) == 0
    assert shell.row(command(policy=ATOMIC)) is None
    assert shell.run(command(policy=ATOMIC), writes_effect).answer == MADE


def test_1_6_a_refusal_whose_row_was_rolled_back_sends_the_others_answer(file: Path, clock: SettableClock) -> None:
    """A refuses and rolls back; before it stores its refusal, B (another process) commits 201. A sends B's 201."""
    what = command(policy=ATOMIC)
    begins = 0

    def interfering(name: str) -> None:
        nonlocal begins
        begins += name == "BEGIN"
        if name == "BEGIN" and begins == 2:  # A's second transaction: the one of its refusal
            other = Engine(sqlite(file, clock))
            with other:
                assert not other.run(what, writes_effect).replayed

    migrated(file, clock)
    with Engine(sqlite(file, clock, before=interfering)) as engine:

        def refuses(permit: Permit) -> Answer:
            permit.connection.execute("INSERT INTO effect VALUES (2)")
            return REFUSED

        result = engine.run(what, refuses)
        assert (result.answer, result.replayed) == (MADE, True)
        assert effects(file) == 1
        assert engine.run(what, never).answer == MADE


def test_1_6_a_refusal_alone_is_stored_without_its_writes(shell: Shell, file: Path) -> None:
    def refuses(permit: Permit) -> Answer:
        permit.connection.execute("INSERT INTO effect VALUES (2)")
        return REFUSED

    assert shell.run(command(policy=ATOMIC), refuses).answer == REFUSED
    assert effects(file) == 0
    assert shell.run(command(policy=ATOMIC), never).replayed


# --- 1.9: not known yet ---


def commit_number(n: int) -> Faults:
    """The reply of the n-th COMMIT is lost; the commit stands."""

    class LostReply(Faults):
        def _hits(self, needed: object) -> When | None:
            super()._hits(needed)  # type: ignore[arg-type]
            return When.AFTER if needed is COMMIT and self.asks.count("COMMIT") == n else None

    return LostReply(Fault(Kind.TIMEOUT, When.AFTER, n))


def test_1_9_a_lost_reply_of_the_atomic_commit_is_read_from_the_record(
    mode: Mode, file: Path, clock: SettableClock
) -> None:
    migrated(file, clock)
    faults = commit_number(1)
    faulty = faulty_sqlite(str(file), clock, faults)
    shell = Shell(mode, faulty.backend)
    result = shell.run(command(policy=ATOMIC), writes_effect)
    assert (result.answer, effects(file), faults.struck) == (MADE, 1, True)
    shell.close()


def test_1_9_a_claims_lost_reply_leaves_no_claim_without_an_owner(mode: Mode, file: Path, clock: SettableClock) -> None:
    """It was written and the caller told "not known yet": it is released by its nonce, not left to be UNKNOWN."""
    migrated(file, clock)
    faulty = faulty_sqlite(str(file), clock, commit_number(1))
    shell = Shell(mode, faulty.backend)
    with pytest.raises(StoreTimeout):
        shell.run(command(), never)
    shell.close()  # waits for the release
    after = Shell(mode, sqlite(file, clock))
    after.reap()
    assert after.run(command(), lambda permit: MADE).answer == MADE
    after.close()


def test_1_9_b_a_settlements_lost_reply_is_recognised_when_repeated(
    mode: Mode, file: Path, clock: SettableClock
) -> None:
    """The second settlement changes no row: that is "already mine", not "somebody else's"."""
    migrated(file, clock)
    faults = commit_number(2)
    faulty = faulty_sqlite(str(file), clock, faults)
    shell = Shell(mode, faulty.backend)
    result = shell.run(command(), lambda permit: MADE)
    assert (result.answer, result.replayed, faults.struck) == (MADE, False, True)
    assert faults.asks.count("settle") == 2
    shell.close()


def test_1_9_c_a_claim_that_lands_after_it_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The release is repeated until the claim is seen: the late one is released too, and the key is free."""
    monkeypatch.setattr(upkeep, "ABANDON_EVERY_SECONDS", 0)

    async def scenario() -> None:
        driver = LateDelivery()
        engine = AsyncEngine(Backend("late", MemoryStore(), driver))
        engine.core.checked = True  # nothing is delivered in time here, also not what the store says of itself
        with pytest.raises(StoreTimeout):
            await engine.claim(command())
        for _ in range(20):
            await asyncio.sleep(0)
        assert driver.calls > 2  # released again and again, and not there yet
        [verdict] = driver.deliver()
        assert isinstance(verdict, Proceed)
        await engine.close()  # waits until it was seen
        [row] = driver.inner._table.records.values()
        assert (row.state, row.doubt) == (State.FAILED_NOT_REPLAYABLE, "abandoned")
        assert isinstance(await engine.claim(command()), Permit)

    asyncio.run(scenario())


# --- 1.10, 1.11: a lapse destroys nothing, and a hung handler blocks nothing for ever ---


def test_1_10_a_holder_that_was_late_may_settle(shell: Shell, clock: SettableClock) -> None:
    """Heartbeat lost, record visible as UNKNOWN, a retry told so; then the holder returns with the truth."""
    permit = shell.permit(command())
    clock.advance(seconds=31)
    assert [row.doubt for row in shell.reap()] == ["lapsed"]
    assert isinstance(shell.claim(command()), OutcomeUnknown)
    assert shell.settle(permit) == Settled()
    assert isinstance(shell.claim(command()), Replay)


def test_1_10_only_a_grant_or_a_settlement_supersedes(shell: Shell, clock: SettableClock) -> None:
    permit = shell.permit(command(policy=IDEMPOTENT))
    clock.advance(seconds=31)
    other = shell.permit(command(policy=IDEMPOTENT))
    assert other.key_for("charge") == permit.key_for("charge")
    assert shell.settle(permit) == Superseded(State.PROCESSING)
    assert shell.settle(other) == Settled()


def test_1_11_a_hung_handler_is_not_renewed_past_its_deadline(shell: Shell, clock: SettableClock) -> None:
    """However often its process renews: at the deadline the record is UNKNOWN and visible."""
    permit = shell.permit(command())
    store = shell.engine.store
    renewals = shell.engine.core.renewals([permit])
    for _ in range(30):
        clock.advance(seconds=10)
        shell.perform("renew", lambda: store.renew(renewals))
    assert shell.reap() != []
    assert isinstance(shell.claim(command()), OutcomeUnknown)
    permit.renewed_monotonic -= 3600
    permit.deadline_monotonic -= 3600
    assert shell.engine.core.due() == []  # and its own process stops asking


# --- 1.12 to 1.14: derived keys, the downstream's memory, operators ---


def test_1_12_derived_keys_survive_a_lost_claim(mode: Mode) -> None:
    """The store forgot everything: another operation id, the same key for the provider."""
    permits = []
    for _ in range(2):
        shell = Shell(mode, memory())
        shell.open()
        permits.append(shell.permit(command(policy=IDEMPOTENT)))
        shell.abandon()
    assert permits[0].key_for("charge") == permits[1].key_for("charge")
    assert permits[0].operation_id != permits[1].operation_id
    assert permits[0].key_for("charge", 1) != permits[0].key_for("charge") != permits[0].key_for("refund")


def test_1_13_the_downstream_forgets_before_we_do(shell: Shell, clock: SettableClock) -> None:
    """Crash, and a retry two days later: past dedup_for since the first start nobody charges again."""
    shell.permit(command(policy=IDEMPOTENT))
    clock.advance(seconds=2 * 86_400)
    with pytest.raises(OutcomeUnknownError, match="dedup-over"):
        shell.run(command(policy=IDEMPOTENT), never)


def test_1_14_did_not_happen_while_it_still_may(shell: Shell, clock: SettableClock) -> None:
    """Refused before the deadline. Afterwards the holder is superseded, and a rerun is another generation."""
    permit = shell.permit(command())
    clock.advance(seconds=40)
    assert resolve(shell, permit.grant, happened=False) == TooEarly(260_000_000)
    clock.advance(seconds=260)
    assert resolve(shell, permit.grant, happened=False) == Resolved(State.FAILED_NOT_REPLAYABLE)
    assert shell.settle(permit) == Superseded(State.FAILED_NOT_REPLAYABLE)  # it resumes, and is refused
    again = shell.permit(command())
    assert again.generation == 1
    assert again.key_for("charge") != permit.key_for("charge")


def test_1_14_the_caller_of_a_superseded_handler_gets_what_stands(shell: Shell, clock: SettableClock) -> None:
    """The operator said "it happened" with its answer; the handler's own, other answer never leaves."""

    def slow(permit: Permit) -> Answer:
        clock.advance(seconds=301)
        with Shell("sync", sqlite(Path(shell.engine.backend.driver.path), clock)).engine as other:
            resolution = Resolution(permit.grant.id, permit.grant.fence, True, MADE, "olga", "asked")
            assert other.perform("resolve", lambda: other.store.resolve(resolution)) == Resolved(State.SUCCEEDED)
        return Answer(500, (), b"too late")

    result = shell.run(command(policy=Policy(definite_5xx=frozenset({500}))), slow)
    assert (result.answer, result.replayed) == (MADE, True)


# --- 1.16: SQLite, ATOMIC beside everything else ---


def test_1_16_a_an_atomic_handler_that_awaits_blocks_no_loop(file: Path, clock: SettableClock) -> None:
    """While it holds the file: replays are served, claims queue without blocking, and all end well."""

    async def scenario() -> None:
        engine = AsyncEngine(sqlite(file, clock))
        await engine.migrate()
        async with engine:
            inside, leave = asyncio.Event(), asyncio.Event()

            async def made(permit: Permit) -> Answer:
                return MADE

            async def holds_the_file(permit: Permit) -> Answer:
                permit.connection.execute("INSERT INTO effect VALUES (1)")
                inside.set()
                await leave.wait()
                return MADE

            await engine.run(command("old"), made)
            holder = asyncio.ensure_future(engine.run(command("a", policy=ATOMIC), holds_the_file))
            await inside.wait()
            others = [asyncio.ensure_future(engine.run(command(str(n)), made)) for n in range(5)]
            others.append(asyncio.ensure_future(engine.run(command("b", policy=ATOMIC), made)))
            assert (await engine.run(command("old"), made)).replayed  # the file is held, and replays are served
            for _ in range(50):
                await asyncio.sleep(0)  # the loop turns
            assert not any(other.done() for other in others)
            leave.set()
            results = await asyncio.gather(holder, *others)
            assert all(result.answer == MADE for result in results)

    asyncio.run(scenario())


def test_1_16_b_a_transaction_that_has_begun_is_not_joined(file: Path, clock: SettableClock) -> None:
    """It may have read already: a deferred upgrade would fail with a snapshot that is too old."""
    engine = Engine(sqlite(file, clock))
    engine.migrate()
    with engine, closing(sqlite3.connect(file)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM effect").fetchall()
        with pytest.raises(JoinRefused), engine.atomic(connection, command(policy=ATOMIC)):
            pytest.fail("joined")
        connection.rollback()
        assert engine.run(command(policy=ATOMIC), writes_effect).answer == MADE


def test_1_16_c_a_paused_atomic_holder_stops_the_file_and_loses_nothing(
    mode: Mode, file: Path, clock: SettableClock
) -> None:
    """Others are told 503 and did not run; replays go on; when it ends, everything goes on."""
    paused = Engine(sqlite(file, clock))
    paused.migrate()
    shell = Shell(mode, sqlite(file, clock, busy_seconds=0.02))
    shell.run(command("old"), lambda permit: MADE)
    with paused:
        permit = paused.claim(command("a", policy=ATOMIC))
        assert isinstance(permit, Permit)
        with pytest.raises(StoreUnavailable, match=r"locked|busy"):
            shell.run(command("new"), never)
        with pytest.raises(StoreUnavailable, match=r"locked|busy"):
            shell.run(command("b", policy=ATOMIC), never)
        assert shell.run(command("old"), never).replayed
        permit.connection.execute("INSERT INTO effect VALUES (1)")
        assert paused.settle(permit, Succeeded(MADE)) == Settled()
    assert shell.run(command("new"), lambda permit: MADE).answer == MADE
    assert shell.run(command("b", policy=ATOMIC), writes_effect).answer == MADE
    assert effects(file) == 2
    shell.close()


# --- 1.17: secrets and recipes as identity ---


def test_1_17_another_id_secret_is_refused_at_the_start(mode: Mode, file: Path, clock: SettableClock) -> None:
    first = Shell(mode, sqlite(file, clock), id_secret=b"the first secret")
    first.open()
    first.close()
    for secret in (b"another secret, 1", None):
        other = Shell(mode, sqlite(file, clock), id_secret=secret)
        with pytest.raises(IdentityMismatch):
            other.open()
        other.close()


def recast(recipe: str, known: dict[str, bytes]) -> Command:
    return Command(SCOPE, "k", bits("request", 0, size=32), recipe, Policy(), known.get)


def test_1_17_a_recipe_nobody_knows_is_never_reuse_and_never_run(shell: Shell) -> None:
    """A newer version wrote the record; this one cannot judge it, before and after it was released."""
    permit = shell.permit(recast("2.newer", {}))
    for outcome in (None, Released("no", proven=True)):
        if outcome is not None:
            assert shell.settle(permit, outcome) == Settled()
        with pytest.raises(RecordUnreadableError, match="recipe"):
            shell.run(recast("1.tests", {"0.old": bytes(32)}), never)


def test_1_17_a_former_recipe_is_still_recognised(shell: Shell) -> None:
    """A changed configuration does not make another request of a retry that is under way."""
    old = bits("the same request, under the former recipe", size=32)
    shell.run(Command(SCOPE, "k", old, "1.former", Policy()), lambda permit: MADE)
    assert shell.run(recast("2.now", {"1.former": old}), never).replayed


# --- 1.19 to 1.21 ---


def test_1_19_fences_grow_over_a_purge(shell: Shell, clock: SettableClock) -> None:
    store = shell.engine.store
    permit = shell.permit(command())
    shell.settle(permit)
    clock.advance(seconds=31 * 86_400)
    assert shell.perform("purge", lambda: store.purge(None, 10)).forgotten == 1
    again = shell.permit(command())
    assert again.grant.fence > permit.grant.fence
    assert again.operation_id != permit.operation_id


def test_1_19_nothing_open_has_an_end(shell: Shell, clock: SettableClock) -> None:
    """A command that runs for a year is not forgotten while it does."""
    permit = shell.permit(command())
    clock.advance(seconds=366 * 86_400)
    shell.reap()
    shell.perform("purge", lambda: shell.engine.store.purge(None, 10))
    assert shell.settle(permit) == Settled()
    assert isinstance(shell.claim(command()), Replay)


def test_1_21_a_poison_command_ends(shell: Shell, clock: SettableClock) -> None:
    """It kills every worker that takes it: after its cap it is UNKNOWN, and visible."""
    policy = Policy(effects="idempotent", attempts_max=2)
    for attempt in (1, 2):
        assert shell.permit(command(policy=policy)).attempt == attempt
        clock.advance(seconds=31)
    with pytest.raises(OutcomeUnknownError, match="attempts-over"):
        shell.run(command(policy=policy), never)
    assert [row.doubt for row in shell.reap()] == ["attempts-over"]


def test_1_21_an_expired_key_taken_anew_is_another_execution(shell: Shell, clock: SettableClock) -> None:
    """Else the downstream would return the old result."""
    policy = Policy(after_expiry="new")
    first = shell.permit(command(policy=policy))
    shell.settle(first)
    clock.advance(seconds=86_400)
    second = shell.permit(command(policy=policy))
    assert second.operation_id != first.operation_id
    assert second.generation == 1
    assert second.key_for("charge") != first.key_for("charge")


def test_an_expired_key_is_refused_by_default(shell: Shell, clock: SettableClock) -> None:
    shell.settle(shell.permit(command()))
    clock.advance(seconds=86_400)
    assert isinstance(shell.claim(command()), KeyExpired)


def test_an_unknown_command_waits_for_an_operator_and_then_replays(shell: Shell, clock: SettableClock) -> None:
    ledger = Ledger()
    permit = shell.permit(command())
    ledger.charge(permit.key_for("charge"))
    assert shell.settle(permit, Unprovable("provider-timeout")) == Settled()
    clock.advance(seconds=301)
    with pytest.raises(OutcomeUnknownError, match="provider-timeout"):
        shell.run(command(), never)
    assert resolve(shell, permit.grant, happened=True) == Resolved(State.SUCCEEDED)
    assert shell.run(command(), never).answer == MADE
    assert len(ledger.calls) == 1
