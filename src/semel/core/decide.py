"""The state machine: all decisions about an attempt are made in this file.

``situation`` classifies an attempt; ``TABLE`` says, for each situation, the verdict and why; ``LAPSED`` says
which situation an unfinished record is in, by what it was claimed under and what the operation declares now.
The guarantees page and the state diagram are generated from the same tables. Pure: the caller brings
the row, the attempt and the store's time, and writes what the verdict grants.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from operator import itemgetter
from typing import Any, Final, NamedTuple

from semel.core.model import (
    ANSWERED_STATES,
    RECORD_FORMAT,
    AfterExpiry,
    AnswerKind,
    Claim,
    Effects,
    Grant,
    InProgress,
    KeyExpired,
    KeyReused,
    NotReplayable,
    OutcomeUnknown,
    Proceed,
    Rebuild,
    Record,
    Replay,
    State,
    Unreadable,
    Unseal,
    Verdict,
)
from semel.core.record import answer_of, is_sound, state_of, stored_answer, uuid_of
from semel.core.timing import lease_end, next_fence
from semel.steps.doubts import names_a_step


class Situation(Enum):
    """The situation that an attempt finds in its record. Exactly one holds for every row, attempt and time."""

    NEVER_SEEN = "never seen"
    CORRUPT = "a record that cannot be decoded"
    OTHER_RECIPE = "fingerprint under another recipe"
    OTHER_REQUEST = "another fingerprint, in any state"
    MINE = "open, and by this attempt's own nonce"
    CLAIMED_LIVE = "CLAIMED, live lease"
    CLAIMED_LAPSED = "CLAIMED, lapsed"
    STEPS_UNDECLARED = "CLAIMED, lapsed, a step has begun, and the operation declares no steps now"
    PROCESSING_LIVE = "PROCESSING, live lease"
    ATOMIC_LAPSED = "PROCESSING, lapsed, ATOMIC"
    IDEMPOTENT_LAPSED = "PROCESSING, lapsed, IDEMPOTENT"
    EFFECTS_CHANGED = "PROCESSING, lapsed, IDEMPOTENT, and the operation is declared otherwise now"
    IDEMPOTENT_DEDUP_OVER = "PROCESSING, lapsed, IDEMPOTENT, past dedup_for"
    IDEMPOTENT_ATTEMPTS_OVER = "PROCESSING, lapsed, IDEMPOTENT, past attempts_max"
    EXTERNAL_LAPSED = "PROCESSING, lapsed, EXTERNAL"
    ANSWER_KEPT = "SUCCEEDED, answer kept"
    ANSWER_SEALED = "SUCCEEDED, answer sealed"
    ANSWER_REBUILT = "SUCCEEDED, answer to be rebuilt"
    ANSWER_NOT_KEPT = "SUCCEEDED, answer not kept"
    REFUSAL_KEPT = "FAILED_REPLAYABLE, answer kept"
    REFUSAL_SEALED = "FAILED_REPLAYABLE, answer sealed"
    REFUSAL_NOT_KEPT = "FAILED_REPLAYABLE, answer not kept"
    NOTHING_HAPPENED = "FAILED_NOT_REPLAYABLE"
    UNKNOWN = "UNKNOWN"
    EXPIRED = "EXPIRED, after_expiry='refuse'"
    EXPIRED_NEW = "EXPIRED, after_expiry='new'"


class Rule(NamedTuple):
    """One line of the table: the verdict's type and the reason, as the guarantees page prints it."""

    verdict: type
    why: str


