"""Unsafe variants of the protocol, each of which the explorer must refuse with its shortest counterexample.

They are the designs that look right: a lease that is a time to live, a takeover of a slow holder, an answer sent a
moment before it is stored. A model that does not refuse them would prove nothing about the one that it accepts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

from semel.core.decide import TABLE, Rule, Situation
from semel.core.model import AnswerKind, Claim, Grant, Proceed, Record, Renewal, Replay, Settlement, State, Verdict
from semel.core.record import answer_of
from semel.core.timing import lease_end, retention
from verification.explore.replacing import Patch, lines_replaced, replace_everywhere
from verification.explore.step_variants import STEP_VARIANTS
from verification.explore.variant import Variant
from verification.explore.world import Habits

_NOW_PROCEED: Final = "semel.core.decide:TABLE"


def proceeds(situation: Situation) -> Patch:
    """The table says Proceed where it must not."""
    return lambda: lines_replaced(_NOW_PROCEED, {situation: Rule(Proceed, TABLE[situation].why)})


def no_holder_check() -> AbstractContextManager[None]:
    """Neither fence nor nonce is compared: any process counts as the holder."""
    return replace_everywhere("semel.core.settle:holds", lambda _: lambda row, fence, nonce: row is not None)


def no_nonce_check() -> AbstractContextManager[None]:
    """The fence alone is compared."""
    return replace_everywhere(
        "semel.core.settle:holds", lambda _: lambda row, fence, nonce: row is not None and row.fence == fence
    )


def renews_without_holding() -> AbstractContextManager[None]:
    """A renewal asks whether the record is open, not whose it is."""

    def renew(row: Record | None, renewal: Renewal, now: int) -> Record | None:
        if row is None or row.state not in (State.CLAIMED, State.PROCESSING) or now >= row.deadline_at:
            return None
        return row._replace(lease_until=lease_end(now, row.lease_us, row.deadline_at))

    return replace_everywhere("semel.core.settle:renew_row", lambda _: renew)


def abandons_without_nonce() -> AbstractContextManager[None]:
    """Giving up a claim releases the record, although another process holds it."""

    def wrap(original: Any) -> Any:
        return lambda row, nonce, now: original(row, nonce if row is None else row.nonce, now)

    return replace_everywhere("semel.core.settle:abandon_row", wrap)


def lease_is_a_time_to_live() -> AbstractContextManager[None]:
    """The record goes when its lease is over, as a key with an expiry in a cache does."""

    def wrap(original: Any) -> Any:
        def grant_row(row: Record | None, claim: Claim, grant: Grant) -> Record:
            written: Record = original(row, claim, grant)
            return written._replace(forget_after=grant.lease_until)

        return grant_row

    return replace_everywhere("semel.stores.memory.store:grant_row", wrap)


def expiry_runs_from_the_claim() -> AbstractContextManager[None]:
    """The answer's retention counts from the claim, and is over while the command still runs."""

    def wrap(original: Any) -> Any:
        def situation(row: Record | None, claim: Claim, now: int, *, begun: bool = True) -> Situation:
            if row is not None and row.created_at + row.lease_us <= now and row.fingerprint == claim.fingerprint:
                return Situation.EXPIRED_NEW
            found: Situation = original(row, claim, now, begun=begun)
            return found

        return situation

    return replace_everywhere("semel.core.decide:situation", wrap)


def replays_before_comparing() -> AbstractContextManager[None]:
    """A stored answer is given out before the fingerprints are compared."""

    def wrap(original: Any) -> Any:
        def decide(row: Record | None, claim: Claim, now: int, *, begun: bool = True) -> Verdict:
            if row is not None and row.answer_kind == AnswerKind.KEPT and (answer := answer_of(row)) is not None:
                return Replay(answer, row.operation_id, State(row.state))
            verdict: Verdict = original(row, claim, now, begun=begun)
            return verdict

        return decide

    return replace_everywhere("semel.core.decide:decide", wrap)


