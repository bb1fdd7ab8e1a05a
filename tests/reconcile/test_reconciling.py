"""Reconcilers on every database: each finding is settled once, by the first, and a crash only repeats the question."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, Command
from semel.core.identity import derive_key, uuid_bytes
from semel.core.model import Audit, NotReplayable, Resolution, State
from semel.engine.result import Result
from semel.errors import ConfigurationError, OutcomeUnknownError, PolicyError
from semel.reconciliation.flow import standings
from semel.reconciliation.store import Standing
from semel.reconciliation.worker import (
    Case,
    DidNotHappen,
    Finding,
    Reconciler,
    Reconciling,
    Round,
    StillUnknown,
    SucceededWith,
    reconciler,
)
from semel.retention.worker import Reaper
from tests.engine.drivers import memory
from tests.engine.shells import MADE, Shell
from tests.operations.worlds import Cashier, World, paying

FOUND = SucceededWith(MADE, ("charge", "ch-9"), "ch-9 at the provider")


@pytest.fixture(params=["sqlite-async", "psycopg-async", "asyncpg", "asyncmy"])
def each(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, tmp_path)
    world.prepare()
    yield world
    world.close()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[World]:
    world = World("sqlite-async", tmp_path)
    world.prepare()
    yield world
    world.close()


class Provider:
    """The other side, with scripted answers."""

    def __init__(self, *findings: Finding | Exception) -> None:
        self.findings = list(findings)
        self.cases: list[Case] = []

    async def __call__(self, case: Case) -> Finding:
        self.cases.append(case)
        found = self.findings.pop(0) if len(self.findings) > 1 else self.findings[0]
        if isinstance(found, Exception):
            raise found
        return found


def asking(provider: Provider, **options: Any) -> Reconciler:
    async def ask(case: Case) -> Finding:
        return await provider(case)

    return reconciler("pay", **{"quiet_for": 60, **options})(ask)


def lose(shell: Shell, what: Command) -> bytes:
    """A command whose handler loses its call's answer; its operation id."""
    with pytest.raises(TimeoutError):
        shell.run(what, Cashier(error=TimeoutError()))
    row = shell.row(what)
    assert row is not None
    assert row.state == State.UNKNOWN
    return row.operation_id


def round_of(shell: Shell, *reconcilers: Reconciler) -> Round:
    done: Round = shell._end(Reconciling(shell.engine, reconcilers).run_once())
    return done


def audit_of(shell: Shell, what: Command) -> list[Audit]:
    row = shell.row(what)
    assert row is not None
    lines: list[Audit] = shell.perform("audit", lambda: shell.engine.store.audit(row.id, 10))
    return lines


def standing_of(shell: Shell, what: Command) -> Standing | None:
    row = shell.row(what)
    assert row is not None
    found: dict[bytes, Standing] = shell.perform("standings", lambda: standings(shell.engine.store, [row]))
    return found.get(row.id)


def test_the_client_that_kept_its_key_gets_what_was_found(each: World) -> None:
    shell, what, provider = each.shell(), paying("a"), Provider(FOUND)
    id = lose(shell, what)
    row = shell.row(what)
    assert row is not None
    assert round_of(shell, asking(provider)) == Round(asked=1, settled=1)
    result = shell.run(what, Cashier())
    assert result == Result(MADE, True, provider.cases[0].operation_id)
    [case] = provider.cases
    assert (case.doubt, case.step, case.business_ref, uuid_bytes(case.operation_id)) == (
        "error:TimeoutError",
        None,
        "inv-1",
        id,
    )
    assert case.key_for("charge") == derive_key(row.id, 0, "charge")
    [line] = audit_of(shell, what)
    assert (line.actor, line.action, line.reason) == ("reconciler:pay", "resolve:succeeded", "ch-9 at the provider")
    assert shell.claim(paying("b")) == NotReplayable(id, "charge", "ch-9")
    assert each.states() == [(State.SUCCEEDED, True)]
    assert standing_of(shell, what) is None


def test_did_not_happen_counts_only_after_the_quiet_time(each: World) -> None:
    shell, what, provider = each.shell(), paying("a"), Provider(DidNotHappen("no such charge"))
    lose(shell, what)
    seconds = 300 + 60  # the deadline, and what was declared as quiet_for
    for _ in range(3):
        assert round_of(shell, asking(provider)).settled == 0
        each.clock.advance(seconds=100)
    standing = standing_of(shell, what)
    assert standing is not None
    assert (standing.asked, standing.reason) == (0, "not yet proof: no such charge")
    each.clock.advance(seconds=seconds - 300)
    assert round_of(shell, asking(provider)).settled == 1
    assert each.states() == [(State.FAILED_NOT_REPLAYABLE, False)]
    cashier = Cashier()
    shell.run(what, cashier)
    assert len(cashier.ran) == 1


