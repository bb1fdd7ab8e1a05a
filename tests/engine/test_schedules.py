"""The schedules that break naive designs, by the numbers of the red team's list, on both engines where both can.

Each test is one order of events that once caused a second charge, a lost answer or a stuck key.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semel import Answer, AsyncEngine, Command, Permit, Policy
from semel.core.model import (
    KeyExpired,
    OutcomeUnknown,
    Proceed,
    Replay,
    Resolution,
    Resolved,
    Settled,
    State,
    Superseded,
    TooEarly,
)
from semel.core.outcomes import Released, Unprovable
from semel.engine import renewal as upkeep
from semel.errors import (
    IdentityMismatch,
    OutcomeUnknownError,
    RecordUnreadableError,
    StoreTimeout,
)
from semel.stores.backend import Backend
from semel.stores.memory.store import MemoryStore
from semel.stores.sqlite.connection import COMMIT
from semel.testing.attempts import bits
from semel.testing.clock import SettableClock
from semel.testing.faults import Fault, Faults, Kind, When, faulty_sqlite
from tests.engine.drivers import LateDelivery, memory, sqlite
from tests.engine.schedule_stories import ATOMIC, IDEMPOTENT, effects, migrate, never, resolve, writes_effect
from tests.engine.shells import MADE, SCOPE, Ledger, Mode, Shell, command

# --- 1.1, 1.2: no blind rerun ---


def test_1_1_a_process_killed_after_its_effect_leaves_the_outcome_unknown(shell: Shell, clock: SettableClock) -> None:
    """The claim of a handler that starts at once says so durably: a lapse is UNKNOWN, never "nothing started"."""
    shell.permit(command())
    row = shell.row(command())
    assert row is not None
    assert row.state == State.PROCESSING  # before the handler's first line
    clock.advance(seconds=31)
    with pytest.raises(OutcomeUnknownError):
        shell.run(command(), never)


def test_1_2_a_timeout_of_the_provider_releases_nothing(shell: Shell) -> None:
    """A handler without steps raises after its call: the outcome is unknown, so it never runs again."""

    def handler(permit: Permit) -> Answer:
        raise TimeoutError("the provider did not answer")

    with pytest.raises(TimeoutError):
        shell.run(command(), handler)
    with pytest.raises(OutcomeUnknownError, match="error:TimeoutError"):
        shell.run(command(), never)


# --- 1.9: not known yet ---


def commit_number(n: int) -> Faults:
    """The reply of the n-th COMMIT is lost; the commit took effect."""

    class LostReply(Faults):
        def _hits(self, needed: object) -> When | None:
            super()._hits(needed)  # type: ignore[arg-type]
            return When.AFTER if needed is COMMIT and self.asks.count("COMMIT") == n else None

    return LostReply(Fault(Kind.TIMEOUT, When.AFTER, n))


def test_1_9_a_lost_reply_of_the_atomic_commit_is_read_from_the_record(
    mode: Mode, file: Path, clock: SettableClock
) -> None:
    migrate(file, clock)
    faults = commit_number(1)
    faulty = faulty_sqlite(str(file), clock, faults)
    shell = Shell(mode, faulty.backend)
    result = shell.run(command(policy=ATOMIC), writes_effect)
    assert (result.answer, effects(file), faults.struck) == (MADE, 1, True)
    shell.close()


def test_1_9_a_claims_lost_reply_leaves_no_claim_without_an_owner(mode: Mode, file: Path, clock: SettableClock) -> None:
    """It was written, and the caller got "not known yet": it is released by its nonce, not left to be UNKNOWN."""
    migrate(file, clock)
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
    """The second settlement changes no row: that is "already mine", not "another's"."""
    migrate(file, clock)
    faults = commit_number(2)
    faulty = faulty_sqlite(str(file), clock, faults)
    shell = Shell(mode, faulty.backend)
    result = shell.run(command(), lambda permit: MADE)
    assert (result.answer, result.replayed, faults.struck) == (MADE, False, True)
    said = [name for name in faults.asks if name.startswith("settle")]
    # On a loop each is first written with what else has come: the second finds its record settled, and asks the rules.
    assert said == (["settle"] * 2 if mode == "sync" else ["settle_answered", "settle_answered", "settle"])
    shell.close()


def test_1_9_c_a_late_claim_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
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
        [row] = driver.inner._table.rows()
        assert (row.state, row.doubt) == (State.FAILED_NOT_REPLAYABLE, "abandoned")
        assert isinstance(await engine.claim(command()), Permit)

    asyncio.run(scenario())


# --- 1.10, 1.11: a lapse destroys nothing, and a hung handler blocks nothing for ever ---


def test_1_10_a_holder_that_was_late_may_settle(shell: Shell, clock: SettableClock) -> None:
    """Heartbeat lost, the record is visible as UNKNOWN, and a retry gets that; then the holder settles."""
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
    renewals = (permit.holder,)
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
    """Crash, and a retry two days later: past dedup_for since the first start, nothing is charged again."""
    shell.permit(command(policy=IDEMPOTENT))
    clock.advance(seconds=2 * 86_400)
    with pytest.raises(OutcomeUnknownError, match="dedup-over"):
        shell.run(command(policy=IDEMPOTENT), never)


def test_1_14_did_not_happen_is_refused_while_the_handler_may_run(shell: Shell, clock: SettableClock) -> None:
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


def test_1_14_the_caller_of_a_superseded_handler_gets_the_winners_answer(shell: Shell, clock: SettableClock) -> None:
    """The operator said "it happened" with its answer; the handler's own, other answer never leaves."""

    def slow(permit: Permit) -> Answer:
        clock.advance(seconds=301)
        with Shell("sync", sqlite(Path(shell.engine.backend.driver.path), clock)).engine as other:
            resolution = Resolution(permit.grant.id, permit.grant.fence, True, MADE, "olga", "asked")
            assert other.perform("resolve", lambda: other.store.resolve(resolution)) == Resolved(State.SUCCEEDED)
        return Answer(500, (), b"too late")

    result = shell.run(command(policy=Policy(definite_5xx=frozenset({500}))), slow)
    assert (result.answer, result.replayed) == (MADE, True)


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


def test_1_17_an_unknown_recipe_is_never_reuse_and_never_run(shell: Shell) -> None:
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


def test_1_19_an_open_record_is_never_purged(shell: Shell, clock: SettableClock) -> None:
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


def test_1_21_an_expired_key_used_again_is_another_execution(shell: Shell, clock: SettableClock) -> None:
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