TABLE: Final[Mapping[Situation, Rule]] = {
    Situation.NEVER_SEEN: Rule(Proceed, "no request has used this key"),
    Situation.CORRUPT: Rule(Unreadable, "an unreadable record never runs again"),
    Situation.OTHER_RECIPE: Rule(
        Unreadable, "not treated as key reuse, and never run: another version may understand it"
    ),
    Situation.OTHER_REQUEST: Rule(KeyReused, "checked before the state: one key, one request"),
    Situation.MINE: Rule(Proceed, "the same claim read back: it had succeeded"),
    Situation.CLAIMED_LIVE: Rule(InProgress, "reserved; its holder is believed alive"),
    Situation.CLAIMED_LAPSED: Rule(Proceed, "nothing is in doubt: each step that had begun is finished or repeatable"),
    Situation.STEPS_UNDECLARED: Rule(
        Unreadable, "its handler would repeat the finished steps: only a version with steps can continue"
    ),
    Situation.PROCESSING_LIVE: Rule(InProgress, "its holder is believed alive"),
    Situation.ATOMIC_LAPSED: Rule(OutcomeUnknown, "visible without an answer: it was committed early"),
    Situation.IDEMPOTENT_LAPSED: Rule(Proceed, "granted again: the downstream deduplicates by the same derived keys"),
    Situation.EFFECTS_CHANGED: Rule(
        OutcomeUnknown, "the effect may have happened, and the handler of today does not promise the same derived keys"
    ),
    Situation.IDEMPOTENT_DEDUP_OVER: Rule(OutcomeUnknown, "the downstream may have forgotten the derived key"),
    Situation.IDEMPOTENT_ATTEMPTS_OVER: Rule(OutcomeUnknown, "the command keeps crashing its workers"),
    Situation.EXTERNAL_LAPSED: Rule(OutcomeUnknown, "the effect may have happened; it cannot be proven"),
    Situation.ANSWER_KEPT: Rule(Replay, "the effect is committed and the answer stored"),
    Situation.ANSWER_SEALED: Rule(
        Unseal, "replayed after decryption; an answer that cannot be decrypted is never shown"
    ),
    Situation.ANSWER_REBUILT: Rule(Rebuild, "rebuilt from the current state; the handler never runs for this"),
    Situation.ANSWER_NOT_KEPT: Rule(NotReplayable, "it was done; its answer could not be kept"),
    Situation.REFUSAL_KEPT: Rule(Replay, "a definite refusal is stable"),
    Situation.REFUSAL_SEALED: Rule(Unseal, "a definite refusal is stable, and decrypted like an answer"),
    Situation.REFUSAL_NOT_KEPT: Rule(NotReplayable, "a definite refusal whose answer could not be kept"),
    Situation.NOTHING_HAPPENED: Rule(Proceed, "proven: no effect happened"),
    Situation.UNKNOWN: Rule(OutcomeUnknown, "UNKNOWN until the holder, a reconciler or an operator settles it"),
    Situation.EXPIRED: Rule(KeyExpired, "the answer has expired, the fact has not"),
    Situation.EXPIRED_NEW: Rule(Proceed, "the policy treats an expired key as a new command"),
}


class Was(Enum):
    """The effects that a lapsed, unfinished record may have had, by its claim's terms and its recorded steps."""

    ATOMIC = "ATOMIC, and visible without an answer"
    IDEMPOTENT = "IDEMPOTENT"
    EXTERNAL = "EXTERNAL, or in a step that may not be repeated"
    STEPS_BEGUN = "with steps; each that had begun is finished or may be repeated"
    STEPS_NOT_BEGUN = "with steps, and none had begun"


class DeclaredTerms(Enum):
    """The terms that the operation of an attempt declares now. A bulk writes before each item's effect, as steps do."""

    ATOMIC = "ATOMIC"
    IDEMPOTENT = "IDEMPOTENT"
    EXTERNAL = "EXTERNAL"
    STEPS = "EXTERNAL with steps"


LAPSED: Final[Mapping[Was, Mapping[DeclaredTerms, Situation]]] = {
    Was.ATOMIC: dict.fromkeys(DeclaredTerms, Situation.ATOMIC_LAPSED),
    Was.IDEMPOTENT: {
        DeclaredTerms.ATOMIC: Situation.EFFECTS_CHANGED,
        DeclaredTerms.IDEMPOTENT: Situation.IDEMPOTENT_LAPSED,
        DeclaredTerms.EXTERNAL: Situation.EFFECTS_CHANGED,
        DeclaredTerms.STEPS: Situation.EFFECTS_CHANGED,
    },
    Was.EXTERNAL: dict.fromkeys(DeclaredTerms, Situation.EXTERNAL_LAPSED),
    Was.STEPS_BEGUN: {
        DeclaredTerms.ATOMIC: Situation.STEPS_UNDECLARED,
        DeclaredTerms.IDEMPOTENT: Situation.STEPS_UNDECLARED,
        DeclaredTerms.EXTERNAL: Situation.STEPS_UNDECLARED,
        DeclaredTerms.STEPS: Situation.CLAIMED_LAPSED,
    },
    Was.STEPS_NOT_BEGUN: dict.fromkeys(DeclaredTerms, Situation.CLAIMED_LAPSED),
}
"""The situations of an attempt whose operation was declared differently when the record was claimed.

Everything else that a declaration says (lease, deadline, retention, attempts, expiry) is read from the record.
"""

