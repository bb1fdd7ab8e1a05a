"""The life of one command as flows over the engine's asks: claim, wait, settle until confirmed.

This is the engine's logic, written once. The sync and the async shell perform the same asks, each in
its own way; nothing here knows which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from semel.core.backoff import poll_seconds, retry_seconds
from semel.core.contract import Store
from semel.core.flow import Flow, ask
from semel.core.model import (
    ANSWERED_STATES,
    Answer,
    AnswerKind,
    Claim,
    Grant,
    InProgress,
    KeyReused,
    Proceed,
    Renewal,
    Settlement,
    Settling,
    State,
    Unreadable,
    Verdict,
)
from semel.core.outcomes import Outcome, Refused, Released, Succeeded
from semel.core.requests import Attempt, Elapsed, Jitter, Pause, PauseToLook, Perform, PerformOne
from semel.errors import (
    KeyTooOld,
    NotReplicated,
    RequestError,
    RequestTooLarge,
    StoreError,
    StoreReadOnly,
    StoreTimeout,
)
from semel.operations.tracking import settling

Under = Callable[[str], bytes | tuple[bytes, ...] | None]
IN_OTHER_TERMS = (Unreadable, KeyReused)
"""Verdicts on a record that may be of the same request, under another recipe or spelling."""
LOOK_SECONDS_MIN = 0.001
_SUCCEEDED = State.SUCCEEDED
_new: Any = tuple.__new__  # every command pays for one
_NO_MORE = tuple(Settlement._field_defaults.values())[2:]  # defaults of the fields after the answer and its kind
_NONE, _KEPT, _NOT_KEPT = AnswerKind.NONE, AnswerKind.KEPT, AnswerKind.NOT_KEPT


def claim_recast(store: Store, claim: Claim, verdict: Verdict, under: Under | None) -> Flow[Verdict]:
    """Claim again under the recipe and fingerprint of the record that the claim met, where they differ from its own."""
    while (again := recast(claim, verdict, under)) is not None:
        [verdict] = yield from ask(PerformOne("claim", store.claim, again))
        claim = again
    return verdict


def recast(claim: Claim, verdict: Verdict | None, under: Under | None) -> Claim | None:
    """Return the claim in the terms of the record that it met, or None if it need not or cannot be recast.

    The terms are the record's recipe, and each spelling of the request that has its own fingerprint under that recipe.
    Repeated calls return each of them once.
    """
    if under is None:
        return None
    if isinstance(verdict, Unreadable):
        recipe = verdict.recipe
    elif isinstance(verdict, KeyReused):
        recipe = claim.recipe
    else:
        return None
    found = None if recipe is None else under(recipe)
    if recipe is None or found is None:
        return None
    # Two spellings may be equal: try each once, or the loop would never end.
    fingerprints = tuple(dict.fromkeys(found)) if isinstance(found, tuple) else (found,)
    if recipe == claim.recipe and claim.fingerprint in fingerprints:
        fingerprints = fingerprints[fingerprints.index(claim.fingerprint) + 1 :]
    return claim._replace(recipe=recipe, fingerprint=fingerprints[0]) if fingerprints else None


def look_once(store: Store, claim: Claim, under: Under | None) -> Flow[tuple[Verdict | None, Claim]]:
    """Look at the record without writing; return what was seen, and the claim in that record's terms."""
    [seen] = yield from ask(PerformOne("look", store.look, claim))
    while (again := recast(claim, seen, under)) is not None:
        [seen] = yield from ask(PerformOne("look", store.look, again))
        claim = again
    return seen, claim


def look_before_refusing(
    store: Store, claim: Claim, under: Under | None, refusal: RequestError
) -> Flow[Verdict | None]:
    """Return the verdict on a command whose request breaks a limit of new commands, if its key is on record.

    Today's limit does not refuse a retry of a command that an earlier limit accepted. None means that the command goes
    on as any other does.

    Raises the refusal where nothing is on record, or where the command would have to run and is too large for that.
    """
    [row] = yield from ask(Perform("read", lambda: store.read((claim.id,))))
    if row is None:
        raise refusal
    is_old = isinstance(refusal, KeyTooOld)
    if not is_old and not isinstance(refusal, RequestTooLarge):
        return None
    seen, _ = yield from look_once(store, claim, under)
    if is_old and (type(seen) is InProgress or (seen is None and row.state not in ANSWERED_STATES)):
        return None  # waits, or reruns a command without an effect; one whose answer has expired is refused
    if seen is None:
        raise refusal
    return seen


