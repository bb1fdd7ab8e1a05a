"""The application's response while it is held: which parts are stored, and when it can no longer be held.

Sans-IO: the adapters feed it what the application sends. The first caller gets the application's own headers,
all of them; the store gets the few that may be replayed, and never a session or a credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from sys import maxsize
from typing import Final, NamedTuple

from semel.core.model import Answer
from semel.http.headers import BLANKS, BODYLESS_STATUSES, find_control
from semel.policy import NEVER_REPLAYED, Policy

_is_endless: Final = re.compile(rb"text/event-stream", re.IGNORECASE).match
# Headers of one request, never stored: a replay takes them from its own pass of the application.
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
_NAMES_MAX: Final = 100  # names that one operation logs; an application that makes names up must not fill the log


_Headers = tuple[tuple[bytes, bytes], ...]
_REMEMBERED: Final = frozenset({b"content-type", b"content-length"})  # other headers may hold one caller's data
_HEADS_MAX: Final = 256  # of one operation


class AnswerHead(NamedTuple):
    """The parsed head of an answer.

    ``kept`` are the ``headers`` to store, ``dropped`` the names of those that replays may miss; ``announced`` the
    body's announced length, and ``sent_max`` how much of the body a server sends at most; ``endless`` a stream;
    ``bodyless`` a status that has no body; ``fits`` that the answer can be held; ``succeeds`` that the status alone
    proves success, and no header is dropped.
    """

    status: int = 0
    headers: _Headers = ()
    kept: _Headers = ()
    dropped: tuple[bytes, ...] = ()
    announced: int = 0
    sent_max: int = maxsize
    endless: bool = False
    bodyless: bool = False
    fits: bool = True
    succeeds: bool = False


_NO_HEAD: Final = AnswerHead()


class Keeping:
    """The parts of an answer that a policy allows to be stored: computed once for each operation."""

    __slots__ = ("_left", "_operation", "_succeeds", "body_bytes_max", "headers", "heads", "keeps_caching", "unmissed")

    def __init__(self, policy: Policy, operation: str = "") -> None:
        self.headers = policy.allowed_headers - NEVER_REPLAYED
        self.keeps_caching = b"cache-control" in self.headers
        self.body_bytes_max = policy.answer_bytes_max
        self.unmissed = set(_UNMISSED)  # or logged already
        self._operation = operation
        self._left = _NAMES_MAX
        self._succeeds = policy.success is None
        self.heads: dict[tuple[int, _Headers], AnswerHead] = {}  # heads that were read before, by status and headers

    def read(self, status: int, headers: _Headers) -> AnswerHead:
        """Read the head of an answer. It is cached if its headers are about the body alone."""
        kept: list[tuple[bytes, bytes]] = []
        dropped: list[bytes] = []
        announced, sent_max, endless, bodyless = 0, maxsize, False, status in BODYLESS_STATUSES
        names = [name.lower() for name, _ in headers]
        for name, (_, value) in zip(names, headers, strict=True):
            if name in self.headers:
                if find_control(value) is None:  # a value that could split a response is not replayed
                    kept.append((name, bytes(value.strip(BLANKS))))
                if name == b"content-type" and _is_endless(value):
                    endless = True
            elif name == b"content-length":
                if value.isdigit() and len(value) < 20 and not bodyless:
                    announced = sent_max = int(value)
            elif name not in self.unmissed:
                dropped.append(name)
        own = headers
        if bodyless:  # a Content-Length would be wrong, since no body is sent
            own = tuple(pair for name, pair in zip(names, headers, strict=True) if name != b"content-length")
        fits = bodyless or (announced <= self.body_bytes_max and not endless)
        succeeds = self._succeeds and 200 <= status < 300 and not dropped
        head = AnswerHead(
            int(status), own, tuple(kept), tuple(dropped), announced, sent_max, endless, bodyless, fits, succeeds
        )
        if _REMEMBERED.issuperset(names) and len(names) <= len(_REMEMBERED):
            with suppress(TypeError):  # headers in another form are not hashable
                if len(self.heads) >= _HEADS_MAX:
                    self.heads.clear()
                self.heads[status, headers] = head
        return head

    def tell_dropped(self, names: Iterable[bytes], kind: str = "response headers") -> None:
        """Log once for each of the application's own headers that it is not kept, and what to do about it."""
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

    ``ended`` turns true with :meth:`end`.

    >>> capture = Capture(Keeping(Policy()))
    >>> capture.start(201, [(b"Content-Type", b"text/plain"), (b"Set-Cookie", b"a=b")]), capture.add(b"done")
    (True, True)
    >>> capture.to_store()
    Answer(status=201, headers=((b'content-type', b'text/plain'),), body=b'done')
    """

    # Defaults that few answers change are attributes of the class.
    _answer_head = _NO_HEAD
    _first_piece = b""
    _later_pieces: list[bytes] | None = None  # further pieces of a body that comes in several
    _answer_bytes = 0
    ended = False

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping

    @property
    def started(self) -> bool:
        """Whether the application has begun to answer."""
        return self._answer_head is not _NO_HEAD

    @property
    def status(self) -> int:
        """The application's status; 0 before it has begun to answer."""
        return self._answer_head.status

    @property
    def headers(self) -> _Headers:
        """The application's own headers."""
        return self._answer_head.headers

    @property
    def endless(self) -> bool:
        """Whether the application announced a stream without an end."""
        return self._answer_head.endless

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Take the head. False: it announces a body that is too long or endless."""
        keeping, lines = self._keeping, tuple(headers)
        try:
            head = keeping.heads.get((status, lines))
        except TypeError:  # lines in another form, which cannot be looked up
            head = None
        if head is None:
            head = keeping.read(status, lines)
        self._answer_head = head
        return head.fits

    def restart(self) -> None:
        """Replace the head before anything has left (WSGI's ``exc_info``)."""
        self._answer_bytes, self._answer_head = 0, _NO_HEAD
        self._first_piece, self._later_pieces = b"", None

    def add(self, chunk: bytes) -> bool:
        """Take a piece of the body. False: the piece makes the body too long; it is held all the same."""
        if self._answer_head.bodyless:
            return True
        if type(chunk) is not bytes:  # a buffer, which the application may fill again
            chunk = bytes(chunk)
        size = self._answer_bytes
        if not size:
            self._first_piece = chunk
        elif self._later_pieces is None:
            self._later_pieces = [chunk]
        elif chunk:
            self._later_pieces.append(chunk)
        self._answer_bytes = size = size + len(chunk)
        return size <= self._keeping.body_bytes_max

    def count(self, chunk: bytes) -> None:
        """Count a piece of the body that passes through and is not held."""
        self._answer_bytes += len(chunk)

    def end(self) -> None:
        """Note that the application has sent the end of the body."""
        self.ended = True
        if self._answer_bytes > self._answer_head.sent_max:
            self.cut_surplus()

    def cut_surplus(self) -> None:
        """Drop the part of the body beyond its announced length: a server sends it to no client."""
        most = self._answer_head.sent_max
        self._first_piece, self._later_pieces, self._answer_bytes = self.body[:most], None, most

    @property
    def complete(self) -> bool:
        """Return whether the body has ended and is not shorter than announced."""
        return self.ended and self._answer_bytes >= self._answer_head.announced

    @property
    def body(self) -> bytes:
        """The part of the body that is held."""
        if self._later_pieces is not None:
            self._first_piece, self._later_pieces = b"".join((self._first_piece, *self._later_pieces)), None
        return self._first_piece

    def release(self) -> list[bytes]:
        """Return the pieces so far, and stop holding them."""
        pieces = [piece for piece in (self._first_piece, *(self._later_pieces or ())) if piece]
        self._first_piece, self._later_pieces = b"", None
        return pieces

    def to_store(self) -> Answer:
        """Return the answer as stored. Each header that is left out is logged once."""
        head = self._answer_head
        if head.dropped:
            self._keeping.tell_dropped(head.dropped)
        return Answer(self.status, head.kept, self.body)

    def first(self, more: _Headers = ()) -> Answer:
        """Return the answer for the first caller: with all of the application's own headers, and ``more``."""
        return Answer(self.status, self.headers + more, self.body)

    def instead(self, answer: Answer) -> Answer:
        """Return Semel's own answer in place of this one."""
        return instead_of(self.headers, answer)


def instead_of(headers: _Headers, answer: Answer) -> Answer:
    """Return Semel's answer in place of one with these headers; keep those for this request alone, such as cookies."""
    if headers == answer.headers:  # a framework sends headers as it got them
        return answer
    others = [pair for pair in headers if pair not in answer.headers]
    held = {name for name, _ in answer.headers}
    own = [(name.lower(), value) for name, value in others]
    added = [pair for pair in own if pair[0].startswith(_OF_THIS_REQUEST) and pair[0] not in held]
    return answer._replace(headers=(*answer.headers, *added))