_DECLARED: Final = {
    Effects.ATOMIC: DeclaredTerms.ATOMIC,
    Effects.IDEMPOTENT: DeclaredTerms.IDEMPOTENT,
    Effects.EXTERNAL: DeclaredTerms.EXTERNAL,
}
_WAS: Final = {
    Situation.ATOMIC_LAPSED: Was.ATOMIC,
    Situation.IDEMPOTENT_LAPSED: Was.IDEMPOTENT,
    Situation.EXTERNAL_LAPSED: Was.EXTERNAL,
}
_KEPT: Final = AnswerKind.KEPT
_ANSWERED: Final[Mapping[int, State]] = {state: state for state in ANSWERED_STATES}  # ``State(value)`` costs a call
_kept_columns = itemgetter(*map(Record._fields.index, ("fingerprint", "recipe", "answer_kind", "id", "format")))
_granted_columns = itemgetter(*map(Record._fields.index, Grant._fields))
_UNANSWERED: Final = (AnswerKind.NONE, AnswerKind.NOT_KEPT)


def declared_terms(claim: Claim) -> DeclaredTerms:
    """Return the terms that this attempt's operation declares."""
    return DeclaredTerms.STEPS if claim.terms.starts == State.CLAIMED else _DECLARED[claim.terms.effects]


def situation(row: Record | None, claim: Claim, now: int, *, begun: bool = True) -> Situation:
    """Return the one situation that holds. The fingerprint is compared before the state.

    Parameters: ``begun`` whether the record's list holds a step that has begun; True while the list has not been read.
    """
    if row is None:
        return Situation.NEVER_SEEN
    if row.format != RECORD_FORMAT:
        return Situation.CORRUPT  # written by a newer Semel: its columns may mean something else
    if row.id != claim.id or not is_sound(row):
        return Situation.CORRUPT
    if row.recipe != claim.recipe:
        return Situation.OTHER_RECIPE
    if row.fingerprint != claim.fingerprint:
        return Situation.OTHER_REQUEST
    match row.state:
        case State.SUCCEEDED | State.FAILED_REPLAYABLE:
            return _answer_situation(row, now)
        case State.PROCESSING | State.CLAIMED:
            # A settled record cannot be open: its state is damaged, and must not permit a run.
            return _open(row, claim, now, begun) if row.settled_at is None else Situation.CORRUPT
        case State.FAILED_NOT_REPLAYABLE:
            # Likewise one with an answer.
            return Situation.NOTHING_HAPPENED if row.answer_kind in _UNANSWERED else Situation.CORRUPT
        case State.UNKNOWN:
            return Situation.UNKNOWN
        case _:
            return Situation.CORRUPT


def _answer_situation(row: Record, now: int) -> Situation:
    if row.answer_until is not None and now >= row.answer_until:
        return Situation.EXPIRED_NEW if row.after_expiry == AfterExpiry.NEW else Situation.EXPIRED
    succeeded = row.state == State.SUCCEEDED
    if row.answer_kind == AnswerKind.KEPT:
        return Situation.ANSWER_KEPT if succeeded else Situation.REFUSAL_KEPT
    if row.answer_kind == AnswerKind.SEALED:
        return Situation.ANSWER_SEALED if succeeded else Situation.REFUSAL_SEALED
    if row.answer_kind == AnswerKind.REBUILT and succeeded:
        return Situation.ANSWER_REBUILT
    return Situation.ANSWER_NOT_KEPT if succeeded else Situation.REFUSAL_NOT_KEPT


def _open(row: Record, claim: Claim, now: int, begun: bool) -> Situation:
    live = now < row.lease_until
    if live and row.nonce == claim.nonce:
        return Situation.MINE
    if live:
        return Situation.CLAIMED_LIVE if row.state == State.CLAIMED else Situation.PROCESSING_LIVE
    if row.state == State.CLAIMED:
        return LAPSED[Was.STEPS_BEGUN if begun else Was.STEPS_NOT_BEGUN][declared_terms(claim)]
    found = classify_lapsed(row, now)
    was = _WAS.get(found)
    return found if was is None else LAPSED[was][declared_terms(claim)]


