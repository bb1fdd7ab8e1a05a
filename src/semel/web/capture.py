"""The application's response while it is held: what of it is stored, and when it cannot be held any longer.

Sans-IO: the adapters feed it what the application sends. The first caller gets the application's own headers,
all of them; the store gets the few that may be replayed, and never a session or a credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from semel.model import Answer
from semel.policy import NEVER_REPLAYED, Policy

BODYLESS_STATUSES: Final = frozenset({204, 205, 304})
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search
_ENDLESS: Final = b"text/event-stream"


class Keeping:
    """What a policy lets be kept of an answer: computed once for each operation."""

    __slots__ = ("body_bytes_max", "headers")

    def __init__(self, policy: Policy) -> None:
        self.headers = policy.allowed_headers - NEVER_REPLAYED
        self.body_bytes_max = policy.answer_bytes_max


class Capture:
    """One response. Feed :meth:`start` and :meth:`add`; False from either means that it cannot be kept.

    ``headers`` are the application's own, ``complete`` turns true with :meth:`end`, ``endless`` says that the
    application announced a stream without an end.

    >>> capture = Capture(Keeping(Policy()))
    >>> capture.start(201, [(b"Content-Type", b"text/plain"), (b"Set-Cookie", b"a=b")]), capture.add(b"done")
    (True, True)
    >>> capture.stored()
    Answer(status=201, headers=((b'content-type', b'text/plain'),), body=b'done')
    """

    __slots__ = ("_keeping", "_kept", "_size", "bodyless", "chunks", "complete", "endless", "headers", "status")

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._kept: Sequence[tuple[bytes, bytes]] = ()
        self._size = 0
        self.status = 0
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.chunks: list[bytes] = []
        self.bodyless = False
        self.complete = False
        self.endless = False

    @property
    def started(self) -> bool:
        """Whether the application has begun to answer."""
        return self.status != 0

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Take the head. False: its body is announced as too long, or as endless."""
        self.headers = headers = tuple(headers)
        allowed = self._keeping.headers
        kept: list[tuple[bytes, bytes]] = []
        fits = True
        for name, value in headers:
            lower = name.lower()
            if lower in allowed:
                # What would break a response in two is not given to the next caller.
                if _CONTROL(value) is None:
                    kept.append((lower, value))
                if lower == b"content-type" and value[:17].lower() == _ENDLESS:
                    self.endless = True
            elif lower == b"content-length" and value.isdigit() and len(value) < 20:
                fits = int(value) <= self._keeping.body_bytes_max
        self._kept = kept
        self.status = status
        self.bodyless = status in BODYLESS_STATUSES
        return self.bodyless or (fits and not self.endless)

    def restart(self) -> None:
        """The application thought better of its head, before anything has left (WSGI's ``exc_info``)."""
        self.status = 0
        self.chunks.clear()
        self._size = 0
        self.endless = False

    def add(self, chunk: bytes) -> bool:
        """Take a piece of the body. False: with it the body is too long; it is among ``chunks`` all the same."""
        if chunk and not self.bodyless:
            self.chunks.append(chunk)
            self._size += len(chunk)
            return self._size <= self._keeping.body_bytes_max
        return True

    def end(self) -> None:
        """The body is complete."""
        self.complete = True

    def release(self) -> list[bytes]:
        """The pieces so far, which are no longer held."""
        chunks, self.chunks = self.chunks, []
        return chunks

    def stored(self) -> Answer:
        """The answer as the store gets it."""
        return Answer(self.status, tuple(self._kept), self._body())

    def first(self) -> Answer:
        """The answer as the first caller gets it: with all of the application's own headers."""
        return Answer(self.status, self.headers, self._body())

    def _body(self) -> bytes:
        chunks = self.chunks
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