def test_it_backs_off_gives_up_visibly_and_does_not_forget_over_a_restart(each: World) -> None:
    shell, what, provider = each.shell(), paying("a"), Provider(StillUnknown("the provider is down"))
    lose(shell, what)
    each.clock.advance(seconds=1000)
    asked = gave_up = 0
    for _ in range(6):
        done = round_of(each.shell() if asked == 1 else shell, asking(provider, asks_max=3))
        again = round_of(shell, asking(provider, asks_max=3))
        assert again.asked == 0  # not yet
        asked, gave_up = asked + done.asked, gave_up + done.gave_up
        each.clock.advance(seconds=60)
    assert (asked, gave_up) == (3, 1)
    standing = standing_of(shell, what)
    assert standing is not None
    row = shell.row(what)
    assert row is not None
    assert standing.needs_operator(row.fence)
    assert standing.reason == "the provider is down"


def test_a_reconciler_that_raises_or_returns_none_leaves_the_outcome_unknown(one: World) -> None:
    shell, what = one.shell(), paying("a")
    lose(shell, what)
    provider = Provider(ConnectionError("down"), 7)  # type: ignore[arg-type]
    for reason in (
        "the reconciler raised ConnectionError",
        "the reconciler answered int; it must answer SucceededWith",
    ):
        assert round_of(shell, asking(provider)) == Round(asked=1)
        standing = standing_of(shell, what)
        assert standing is not None
        assert standing.reason.startswith(reason)
        one.clock.advance(seconds=60)


def test_a_reconciler_that_hangs_times_out_and_is_called_again(one: World) -> None:
    shell, what = one.shell(), paying("a")
    lose(shell, what)

    @reconciler("pay", quiet_for=0, timeout_seconds=0.01)
    async def hangs(case: Case) -> Finding:
        await asyncio.Event().wait()
        return StillUnknown("never reached")

    assert round_of(shell, hangs) == Round(asked=1)
    standing = standing_of(shell, what)
    assert standing is not None
    assert standing.reason == "the reconciler raised TimeoutError"


def test_a_sync_reconciler_runs_in_a_thread(one: World) -> None:
    shell, what = one.shell(), paying("a")
    lose(shell, what)

    @reconciler("pay", quiet_for=0)
    def knows(case: Case) -> Finding:
        return SucceededWith(Answer(200, (), b"found"))

    assert round_of(shell, knows).settled == 1
    assert shell.run(what, Cashier()).answer.body == b"found"


def test_events_that_the_handler_would_have_emitted_are_written_with_the_settlement(each: World) -> None:
    shell, what = each.shell(), paying("a")
    lose(shell, what)
    ids = []

    @reconciler("pay", quiet_for=0)
    async def knows(case: Case) -> Finding:
        ids.append(case.emit("payments.created", {"charge": "ch-9"}))
        return FOUND

    assert round_of(shell, knows).settled == 1
    with each.outside() as execute:
        assert [str(id) for (id,) in execute("SELECT id FROM semel_event")] == ids


def test_did_not_happen_emits_no_event(one: World) -> None:
    shell, what = one.shell(), paying("a")
    lose(shell, what)
    one.clock.advance(seconds=1000)

    @reconciler("pay", quiet_for=0)
    async def changed_its_mind(case: Case) -> Finding:
        case.emit("payments.created", {})
        return DidNotHappen()

    assert round_of(shell, changed_its_mind).settled == 1
    with one.outside() as execute:
        assert execute("SELECT count(*) FROM semel_event") == [(0,)]


def test_two_workers_never_ask_about_one_execution_at_the_same_time(each: World) -> None:
    shell, other, what = each.shell(), each.shell(), paying("a")
    lose(shell, what)
    provider = Provider(FOUND)

    @reconciler("pay", quiet_for=0)
    async def while_another_looks(case: Case) -> Finding:
        assert await asyncio.to_thread(round_of, other, asking(provider)) == Round()
        return FOUND

    assert round_of(shell, while_another_looks) == Round(asked=1, settled=1)
    assert provider.cases == []


def test_a_worker_that_was_stopped_past_its_lease_settles_nothing_twice(each: World) -> None:
    """F-43: two reconcilers on one record; one compare-and-set wins."""
    shell, other, what = each.shell(), each.shell(), paying("a")
    lose(shell, what)
    provider = Provider(FOUND)

    @reconciler("pay", quiet_for=0)
    async def slow(case: Case) -> Finding:
        each.clock.advance(seconds=3600)
        assert (await asyncio.to_thread(round_of, other, asking(provider))).settled == 1
        return SucceededWith(Answer(500, (), b"too late"))

    assert round_of(shell, slow) == Round(asked=1, settled=0)
    assert shell.run(what, Cashier()).answer == MADE
    assert len(audit_of(shell, what)) == 1


def test_the_holder_may_settle_before_the_reconciler(each: World) -> None:
    shell, other, what = each.shell(), each.shell(), paying("a")
    permit = shell.permit(what)
    each.clock.advance(seconds=31)
    shell.reap()
    row = shell.row(what)
    assert row is not None
    assert row.doubt == "lapsed"
    provider = Provider(FOUND)
    assert round_of(other, asking(provider)) == Round(asked=1)  # it happened, and its holder may still say so
    shell.settle(permit)
    each.clock.advance(seconds=1000)
    assert round_of(other, asking(provider)) == Round()
    assert audit_of(shell, what) == []
    with each.outside() as execute:
        assert execute("SELECT count(*) FROM semel_reconciliation") == [(0,)]


