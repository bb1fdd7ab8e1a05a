"""The base of all sinks: a sink takes events, and reports the outcome of each.

An event is acknowledged (None) once the broker has durably stored it. It is *refused* if the broker answered and does
not accept it: that counts as a try, and the relay parks the event after the last one. It is *unreached* if the outcome
is open: the broker is unavailable, or its answer was lost. That uses up no try; the relay sends the event again, under
the same id, when the broker is back.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote

from semel.outbox.event import Event
from semel.outbox.rules import GONE

_PLAIN: Final = "".join(chr(code) for code in range(32, 127) if chr(code) != "%")

# None: asyncio and anyio raise a bare OSError where every address of a host has failed
_AWAY_NUMBERS: Final = (None, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH)


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker answered and refused this event. ``for_good``: retrying cannot help.

    ``wait_seconds``: the broker asks for no retry before then.
    """

    reason: str
    for_good: bool = False
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Unreached:
    """The broker did not acknowledge this event, and may or may not have it.

    ``others_go_on``: only this topic is slow. It is skipped for a moment, even if some of its events have arrived.
    ``wait_seconds``: the broker asks for no call before then.
    """

    reason: str
    others_go_on: bool = False
    wait_seconds: float = 0.0


Reply = Refused | Unreached | None


def is_gone(reply: Reply) -> bool:
    """Return whether a webhook's endpoint has answered that it wants no more events.

    >>> is_gone(Refused("the receiver answered 410 Gone")), is_gone(Refused("the receiver answered 500"))
    (True, False)
    """
    return isinstance(reply, Refused) and reply.reason.startswith(GONE)


class Sink(Protocol):
    """A broker, or another target of events.

    It may have ``refused_waits``, the seconds before each next try of a refused event, and ``outage_seconds_max``, the
    longest pause of a topic that is unavailable. ``disables`` says what the relay stops sending once an endpoint has
    answered 410 Gone: ``"topic"``, or ``"sink"`` for everything. ``identity`` tells it apart from sinks of the same
    name that send elsewhere (another prefix, another path): relays with different sinks on one store report each other.
    It may hold a secret, and is kept as a digest only.
    """

    name: str  # for people; without a password

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        """Deliver events of different aggregates, concurrently or in any order; return each outcome.

        Connects if needed. Never raises for a broker's failure.
        """

    async def close(self) -> None:
        """Close the connection; a later publish opens it again."""


def message_headers(event: Event) -> dict[str, str]:
    """Return the headers sent with the payload, to every broker that supports headers."""
    return {
        **dict(event.headers),
        "semel-id": event.id,
        "semel-type": event.type,
        "semel-aggregate-type": event.aggregate_type,
        "semel-aggregate-id": event.aggregate_id,
    }


def ascii_headers(event: Event) -> dict[str, str]:
    """Return the headers for brokers that only take ASCII: other letters and "%" become percent-encoded UTF-8.

    So do leading and trailing spaces, which HTTP does not allow and other protocols drop.
    """
    return {name: _ascii(value) for name, value in message_headers(event).items()}


def _ascii(value: str) -> str:
    inner = value.strip(" ")
    before, after = len(value) - len(value.lstrip(" ")), len(value) - len(value.rstrip(" "))
    return f"{'%20' * before}{quote(inner, safe=_PLAIN)}{'%20' * after if inner else ''}"


def error_text(error: BaseException) -> str:
    """Describe an error in a few words, for people."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class SinkUnreached(Exception):
    """Raise it from a function sink if its target system is unavailable, so that no event is at fault.

    The relay then waits and sends the event again, under the same id, for as long as the outage lasts: no attempt is
    used up, and nothing is parked. Parameters: the reason, for people (``semel worker`` and ``semel events`` show it).

    >>> raise SinkUnreached("the mail server closed the connection")
    Traceback (most recent call last):
        ...
    semel.outbox.sinks.base.SinkUnreached: the mail server closed the connection
    """


def is_outage(error: BaseException) -> bool:
    """Return whether a sink's error shows that its target is unreachable, so that no event is at fault.

    It is a :class:`SinkUnreached`, a ConnectionError, a TimeoutError, a failed look-up of a host or a network without a
    route, or has one as its cause, context or argument, as the errors of redis-py, kombu, httpx and requests have.
    Other kinds of OSError are no outage, such as requests' ``HTTPError``, smtplib's refusals and a missing file.

    >>> is_outage(ConnectionRefusedError()), is_outage(FileNotFoundError()), is_outage(ValueError())
    (True, False, False)
    """
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        each = rest.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, (SinkUnreached, ConnectionError, TimeoutError, socket.gaierror)):
            return True
        if type(each) is OSError and each.errno in _AWAY_NUMBERS:
            return True
        seen.add(id(each))
        rest += (each.__cause__, None if each.__suppress_context__ else each.__context__)
        rest += (inner for inner in each.args if isinstance(inner, BaseException))  # httpcore keeps its cause there
    return False


def reply_to(error: BaseException) -> Refused | Unreached:
    """Classify an error raised for an event: the broker is unavailable, or it refused the event.

    >>> reply_to(SinkUnreached("it restarts")).reason, reply_to(ValueError("no")).reason
    ('it restarts', 'ValueError: no')
    """
    if isinstance(error, SinkUnreached) and str(error):
        return Unreached(str(error))
    return Unreached(error_text(error)) if is_outage(error) else Refused(error_text(error))
