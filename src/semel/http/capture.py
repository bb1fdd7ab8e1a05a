"""The application's response while it is held: what of it is stored, and when it cannot be held any longer.

Sans-IO: the adapters feed it what the application sends. The first caller gets the application's own headers,
all of them; the store gets the few that may be replayed, and never a session or a credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from semel.core.model import Answer
from semel.http.headers import BLANKS, BODYLESS_STATUSES, find_control
from semel.policy import NEVER_REPLAYED, Policy

_is_endless: Final = re.compile(rb"text/event-stream", re.IGNORECASE).match
# What belongs to one request and is never stored: a replay takes it from this request's own pass of the application.
_OF_THIS_REQUEST: Final = (b"set-cookie", b"access-control-")


# Headers of one answer, its connection or its page, which a replay does not need: dropped without a log.
_UNMISSED: Final = NEVER_REPLAYED | {
    name.encode()
    for name in (
        "access-control-allow-credentials",
        "access-control-allow-origin",
        "access-control-expose-headers",
        "allow",
        "alt-svc",
        "cache-control",
        "content-security-policy",
        "cross-origin-opener-policy",
        "cross-origin-resource-policy",
        "expires",
        "permissions-policy",
        "pragma",
        "referrer-policy",
        "semel-code",
        "server-timing",
        "strict-transport-security",
        "traceparent",
        "tracestate",
        "via",
        "x-content-type-options",
        "x-frame-options",
        "x-powered-by",
        "x-xss-protection",
    )
}
_new: Final = tuple.__new__  # every command pays for two answers
_NAMES_MAX: Final = 100  # that one operation's log lines are about; an application that makes names up is not followed


class Keeping:
    """What a policy lets be kept of an answer: computed once for each operation."""

    __slots__ = ("_left", "_operation", "body_bytes_max", "headers", "keeps_caching", "unmissed")

    def __init__(self, policy: Policy, operation: str = "") -> None:
        self.headers = policy.allowed_headers - NEVER_REPLAYED
        self.keeps_caching = b"cache-control" in self.headers
        self.body_bytes_max = policy.answer_bytes_max
        self.unmissed = set(_UNMISSED)  # or told of already
        self._operation = operation
        self._left = _NAMES_MAX

    def tell_dropped(self, names: Iterable[bytes], kind: str = "response headers") -> None:
        """Say once of each of the application's own headers that it is not kept, and what to do about it."""
        new = sorted(set(names) - self.unmissed)[: self._left]
        if not new:
            return
        self._left -= len(new)
        self.unmissed.update(new)
        import logging  # which most processes never need here

        option = ", ".join(repr(name.decode("latin-1")) for name in new)
        logging.getLogger("semel").warning(
            "%s: the first caller gets the %s %s, and replays do not; to keep them with the answer: "
            "replay_headers={%s} (logged once)",
            self._operation or "an operation",
            kind,
            option,
            option,
        )


class Capture:
    """One response. Feed :meth:`start` and :meth:`add`; False from either means that it cannot be kept.

    ``headers`` are the application's own, ``ended`` turns true with :meth:`end`, ``endless`` says that the
    application announced a stream without an end.

    >>> capture = Capture(Keeping(Policy()))
    >>> capture.start(201, [(b"Content-Type", b"text/plain"), (b"Set-Cookie", b"a=b")]), capture.add(b"done")
    (True, True)
    >>> capture.to_store()
    Answer(status=201, headers=((b'content-type', b'text/plain'),), body=b'done')
    """

    # What few answers change is an attribute of the class.
    _announced = 0  # how long the application says that the body is
    _dropped: Sequence[bytes] = ()
    _size = 0
    status = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()
    _kept: tuple[tuple[bytes, bytes], ...] = ()
    bodyless = False
    ended = False
    endless = False

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self.chunks: list[bytes] = []

    @property
    def started(self) -> bool:
        """Whether the application has begun to answer."""
        return self.status != 0

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Take the head. False: its body is announced as too long, or as endless."""
        self.headers = headers = tuple(headers)
        keeping = self._keeping
        allowed = keeping.headers
        kept: list[tuple[bytes, bytes]] = []
        for name, value in headers:
            lower = name.lower()
            if lower in allowed:
                if find_control(value) is None:  # what would break a response in two is not given to the next caller
                    kept.append((lower, value.strip(BLANKS)))
                if lower == b"content-type" and _is_endless(value):
                    self.endless = True
            elif lower == b"content-length":
                if value.isdigit() and len(value) < 20:
                    self._announced = int(value)
            elif lower not in keeping.unmissed:
                self._dropped = (*self._dropped, lower)
        self._kept = tuple(kept)
        self.status = status
        if status in BODYLESS_STATUSES:
            self.bodyless = True
            # The length of what the application gave for a body would not be true.
            self.headers = tuple(pair for pair in headers if pair[0].lower() != b"content-length")
            return True
        return self._announced <= keeping.body_bytes_max and not self.endless

    def restart(self) -> None:
        """The application thought better of its head, before anything has left (WSGI's ``exc_info``)."""
        self.status = self._announced = 0
        self.bodyless = False
        self.chunks.clear()
        self._dropped = ()
        self._size = 0
        self.endless = False

    def add(self, chunk: bytes) -> bool:
        """Take a piece of the body. False: with it the body is too long; it is among ``chunks`` all the same."""
        if chunk and not self.bodyless:
            self.chunks.append(chunk)
            size = self._size = self._size + len(chunk)
            return size <= self._keeping.body_bytes_max
        return True

    def count(self, chunk: bytes) -> None:
        """A piece of the body went by that is not held here."""
        self._size += len(chunk)

    def end(self) -> None:
        """The application has sent the last of the body."""
        self.ended = True

    @property
    def complete(self) -> bool:
        """Whether the body has ended, and is not shorter than the application announced it."""
        return self.ended and (self._size >= self._announced or self.bodyless)

    def release(self) -> list[bytes]:
        """The pieces so far, which are no longer held."""
        chunks, self.chunks = self.chunks, []
        return chunks

    def to_store(self) -> Answer:
        """The answer as the store gets it. The log hears once of what is left out."""
        if self._dropped:
            self._keeping.tell_dropped(self._dropped)
        chunks = self.chunks
        return _new(Answer, (self.status, self._kept, chunks[0] if len(chunks) == 1 else self._body()))

    def first(self, more: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
        """The answer as the first caller gets it: with all of the application's own headers, and ``more``."""
        chunks = self.chunks
        return _new(Answer, (self.status, self.headers + more, chunks[0] if len(chunks) == 1 else self._body()))

    def instead(self, answer: Answer) -> Answer:
        """Semel's own answer in place of this one, with what this one has for this request alone, such as cookies."""
        if self.headers == answer.headers:  # a framework sends what it was given
            return answer
        others = [pair for pair in self.headers if pair not in answer.headers]
        held = {name for name, _ in answer.headers}
        own = [(name.lower(), value) for name, value in others]
        added = [pair for pair in own if pair[0].startswith(_OF_THIS_REQUEST) and pair[0] not in held]
        return answer._replace(headers=(*answer.headers, *added))

    def _body(self) -> bytes:
        chunks = self.chunks
        if len(chunks) > 1:
            chunks[:] = [b"".join(chunks)]
        return chunks[0] if chunks else b""
