"""Decide a retrying client's next action, without IO: one attempt, one event, one action.

A :class:`Plan` is driven by a loop that owns the sockets and the clock: it calls :meth:`Plan.start`, performs the
:class:`Action`, and passes the result to :meth:`Plan.after`, until the action is :class:`Finish`. The same plan
therefore serves httpx, requests, aiohttp or anything else. It never makes, changes or sees a key: its driver
sends the same key with every attempt.

The plan assumes that a repeated request with the same key has no second effect. What it assumes of servers that are
not Semel's is in docs/client.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urljoin

from semel.client.answers import RUNNING, Answered, document_of, origin_of
from semel.client.limits import Budget, Gate

LIFETIME_SECONDS: Final = 86_400.0
"""The assumed lifetime of a key if the server does not announce one."""

LIFETIME_OVER: Final = "KEY_LIFETIME_OVER"
REDIRECT: Final = "REDIRECT"
OUTCOME_UNKNOWN: Final = "IDEMPOTENCY_OUTCOME_UNKNOWN"
IN_PROGRESS: Final = "IDEMPOTENCY_REQUEST_IN_PROGRESS"
# Semel's own refusals that it sends without reading the record: they say nothing about an earlier attempt.
_WITHOUT_A_LOOK: Final = frozenset(
    {
        "IDEMPOTENCY_CALLER_UNKNOWN",
        "IDEMPOTENCY_CALLER_NOT_ALLOWED",
        "IDEMPOTENCY_OPERATION_NOT_DECLARED",
        "IMPORT_NOT_ALLOWED",
    }
)

_RETRIED: Final = frozenset({408, 425, 429, 502, 503, 504})
# Answers that prove that this attempt had no effect, and that no other attempt is running.
_NOTHING_RAN: Final = frozenset({425, 429})
# Refusals that depend on the request alone: an earlier attempt with the same bytes was or would have been refused too.
_ABOUT_THE_REQUEST: Final = frozenset({400, 411, 413, 414, 415, 422, 431})
_SETTLED: Final = frozenset({"SUCCEEDED", "FAILED_REPLAYABLE", "FAILED_NOT_REPLAYABLE"})
_LINK_LENGTH_MAX: Final = 2000
_STILL_RUNS: Final = "the server has accepted the command and is still running it"


# --- events ---


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No complete answer arrived. ``sent`` is False only if it is certain that no byte of the request was sent."""

    reason: str
    sent: bool = True


@dataclass(frozen=True, slots=True)
class Waited:
    """A pause is over."""


Event: TypeAlias = Answered | NoAnswer | Waited


# --- outcomes ---


@dataclass(frozen=True, slots=True)
class Done:
    """The command succeeded. ``replayed``: this is the stored answer of an earlier attempt.

    ``answer`` is None if an earlier process received it and its journal does not keep answers.
    """

    answer: Answered | None
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The server refused the command, and the same request would be refused again.

    ``code`` is the problem's, or ``HTTP_<status>``. ``key_action``: "new": correct the request and make a new intent;
    "keep": remove the obstacle (authenticate, for example) and send the same intent again.
    """

    code: str
    key_action: Literal["keep", "new"]
    answer: Answered | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class InDoubt:
    """It is not known yet whether the command took effect. Keep the key; never repeat the command under a new one.

    ``operation_url`` is where the server reports its status; without one, look for your business reference.
    """

    code: str
    operation_url: str | None = None
    answer: Answered | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NotYet:
    """There is no outcome yet, and sending the same intent again is safe, but not before ``retry_after`` seconds.

    ``may_have_happened`` is False only if it is certain that no attempt reached the server.
    """

    code: str
    retry_after: float
    may_have_happened: bool
    answer: Answered | None = None
    detail: str = ""


Outcome: TypeAlias = Done | Refused | InDoubt | NotYet


# --- actions ---


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request with its key.

    ``attempt`` counts from 1; it times out after ``seconds``; ``wait`` is the value of ``Prefer: wait=`` in whole
    seconds: how long the server may hold a duplicate before it answers that the first one is still running.
    """

    attempt: int
    seconds: float
    wait: int