def look_instead(store: Store, claim: Claim, under: Under | None, refusal: StoreReadOnly) -> Flow[Verdict]:
    """Return the verdict on a claim while the server is read-only: replays and mismatches need no write.

    Raises the refusal where the command would have to run.
    """
    seen, _ = yield from look_once(store, claim, under)
    if seen is None or type(seen) is Proceed:
        raise refusal
    return seen


def reread(store: Store, claim: Claim, grant: Grant, under: Under | None) -> Flow[Verdict]:
    """Read the current verdict on a record whose settlement was refused.

    Raises:
        StoreTimeout: the store did not answer; the outcome is not known yet.
    """
    try:
        seen, _ = yield from look_once(store, claim, under)
    except StoreError as error:  # "unavailable" would say that the handler did not run
        raise StoreTimeout(f"the outcome was refused, and the outcome on record could not be read: {error}") from error
    return InProgress(grant.operation_id, 0) if seen is None else seen


def await_verdict(claim: Claim, first: InProgress, seconds: float) -> Flow[Verdict]:
    """Wait for a running command, within ``seconds``: woken at once in-process, otherwise polling with jitter.

    Each look is a claim of its own, so that the waiter notices a lapsed lease and takes over. One waiter of a process
    polls a record; the others look once it has found an answer.
    """
    verdict: Verdict = first
    ends = (yield from ask(Elapsed())) + seconds
    asked = 0
    while isinstance(verdict, InProgress):
        left = ends - (yield from ask(Elapsed()))
        if left <= 0:
            return replace(verdict, waited_us=round(seconds * 1_000_000))
        pause = poll_seconds(asked, (yield from ask(Jitter())))
        lapse = verdict.lease_left_us / 1_000_000
        look = max(LOOK_SECONDS_MIN, min(left, pause, lapse or pause))
        most = max(LOOK_SECONDS_MIN, left)  # a coarse clock may not move by less
        if (yield from ask(PauseToLook(look, most, claim.id, claim.nonce))):
            verdict = yield from ask(Attempt())
            asked += 1
    return verdict


def settle_until_confirmed(store: Store, settlement: Settlement, seconds: float) -> Flow[Settling]:
    """Settle; if the store fails, retry with the same fence and nonce until it answers.

    Raises:
        StoreTimeout: the store did not confirm within ``seconds``; the outcome is not known yet.
    """
    ends = (yield from ask(Elapsed())) + seconds
    tried = 0
    while True:
        try:
            [reply] = yield from ask(settling(store, settlement))
            return reply
        except NotReplicated:  # a retry would match our own write, and prove nothing about the standby
            raise
        except StoreError as error:
            if (yield from ask(Elapsed())) >= ends:  # "unavailable" would say that the handler did not run
                raise StoreTimeout(f"the outcome could not be confirmed by the store: {error}") from error
        yield from ask(Pause(retry_seconds(tried, (yield from ask(Jitter())))))
        tried += 1


def make_success(id: bytes, fence: int, nonce: bytes, answer: Answer) -> Settlement:
    """Return the settlement of a command that succeeded with this answer and has nothing else to record."""
    return _new(Settlement, (id, fence, nonce, _SUCCEEDED, answer, _KEPT, *_NO_MORE))  # type: ignore[no-any-return]


def make_settlement(
    held: Grant | Renewal,
    outcome: Outcome,
    *,
    kept: bool = True,
    resource: tuple[str | None, str | None] = (None, None),
) -> Settlement:
    """Return the settlement for an outcome. ``kept`` False: the answer was streamed and not captured."""
    if type(outcome) is Succeeded and kept and resource == (None, None):
        return make_success(held.id, held.fence, held.nonce, outcome.answer)
    state, stored, doubt, cause = _settlement_fields(outcome)
    kind = _NONE if stored is None else _KEPT if kept else _NOT_KEPT
    return Settlement(held.id, held.fence, held.nonce, state, stored, kind, doubt, cause, None, *resource)


def _settlement_fields(outcome: Outcome) -> tuple[State, Answer | None, str | None, str | None]:
    """Return the state, answer, doubt and cause to record for an outcome."""
    match outcome:
        case Succeeded(answer):
            return State.SUCCEEDED, answer, None, None
        case Refused(answer):
            return State.FAILED_REPLAYABLE, answer, None, None
        case Released(reason, proven, resumes):
            freed = State.FAILED_NOT_REPLAYABLE if proven else State.PROCESSING
            return State.CLAIMED if resumes else freed, None, reason, None
        case _:
            return State.UNKNOWN, None, outcome.doubt, outcome.cause
