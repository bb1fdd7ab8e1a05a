"""The sequential model of one key: the state of its record, and what each operation may do and answer there.

It repeats the table of states and verdicts, deliberately independent of ``rules``: a checker that asked the
rules themselves would find every mistake of theirs right. Not modelled: retention that runs out (no operation here
lives that long), declared steps, and ``after_expiry="new"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from verification.history.events import Words
from verification.history.reading import Operation


class Phase(IntEnum):
    """What of a record's state other clients can tell apart."""

    ABSENT = 0
    HELD = 1
    FREE = 2  # the same request may run: nothing had happened, or it may be repeated
    DOUBT = 3
    FINAL = 4


ABSENT, HELD, FREE, DOUBT, FINAL = Phase

NOBODY: Final = 0  # a holder whose grant was not seen: its process died in the claim
GIVEN_UP: Final = -1  # a holder that got no reply, and abandons its claim in the background

LEASE_TOLERANCE_NS: Final = 20_000_000  # the wall and the monotonic clock drift apart, and schedulers are late


class Standing(NamedTuple):
    """The state of a record. ``holder`` is the fence of its grant; times are monotonic nanoseconds."""

    phase: Phase
    holder: int
    floor: int  # the highest fence that was seen
    request: str | None
    effects: str | None
    word: str | None  # succeeded or refused, where it is final
    answer: str | None  # None where it is final: not kept
    lapses_ns: int  # the lease of the present grant did not run out before this
    process: str  # whose grant it is
    grants: int  # since nothing had happened the last time


NEW: Final = Standing(ABSENT, NOBODY, 0, None, None, None, None, 0, "", 0)


class Terms(NamedTuple):
    """What of a history the model needs besides the operation: the deaths, and whether leases are judged."""

    deaths_ns: Mapping[str, int]
    leases_judged: bool = True


def step(at: Standing, op: Operation, terms: Terms) -> Standing | None:
    """The state after this operation took effect here; ``at`` itself if it changed nothing.

    None: it cannot have taken effect here.
    """
    match op.kind:
        case "attempt":
            return _grant_unseen(at, op) if op.result is None else _attempt(at, op, op.result, terms)
        case "settle":
            return _settle(at, op)
        case "resolve":
            return _resolve(at, op)
        case "look":
            return _look(at, op, op.result or {}, terms)
        case _:
            return at if _reads(at, op.result or {}) else None


# --- attempts ---


def _attempt(at: Standing, op: Operation, told: Words, terms: Terms) -> Standing | None:
    args = op.args
    verdict = told["verdict"]
    if verdict == "reused":
        return at if at.request is not None and at.request != args["request"] else None
    if at.request is not None and at.request != args["request"] and not _forgets(at):
        return None  # in every state another payload is refused
    match verdict:
        case "proceed":
            return _proceed(at, op, told["fence"], terms)
        case "replay":
            same = at.phase == FINAL and at.answer == told["answer"] and at.word == told["state"]
            return at if same and at.answer is not None else None
        case "in-progress":
            return at if at.phase == HELD and not _holder_is_long_dead(at, op, args, terms) else None
        case "outcome-unknown":
            return _doubtful(at, op, terms)
        case "not-replayable":
            return at if at.phase == FINAL and at.answer is None else None
        case _:
            return None  # no retention ends here, and no record is unreadable


def _proceed(at: Standing, op: Operation, fence: int, terms: Terms) -> Standing | None:
    if fence <= at.floor and op.args["effects"] != "atomic":
        return None  # the fence grows with every grant
    return _grant(at, op, fence) if _may_proceed(at, op, terms) else None


def _grant_unseen(at: Standing, op: Operation) -> Standing | None:
    """An attempt whose reply was lost: it changes something only if it was granted."""
    if at.request is not None and at.request != op.args["request"] and not _forgets(at):
        return None
    holder = NOBODY if op.gave_up is None else GIVEN_UP
    return _grant(at, op, holder) if _may_proceed(at, op, None) else None


def _grant(at: Standing, op: Operation, holder: int) -> Standing:
    args = op.args
    return Standing(
        HELD,
        holder,
        max(at.floor, holder),
        args["request"],
        args["effects"],
        None,
        None,
        op.start_ns + args["lease_us"] * 1000,
        op.process,
        at.grants + 1,
    )


def _may_proceed(at: Standing, op: Operation, terms: Terms | None) -> bool:
    if at.phase in (ABSENT, FREE):
        return True
    if at.phase != HELD:
        return False
    if at.effects == "atomic" or at.holder == GIVEN_UP:
        return True  # rolled back, or abandoned, unseen
    return at.effects == "idempotent" and _may_have_lapsed(at, op, terms)


def _forgets(at: Standing) -> bool:
    """An ATOMIC grant that is rolled back takes its request with it."""
    return at.phase == HELD and at.effects == "atomic"


def _may_have_lapsed(at: Standing, op: Operation, terms: Terms | None) -> bool:
    """Whether the holder's lease may have run out before this operation ended."""
    if terms is None or not terms.leases_judged:
        return True
    return op.end_ns + LEASE_TOLERANCE_NS >= at.lapses_ns


def _holder_is_long_dead(at: Standing, op: Operation, args: Words, terms: Terms) -> bool:
    """Whether a lease that could not be renewed any more had run out before this operation began."""
    died_ns = terms.deaths_ns.get(at.process)
    if died_ns is None or not terms.leases_judged:
        return False
    lease_ns: int = args["lease_us"] * 1000
    return op.start_ns > died_ns + lease_ns + LEASE_TOLERANCE_NS


