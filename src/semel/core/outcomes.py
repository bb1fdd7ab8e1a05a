"""Judge a handler's end: an answer, an exception or a crash becomes one of four outcomes.

Pure: the caller passes what it saw (a status or an exception, and whether the effect had begun), the policy
what was declared, and the outcome says what the store must hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from semel.core.model import Answer, Effects
from semel.errors import NothingHappened
from semel.policy import NOT_RUN, Policy


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The effect is done; the answer is stored as SUCCEEDED."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Refused:
    """A definite refusal; the answer is stored as FAILED_REPLAYABLE. ATOMIC rolls back first."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Released:
    """No effect happened (``proven``), or the effect may be repeated safely: the key is free for the same request.

    ``resumes``: steps had begun, and each is finished or may be repeated; the next run goes on from there.
    """

    reason: str
    proven: bool
    resumes: bool = False


@dataclass(frozen=True, slots=True)
class Unprovable:
    """The outcome is UNKNOWN, with its doubt, and its cause where that says more."""

    doubt: str
    cause: str | None = None


Outcome = Succeeded | Refused | Released | Unprovable


class StatusIn:
    """A policy's ``success`` that depends on the status alone: done if it is one of these, otherwise in doubt.

    >>> StatusIn([200, 201])(Answer(202, (), b""))
    False
    """

    __slots__ = ("_statuses",)

    def __init__(self, statuses: Iterable[int]) -> None:
        self._statuses = frozenset(statuses)

    def __call__(self, answer: Answer) -> bool:
        return answer.status in self._statuses


def classify_answer(answer: Answer, policy: Policy, *, begun: bool) -> Outcome:
    """Return the outcome of a handler that answered.

    Parameters: ``answer`` what it gave; ``begun`` whether its point of no return may have been passed
    (always true for handlers that do not mark it).
    """
    status = answer.status
    if status is None or 200 <= status < 300:
        return Succeeded(answer) if policy.success is None else _apply_success(answer, policy, begun=begun)
    if status in policy.not_run:
        return _failure_outcome(policy, begun, f"http-{status}", proven=True)
    if status in NOT_RUN:
        return _unproven(answer, policy, f"http-{status}", begun=begun)
    if policy.replay == "2xx" and status < 500:
        return Succeeded(answer) if status < 400 else _failure_outcome(policy, begun, f"http-{status}", proven=True)
    if status < 400:
        return Succeeded(answer)
    if status < 500 or status in policy.definite_5xx:
        return Refused(answer)
    return _unproven(answer, policy, f"http-{status}", begun=begun)


def classify_unread(answer: Answer, policy: Policy, *, begun: bool) -> Outcome:
    """The outcome of a handler whose answer is not kept: a policy's ``success`` cannot be asked about a part of it,
    unless it looks at the status alone.
    """
    by_status = policy.success is None or isinstance(policy.success, StatusIn)
    if by_status or answer.status is None or not 200 <= answer.status < 300:
        return classify_answer(answer, policy, begun=begun)
    return _failure_outcome(policy, begun, "success-unread", proven=False)


def _apply_success(answer: Answer, policy: Policy, *, begun: bool) -> Outcome:
    """Apply the policy's own function to a 2xx answer. A function that fails proves nothing."""
    assert policy.success is not None
    try:
        said = policy.success(answer)
    except Exception as error:  # noqa: BLE001 - the effect may have happened, whatever became of the function
        return _failure_outcome(policy, begun, f"success:{type(error).__name__}", proven=False)
    if said is True:
        return Succeeded(answer)
    if said == "refused":
        return Refused(answer)
    if said == "nothing":
        return Released("success-nothing", proven=True)
    return _unproven(answer, policy, "no-success", begun=begun)


def _unproven(answer: Answer, policy: Policy, reason: str, *, begun: bool) -> Outcome:
    """Return the outcome of an error answer that does not say whether anything happened."""
    if not begun:
        return Released(reason, proven=True)
    if policy.on_error == "replay":
        return Refused(answer)
    return _failure_outcome(policy, begun, reason, proven=False)


def classify_exception(error: BaseException, policy: Policy, *, begun: bool, answer: Answer | None = None) -> Outcome:
    """Return the outcome of a handler that raised. ``answer``: the error answer that a framework made of it, if any."""
    proven = isinstance(error, (NothingHappened, *policy.nothing_happened))
    if proven or not begun:
        return Released(type(error).__name__, proven=True)
    if policy.on_error == "replay" and answer is not None and answer.status is not None:
        return Refused(answer)
    return _failure_outcome(policy, begun, f"error:{type(error).__name__}", proven=False)


def _failure_outcome(policy: Policy, begun: bool, reason: str, *, proven: bool) -> Outcome:
    match policy.terms.effects:
        case Effects.ATOMIC:
            return Released(reason, proven=True)
        case Effects.IDEMPOTENT:
            return Released(reason, proven=False)
        case _:
            return Released(reason, proven=True) if proven or not begun else Unprovable(reason)