def test_a_lapsed_holder_is_waited_for_until_its_deadline(one: World) -> None:
    shell, other, what = one.shell(), one.shell(), paying("a")
    shell.permit(what)
    one.clock.advance(seconds=31)
    shell.reap()
    provider, rounds = Provider(FOUND), 0
    while round_of(other, asking(provider)).settled == 0:
        one.clock.advance(seconds=10)
        rounds += 1
    assert rounds == 27  # 300 seconds of deadline, less those that had passed: and asked ever oftener towards the end
    assert len(provider.cases) < 12
    with pytest.raises(PolicyError):
        reconciler("pay", quiet_for=-1)


def test_an_operation_without_a_reconciler_stays_unknown(one: World) -> None:
    shell, what = one.shell(), paying("a")
    lose(shell, what)

    @reconciler("refund", quiet_for=0)
    async def of_another(case: Case) -> Finding:
        raise AssertionError("it must not be asked about payments")

    assert round_of(shell, of_another) == Round()
    with pytest.raises(OutcomeUnknownError):
        shell.run(what, Cashier())


def test_an_execution_that_is_unknown_again_is_reconciled_again(one: World) -> None:
    shell, what = one.shell(), paying("a")
    lose(shell, what)
    one.clock.advance(seconds=1000)
    down = asking(Provider(StillUnknown("down")), asks_max=1)
    assert round_of(shell, down).gave_up == 1
    row = shell.row(what)
    assert row is not None
    resolution = Resolution(row.id, row.fence, False, None, "olga", "asked by telephone")
    shell.perform("resolve", lambda: shell.engine.store.resolve(resolution))
    lose(shell, what)
    assert round_of(shell, down) == Round(asked=1, gave_up=1)


def test_an_impossible_reconciler_is_refused() -> None:
    for options in ({"quiet_for": "long"}, {"quiet_for": 1, "timeout_seconds": 0}, {"quiet_for": 1, "asks_max": 0}):
        with pytest.raises(PolicyError):
            reconciler("pay", **options)
    with pytest.raises(PolicyError, match="needs its operation's name"):
        reconciler("", quiet_for=1)
    shell = Shell("async", memory())
    with pytest.raises(ConfigurationError, match="need a SQL database"):
        Reconciling(shell.engine, [])
    shell.close()


def test_two_reconcilers_for_one_operation_are_refused(one: World) -> None:
    provider = Provider(FOUND)
    with pytest.raises(ConfigurationError, match="two reconcilers are declared for 'pay'"):
        Reconciling(one.shell().engine, [asking(provider), asking(provider)])


@pytest.mark.parametrize(
    "finding",
    [
        SucceededWith(MADE, ("charge", "ch\x00-9")),
        SucceededWith(MADE, ("charge", "ch\ud800")),
        SucceededWith(MADE, "ch-9"),  # type: ignore[arg-type]
        SucceededWith("charged"),  # type: ignore[arg-type]
        SucceededWith(MADE, None, 7),  # type: ignore[arg-type]
        StillUnknown("the provider said \x00\ud800"),
        StillUnknown(None),  # type: ignore[arg-type]
        DidNotHappen("no \x00 charge \ud800"),
    ],
    ids=["nul", "surrogate", "no-pair", "no-answer", "no-reason", "raw-unknown", "none", "raw-no"],
)
def test_a_finding_that_cannot_be_written_ends_no_worker(each: World, finding: Finding) -> None:
    shell, what, good = each.shell(), paying("a"), paying("b", "inv-2")
    _ = lose(shell, what), lose(shell, good)
    bad_id = shell.row(what).id  # type: ignore[union-attr]

    async def ask(case: Case) -> Finding:
        return finding if case.record.id == bad_id else FOUND

    done = round_of(shell, reconciler("pay", quiet_for=60)(ask))
    assert done.asked == 2
    assert done.settled >= 1
    assert shell.row(good).state == State.SUCCEEDED  # type: ignore[union-attr]
    row = shell.row(what)
    assert row is not None
    if row.state == State.UNKNOWN:  # reported as an error, and asked again later rather than at once
        standing = standing_of(shell, what)
        assert standing is not None
        assert standing.reason
        assert standing.lease_until == 0


def test_a_worker_asks_when_it_starts_however_long_its_interval_is(each: World) -> None:
    """Beside a reaper, with which it looks together, it once waited for the next day to begin."""
    shell, what = each.shell(), paying("a")
    lose(shell, what)
    asked = asyncio.Event()

    async def ask(case: Case) -> Finding:
        asked.set()
        return FOUND

    async def work() -> None:
        asks = Reconciling(shell.engine, [reconciler("pay", quiet_for=60)(ask)], every_seconds=86_400)
        async with asyncio.timeout(10), Reaper(shell.engine), asks:
            await asked.wait()

    shell._end(work())