@contextmanager
def lapses_what_is_settled() -> Iterator[None]:
    """The reaper looks at the leases of all records, and at nothing but the lease."""

    def lapse(row: Record, now: int) -> Record | None:
        over = row.state != State.UNKNOWN and now >= row.lease_until
        return row._replace(state=State.UNKNOWN, doubt="lapsed") if over else None

    def wrap(original: Any) -> Any:
        def put(self: Any, row: Record) -> None:
            original(self, row)
            self.running.add(row.id)

        return put

    with ExitStack() as stack:
        stack.enter_context(replace_everywhere("semel.core.settle:lapse_row", lambda _: lapse))
        stack.enter_context(replace_everywhere("semel.stores.memory.store:Table.put", wrap))
        yield


def settles_what_is_settled() -> AbstractContextManager[None]:
    """A settlement by any holder counts, also after another's."""

    def wrap(original: Any) -> Any:
        def settled_row(row: Record | None, settlement: Settlement, now: int) -> Any:
            if row is not None and row.nonce == settlement.nonce:
                row = row._replace(state=State.PROCESSING, fence=settlement.fence, lease_until=max(1, row.lease_until))
            return original(row, settlement, now)

        return settled_row

    return replace_everywhere("semel.core.settle:settle_row", wrap)


def generation_grows_with_each_grant() -> AbstractContextManager[None]:
    """Every attempt has derived keys of its own."""

    def wrap(original: Any) -> Any:
        def grant_again(row: Record, claim: Claim, now: int, found: Situation) -> Grant:
            grant: Grant = original(row, claim, now, found)
            return grant if found is Situation.MINE else grant._replace(generation=row.generation + 1)

        return grant_again

    return replace_everywhere("semel.core.decide:grant_again", wrap)


def dedup_never_ends() -> AbstractContextManager[None]:
    """A lapsed IDEMPOTENT command is granted again however old it is."""
    return replace_everywhere(
        "semel.core.decide:classify_lapsed",
        lambda original: lambda row, now: original(row._replace(dedup_until=now + 1), now),
    )


def purges_the_unknown() -> AbstractContextManager[None]:
    """UNKNOWN records have an end like all others."""

    def wrap(original: Any) -> Any:
        def lapse(row: Record, now: int) -> Record | None:
            after: Record | None = original(row, now)
            _, forget_after = retention(now, row.answer_us, row.tombstone_us)
            return None if after is None else after._replace(forget_after=forget_after)

        return lapse

    return replace_everywhere("semel.core.settle:lapse_row", wrap)


def tombstone_goes_with_the_answer() -> AbstractContextManager[None]:
    """One lifetime serves for the answer and the tombstone."""
    return replace_everywhere(
        "semel.core.timing:retention", lambda original: lambda now, answer_us, _: original(now, answer_us, answer_us)
    )


def _no_grace() -> AbstractContextManager[None]:
    return replace_everywhere(
        "semel.core.timing:may_forget", lambda _: lambda until, now: until is not None and until <= now
    )


@contextmanager
def tombstone_without_grace() -> Any:
    """The tombstone is forgotten with the answer, and at once."""
    with ExitStack() as stack:
        stack.enter_context(tombstone_goes_with_the_answer())
        stack.enter_context(_no_grace())
        yield


@contextmanager
def fences_restart_and_no_nonce() -> Any:
    """A fence counts from 1 with each new record, and the nonce is not compared."""
    with ExitStack() as stack:
        stack.enter_context(no_nonce_check())
        stack.enter_context(
            replace_everywhere(
                "semel.core.decide:first_grant", lambda first: lambda claim, now: first(claim, now)._replace(fence=1)
            )
        )
        yield


def unfinished_is_nothing() -> AbstractContextManager[None]:
    """A reaper that frees what has lapsed instead of making it visible."""

    def lapse(row: Record, now: int) -> Record | None:
        if row.state != State.PROCESSING or now < row.lease_until:
            return None
        answer_until, forget_after = retention(now, row.answer_us, row.tombstone_us)
        return row._replace(
            state=State.FAILED_NOT_REPLAYABLE,
            settled_at=now,
            answer_until=answer_until,
            forget_after=forget_after,
        )

    return replace_everywhere("semel.core.settle:lapse_row", lambda _: lapse)