@dataclass(frozen=True, slots=True)
class AskStatus:
    """GET the status of the operation at ``url``, with the caller's credentials and without a key."""

    url: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause for ``seconds``, because of ``code``; then send again or ask for the status, as ``then`` says."""

    seconds: float
    code: str
    then: Literal["send", "ask"]


@dataclass(frozen=True, slots=True)
class Finish:
    """There is nothing more to do in this budget."""

    outcome: Outcome


Action: TypeAlias = Send | AskStatus | Wait | Finish


class Plan:
    """The decisions of one ``send()``.

    Parameters:
        url: the command's URL; the link to its status is resolved against it. A link to another origin is never
            followed: it would carry credentials there.
        budget: the limits of this ``send()``.
        gate: the state that all plans for this origin share.
        jitter: a random number between 0 and 1 for each pause.
        sends_before: how many attempts earlier plans of the same intent have made.
        may_have_happened: whether one of them may have reached the server without a definite answer.
        age_seconds: how long ago the first of them was made.
        lifetime_seconds: how long the server remembers the key after that attempt, as far as is known.

    >>> plan = Plan("https://shop.example/payments", Budget(seconds=20))
    >>> plan.start(0.0)
    Send(attempt=1, seconds=6.666666666666667, wait=6)
    >>> plan.after(Answered(201), 0.1)
    Finish(outcome=Done(answer=Answered(status=201), replayed=False))
    """

    def __init__(
        self,
        url: str,
        budget: Budget,
        *,
        gate: Gate | None = None,
        jitter: Callable[[], float] = lambda: 1.0,
        sends_before: int = 0,
        may_have_happened: bool = False,
        age_seconds: float = 0.0,
        lifetime_seconds: float = LIFETIME_SECONDS,
    ) -> None:
        self.lifetime_seconds = lifetime_seconds
        self.operation_url: str | None = None
        self.sends = 0
        self.may_have_happened = may_have_happened
        self._url = url
        self._budget = budget
        self._gate = gate
        self._jitter = jitter
        self._sends_before = sends_before
        self._age = age_seconds
        self._first_sent: float | None = None
        self._ends = 0.0
        self._last: Answered | None = None
        self._now_comes: Literal["send", "ask"] = "send"
        self._asks = 0
        self._pending: Literal["send", "ask", "pause"] = "send"
        self._doubt = OUTCOME_UNKNOWN
        self._is_accepted = False  # the server is processing the command and has no answer yet
        self._is_settled = False  # the status says that an answer is ready: one more attempt may fetch it

    # --- the two questions ---

    def start(self, now: float) -> Action:
        """Return the first action; ``now`` is a monotonic time in seconds."""
        self._ends = now + self._budget.seconds
        if self._sends_before:
            self._first_sent = now - self._age
        return self._send(now)

    def after(self, event: Event, now: float) -> Action:
        """Return the next action after this event."""
        pending = self._pending
        if isinstance(event, Waited):
            assert pending == "pause"
            return self._send(now) if self._now_comes == "send" else self._ask(now)
        if pending == "ask":
            return self._after_status(event, now)
        assert pending == "send"
        if isinstance(event, NoAnswer):
            self._note(now, failed=True)
            self.may_have_happened |= event.sent
            return self._again(now, "NO_ANSWER", None, event.reason)
        self._note(now, failed=event.status in (502, 503, 504))
        return self._after_answer(event, now)

    # --- sending ---

    def _send(self, now: float) -> Action:
        left = self._ends - now
        if left <= 0:
            return self._give_up("DEADLINE", 0.0, "the budget's time has run out")
        if self._first_sent is not None:
            key_left = self._first_sent + self.lifetime_seconds - now
            if key_left <= 0:
                return self._lifetime_over()
            left = min(left, key_left)
        retry = self.sends + self._sends_before > 0
        held = self._gate.admit(now, retry=retry) if self._gate is not None else None
        if held is not None:
            return self._give_up(held.code, held.seconds, "the circuit breaker for this origin is open")
        self.sends += 1
        if self._first_sent is None:
            self._first_sent = now
        self._pending = "send"
        parts = max(self._budget.attempts - self.sends + 1, 1)
        seconds = self._budget.attempt_seconds or left / parts
        seconds = min(seconds, left)
        # Shorter than the attempt's own timeout: we would miss an answer that the server sends after it.
        return Send(self.sends, seconds, int(seconds - 0.5) if seconds >= 1.5 else 0)

    def _again(self, now: float, code: str, answer: Answered | None, detail: str = "") -> Action:
        """Pause and send again, or give up."""
        self._last = answer
        least = (answer.retry_after if answer is not None else None) or 0.0
        pause = least + self._jitter() * self._pause(self.sends)
        if self.sends >= self._budget.attempts + self._is_settled:
            return self._give_up(code, pause, detail)
        if now + pause >= self._ends:
            return self._give_up(code, pause, detail)
        self._pending, self._now_comes = "pause", "send"
        return Wait(pause, code, "send")

    def _pause(self, made: int) -> float:
        """Return the longest pause after ``made`` attempts."""
        return min(self._budget.pause_seconds_max, self._budget.pause_seconds * 2.0 ** min(max(made - 1, 0), 64))

    def _note(self, now: float, *, failed: bool) -> None:
        if self._gate is not None:
            self._gate.note(now, failed=failed)

    def _give_up(self, code: str, retry_after: float, detail: str) -> Finish:
        if self._asks and not self._is_settled:
            return self._in_doubt(detail)
        return Finish(NotYet(code, retry_after, self.may_have_happened, self._last, detail))

    def _lifetime_over(self) -> Finish:
        detail = (
            "the server may have forgotten the key: a retry could be taken for a new command. Look for your business "
            "reference; do not send the command again"
        )
        return Finish(InDoubt(LIFETIME_OVER, self.operation_url, self._last, detail))

    # --- reading answers ---

    def _after_answer(self, answer: Answered, now: float) -> Action:
        self._last = answer
        if answer.lifetime_seconds is not None:
            self.lifetime_seconds = answer.lifetime_seconds
        self.operation_url = self._same_origin(answer.operation) or self.operation_url
        problem, status = answer.problem, answer.status
        self._is_accepted = answer.is_accepted
        if problem.get("code") == OUTCOME_UNKNOWN:
            self.may_have_happened = True
            return self._doubtful(answer, now, OUTCOME_UNKNOWN)
        if answer.replayed:
            return self._finish_stored(answer)
        if problem.get("retryable") is True or (status in _RETRIED and problem.get("retryable") is not False):
            # A retryable 503 means that the server ran nothing, unless it could not confirm its commit. It says
            # nothing about an earlier attempt.
            nothing = status == 503 and problem.get("retryable") is True and not problem.get("mayHaveHappened")
            ran = status not in _NOTHING_RAN and not nothing
            self.may_have_happened |= ran
            return self._again(now, answer.code, answer, _detail(problem))
        if problem.get("keyAction") == "query":
            detail = _detail(problem) or "the server has no answer: look for your business reference"
            return Finish(InDoubt(answer.code, self.operation_url, answer, detail))
        if status >= 500 or status < 200:
            self.may_have_happened = True
            return self._doubtful(answer, now, answer.code)
        if self._is_accepted:
            self.may_have_happened = True
            if self.operation_url is None or self._is_settled:
                return self._again(now, IN_PROGRESS, answer, _STILL_RUNS)
            return self._doubtful(answer, now, IN_PROGRESS)
        if status < 300 or status == 303:
            return Finish(Done(answer, replayed=False))
        if status < 400:
            return self._finish_redirect(answer)
        return self._finish_refusal(answer)

    def _finish_stored(self, answer: Answered) -> Finish:
        """Finish with the stored answer of an earlier attempt, which is final.

        It need not prove what happened: a server may store any result of its first attempt. A failure is a
        refusal only if the answer states the key's lifetime.
        """
        if 200 <= answer.status < 300 or answer.status == 303:
            return Finish(Done(answer, replayed=True))
        if answer.is_stored_failure or answer.is_stored_redirect:
            what = "redirect" if answer.is_stored_redirect else "failure"
            detail = (
                f"the server has stored this {what} and always replays it for this key: look for your business "
                "reference; do not send the command again"
            )
            code = REDIRECT if answer.is_stored_redirect else answer.code
            return Finish(InDoubt(code, self.operation_url, answer, detail))
        return Finish(Refused(answer.code, "new", answer, _detail(answer.problem)))

    def _finish_redirect(self, answer: Answered) -> Finish:
        detail = (
            "the server redirects, and the client never follows a redirect with a command: use the final URL, and "
            "check http:// and https://"
        )
        # Many applications answer 302 after a success; a server that knows the key may do so with any redirect.
        if answer.status == 302 or answer.lifetime_seconds is not None or self.may_have_happened:
            return Finish(InDoubt(REDIRECT, self.operation_url, answer, detail))
        return Finish(Refused(REDIRECT, "new", answer, detail))

    def _finish_refusal(self, answer: Answered) -> Finish:
        """Finish with a 4xx that no retry changes. After a lost attempt, only the operation's own refusal counts."""
        problem = answer.problem
        action = problem.get("keyAction")
        own_word = problem.get("code") not in _WITHOUT_A_LOOK and (
            answer.lifetime_seconds is not None or answer.status in _ABOUT_THE_REQUEST or action in ("keep", "new")
        )
        detail = _detail(problem)
        if self.may_have_happened and not own_word:
            detail = detail or "an earlier attempt may have succeeded, and this refusal says nothing about it"
            return Finish(InDoubt(answer.code, self.operation_url, answer, detail))
        if action == "keep" or (action != "new" and answer.status in (401, 403, 407)):
            return Finish(Refused(answer.code, "keep", answer, detail))
        return Finish(Refused(answer.code, "new", answer, detail))

    # --- the status of an operation in doubt ---

    def _doubtful(self, answer: Answered, now: float, code: str) -> Action:
        self._doubt = code
        if self.operation_url is None or self._is_settled:
            return self._in_doubt(_detail(answer.problem))
        return self._pause_and_ask(now, answer.retry_after)

    def _pause_and_ask(self, now: float, least: float | None) -> Action:
        self._asks += 1
        pause = (least or 0.0) + self._jitter() * self._pause(self._asks)
        if now + pause >= self._ends:
            return self._in_doubt("")
        self._pending, self._now_comes = "pause", "ask"
        return Wait(pause, self._doubt, "ask")

    def _ask(self, now: float) -> Action:
        left = self._ends - now
        if left <= 0:
            return self._in_doubt("")
        assert self.operation_url is not None
        self._pending = "ask"
        return AskStatus(self.operation_url, min(left, self._budget.attempt_seconds or left))

    def _after_status(self, event: Answered | NoAnswer, now: float) -> Action:
        if isinstance(event, NoAnswer):
            return self._pause_and_ask(now, None)
        if event.status in _RETRIED:
            return self._pause_and_ask(now, event.retry_after)
        document = document_of(event)
        state = document.get("state")
        if event.status != 200 or not isinstance(state, str):
            return self._in_doubt(f"the status resource answered {event.status}")
        if state in _SETTLED:  # the command's own answer is ready: one more attempt fetches it
            self._is_settled = True
            return self._again(now, state, None)
        if state in RUNNING and document.get("running") is False:
            return self._again(now, state, None)  # its process has died: the server decides what a retry may do
        if state == "UNKNOWN":
            self._is_accepted, self._doubt = False, OUTCOME_UNKNOWN
        return self._pause_and_ask(now, event.retry_after)

    def _in_doubt(self, detail: str) -> Finish:
        if self._is_accepted:
            return Finish(NotYet(self._doubt, 0.0, True, self._last, detail or _STILL_RUNS))
        detail = detail or "the server does not know yet whether it happened: query the operation, keep the key"
        return Finish(InDoubt(self._doubt, self.operation_url, self._last, detail))

    def _same_origin(self, link: str | None) -> str | None:
        if link is None:
            return None
        if len(link) > _LINK_LENGTH_MAX or not link.isprintable():
            return None
        try:
            found = urljoin(self._url, link)
            same = origin_of(found) == origin_of(self._url)
        except ValueError:
            return None
        return found if same else None


def _detail(problem: Mapping[str, Any]) -> str:
    found = problem.get("detail") or problem.get("title")
    return found if isinstance(found, str) else ""
