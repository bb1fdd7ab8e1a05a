"""Decide a retrying client's next action, without IO: one attempt, one event, one action.

A :class:`Plan` is driven by a loop that owns the sockets and the clock: it calls :meth:`Plan.start`, performs the
:class:`Action`, and passes what came of it to :meth:`Plan.after`, until the action is :class:`Finish`. The same plan
therefore serves httpx, requests, aiohttp or anything else. It never makes, changes or sees a key: its driver
sends the same key with every attempt.

The plan assumes that a repeated request with the same key has no second effect. What it assumes of servers that are
not Semel's is in docs/client.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, Final, Literal, Protocol, TypeAlias
from urllib.parse import urljoin, urlsplit

from semel.errors import ConfigurationError

LIFETIME_SECONDS: Final = 86_400.0
"""How long a key is believed to be remembered where the server does not say."""

LIFETIME_OVER: Final = "KEY_LIFETIME_OVER"
REDIRECT: Final = "REDIRECT"
OUTCOME_UNKNOWN: Final = "IDEMPOTENCY_OUTCOME_UNKNOWN"
IN_PROGRESS: Final = "IDEMPOTENCY_REQUEST_IN_PROGRESS"
# Refusals of Semel's own that do not look at the record: they say nothing of an earlier attempt.
_WITHOUT_A_LOOK: Final = frozenset(
    {
        "IDEMPOTENCY_CALLER_UNKNOWN",
        "IDEMPOTENCY_CALLER_NOT_ALLOWED",
        "IDEMPOTENCY_OPERATION_NOT_DECLARED",
        "IMPORT_NOT_ALLOWED",
    }
)

_RETRIED: Final = frozenset({408, 425, 429, 502, 503, 504})
# Answers that prove that this attempt had no effect and that no other attempt is running.
_NOTHING_RAN: Final = frozenset({425, 429})
# What depends on the request alone: an earlier attempt with the same bytes got, or would have got, the same refusal.
_ABOUT_THE_REQUEST: Final = frozenset({400, 411, 413, 414, 415, 422, 431})
_SETTLED: Final = frozenset({"SUCCEEDED", "FAILED_REPLAYABLE", "FAILED_NOT_REPLAYABLE"})
_RUNNING: Final = frozenset({"CLAIMED", "PROCESSING"})
_SECONDS_DIGITS_MAX: Final = 12
_PERIOD_LENGTH_MAX: Final = 60
_LINK_LENGTH_MAX: Final = 2000
_STILL_RUNS: Final = "the server has accepted the command, which still runs"
_PERIOD: Final = re.compile(
    r"P(?:(\d{1,9})Y)?(?:(\d{1,9})M)?(?:(\d{1,9})W)?(?:(\d{1,9})D)?"
    r"(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)
_PERIOD_SECONDS: Final = (365 * 86_400, 28 * 86_400, 7 * 86_400, 86_400, 3600, 60, 1)
# RFC 8288, 3: <target> and its parameters. Quoted text is skipped whole.
_PARAMETER: Final = re.compile(r';\s*+([\w*-]++)\s*+(?:=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^\s;,"]*+)))?+\s*+')
_LINK: Final = re.compile(r'<([^>]*+)>\s*+((?:;\s*+[\w*-]++\s*+(?:=\s*+(?:"(?:[^"\\]|\\.)*+"|[^\s;,"]*+))?+\s*+)*+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of one ``send()``, and of the retries to one origin.

    Parameters:
        attempts: how often the request is sent, at most, 1 to 100.
        seconds: the total deadline over all attempts, pauses and questions about the status.
        attempt_seconds: the longest that one attempt may take; by default a fair part of what is left, so that one
            connection that hangs does not cost the whole budget.
        pause_seconds: the longest first pause between attempts; it doubles with each attempt, and the real pause is
            random between zero and it (full jitter).
        pause_seconds_max: where the doubling ends.
        retries_at_once: how many retries an origin may get at once: the size of its token bucket. First attempts cost
            nothing.
        retries_per_second: how fast the bucket fills again.

    Raises ConfigurationError for a number out of its range.

    >>> Budget(attempts=3, seconds=20).attempts
    3
    """

    attempts: int = 3
    seconds: float = 20.0
    attempt_seconds: float | None = None
    pause_seconds: float = 0.2
    pause_seconds_max: float = 10.0
    retries_at_once: float = 10.0
    retries_per_second: float = 0.5

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= 100:
            raise ConfigurationError(f"attempts must be a whole number from 1 to 100; it is {self.attempts!r}")
        _check_number("seconds", self.seconds, 0.001, 86_400)
        if self.attempt_seconds is not None:
            _check_number("attempt_seconds", self.attempt_seconds, 0.001, 86_400)
        _check_number("pause_seconds", self.pause_seconds, 0, 3600)
        _check_number("pause_seconds_max", self.pause_seconds_max, self.pause_seconds, 86_400)
        _check_number("retries_at_once", self.retries_at_once, 0, 1_000_000)
        _check_number("retries_per_second", self.retries_per_second, 0, 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """When to stop calling an origin: after ``failures`` in a row (no answer, 502, 503, 504), for ``seconds``.

    Then one request probes it: a success closes the breaker, a failure opens it again.

    Raises ConfigurationError for a number out of its range.

    >>> Breaker(failures=5, seconds=10).failures
    5
    """

    failures: int = 5
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if type(self.failures) is not int or not 1 <= self.failures <= 1_000_000:
            raise ConfigurationError(f"failures must be a whole number from 1 to 1000000; it is {self.failures!r}")
        _check_number("seconds", self.seconds, 0.001, 86_400)


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
        raise ConfigurationError(f"{name} must be a number from {low:g} to {high:g}; it is {value!r}")


# --- what an origin has had: retries and failures ---


@dataclass(frozen=True, slots=True)
class NotNow:
    """An attempt is held back for ``seconds``, because of ``code``: ``RETRY_BUDGET`` or ``BREAKER_OPEN``."""

    code: str
    seconds: float


class Tokens:
    """A bucket of retries: ``size`` at once, ``per_second`` more."""

    def __init__(self, size: float, per_second: float) -> None:
        self._size = size
        self._per_second = per_second
        self._left = size
        self._at: float | None = None

    def take(self, now: float) -> float:
        """Take one. 0.0 where there was one; otherwise the seconds until there is."""
        if self._at is not None:
            self._left = min(self._size, self._left + max(now - self._at, 0.0) * self._per_second)
        self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._per_second if self._per_second and self._size >= 1 else float("inf")


class Circuit:
    """The breaker's state for one origin: closed, open, or half open with one probe on its way."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._failures = 0
        self._closed_until: float | None = None  # None: closed; otherwise no request before this time

    def state(self, now: float) -> Literal["closed", "open", "half-open"]:
        """The breaker's state now."""
        if self._closed_until is None:
            return "closed"
        return "open" if now < self._closed_until else "half-open"

    def admit(self, now: float) -> float:
        """0.0 where a request may go; otherwise the seconds to wait. Half open, one goes, and the others wait."""
        if self._closed_until is None:
            return 0.0
        if now < self._closed_until:
            return self._closed_until - now
        # A probe whose outcome never arrives here (a killed thread) blocks the others for one period, not for ever.
        self._closed_until = now + self._breaker.seconds
        return 0.0

    def note(self, now: float, *, failed: bool) -> None:
        """Count an answer or a failure."""
        if not failed:
            self._failures, self._closed_until = 0, None
            return
        self._failures += 1
        if self._closed_until is not None or self._failures >= self._breaker.failures:
            self._closed_until = now + self._breaker.seconds


class Gate(Protocol):
    """The state shared by all plans for one origin."""

    def admit(self, now: float, *, retry: bool) -> NotNow | None:
        """None where an attempt may be made now."""
        ...

    def note(self, now: float, *, failed: bool) -> None:
        """An attempt was answered, or failed."""
        ...


# --- events ---


@dataclass(frozen=True, slots=False)
class Answered:
    """An HTTP answer that arrived whole.

    Parameters: ``status``; ``headers`` with lower-case names; ``body``; ``at``, the Unix time of its arrival in
    seconds, to which dates in ``Retry-After`` are compared.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    at: float = field(default=0.0, repr=False)

    def json(self) -> Any:
        """The body as JSON. Raises ValueError where it is none."""
        return json.loads(self.body)

    @cached_property
    def problem(self) -> Mapping[str, Any]:
        """The members of a problem document (RFC 9457) or another JSON object of a refusal; empty where there is none.

        >>> Answered(409, {"content-type": "application/problem+json"}, b'{"code": "X"}').problem["code"]
        'X'
        """
        if self.status < 400 or "json" not in self.headers.get("content-type", "").lower():
            return {}
        try:
            found = self.json()
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def code(self) -> str:
        """The problem's ``code``, or ``HTTP_<status>``."""
        code = self.problem.get("code") or self.headers.get("semel-code")
        return code if isinstance(code, str) else f"HTTP_{self.status}"

    @property
    def replayed(self) -> bool:
        """Whether the server marks this as the stored answer of an earlier attempt."""
        return "true" in (self.headers.get("idempotency-replayed"), self.headers.get("idempotent-replayed"))

    @property
    def is_stored_failure(self) -> bool:
        """Whether a 5xx was stored that says nothing about the effect.

        >>> Answered(500, {"idempotent-replayed": "true"}).is_stored_failure
        True
        """
        return self.replayed and self.status >= 500 and self.lifetime_seconds is None

    @property
    def is_stored_redirect(self) -> bool:
        """Whether a redirect was stored as the command's answer: many applications send one after a success.

        >>> Answered(302, {"idempotency-replayed": "true"}).is_stored_redirect
        True
        """
        return self.replayed and 300 <= self.status < 400 and self.status != 303

    @property
    def is_accepted(self) -> bool:
        """Whether the server says by a 202 that the command runs, which is not its answer.

        >>> Answered(202, {}, b'{"operationId": "1", "state": "PROCESSING"}').is_accepted
        True
        """
        if self.status != 202 or self.replayed:
            return False
        if "respond-async" in self.headers.get("preference-applied", "").lower():
            return True
        document = _document(self) if "json" in self.headers.get("content-type", "json").lower() else {}
        return document.get("state") in _RUNNING and isinstance(document.get("operationId"), str)

    @property
    def lifetime_seconds(self) -> float | None:
        """The server's ``Idempotency-Key-Lifetime`` in seconds; None if it is absent.

        >>> Answered(201, {"idempotency-key-lifetime": "PT24H"}).lifetime_seconds
        86400.0
        """
        return period_seconds(self.headers.get("idempotency-key-lifetime", ""))

    @property
    def operation(self) -> str | None:
        """The link to the status of the operation, as the server wrote it."""
        found = self.problem.get("operation")
        return found if isinstance(found, str) else status_link(self.headers.get("link", ""))

    @property
    def documentation(self) -> str | None:
        """The URL of a refusal's explanation: its ``describedby`` link, or its ``type`` if that is a URL.

        >>> Answered(409, {"link": '</problems#x>; rel="describedby"'}).documentation
        '/problems#x'
        """
        if self.status < 400:
            return None
        found = link_of(self.headers.get("link", ""), "describedby")
        kind = self.problem.get("type")
        is_url = isinstance(kind, str) and kind.startswith(("https://", "http://"))
        return str(kind) if found is None and is_url else found

    @property
    def retry_after(self) -> float | None:
        """``Retry-After`` in seconds from the answer's arrival, or the problem's ``retryAfter``."""
        found = retry_after_seconds(self.headers.get("retry-after", ""), self.headers.get("date", ""), self.at)
        if found is None:
            member: Any = self.problem.get("retryAfter")
            is_number = isinstance(member, int | float) and not isinstance(member, bool) and 0 <= member < 1e9
            found = float(member) if is_number else None
        return found


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No whole answer came. ``sent`` is False only where it is certain that no byte of the request left."""

    reason: str
    sent: bool = True


@dataclass(frozen=True, slots=True)
class Waited:
    """A pause is over."""


Event: TypeAlias = Answered | NoAnswer | Waited


# --- outcomes ---


@dataclass(frozen=True, slots=True)
class Done:
    """The command succeeded. ``replayed``: this is the answer that an earlier attempt earned.

    ``answer`` is None where an earlier process received it and its journal does not keep answers.
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
    """Whether the command took effect is not known yet. The key is kept; never repeat the command under a new one.

    ``operation_url`` is where the server says what has become of it; without one, look for your business reference.
    """

    code: str
    operation_url: str | None = None
    answer: Answered | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NotYet:
    """There is no outcome yet, and sending the same intent again is safe. ``retry_after``: not before, in seconds.

    ``may_have_happened`` is False only where it is certain that no attempt reached the server.
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

    ``attempt`` counts from 1; give up after ``seconds``; ``wait`` is the value of ``Prefer: wait=`` in whole seconds:
    how long the server may hold a duplicate before it answers that the first one still runs.
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
    """Pause for ``seconds``, because of ``code``, before attempt or question ``then``."""

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
        url: of the command, against which the link to its status is resolved. A link to another origin is never
            followed: it would carry credentials there.
        budget: of this ``send()``.
        gate: what all plans of this origin share.
        jitter: a random number between 0 and 1 for each pause.
        sends_before: how many attempts earlier plans of the same intent have made.
        may_have_happened: whether one of them may have reached the server without a definite answer.
        age_seconds: how long ago the first of them was made.
        lifetime_seconds: how long the server remembers the key after that, as far as is known.

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
        self._is_accepted = False  # the server works on the command, and has no answer yet
        self._is_settled = False  # the status says that an answer waits: one more attempt may fetch it

    # --- the two questions ---

    def start(self, now: float) -> Action:
        """The first action; ``now`` is a monotonic time in seconds."""
        self._ends = now + self._budget.seconds
        if self._sends_before:
            self._first_sent = now - self._age
        return self._send(now)

    def after(self, event: Event, now: float) -> Action:
        """The next action after this event."""
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
        # Less than the attempt's own time: an answer that arrives after we have hung up tells us nothing.
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
        """The longest pause after so many attempts."""
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
            # A server that says "retryable" and "store unavailable" ran nothing, unless it could not see its commit;
            # an earlier attempt stays open.
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
        """Finish: the stored answer of an earlier attempt is final.

        That need not prove what happened: a server may store any end of its first attempt. A failure is a
        refusal only where the operation itself says for how long it holds.
        """
        if 200 <= answer.status < 300 or answer.status == 303:
            return Finish(Done(answer, replayed=True))
        if answer.is_stored_failure or answer.is_stored_redirect:
            what = "redirect" if answer.is_stored_redirect else "failure"
            detail = (
                f"the server has stored this {what}, and answers nothing else under this key: look for your business "
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
        # Many applications answer 302 after a success; a server that has taken the key may send any redirect then.
        if answer.status == 302 or answer.lifetime_seconds is not None or self.may_have_happened:
            return Finish(InDoubt(REDIRECT, self.operation_url, answer, detail))
        return Finish(Refused(REDIRECT, "new", answer, detail))

    def _finish_refusal(self, answer: Answered) -> Finish:
        """A 4xx that no retry helps. After a lost attempt only the operation's own record counts as one."""
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
        document = _document(event)
        state = document.get("state")
        if event.status != 200 or not isinstance(state, str):
            return self._in_doubt(f"the status resource answered {event.status}")
        if state in _SETTLED:  # the command's own answer waits: one attempt fetches it
            self._is_settled = True
            return self._again(now, state, None)
        if state in _RUNNING and document.get("running") is False:
            return self._again(now, state, None)  # its process is gone: the server decides what a retry may do
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


# --- headers ---


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of a URL. Raises ValueError for one that has none.

    >>> origin_of("https://shop.example/x") == origin_of("https://SHOP.example:443/y")
    True
    """
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme.lower(), (parts.hostname or "").lower(), port


def retry_after_seconds(text: str, date: str, at: float) -> float | None:
    """``Retry-After`` in seconds: a number, or a date, which is compared with the server's own ``Date`` if it sent one.

    Parameters: both fields' values, and ``at``, the Unix time of the answer, for servers without ``Date``.
    None where the field says nothing that can be understood.

    >>> retry_after_seconds("120", "", 0.0)
    120.0
    >>> retry_after_seconds("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:07 GMT", 0.0)
    30.0
    """
    text = text.strip()
    if _is_count(text):
        return float(text)
    until, since = _time_of(text), _time_of(date.strip())
    if until is None:
        return None
    return max(until - (at if since is None else since), 0.0)


def status_link(text: str) -> str | None:
    """The target of the first link with ``rel="status"`` in a ``Link`` field.

    >>> status_link('</a>; rel="next", </operations/1>; title="x, y"; rel=status')
    '/operations/1'
    """
    return link_of(text, "status")


def link_of(text: str, relation: str) -> str | None:
    """The target of the first link of a relation in a ``Link`` field."""
    return next((link[1] for link in _LINK.finditer(text) if _is_of(link[2], relation)), None)


def links_without(text: str, relation: str, is_dropped: Callable[[str], bool]) -> str:
    """A ``Link`` field without the links of a relation whose target ``is_dropped``; as it is where none is.

    >>> links_without('</a>; rel="next", </b>; rel=status', "status", lambda target: target == "/b")
    '</a>; rel="next"'
    """
    links = list(_LINK.finditer(text))
    kept = [link for link in links if not (_is_of(link[2], relation) and is_dropped(link[1]))]
    return text if len(kept) == len(links) else ", ".join(link[0].strip() for link in kept)


def _is_of(parameters: str, relation: str) -> bool:
    return any(
        name.lower() == "rel" and relation in (quoted or token).lower().split()
        for name, quoted, token in _PARAMETER.findall(parameters)
    )


def period_seconds(text: str) -> float | None:
    """A span of time in seconds: a whole number of them, or a period of ISO 8601. None where it is neither.

    Parameters of a structured field are left out. A year and a month count as their shortest: 365 and 28 days.

    >>> period_seconds("86400"), period_seconds("P1DT12H"), period_seconds("P2W;v=1"), period_seconds("soon")
    (86400.0, 129600.0, 1209600.0, None)
    """
    text = text.partition(";")[0].strip().strip('"')
    if _is_count(text):
        return float(text)
    found = _PERIOD.fullmatch(text) if len(text) <= _PERIOD_LENGTH_MAX else None
    if found is None or not any(found.groups()):
        return None
    return sum(float(number) * seconds for number, seconds in zip(found.groups("0"), _PERIOD_SECONDS, strict=True))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _SECONDS_DIGITS_MAX


def _time_of(text: str) -> float | None:
    if not text:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, IndexError, TypeError):
        return None


def _document(answer: Answered) -> Mapping[str, Any]:
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _detail(problem: Mapping[str, Any]) -> str:
    found = problem.get("detail") or problem.get("title")
    return found if isinstance(found, str) else ""
