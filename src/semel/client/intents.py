"""An intent, its request and key, and the conversation that brings it to an outcome, without IO.

The conversation is a generator: it yields the next action (a journal call, an attempt, a pause), and a small runner
performs it, one for sync and one for async. So nothing about retries is written twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json as json_module
import logging
import random
import re
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Protocol, TypeAlias, TypedDict, TypeVar
from urllib.parse import urlsplit, urlunsplit

import httpx

from semel.addresses import split_http_url
from semel.articles import name_type
from semel.client.answers import Answered, origin_of
from semel.client.deadline import left_seconds
from semel.client.journal import Busy, Ending, IntentState, Journal, JournalEntry, SendingClaim
from semel.client.limits import Breaker, Budget
from semel.client.origins import Origin, Origins
from semel.client.plan import (
    LIFETIME_OVER,
    LIFETIME_SECONDS,
    AskStatus,
    Done,
    Event,
    Finish,
    InDoubt,
    NoAnswer,
    NotYet,
    Outcome,
    Plan,
    Refused,
    Send,
    Wait,
    Waited,
)
from semel.core.identity import derive_key, frame
from semel.errors import ConfigurationError, RequestTooLarge
from semel.http.fingerprint.canonical import canonical_json
from semel.keys import parse_key

LOG: Final = logging.getLogger("semel.client")
KEY_HEADER: Final = "Idempotency-Key"
_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
# A claim outlasts any send() by this margin, in case the machine stops in the middle of one.
_CLAIM_MARGIN_SECONDS: Final = 30.0
# After these exceptions it is certain that no byte of the request was sent.
_NOTHING_LEFT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_is_token: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_is_field_value: Final = re.compile(r"[!-~](?:[ \t!-~]*[!-~])?|").fullmatch
_ILLEGAL_VALUE: Final = "Illegal header value"  # how httpx's error begins that quotes a header's value
_has_scheme: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://").match
T = TypeVar("T")


# --- actions for a runner ---


class IntentBody(TypedDict, total=False):
    """The content of an intent besides its method and URL, as in ``httpx.request``."""

    json: Any
    content: bytes | str | None
    data: Mapping[str, Any] | None
    params: Mapping[str, Any] | None
    headers: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Keep:
    """Call the journal, and send back its result."""

    call: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Transmit:
    """Make one attempt within ``seconds``; send back an ``Answered`` or a ``NoAnswer``."""

    request: httpx.Request
    seconds: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """Pause."""

    seconds: float


Conversation: TypeAlias = Generator[Keep | Transmit | Sleep, Any, Outcome]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a ``send()``, for a waiting user. Contains neither key nor payload.

    ``attempt`` counts from 1; ``text`` describes what happened; ``pause`` is the current wait in seconds.
    """

    attempt: int
    text: str
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class WantedRequest:
    """A request as it will be sent each time, without its key."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 over method, URL, media type and body. JSON bodies are hashed in canonical form."""
        media_type = next((text for name, text in self.headers.items() if name.lower() == "content-type"), "")
        body = self.body or b""
        if "json" in media_type.lower():
            with contextlib.suppress(RequestTooLarge):  # nested too deeply to canonicalize: hash the raw bytes
                body = canonical_json(body) or body
        return hashlib.sha256(frame("semel.intent.1", self.method, self.url, media_type, body)).digest()


