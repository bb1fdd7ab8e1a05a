"""Mutants of the rules: what the memory store executes, and every SQL store must agree with."""

from __future__ import annotations

from typing import Any, Final

from semel.core.decide import TABLE, Rule, Situation
from semel.core.model import Proceed, Record, State
from semel.core.record import unpack_headers
from verification.explore import variants
from verification.explore.replacing import Patch, lines_replaced, replace_everywhere
from verification.mutants.mutant import Mutant

_TABLE: Final = "semel.core.decide:TABLE"
_SETTLE: Final = "semel.core.settle"
_RESOLUTIONS: Final = "semel.reconciliation.resolutions"


def _line(situation: Situation, like: Situation) -> Patch:
    """One line of the table reads like another's."""
    return lambda: lines_replaced(_TABLE, {situation: TABLE[like]})


def _proceeds(situation: Situation) -> Patch:
    return lambda: lines_replaced(_TABLE, {situation: Rule(Proceed, "a mutant")})


def _rule(place: str, make: Any) -> Patch:
    return lambda: replace_everywhere(place, make)


def _with_row(changes: Any) -> Any:
    """A rule that sees another row than there is; ``changes`` makes it from the row and the time."""

    def make(original: Any) -> Any:
        def rule(row: Record | None, *given: Any, **named: Any) -> Any:
            request, now, *_ = [*given, *named.values()]
            return original(None if row is None else row._replace(**changes(row, request, now)), *given, **named)

        return rule

    return make