def classify_lapsed(row: Record, now: int) -> Situation:
    """Return the situation of a lapsed PROCESSING record, by its stored effects; the reaper calls this too."""
    match row.effects:
        case Effects.IDEMPOTENT:
            if now >= row.dedup_until:
                return Situation.IDEMPOTENT_DEDUP_OVER
            if row.lapses + count_crash(row) >= row.attempts_max:
                return Situation.IDEMPOTENT_ATTEMPTS_OVER
            return Situation.IDEMPOTENT_LAPSED
        case Effects.ATOMIC:
            return Situation.ATOMIC_LAPSED
        case _:
            return Situation.EXTERNAL_LAPSED


def count_crash(row: Record) -> int:
    """Return 1 if the lease ran out under its holder, 0 if the holder gave it back (which writes lease_until 0)."""
    return 1 if row.lease_until > 0 else 0


UNDECLARED_STEPS: Final = "steps"
DOUBTS: Final[Mapping[Situation, str]] = {
    Situation.ATOMIC_LAPSED: "committed-early",
    Situation.EXTERNAL_LAPSED: "lapsed",
    Situation.EFFECTS_CHANGED: "effects-changed",
    Situation.IDEMPOTENT_DEDUP_OVER: "dedup-over",
    Situation.IDEMPOTENT_ATTEMPTS_OVER: "attempts-over",
}


def doubt_of(row: Record, found: Situation) -> str:
    """Return what was lost if a record's outcome is unknown: the step that was under way, if there was one."""
    if found is Situation.EXTERNAL_LAPSED and row.doubt is not None and names_a_step(row.doubt):
        return row.doubt
    return DOUBTS.get(found) or row.doubt or "unknown"


def needs_steps(verdict: Verdict) -> bool:
    """Return whether the verdict depends on the record's list of steps: read it, and decide again with ``begun``."""
    return type(verdict) is Unreadable and verdict.reason == UNDECLARED_STEPS


def decide(row: Record | None, claim: Claim, now: int, *, begun: bool = True) -> Verdict:
    """Return the verdict on the attempt. ``Proceed`` carries the grant that the store must now write.

    Parameters: ``row`` the record or None; ``claim`` the attempt; ``now`` store time in microseconds; ``begun`` whether
    the record's list holds a step that has begun. A store that has not read the list leaves ``begun`` out: then a
    record that may have begun steps is never granted to an attempt without steps.
    """
    if row is None:
        return Proceed(first_grant(claim, now))
    found = situation(row, claim, now, begun=begun)
    verdict = TABLE[found].verdict
    if verdict is Replay or verdict is Unseal:
        answer = answer_of(row)
        if answer is None:
            return Unreadable(row.operation_id, "corrupt")
        state = State(row.state)
        return (
            Replay(answer, row.operation_id, state)
            if verdict is Replay
            else Unseal(row.id, answer, row.operation_id, state)
        )
    if verdict is Rebuild:
        resource = (row.resource_type, row.resource_id, row.business_ref)
        return Rebuild(row.status, row.operation_id, State(row.state), *resource)
    if verdict is Proceed:
        return Proceed(grant_again(row, claim, now, found))
    if verdict is InProgress:
        return InProgress(row.operation_id, max(0, row.lease_until - now), state=State(row.state))
    if verdict is KeyReused:
        return KeyReused(row.operation_id, _standing(row, now))
    if verdict is OutcomeUnknown:
        return OutcomeUnknown(row.operation_id, doubt_of(row, found))
    if verdict is KeyExpired:
        return KeyExpired(row.operation_id)
    if verdict is NotReplayable:
        return NotReplayable(row.operation_id, row.resource_type, row.resource_id)
    if found is Situation.OTHER_RECIPE:
        return Unreadable(row.operation_id, "recipe", row.recipe)
    if found is Situation.STEPS_UNDECLARED:
        return Unreadable(row.operation_id, UNDECLARED_STEPS)
    return Unreadable(uuid_of(row), "corrupt")


