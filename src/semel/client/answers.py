"""An HTTP answer as a client reads it, and the header fields that decide what to do next."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

RUNNING: Final = frozenset({"CLAIMED", "PROCESSING"})
"""The states of an operation that is still running."""

_SECONDS_DIGITS_MAX: Final = 12
_PERIOD_LENGTH_MAX: Final = 60
_PERIOD: Final = re.compile(
    r"P(?:(\d{1,9})Y)?(?:(\d{1,9})M)?(?:(\d{1,9})W)?(?:(\d{1,9})D)?"
    r"(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)
_PERIOD_SECONDS: Final = (365 * 86_400, 28 * 86_400, 7 * 86_400, 86_400, 3600, 60, 1)
# RFC 8288, 3: <target> and its parameters. Quoted text is skipped whole.
_PARAMETER: Final = re.compile(r';\s*+([\w*-]++)\s*+(?:=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^\s;,"]*+)))?+\s*+')
_LINK: Final = re.compile(r'<([^>]*+)>\s*+((?:;\s*+[\w*-]++\s*+(?:=\s*+(?:"(?:[^"\\]|\\.)*+"|[^\s;,"]*+))?+\s*+)*+)')


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
        """Return the body as JSON. Raises ValueError if it is not JSON."""
        return json.loads(self.body)

    @cached_property
    def problem(self) -> Mapping[str, Any]:
        """The members of a refusal's problem document (RFC 9457) or other JSON object; empty if there is none.

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
        """Whether this is a stored 5xx, which says nothing about the effect.

        >>> Answered(500, {"idempotent-replayed": "true"}).is_stored_failure
        True
        """
        return self.replayed and self.status >= 500 and self.lifetime_seconds is None

    @property
    def is_stored_redirect(self) -> bool:
        """Whether this is a stored redirect: many applications answer a successful command with one.

        >>> Answered(302, {"idempotency-replayed": "true"}).is_stored_redirect
        True
        """
        return self.replayed and 300 <= self.status < 400 and self.status != 303

    @property
    def is_accepted(self) -> bool:
        """Whether this is a 202 that only says the command is running: not yet the command's own answer.

        >>> Answered(202, {}, b'{"operationId": "1", "state": "PROCESSING"}').is_accepted
        True
        """
        if self.status != 202 or self.replayed:
            return False
        if "respond-async" in self.headers.get("preference-applied", "").lower():
            return True
        document = document_of(self) if "json" in self.headers.get("content-type", "json").lower() else {}
        return document.get("state") in RUNNING and isinstance(document.get("operationId"), str)

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


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of a URL. Raises ValueError if the URL cannot be parsed.

    >>> origin_of("https://shop.example/x") == origin_of("https://SHOP.example:443/y")
    True
    """
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme.lower(), (parts.hostname or "").lower(), port


def retry_after_seconds(text: str, date: str, at: float) -> float | None:
    """Read ``Retry-After`` in seconds: a number, or a date, compared with the server's own ``Date`` if it sent one.

    Parameters: both fields' values, and ``at``, the Unix time of the answer, for servers without ``Date``.
    Returns None if the field cannot be parsed.

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
    """Return the target of the first link with ``rel="status"`` in a ``Link`` field.

    >>> status_link('</a>; rel="next", </operations/1>; title="x, y"; rel=status')
    '/operations/1'
    """
    return link_of(text, "status")


def link_of(text: str, relation: str) -> str | None:
    """Return the target of the first link of a relation in a ``Link`` field."""
    return next((link[1] for link in _LINK.finditer(text) if _is_of(link[2], relation)), None)


def links_without(text: str, relation: str, is_dropped: Callable[[str], bool]) -> str:
    """Remove from a ``Link`` field the links of a relation for whose target ``is_dropped`` returns True.

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
    """Read a time span in seconds: a whole number, or an ISO 8601 period. Returns None if it is neither.

    Structured field parameters are ignored. A year and a month count as their shortest: 365 and 28 days.

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


def document_of(answer: Answered) -> Mapping[str, Any]:
    """Return the members of an answer that is a JSON object; empty for any other."""
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