VARIANTS: Final = (
    Variant(
        name="no-fence", does="no write compares fence and nonce", mode="idempotent", breaks="I3", patch=no_holder_check
    ),
    Variant(
        name="no-unknown",
        does="a lapsed EXTERNAL command is granted again",
        mode="external",
        breaks="I4",
        patch=proceeds(Situation.EXTERNAL_LAPSED),
    ),
    Variant(
        name="unknown-proceeds",
        does="what is UNKNOWN is run again",
        mode="external",
        breaks="I4",
        patch=proceeds(Situation.UNKNOWN),
    ),
    Variant(
        name="blind-takeover",
        does="a running command is granted to any attempt",
        mode="external",
        breaks="I4",
        patch=proceeds(Situation.PROCESSING_LIVE),
    ),
    Variant(
        name="lease-as-ttl",
        does="the record goes with its lease",
        mode="external",
        breaks="I2",
        patch=lease_is_a_time_to_live,
    ),
    Variant(
        name="expiry-while-running",
        does="retention counts from the claim, and an expired key is new",
        mode="external",
        breaks="I2",
        patch=expiry_runs_from_the_claim,
    ),
    Variant(
        name="frees-what-lapsed",
        does="the reaper frees a lapsed command",
        mode="external",
        breaks="I2",
        patch=unfinished_is_nothing,
    ),
    Variant(
        name="replay-before-comparing",
        does="a stored answer is given out before the fingerprints are compared",
        mode="external",
        breaks="I7",
        patch=replays_before_comparing,
    ),
    Variant(
        name="renewal-without-holding",
        does="a superseded holder renews",
        mode="idempotent",
        breaks="I3",
        patch=renews_without_holding,
    ),
    Variant(
        name="abandon-without-nonce",
        does="a claim given up releases another's",
        mode="external",
        breaks="I3",
        patch=abandons_without_nonce,
    ),
    Variant(
        name="lapse-overwrites",
        does="the reaper makes a settled record UNKNOWN",
        mode="external",
        breaks="I2",
        patch=lapses_what_is_settled,
    ),
    Variant(
        name="settle-after-resolve",
        does="a holder overwrites an operator's settlement",
        mode="external",
        breaks="I3",
        patch=settles_what_is_settled,
    ),
    Variant(
        name="keys-of-each-attempt",
        does="derived keys change with every grant",
        mode="idempotent",
        breaks="I1",
        patch=generation_grows_with_each_grant,
    ),
    Variant(
        name="dedup-never-ends",
        does="an IDEMPOTENT command is granted past dedup_for",
        mode="idempotent",
        breaks="I1",
        patch=dedup_never_ends,
    ),
    Variant(
        name="unknown-forgotten",
        does="UNKNOWN records are purged like settled ones",
        mode="external",
        breaks="I2",
        patch=purges_the_unknown,
    ),
    Variant(
        name="one-lifetime",
        does="the tombstone goes with the answer",
        mode="external",
        breaks="I2",
        patch=tombstone_without_grace,
    ),
    Variant(
        name="settle-without-nonce",
        does="fences restart with each record and the nonce is not compared",
        mode="external",
        breaks="I3",
        patch=fences_restart_and_no_nonce,
    ),
    Variant(
        name="early-commit-proceeds",
        does="a visible ATOMIC record without an answer is granted again",
        mode="atomic",
        breaks="I2",
        patch=proceeds(Situation.ATOMIC_LAPSED),
    ),
    Variant(
        name="answers-first",
        does="the client gets the answer before the store has it",
        mode="external",
        breaks="I2",
        habits=Habits(answers_before_settling=True),
    ),
    Variant(
        name="settles-first",
        does="the record is settled before the effect",
        mode="external",
        breaks="I2",
        habits=Habits(settles_before_the_effect=True),
    ),
    Variant(
        name="operator-guesses",
        does="an operator says the contrary of what happened",
        mode="external",
        breaks="I2",
        habits=Habits(operator_guesses=True),
    ),
    Variant(
        name="operator-forces",
        does="an operator says what is true now, while the handler may still be running",
        mode="external",
        breaks="I4",
        habits=Habits(operator_forces=True),
    ),
    Variant(
        name="downstream-forgets",
        does="the downstream deduplicates for a shorter time than was declared",
        mode="idempotent",
        breaks="I1",
        habits=Habits(downstream_forgets=True),
    ),
    *STEP_VARIANTS,
)