def find_replay(row: Record | None, id: bytes, recipe: str, fingerprint: bytes, now: int) -> Replay | None:
    """Return the replay that any attempt with this fingerprint gets; None if the decision needs the attempt itself.

    As :func:`decide` for :attr:`Situation.ANSWER_KEPT` and :attr:`Situation.REFUSAL_KEPT`; None for all others.
    """
    if (
        row is None
        or _kept_columns(row) != (fingerprint, recipe, _KEPT, id, RECORD_FORMAT)
        or row.state not in ANSWERED_STATES
        or not is_sound(row)  # before its times are compared with anything
        or (row.answer_until is not None and now >= row.answer_until)
    ):
        return None
    answer = answer_of(row)
    if answer is None:
        return None
    return tuple.__new__(Replay, (answer, row.operation_id, _ANSWERED[row.state]))


KEPT_COLUMNS: Final = (
    *("fingerprint", "recipe", "answer_kind", "id", "format", "state", "answer_until", "operation_id"),
    *("answer_digest", "status", "headers", "body"),
)


def find_replay_in(
    columns: tuple[Any, ...], is_sound: bool, id: bytes, recipe: str, fingerprint: bytes, now: int
) -> Replay | None:
    """As :func:`find_replay`, for a store that reads only :data:`KEPT_COLUMNS` of a record, in their order.

    Parameters: ``is_sound`` whether the whole record is, by the rules of :func:`semel.core.record.is_sound`.
    """
    _, _, kind, _, _, state, until, operation_id, digest, status, block, body = columns
    if (
        columns[:5] != (fingerprint, recipe, _KEPT, id, RECORD_FORMAT)
        or state not in ANSWERED_STATES
        or not is_sound
        or (until is not None and now >= until)
    ):
        return None
    answer = stored_answer(kind, digest, status, block, body)
    if answer is None:
        return None
    return tuple.__new__(Replay, (answer, operation_id, _ANSWERED[state]))


def _standing(row: Record, now: int) -> State | None:
    """Return the state of a record that an attempt with another request may learn."""
    state = state_of(row)
    if state is State.PROCESSING and now >= row.lease_until and classify_lapsed(row, now) in DOUBTS:
        return State.UNKNOWN
    return state


def first_grant(claim: Claim, now: int) -> Grant:
    """Return the grant of a key that was never seen."""
    terms = claim.terms
    deadline_at = now + terms.deadline_us
    lease_until = now + terms.lease_us  # lease_end, spelled out: this is the one grant that every command pays for
    if lease_until > deadline_at:
        lease_until = deadline_at
    # In the order of Grant's fields.
    return tuple.__new__(
        Grant,
        (
            claim.id,
            claim.nonce,
            now,  # fence
            terms.starts,
            0,  # generation
            1,  # attempt
            0,  # lapses
            claim.operation_id,
            now,  # created
            now,  # first started
            lease_until,
            deadline_at,
            now + terms.dedup_us,
        ),
    )


def grant_again(row: Record, claim: Claim, now: int, found: Situation) -> Grant:
    """Return the grant of a record that exists: read back, taken over, reopened, or begun anew after expiry."""
    if found is Situation.MINE:
        return Grant._make(_granted_columns(row))._replace(state=State(row.state))
    fresh = found is Situation.EXPIRED_NEW
    # An IDEMPOTENT command counts from its *first* start, since the downstream's memory does.
    restarted = fresh or found is Situation.NOTHING_HAPPENED
    first_started_at = now if restarted else row.first_started_at
    terms = claim.terms
    deadline_at = now + terms.deadline_us
    return Grant(
        id=row.id,
        nonce=claim.nonce,
        fence=next_fence(row.fence, now),
        state=terms.starts,
        generation=row.generation + (1 if fresh else 0),
        attempt=1 if fresh else row.attempt + 1,
        lapses=0 if restarted else row.lapses + (count_crash(row) if row.state == State.PROCESSING else 0),
        operation_id=claim.operation_id if fresh else row.operation_id,
        created_at=now if fresh else row.created_at,
        first_started_at=first_started_at,
        lease_until=lease_end(now, terms.lease_us, deadline_at),
        deadline_at=deadline_at,
        dedup_until=first_started_at + terms.dedup_us,
    )


def is_grant_new(row: Record | None, grant: Grant) -> bool:
    """Return whether the grant must be written: one that was read back is already stored."""
    return row is None or grant.fence != row.fence
