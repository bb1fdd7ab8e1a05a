"""The words of a history file: its header, its events, and what of a command, a verdict and an answer is kept.

No key, no body and no credential is ever written: a key is its record's id, an answer its digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from semel.core.model import (
    Answer,
    InProgress,
    KeyExpired,
    KeyReused,
    MovedOn,
    NotReplayable,
    OutcomeUnknown,
    Proceed,
    QuotaExceeded,
    Rebuild,
    ReferenceTaken,
    Replay,
    Resolved,
    Resolving,
    Settling,
    State,
    Superseded,
    TooEarly,
    Unreadable,
    Unseal,
    Verdict,
)
from semel.core.record import answer_digest, pack_headers
from semel.engine.permit import Permit
from semel.engine.result import Refusal
from semel.policy import Command

FORMAT: Final = "semel.history"
VERSION: Final = 1
SUFFIX: Final = ".history.jsonl"

Words = dict[str, Any]

STATE_WORDS: Final = {
    State.CLAIMED: "processing",  # for a history both mean "it has a holder"
    State.PROCESSING: "processing",
    State.SUCCEEDED: "succeeded",
    State.FAILED_REPLAYABLE: "refused",
    State.FAILED_NOT_REPLAYABLE: "released",
    State.UNKNOWN: "unknown",
}


class HistoryError(Exception):
    """A file that cannot be read as a history. The message names the file, the line and the remedy."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a file: who wrote it, on which store, on which clock.

    ``process`` names the process for ever (a pid does not); ``boot`` is the machine's run that the monotonic times
    belong to; ``wall_offset_ns`` tells whether the wall clock, and so the store's, was stepped between two processes.
    """

    process: str
    pid: int
    boot: str
    opened_ns: int
    wall_offset_ns: int
    store: str
    semel: str
    settings: Words


def digest(answer: Answer | None) -> str | None:
    """An answer's digest, as the record keeps it."""
    if answer is None:
        return None
    return answer_digest(answer.status, pack_headers(answer.headers), answer.body).hex()


def attempt_words(command: Command) -> Words:
    """What the model needs of an attempt."""
    terms = command.policy.terms
    return {
        "request": command.fingerprint[:8].hex(),
        "effects": terms.effects.name.lower(),
        "lease_us": terms.lease_us,
        "attempts_max": terms.attempts_max,
    }


def verdict_words(met: Permit | Refusal | Verdict) -> Words:
    """The reply to an attempt."""
    match met:
        case Permit():
            return {"verdict": "proceed", "fence": met.grant.fence, "generation": met.grant.generation}
        case Proceed(grant):
            return {"verdict": "proceed", "fence": grant.fence, "generation": grant.generation}
        case Replay(answer, _, state):
            return {"verdict": "replay", "state": STATE_WORDS[state], "answer": digest(answer)}
        case Unseal(_, answer, _, state):  # opened by engines; a store reports what it holds
            return {"verdict": "replay", "state": STATE_WORDS[state], "answer": digest(answer)}
        case Rebuild(_, _, state):
            return {"verdict": "rebuild", "state": STATE_WORDS[state]}
        case InProgress():
            return {"verdict": "in-progress"}
        case KeyReused():
            return {"verdict": "reused"}
        case OutcomeUnknown(_, doubt):
            return {"verdict": "outcome-unknown", "doubt": doubt}
        case NotReplayable():
            return {"verdict": "not-replayable"}
        case ReferenceTaken():
            return {"verdict": "reference-taken"}
        case QuotaExceeded():
            return {"verdict": "quota-exceeded"}
        case KeyExpired():
            return {"verdict": "expired"}
        case Unreadable(_, reason):
            return {"verdict": "unreadable", "reason": reason}


def settling_words(reply: Settling) -> Words:
    """The reply to a holder's settlement."""
    if isinstance(reply, Superseded):
        return {"settling": "superseded"}
    return {"settling": "settled"}  # AlreadyMine reports the same state twice


def resolving_words(reply: Resolving) -> Words:
    """The reply to an operator's settlement."""
    match reply:
        case Resolved():
            return {"resolving": "resolved"}
        case TooEarly():
            return {"resolving": "too-early"}
        case MovedOn():
            return {"resolving": "moved-on"}
