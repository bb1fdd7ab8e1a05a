"""The closed vocabulary of the table, and how observations become words of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from bench.correctness.client import Answer, Reply, Silence


class Verdict(Enum):
    """What happened in one cell, seen from outside: effects counted in a file, answers as they came."""

    ONCE = "once"
    REFUSED_AFTER = "once, then refused"
    UNKNOWN = "once, told unknown"
    ERROR_AFTER = "once, then an error"
    OTHER_ANSWER = "once, another answer"
    SEPARATE = "once each"
    TWICE = "twice"
    LEAK = "answer of another caller"
    WRONG_PAYLOAD = "answer of another payload"
    NOT_DONE = "not done, refused"
    NOT_DONE_UNKNOWN = "not done, told unknown"
    REFUSED = "refused"
    ERROR = "an error"
    HANGS = "hangs"
    NO_START = "does not start"
    NOT_OFFERED = "not offered"


LEGEND = {
    Verdict.ONCE: "one effect, and the retry got its answer: same status, type and bytes, where the first call had one",
    Verdict.REFUSED_AFTER: "one effect; the retry was refused and did not run",
    Verdict.UNKNOWN: "one effect; the retry did not run and was told that nobody knows the outcome",
    Verdict.ERROR_AFTER: "one effect; the retry did not run and got a server error or a closed connection",
    Verdict.OTHER_ANSWER: "one effect, but the retry got an answer that differs from the first",
    Verdict.SEPARATE: "two callers, two effects, each with its own answer",
    Verdict.TWICE: "the effect happened more than once",
    Verdict.LEAK: "the second caller got the first caller's answer",
    Verdict.WRONG_PAYLOAD: "another payload under the same key got the first payload's answer",
    Verdict.NOT_DONE: "no effect has happened, and the retry is refused: what was wanted stays undone",
    Verdict.NOT_DONE_UNKNOWN: "the same, and the retry is told that nobody knows the outcome",
    Verdict.REFUSED: "nothing ran: the request was refused, both times",
    Verdict.ERROR: "nothing ran, and the answer was a server error or a closed connection",
    Verdict.HANGS: "no answer within the bench's patience (20 s)",
    Verdict.NO_START: "the application refuses to start with this setting",
    Verdict.NOT_OFFERED: "the package or the store does not claim to serve this",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One cell. ``status`` is that of the refusal or error the verdict speaks of; ``note`` is one sentence."""

    verdict: Verdict
    note: str
    status: int | None = None

    def words(self) -> str:
        """For a table."""
        return self.verdict.value if self.status is None else f"{self.verdict.value} {self.status}"


def judge(effects: int, replies: Sequence[Reply], note: str = "") -> Finding:
    """The verdict on one command that was sent several times: the first reply is the first sending's.

    Parameters: ``effects`` counted outside; ``replies`` in the order they were sent; ``note`` before the observations.

    >>> judge(2, [Answer(201, b"", b"a"), Answer(201, b"", b"b")]).verdict.name
    'TWICE'
    """
    seen = f"{note}{' ' if note else ''}{describe_effects(effects, replies)}"
    first, last = replies[0], replies[-1]
    if any(isinstance(reply, Silence) and reply.hung for reply in replies[1:]):
        return Finding(Verdict.HANGS, seen)
    if effects > 1:
        return Finding(Verdict.TWICE, seen)
    if effects == 0:
        return Finding(_undone(first, last), seen, _status(last))
    if isinstance(last, Answer) and (last == first or (last.ok and _is_failure(first))):
        return Finding(Verdict.ONCE, seen)
    if isinstance(last, Answer) and last.refuses:
        return Finding(Verdict.UNKNOWN if says_unknown(last) else Verdict.REFUSED_AFTER, seen, last.status)
    if isinstance(last, Silence) or last.status >= 500:
        return Finding(Verdict.ERROR_AFTER, seen, _status(last))
    return Finding(Verdict.OTHER_ANSWER, seen)


def judge_payloads(effects: int, first: Reply, other: Reply) -> Finding:
    """The verdict on one key with two payloads: only the first may have run, and only it may have its answer."""
    seen = describe_effects(effects, [first, other])
    if effects == 1 and isinstance(other, Answer) and other == first:
        return Finding(Verdict.WRONG_PAYLOAD, seen)
    return judge(effects, [first, other])


def judge_callers(effects: int, first: Reply, other: Reply) -> Finding:
    """The verdict on two callers that send the same key: each shall have an effect and an answer of its own."""
    seen = describe_effects(effects, [first, other])
    if isinstance(first, Answer) and isinstance(other, Answer) and first.ok and other.ok:
        if first == other:
            return Finding(Verdict.LEAK, seen)
        if effects == 2:
            return Finding(Verdict.SEPARATE, seen)
    return judge(effects, [first, other])


def says_unknown(answer: Answer) -> bool:
    """Whether a refusal says that the outcome is unknown, rather than that another attempt is running.

    By its words: the packages that say so have one of these in the code or the type of their answer.
    """
    return any(word in answer.body.lower() for word in (b"unknown", b"quarantined"))


def describe_effects(effects: int, replies: Sequence[Reply]) -> str:
    """What was counted, as a sentence.

    >>> observed(1, [Answer(201, b"", b""), Answer(409, b"", b""), Silence(hung=False)])
    '1 effect; answered 201, 409, closed.'
    """
    many = "" if effects == 1 else "s"
    return f"{effects} effect{many}; answered {', '.join(_name(reply) for reply in replies)}."


def _name(reply: Reply) -> str:
    match reply:
        case Answer():
            return str(reply.status)
        case Silence(hung=True):
            return "nothing"
        case Silence():
            return "closed"


def _undone(first: Reply, last: Reply) -> Verdict:
    """Nothing has happened: by the caller's fault, or because of what had gone wrong before."""
    if not (isinstance(last, Answer) and last.refuses):
        return Verdict.ERROR
    if not _is_failure(first):
        return Verdict.REFUSED
    return Verdict.NOT_DONE_UNKNOWN if says_unknown(last) else Verdict.NOT_DONE


def _is_failure(reply: Reply) -> bool:
    return isinstance(reply, Silence) or (reply.status >= 500 and not reply.refuses)


def _status(reply: Reply) -> int | None:
    return reply.status if isinstance(reply, Answer) else None
