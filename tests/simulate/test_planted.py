"""Tests of the simulator itself: each fault is planted, and must be found within a few thousand seeds.

They are put where a real mistake would be: in the rules, the store, the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from semel.core import command_flow as commands
from semel.core import decide, settle
from semel.core import outcomes as classify
from semel.core.flow import ask
from semel.core.model import (
    Claim,
    InProgress,
    OutcomeUnknown,
    Proceed,
    Record,
    Renewal,
    Resolution,
    Settled,
    Settlement,
    Verdict,
)
from semel.engine import async_engine as aio
from semel.engine import renewal as upkeep
from semel.engine.result import Result
from semel.errors import StoreTimeout
from semel.policy import Command
from semel.reconciliation import resolutions
from semel.stores.memory import store as memory
from verification.simulate import Shape, Violation, search

SEEDS_MAX: Final = 20_000
# Rare ones are looked for from here on: from 0 they are found as well, after up to 10,000 schedules.
BEGIN_AT: Final = {"a_failed_look_says_that_nothing_ran": 9_500, "crashes_are_not_counted": 2_500}
Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: Final[dict[str, Plant]] = {}


def register_plant(plant: Plant) -> Plant:
    """Enter a fault under its name."""
    PLANTED[plant.__name__] = plant
    return plant


def verdict(patch: pytest.MonkeyPatch, situation: str, instead: type) -> None:
    """Have the table answer a situation otherwise."""
    table = dict(decide.TABLE)
    table[decide.Situation[situation]] = decide.Rule(instead, "planted")
    patch.setattr(decide, "TABLE", table)


# --- the rules ---


@register_plant
def a_lapsed_external_command_runs_again(patch: pytest.MonkeyPatch) -> None:
    verdict(patch, "EXTERNAL_LAPSED", Proceed)


@register_plant
def an_unknown_command_runs_again(patch: pytest.MonkeyPatch) -> None:
    verdict(patch, "UNKNOWN", Proceed)


@register_plant
def a_running_command_runs_again(patch: pytest.MonkeyPatch) -> None:
    verdict(patch, "PROCESSING_LIVE", Proceed)


@register_plant
def an_early_commit_runs_again(patch: pytest.MonkeyPatch) -> None:
    verdict(patch, "ATOMIC_LAPSED", Proceed)


@register_plant
def the_downstreams_memory_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    verdict(patch, "IDEMPOTENT_DEDUP_OVER", Proceed)


@register_plant
def crashes_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    verdict(patch, "IDEMPOTENT_ATTEMPTS_OVER", Proceed)


@register_plant
def an_expired_command_runs_again(patch: pytest.MonkeyPatch) -> None:
    verdict(patch, "EXPIRED", Proceed)


@register_plant
def what_did_not_happen_stays_blocked(patch: pytest.MonkeyPatch) -> None:
    verdict(patch, "NOTHING_HAPPENED", OutcomeUnknown)


@register_plant
def the_fingerprint_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    real = decide.situation

    def situation(row: Record | None, claim: Claim, now: int, **given: bool) -> decide.Situation:
        return real(row, claim if row is None else claim._replace(fingerprint=row.fingerprint), now, **given)

    patch.setattr(decide, "situation", situation)


@register_plant
def the_fence_does_not_grow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "next_fence", lambda fence, now: fence)


@register_plant
def an_earlier_attempt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settle, "may_have_begun_before", lambda row: False)


@register_plant
def an_error_after_the_effect_releases_the_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        classify, "_failure_outcome", lambda policy, begun, reason, *, proven: classify.Released(reason, proven=True)
    )


# --- the store ---


@register_plant
def a_superseded_holder_settles(patch: pytest.MonkeyPatch) -> None:
    def settle_anyway(row: Record | None, settlement: Settlement, now: int) -> Any:
        mine = settlement if row is None else settlement._replace(fence=row.fence, nonce=row.nonce)
        return settle.settle_row(row, mine, now)

    patch.setattr(memory, "settle_row", settle_anyway)


@register_plant
def a_superseded_holder_renews(patch: pytest.MonkeyPatch) -> None:
    def renew_anyway(row: Record | None, renewal: Renewal, now: int) -> Any:
        mine = renewal if row is None else renewal._replace(fence=row.fence, nonce=row.nonce)
        return settle.renew_row(row, mine, now)

    patch.setattr(memory, "renew_row", renew_anyway)


@register_plant
def a_lease_that_was_given_back_is_renewed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settle, "is_relinquished", lambda row: False)


@register_plant
def anybodys_claim_is_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        memory,
        "abandon_row",
        lambda row, nonce, now: settle.abandon_row(row, nonce if row is None else row.nonce, now),
    )


@register_plant
def a_claim_given_up_on_is_not_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "abandon_row", lambda row, nonce, now: None)


@register_plant
def the_purge_forgets_what_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "may_forget", lambda forget_after, now: True)


@register_plant
def the_purge_drops_answers_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "may_drop_answer", lambda answer_until, now: answer_until is not None)


@register_plant
def the_reaper_sees_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "lapse_row", lambda row, now: None)


@register_plant
def an_operator_need_not_wait(patch: pytest.MonkeyPatch) -> None:
    def resolve_anyway(row: Record | None, resolution: Resolution, now: int) -> Any:
        return resolutions.resolve_row(row, resolution._replace(forced=True), now)

    patch.setattr(memory, "resolve_row", resolve_anyway)


@register_plant
def the_claim_looks_and_writes_in_two_steps(patch: pytest.MonkeyPatch) -> None:
    def claim(self: memory.MemoryStore, claims: Any) -> Any:
        seen = yield from self.look(claims)

        def write(table: memory.Table, now: int) -> list[Verdict]:
            verdicts: list[Verdict] = []
            for one, met in zip(claims, seen, strict=True):
                row = table.row(one.id)
                grant = decide.first_grant(one, now) if row is None or met is None else None
                if met is None and grant is not None:
                    table.put(memory.grant_row(row, one, grant))
                verdicts.append(met if met is not None else Proceed(grant))  # type: ignore[arg-type]
            return verdicts

        return (yield from ask(memory.TableCall("claim", write)))

    patch.setattr(memory.MemoryStore, "claim", claim)


# --- the engine ---


@register_plant
def a_claim_that_timed_out_is_taken_for_a_failure(patch: pytest.MonkeyPatch) -> None:
    async def impatient(self: aio.AsyncEngine, claim: Claim, command: Command) -> Verdict:
        try:
            verdict: Verdict = (await self._performer.store_call("claim", lambda: self.store.claim((claim,))))[0]
        except StoreTimeout:
            return Proceed(decide.first_grant(claim, 1))
        return verdict

    patch.setattr(aio.AsyncEngine, "_claim", impatient)


@register_plant
def a_claim_given_up_on_is_left_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(upkeep.AsyncUpkeep, "abandon", lambda self, claim: None)


@register_plant
def nothing_is_renewed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(upkeep.AsyncUpkeep, "_on_beat", lambda self: None)


@register_plant
def a_settlement_that_failed_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    async def confirm(self: upkeep.AsyncUpkeep, settlement: Settlement, permit: object, seconds: float) -> Settled:
        return Settled()

    patch.setattr(upkeep.AsyncUpkeep, "confirm", confirm)


@register_plant
def a_refused_settlement_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(aio, "own_result", lambda permit, answer, instead: Result(answer, False, permit.operation_id))


@register_plant
def a_failed_look_says_that_nothing_ran(patch: pytest.MonkeyPatch) -> None:
    def careless(store: Any, claim: Claim, grant: Any, under: Any) -> Any:
        seen, _ = yield from commands.look_once(store, claim, under)
        return seen if seen is not None else InProgress(grant.operation_id, 0)

    patch.setattr(aio, "reread", careless)


@pytest.mark.no_cover  # a hundred schedules and more for each; the other modules measure the simulator
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    first = BEGIN_AT.get(name, 0)
    found = search(range(first, first + SEEDS_MAX), shape=Shape(sqlite=0.0))
    assert isinstance(found, Violation), f"{name} was not found within {SEEDS_MAX} schedules"
    print(f"{name}: seed {found.seed}, {found.invariant}")


def test_a_violation_reads_like_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    a_lapsed_external_command_runs_again(monkeypatch)
    found = search(range(SEEDS_MAX))
    assert found is not None
    report = found.report()
    assert report.startswith(f"seed {found.seed} (format 1) breaks I4 no blind rerun\n  ")
    assert f"--seed 1:{found.seed}" in report
    assert "handler runs" in report
    assert "otherwise" not in report