MUTANTS: Final = (
    Mutant(
        name="drop-fence-check",
        does="the nonce alone makes a holder",
        breaks="I3",
        part="contract",
        patch=_rule(f"{_SETTLE}:holds", lambda _: lambda row, fence, nonce: row is not None and row.nonce == nonce),
    ),
    Mutant(
        name="drop-nonce-check",
        does="the fence alone makes a holder",
        breaks="I3",
        part="contract",
        patch=variants.no_nonce_check,
    ),
    Mutant(
        name="drop-both-checks",
        does="any process counts as the holder",
        breaks="I3",
        part="model",
        patch=variants.no_holder_check,
    ),
    Mutant(
        name="conflict-proceeds",
        does="another request under the same key takes the record over",
        breaks="I7",
        part="contract",
        patch=_proceeds(Situation.OTHER_REQUEST),
    ),
    Mutant(
        name="unknown-recipe-proceeds",
        does="a fingerprint of an unknown recipe is run",
        breaks="I7",
        part="contract",
        patch=_proceeds(Situation.OTHER_RECIPE),
    ),
    Mutant(
        name="unknown-recipe-is-reuse",
        does="a fingerprint of an unknown recipe is taken for another request",
        breaks="I7",
        part="contract",
        patch=_line(Situation.OTHER_RECIPE, Situation.OTHER_REQUEST),
    ),
    Mutant(
        name="replay-before-fingerprint",
        does="an answer is given out before the fingerprints are compared",
        breaks="I7",
        part="contract",
        patch=variants.replays_before_comparing,
    ),
    Mutant(
        name="lapse-proceeds",
        does="a lapsed EXTERNAL command is granted again",
        breaks="I4",
        part="model",
        patch=_proceeds(Situation.EXTERNAL_LAPSED),
    ),
    Mutant(
        name="unknown-proceeds",
        does="what is UNKNOWN is run again",
        breaks="I4",
        part="simulator",
        patch=_proceeds(Situation.UNKNOWN),
    ),
    Mutant(
        name="early-commit-proceeds",
        does="a visible ATOMIC record without an answer is run again",
        breaks="I1",
        part="contract",
        patch=_proceeds(Situation.ATOMIC_LAPSED),
    ),
    Mutant(
        name="blind-takeover",
        does="a running command is granted to any attempt",
        breaks="I4",
        part="simulator",
        patch=_proceeds(Situation.PROCESSING_LIVE),
    ),
    Mutant(
        name="corrupt-proceeds",
        does="a record that cannot be read is run",
        breaks="I4",
        part="contract",
        patch=_proceeds(Situation.CORRUPT),
    ),
    Mutant(
        name="expired-is-new",
        does="a key whose answer is forgotten is taken for a new one",
        breaks="I4",
        part="contract",
        patch=_line(Situation.EXPIRED, Situation.EXPIRED_NEW),
    ),
    Mutant(
        name="expiry-while-running",
        does="retention counts from the claim, and runs out under the handler",
        breaks="I4",
        part="model",
        patch=variants.expiry_runs_from_the_claim,
    ),
    Mutant(
        name="ttl-on-a-running-record",
        does="the record goes when its lease is over",
        breaks="I4",
        part="contract",
        patch=variants.lease_is_a_time_to_live,
    ),
    Mutant(
        name="fence-restarts",
        does="the fence of a key that was forgotten begins at 1 again",
        breaks="I3",
        part="contract",
        patch=_rule(
            "semel.core.decide:first_grant", lambda first: lambda claim, now: first(claim, now)._replace(fence=1)
        ),
    ),
    Mutant(
        name="fence-stands-still",
        does="a new grant has the fence of the last",
        breaks="I3",
        part="contract",
        patch=_rule("semel.core.timing:next_fence", lambda _: lambda fence, now: fence),
    ),
    Mutant(
        name="fence-is-the-clock",
        does="the fence is the time, also when the clock was set back",
        breaks="I3",
        part="contract",
        patch=_rule("semel.core.timing:next_fence", lambda _: lambda fence, now: now),
    ),
    Mutant(
        name="renew-after-supersession",
        does="a renewal asks whether the record is open, not whose it is",
        breaks="I3",
        part="model",
        patch=variants.renews_without_holding,
    ),
    Mutant(
        name="renew-past-the-deadline",
        does="a lease is renewed beyond the handler's deadline",
        breaks="I6",
        part="contract",
        patch=_rule(
            f"{_SETTLE}:renew_row",
            _with_row(lambda row, settlement, now: {"deadline_at": now + row.lease_us + 1}),
        ),
    ),
    Mutant(
        name="settle-after-resolve",
        does="a holder's late settlement replaces an operator's settlement",
        breaks="I3",
        part="contract",
        patch=variants.settles_what_is_settled,
    ),
    Mutant(
        name="retry-of-settle-is-loss",
        does="a settlement that is repeated is not recognised",
        breaks="I2",
        part="contract",
        patch=_rule(
            f"{_SETTLE}:settle_row",
            _with_row(
                lambda row, settlement, now: (
                    {"nonce": bytes(16)} if row.state in (State.SUCCEEDED, State.FAILED_REPLAYABLE) else {}
                )
            ),
        ),
    ),
    Mutant(
        name="retention-from-the-claim",
        does="the answer's retention starts at the claim",
        breaks="I2",
        part="contract",
        patch=_rule(
            f"{_SETTLE}:write_settlement",
            lambda original: (
                lambda row, given, block, digest, now: (
                    original(row, given, block, digest, now)
                    if given.state in (State.UNKNOWN, State.PROCESSING)
                    else original(row, given, block, digest, now)._replace(answer_until=row.created_at + row.answer_us)
                )
            ),
        ),
    ),
    Mutant(
        name="generation-grows-on-retry",
        does="every attempt has derived keys of its own",
        breaks="I1",
        part="model",
        patch=variants.generation_grows_with_each_grant,
    ),
    Mutant(
        name="attempts-max-ignored",
        does="a command that crashes its workers is granted for ever",
        breaks="I6",
        part="contract",
        patch=_rule(
            "semel.core.decide:classify_lapsed",
            lambda original: lambda row, now: original(row._replace(attempts_max=1 << 30), now),
        ),
    ),
    Mutant(
        name="dedup-until-ignored",
        does="an IDEMPOTENT command is granted after the downstream forgot its key",
        breaks="I1",
        part="model",
        patch=variants.dedup_never_ends,
    ),
    Mutant(
        name="dedup-from-the-last-start",
        does="dedup_for counts from the last start instead of the first",
        breaks="I1",
        part="contract",
        patch=_rule(
            "semel.core.decide:grant_again",
            lambda original: (
                lambda row, claim, now, found: original(
                    row._replace(first_started_at=now) if found is Situation.IDEMPOTENT_LAPSED else row,
                    claim,
                    now,
                    found,
                )
            ),
        ),
    ),
    Mutant(
        name="abandon-without-nonce",
        does="a claim that was given up releases another's",
        breaks="I3",
        part="contract",
        patch=variants.abandons_without_nonce,
    ),
    Mutant(
        name="one-proof-for-all-attempts",
        does="an attempt that proves that nothing happened frees a command that an earlier one may have done",
        breaks="I1",
        part="simulator",
        patch=_rule(f"{_SETTLE}:may_have_begun_before", lambda _: lambda row: False),
    ),
    Mutant(
        name="lapse-overwrites-settled",
        does="the reaper makes a settled record UNKNOWN",
        breaks="I2",
        part="model",
        patch=variants.lapses_what_is_settled,
    ),
    Mutant(
        name="lapse-frees",
        does="the reaper frees what has lapsed",
        breaks="I4",
        part="contract",
        patch=variants.unfinished_is_nothing,
    ),
    Mutant(
        name="resolve-without-compare",
        does="an operator settles a record that is not the one that was seen",
        breaks="I3",
        part="contract",
        patch=_rule(f"{_RESOLUTIONS}:resolve_row", _with_row(lambda row, resolution, now: {"fence": resolution.fence})),
    ),
    Mutant(
        name="resolve-too-early",
        does="an operator settles a command whose handler may still be running",
        breaks="I4",
        part="contract",
        patch=_rule(
            f"{_RESOLUTIONS}:resolve_row",
            lambda original: lambda row, resolution, *given: original(row, resolution._replace(forced=True), *given),
        ),
    ),
    Mutant(
        name="purge-without-grace",
        does="records go the moment their retention is over",
        breaks="I4",
        part="contract",
        patch=_rule("semel.core.timing:may_forget", lambda _: lambda until, now: until is not None and until <= now),
    ),
    Mutant(
        name="purge-of-unknown",
        does="UNKNOWN records are forgotten like settled ones",
        breaks="I4",
        part="model",
        patch=variants.purges_the_unknown,
    ),
    Mutant(
        name="one-lifetime",
        does="the tombstone goes with the answer",
        breaks="I4",
        part="contract",
        patch=variants.tombstone_goes_with_the_answer,
    ),
    Mutant(
        name="digest-not-checked",
        does="a stored answer with a flipped bit is replayed",
        breaks="I2",
        part="contract",
        patch=_rule(
            "semel.core.record:answer_of",
            lambda original: (
                lambda row: (
                    original(row)
                    or (None if row.body is None else original.__globals__["Answer"](row.status, _pairs(row), row.body))
                )
            ),
        ),
    ),
    Mutant(
        name="scope-without-caller",
        does="two callers with one key share a record",
        breaks="I5",
        part="http",
        patch=_rule(
            "semel.core.identity:record_id",
            lambda original: lambda scope, key, secret=None: original(scope._replace(caller="all"), key, secret),
        ),
    ),
)


def _pairs(row: Record) -> Any:
    return unpack_headers(row.headers or b"") or ()