class ClientCore:
    """The shared part of both clients: settings, the gates of origins, and the conversation."""

    def __init__(
        self,
        base_url: str,
        budget: Budget,
        journal: Journal | None,
        breaker: Breaker | None,
        bare: bool,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        if not isinstance(base_url, str):
            raise ConfigurationError(f"the base URL must be a text such as https://shop.example; it is {base_url!r}")
        self.base_url = base_url
        self.budget = budget
        self.bare = bare
        self.origins = Origins(budget, breaker)
        self._journal = journal
        self._progress = progress
        # Tests replace these with a clock that does not move.
        self.now: Callable[[], float] = time.monotonic
        self.jitter: Callable[[], float] = random.random

    @property
    def journal(self) -> Journal:
        """The journal; by default the file ``intents.db`` in the current folder, created on first use."""
        if self._journal is None:
            self._journal = Journal()
        return self._journal

    def safe_url(self, url: str) -> str:
        """Return a URL for people and logs: without credentials, query and fragment."""
        try:
            parts = urlsplit(url)
        except ValueError:
            return "…"  # any part of a URL that cannot be parsed may be a password
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def check_headers(self, headers: Mapping[str, str]) -> None:
        """Raise ConfigurationError if the client's headers include a key, or a header that HTTP cannot carry."""
        check_sendable(headers)
        if any(name.lower() == KEY_HEADER.lower() for name in headers):
            raise ConfigurationError(
                f"{KEY_HEADER} among the client's headers would be one key for all requests: leave it out, or give "
                "your own key to intent(key=...)"
            )

    # --- making an intent ---

    def make_request(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        content: bytes | str | None = None,
        data: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> WantedRequest:
        """Build the complete, repeatable request. Raises ConfigurationError if it cannot be sent or repeated."""
        if sum(part is not None for part in (json, content, data)) > 1:
            raise ConfigurationError("give one of json=, content= and data=; an intent has one body")
        if content is not None and not isinstance(content, bytes | str):
            raise ConfigurationError(
                f"content= must be bytes or text, not {name_type(content)}: a generator or a file can be sent "
                "only once, and a retry needs the same bytes. Read it first: content=b''.join(parts), "
                "content=path.read_bytes()"
            )
        if json is not None:
            try:
                content = json_module.dumps(json, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
            except (TypeError, ValueError) as error:
                raise ConfigurationError(f"json= cannot be written as JSON: {error}") from None
        whole = (
            url
            if _has_scheme(url) is not None or not self.base_url
            else f"{self.base_url.rstrip('/')}/{url.lstrip('/')}"
        )
        own = dict(headers or {})
        check_sendable(own)
        if not isinstance(method, str) or _is_token(method) is None:
            raise ConfigurationError(f"{method!r} is not an HTTP method; give one such as POST")
        if json is not None and not any(name.lower() == "content-type" for name in own):
            own["Content-Type"] = "application/json"
        try:
            split_http_url(whole if isinstance(whole, str) else str(whole))
        except ValueError as error:
            base = "" if self.base_url or _has_scheme(str(whole)) else ", or give the client a base URL"
            raise ConfigurationError(f"the URL {self.safe_url(str(whole))!r} cannot be used: {error}{base}") from None
        try:
            request = httpx.Request(method.upper(), whole, content=content, data=data, params=params, headers=own)
            origin_of(str(request.url))
        except (httpx.InvalidURL, ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"this request cannot be sent: {error}") from None
        for name in own:
            if name.lower() == KEY_HEADER.lower():
                raise ConfigurationError(f"the client sends {KEY_HEADER} itself: give your own key as key=")
            if name.lower() in _CREDENTIALS:
                raise ConfigurationError(
                    f"{name} is a credential, and the journal stores intents: give it to the client, as "
                    "Client(headers=...) or auth=, so that resume() uses a fresh one too"
                )
        if "content-type" in request.headers and not any(name.lower() == "content-type" for name in own):
            own["Content-Type"] = request.headers["content-type"]
        return WantedRequest(request.method, str(request.url), own, request.content)

    def entry(
        self, wanted: WantedRequest, name: str | None, key: str | None, parent: str | None = None
    ) -> JournalEntry:
        """Return the intent as a journal entry, under its given key or a new one."""
        if key is not None:
            key = parse_key([quote_key(key).encode("utf-8", "replace")])
        if name is not None and (not isinstance(name, str) or not 1 <= len(name) <= 200):
            raise ConfigurationError("an intent's name is a text of 1 to 200 characters, such as 'invoice-42'")
        made = key or str(uuid.uuid4())
        return JournalEntry(made, name, parent, wanted.method, wanted.url, wanted.headers, wanted.digest, wanted.body)

    # --- the conversation ---

    def converse(
        self,
        entry: JournalEntry,
        body: bytes | None,
        build: Callable[[str, str, Mapping[str, str], bytes | None], httpx.Request],
        seconds: float | None,
        hold: Callable[[SendingClaim | None], None],
    ) -> Conversation:
        """Bring an intent to an outcome, or to the end of the budget. ``hold`` is called with our current claim."""
        own = self.budget.seconds if seconds is None else min(seconds, self.budget.seconds)
        left = left_seconds(own)
        if left < 0.001:
            return NotYet(
                "DEADLINE", 0.0, entry.may_have_happened, None, "the caller's deadline has passed; nothing was sent"
            )
        budget = replace(self.budget, seconds=left)
        journal = self.journal
        claim = yield Keep(lambda: journal.claim(entry.key, budget.seconds + _CLAIM_MARGIN_SECONDS))
        if isinstance(claim, Busy):
            return NotYet("BUSY", claim.seconds, True, None, "another process or thread is sending this intent")
        hold(claim)
        entry = claim.entry
        body = entry.body if body is None else body
        if entry.state != "open" or body is None:
            yield Keep(lambda: journal.release(claim))
            hold(None)
            return load_outcome(entry) if entry.state != "open" else _payload_needed(entry)
        origin: Origin = self.origins.of(entry.url)
        plan = Plan(
            entry.url,
            budget,
            gate=origin,
            jitter=self.jitter,
            sends_before=entry.sends,
            may_have_happened=entry.may_have_happened,
            age_seconds=claim.age_seconds,
            lifetime_seconds=entry.lifetime_seconds,
        )
        headers = dict(entry.headers) | {KEY_HEADER: entry.key if self.bare else quote_key(entry.key)}
        action = plan.start(self.now())
        event: Event
        while not isinstance(action, Finish):
            match action:
                case Wait(seconds=pause, code=code, then=then):
                    what = "asking again" if then == "ask" else "sending again"
                    self._tell(entry, plan.sends, f"{code}; {what} in {pause:.1f} s", pause)
                    yield Sleep(pause)
                    event = Waited()
                case Send(attempt=attempt, seconds=most, wait=wait):
                    if not (yield Keep(lambda: journal.begin(claim, plan.lifetime_seconds, plan.operation_url))):
                        hold(None)
                        return NotYet("BUSY", 0.0, True, None, "another process or thread has taken this intent over")
                    preferred = headers | {"Prefer": f"wait={wait}"}
                    if any(name.lower() == "prefer" for name in headers):
                        preferred = headers
                    self._tell(entry, attempt, "sending")
                    event = yield Transmit(build(entry.method, entry.url, preferred, body), most)
                    self._tell(entry, attempt, _summary(event))
                case AskStatus(url=url, seconds=most):
                    event = yield Transmit(build("GET", url, {}, None), most)
                    self._tell(entry, plan.sends, f"the status resource: {_summary(event)}")
            action = plan.after(event, self.now())
        outcome = action.outcome
        yield Keep(lambda: journal.conclude(claim, _ending(outcome, plan)))
        hold(None)
        return outcome

    def _tell(self, entry: JournalEntry, attempt: int, text: str, pause: float = 0.0) -> None:
        LOG.info("%s %s: attempt %d: %s", entry.method, self.safe_url(entry.url), attempt, text)
        if self._progress is not None:
            self._progress(Progress(attempt, text, pause))


def check_sendable(headers: Mapping[Any, Any]) -> None:
    """Raise ConfigurationError if HTTP cannot carry a header. The message never quotes its value.

    Otherwise an intent that can never be sent would abort each ``resume()``.
    """
    for name, value in headers.items():
        if not isinstance(name, str) or _is_token(name) is None:
            raise ConfigurationError(f"{name!r} is not the name of a header; give one such as X-Shop")
        if not isinstance(value, str) or _is_field_value(value) is None:
            raise ConfigurationError(
                f"the value of the header {name} must be a text of visible ASCII characters, without a space or a line "
                "break at its ends; percent-encode other letters"
            )


def quote_key(key: str) -> str:
    """Return a key as a String of RFC 9651.

    >>> quote_key('say-"once"')
    '"say-\\\\"once\\\\""'
    """
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class HasCore(Protocol):
    """A client, sync or async."""

    core: ClientCore


C = TypeVar("C", bound=HasCore)


class KeptIntent(Generic[C]):
    """The part of an intent that sends nothing, shared by sync and async."""

    def __init__(self, client: C, entry: JournalEntry, body: bytes | None) -> None:
        self._client = client
        self._entry = entry
        self._body = body

    def __repr__(self) -> str:
        name = "" if self._entry.name is None else f" {self._entry.name!r}"
        return f"<{type(self).__name__}{name} {self._entry.method} {self._client.core.safe_url(self._entry.url)}>"

    @property
    def key(self) -> str:
        """The key, which is sent with every attempt. Do not log it."""
        return self._entry.key

    @property
    def name(self) -> str | None:
        """The caller's own name for the intent."""
        return self._entry.name

    @property
    def state(self) -> IntentState:
        """The journal's state of the intent when this object was made: open, done, refused or doubt."""
        return self._entry.state

    def key_for(self, name: str, ordinal: int = 0) -> str:
        """Derive a key for something that belongs to this intent, the same each time, as ``permit.key_for`` does."""
        return key_of_child(self.key, name, ordinal)


def key_of_child(key: str, name: str, ordinal: int) -> str:
    """Derive a key from another one, as ``permit.key_for`` does. Raises ConfigurationError without a name."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError("a derived key needs a name, such as intent.key_for('mail')")
    record = hashlib.sha256(frame("semel.intent.key.1", key)).digest()[:16]
    return derive_key(record, 0, name, ordinal)


def to_answered(response: httpx.Response, at: float) -> Answered:
    """Convert an httpx response that was read whole into the plan's Answered."""
    headers = {name.lower(): text for name, text in response.headers.items()}
    return Answered(response.status_code, headers, response.content, at)


def no_answer(error: httpx.RequestError) -> NoAnswer:
    """Turn an httpx exception into evidence. Raises ConfigurationError if the request itself cannot be sent."""
    broken = _error_of_http2(error)
    if broken is not None:  # its text may quote a header, such as a credential
        return NoAnswer(f"HTTP/2: {broken}")
    if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
        said = "a header has a value that HTTP cannot carry" if str(error).startswith(_ILLEGAL_VALUE) else error
        raise ConfigurationError(f"this request cannot be sent: {said}") from None
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return NoAnswer(reason, sent=not isinstance(error, _NOTHING_LEFT))


def _error_of_http2(error: httpx.RequestError) -> str | None:
    """Return the name of h2's error: h2 blames this side even when the server breaks the protocol."""
    raised = error.__cause__.args if isinstance(error, httpx.LocalProtocolError) and error.__cause__ else ()
    names = (type(each) for each in raised if type(each).__module__.partition(".")[0] == "h2")
    return next((each.__name__ for each in names), None)


def load_outcome(entry: JournalEntry) -> Outcome:
    """Return the outcome of an intent that has ended, from the journal alone: nothing is sent."""
    answer = None
    if entry.status is not None and entry.answer_headers is not None:
        answer = Answered(entry.status, entry.answer_headers, entry.answer_body or b"")
    if entry.state == "done":
        return Done(answer, replayed=True)
    if entry.state == "refused":
        return Refused(entry.code or "REFUSED", "new", answer)
    return InDoubt(entry.code or LIFETIME_OVER, entry.operation_url, answer)


def _payload_needed(entry: JournalEntry) -> NotYet:
    detail = (
        "this journal keeps digests, not payloads: create the same intent again with its name and payload, and send "
        "that one, or use Journal(payloads=True)"
    )
    return NotYet("PAYLOAD_NEEDED", 0.0, entry.may_have_happened, None, detail)


def _summary(event: object) -> str:
    if isinstance(event, Answered):
        return f"answered {event.status}" + ("" if event.code.startswith("HTTP_") else f" {event.code}")
    return f"no answer ({event.reason})" if isinstance(event, NoAnswer) else ""


def _ending(outcome: Outcome, plan: Plan) -> Ending:
    lifetime = plan.lifetime_seconds if plan.sends else LIFETIME_SECONDS
    match outcome:
        case Done(answer=answer):
            assert answer is not None
            return Ending(
                "done", None, plan.operation_url, lifetime, answer.status, _without_cookies(answer.headers), answer.body
            )
        case Refused(code=code, key_action="new", answer=answer):
            body, headers = (answer.body, _without_cookies(answer.headers)) if answer is not None else (None, None)
            return Ending(
                "refused", code, plan.operation_url, lifetime, answer.status if answer else None, headers, body
            )
        case InDoubt(code=code, operation_url=url, answer=answer):
            is_over = code == LIFETIME_OVER or (
                answer is not None
                and (
                    answer.problem.get("keyAction") == "query" or answer.is_stored_failure or answer.is_stored_redirect
                )
            )
            return Ending("doubt" if is_over else "open", code, url, lifetime, answer.status if answer else None)
        case Refused(code=code) | NotYet(code=code):
            maybe = plan.may_have_happened
            return Ending("open", code, plan.operation_url, lifetime, may_have_happened=maybe)


def _without_cookies(headers: Mapping[str, str]) -> dict[str, str]:
    """Return an answer's headers without its cookies."""
    return {name: text for name, text in headers.items() if name != "set-cookie"}