def _doubtful(at: Standing, op: Operation, terms: Terms) -> Standing | None:
    if at.phase == DOUBT:
        return at
    if at.phase == HELD and _may_have_lapsed(at, op, terms):
        # It stays held: its holder may still settle, or renew.
        return at if at.effects != "idempotent" or at.grants >= op.args["attempts_max"] else None
    spent = at.phase == FREE and at.effects == "idempotent" and at.grants >= op.args["attempts_max"]
    return at if spent else None


def _look(at: Standing, op: Operation, told: Words, terms: Terms) -> Standing | None:
    """An attempt that writes nothing: "in progress" also stands for "an attempt would proceed"."""
    if told["verdict"] == "in-progress":
        return at if at.phase in (ABSENT, HELD, FREE) else None
    if told["verdict"] == "proceed":
        return at if at.phase == HELD and at.holder == told["fence"] else None
    return _attempt(at, op, told, terms)


# --- settlements ---


def _settle(at: Standing, op: Operation) -> Standing | None:
    told = op.result
    if told is None or told["settling"] == "settled":
        return _apply_settled(at, op.args)
    holds = at.phase in (HELD, DOUBT) and at.holder == op.args["fence"]
    if told["settling"] == "early":
        return at._replace(phase=DOUBT) if holds else None
    return at if not holds or at.effects == "atomic" else None


def _apply_settled(at: Standing, word: Words) -> Standing | None:
    fence, state = word["fence"], word["state"]
    if word["effects"] == "atomic":
        return _apply_settled_atomic(at, word)
    holds = at.phase in (HELD, DOUBT) and at.holder == fence
    if not holds:
        return at if at.holder == fence and _same_end(at, word) else None
    match state:
        case "succeeded" | "refused":
            answer = word["answer"] if word["kept"] else None
            return at._replace(phase=FINAL, word=state, answer=answer)
        case "unknown":
            return at if at.phase == DOUBT else at._replace(phase=DOUBT)
        case "released":
            again = at.effects == "idempotent" and at.grants > 1  # an earlier one may have had its effect
            return at._replace(phase=FREE, grants=at.grants if again else 0)
        case _:
            return at._replace(phase=FREE)


def _apply_settled_atomic(at: Standing, word: Words) -> Standing | None:
    """Commit, or roll back; a refusal is stored by its own grant after the rollback."""
    holds = at.phase in (HELD, DOUBT) and at.holder == word["fence"]
    match word["state"]:
        case "succeeded":
            answer = word["answer"] if word["kept"] else None
            return at._replace(phase=FINAL, word="succeeded", answer=answer) if holds else None
        case "refused":
            if at.phase in (FINAL, DOUBT):
                return None
            request = word.get("request", at.request)
            return at._replace(
                phase=FINAL, word="refused", answer=word["answer"], holder=word["fence"], request=request
            )
        case _:
            return at._replace(phase=ABSENT, request=None, grants=0) if holds and at.phase == HELD else at


def _same_end(at: Standing, word: Words) -> bool:
    """The same settlement by the same holder, repeated."""
    state = word["state"]
    if state in ("succeeded", "refused"):
        return at.phase == FINAL and at.word == state and (at.answer == word["answer"] or at.answer is None)
    return at.phase == FREE


def _resolve(at: Standing, op: Operation) -> Standing | None:
    told, word = op.result, op.args
    if told is not None and told["resolving"] == "too-early":
        return at if at.phase in (HELD, DOUBT) else None
    if told is not None and told["resolving"] == "moved-on":
        return at if at.phase != DOUBT or at.holder != word["fence"] else None
    open_to_it = at.phase in (HELD, DOUBT) or (at.phase == FREE and at.effects == "idempotent")
    seen = at.holder > 0
    if not open_to_it or (word["fence"] != at.holder if seen else word["fence"] <= at.floor):
        return None
    resolved = at._replace(holder=NOBODY, floor=max(at.floor, word["fence"]) + 1)
    if word["happened"]:
        return resolved._replace(phase=FINAL, word="succeeded", answer=word["answer"])
    return resolved._replace(phase=FREE, grants=0)


# --- reads ---


def _reads(at: Standing, told: Words) -> bool:
    """Whether a look at the record may show this: a state that follows from time alone may be there, or not yet."""
    state = told.get("state")
    if state is None:
        return at.phase == ABSENT or _forgets(at)
    if at.holder > 0 and at.phase != ABSENT and told["fence"] != at.holder and at.effects != "atomic":
        return False
    match state:
        case "succeeded" | "refused":
            return at.phase == FINAL and at.word == state and told["answer"] == at.answer
        case "released":
            return at.phase == FREE or (at.phase == HELD and at.holder == GIVEN_UP)
        case "given-back":
            return at.phase == FREE
        case "unknown":
            return at.phase in (DOUBT, HELD)
        case _:
            return at.phase == HELD


def show(at: Standing) -> str:
    """The state of the record, in words."""
    match at.phase:
        case Phase.ABSENT:
            return "no record"
        case Phase.HELD:
            holder = {NOBODY: "a holder nobody has seen", GIVEN_UP: "a claim that was given up"}.get(
                at.holder, f"fence {at.holder}"
            )
            return f"held by {holder} ({at.effects})"
        case Phase.FREE:
            return "free: nothing happened, or it may be repeated"
        case Phase.DOUBT:
            return "unknown"
        case _:
            return f"{at.word}, answer {at.answer or 'not kept'}"
