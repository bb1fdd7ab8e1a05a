"""Semel's telemetry: fixed event names and label sets, behind one small interface.

An observer gets an event's name and its labels. Nothing here exports anything: exporters are observers. No label
ever carries a key, a body or a credential. An observer's exceptions never reach a command (:func:`guard`), and an
unknown outcome is logged if there is no observer.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Protocol

# name -> label names. The list is a promise: dashboards are built on it.
EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "claims": ("operation", "verdict"),
    "settlements": ("operation", "outcome"),
    "replays": ("operation",),
    "rebuilds": ("operation", "outcome"),
    "mismatches": ("operation",),
    "in_progress": ("operation",),
    "unknown": ("operation", "doubt"),
    "expired": ("operation",),
    "unprotected": ("operation", "reason"),
    "lapsed": ("operation",),
    "reconciled": ("operation", "found"),
    "gave_up": ("operation",),
    "superseded": ("operation",),
    "weak_keys": ("operation", "weakness"),
    "records": ("state",),
    "purged": ("kind",),
    "events_published": ("topic",),
    "events_refused": ("topic",),
    "events_parked": ("topic",),
    "events_waiting": ("kind",),
    "events_oldest_seconds": (),
    "wait_seconds": ("operation",),
    "store_call_seconds": ("verb",),
    "store_errors": ("verb", "error"),
}


class Observer(Protocol):
    """Receives every event. Implementations must be quick and thread-safe; their exceptions are logged once."""

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        """Take one event: ``name`` and the label names are those of EVENTS; ``detail`` is for logs only."""


class Silence:
    """The observer that does nothing. With it an engine does not log unknown outcomes either."""

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        return None


class GuardedObserver:
    """An observer whose exceptions are counted, logged once, and stop nothing. Made by :func:`guard`."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.errors = 0  # the number of events at which the observer has raised
        self._event = observer.event

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        try:
            self._event(name, value, labels, detail)
        except Exception as error:
            self.errors += 1
            if self.errors == 1:
                import logging  # imported late: a process whose observers work never needs it

                with suppress(Exception):  # a log handler must not stop commands either
                    logging.getLogger("semel").error(
                        "the observer %s raised %s at the event %r; commands continue without it, and its further "
                        "errors are counted, not logged",
                        type(self.observer).__name__,
                        type(error).__name__,
                        name,
                        exc_info=error,
                    )


def guard(observer: Observer) -> Observer:
    """Wrap an observer so that its exceptions are counted in ``errors``, logged once, and never raised.

    Every engine does this to its observer; do it yourself where you call other people's observers.

    Raises TypeError if it has no method ``event``.

    >>> guard(Counting()).event("replays", 1, {"operation": "pay"}, {})
    >>> guard(print)
    Traceback (most recent call last):
        ...
    TypeError: an observer has a method event(name, value, labels, detail); <built-in function print> has none
    """
    if isinstance(observer, (GuardedObserver, Silence)):
        return observer
    if not callable(getattr(observer, "event", None)):
        raise TypeError(f"an observer has a method event(name, value, labels, detail); {observer!r} has none")
    return GuardedObserver(observer)


class Counting:
    """Adds up events in memory: for tests, the demo and small services.

    >>> counting = Counting()
    >>> counting.event("replays", 1, {"operation": "pay"}, {})
    >>> counting.total("replays")
    1.0
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._sums: dict[str, float] = {}

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        self.counts[name, tuple(labels.values())] += 1
        self._sums[name] = self._sums.get(name, 0.0) + value

    def total(self, name: str) -> float:
        """Return the sum of an event's values over all labels."""
        return self._sums.get(name, 0.0)


class Both:
    """Passes every event to several observers in turn, each through :func:`guard`: an error of one hides nothing."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = tuple(guard(observer) for observer in observers)

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        for observer in self._observers:
            observer.event(name, value, labels, detail)


class Log(Protocol):
    """The method of :class:`logging.Logger` that this module needs."""

    def log(self, level: int, msg: str, *args: object) -> None: ...


_WARNING, _INFO, _DEBUG = 30, 20, 10
_LOUD = frozenset(
    {"unknown", "mismatches", "superseded", "lapsed", "store_errors", "unprotected", "events_parked", "events_refused"}
)
_QUIET = frozenset(
    {"events_oldest_seconds", "events_published", "events_waiting", "wait_seconds", "store_call_seconds", "weak_keys"}
)


class Logging:
    r"""Writes each event as one line to a standard logger, e.g. ``Logging(logging.getLogger("semel"))``.

    A value that contains a space, a quote or "=" is quoted, and control characters are spelled out: a caller's id
    cannot forge a line or a field.

    Parameters: ``as_json`` writes each event as one JSON object of ASCII characters instead: ``event``, ``value``, the
    event's labels, and the event's further details: ``caller``, ``key_hash`` (the first 8 hex digits, never the
    key), ``operation_id`` and ``state``.

    >>> class Lines:
    ...     def log(self, level: int, msg: str, *args: object) -> None:
    ...         print(msg % args)
    >>> Logging(Lines()).event("replays", 1, {"operation": "pay"}, {"caller": "al ice\nsemel.claims"})
    semel.replays operation=pay caller="al ice\x0asemel.claims" value=1
    >>> Logging(Lines(), as_json=True).event("replays", 1, {"operation": "pay"}, {"caller": "al\nice"})
    {"event": "semel.replays", "value": 1, "operation": "pay", "caller": "al\nice"}
    """

    def __init__(self, logger: Log, *, as_json: bool = False) -> None:
        self._logger = logger
        self._as_json = as_json

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        level = _WARNING if name in _LOUD else _DEBUG if name in _QUIET else _INFO
        if self._as_json:
            import json  # imported late: a process that logs text never needs it

            self._logger.log(level, "%s", json.dumps({"event": f"semel.{name}", "value": value, **labels, **detail}))
            return
        words = " ".join(f"{k}={field(v)}" for k, v in (*labels.items(), *detail.items()))
        self._logger.log(level, "semel.%s %s value=%g", name, words, value)


class UnknownOutcomes:
    """Logs unknown outcomes if an engine has no observer: one warning for each operation id.

    The last ``REMEMBERED_MAX`` of them are remembered, so that retries of one command do not fill the log.
    """

    def __init__(self) -> None:
        self._told: dict[str, None] = {}

    def tell(self, operation: str, doubt: str, operation_id: str, caller: str) -> bool:
        """Log a warning, unless this operation id had one. Return whether it was logged."""
        if operation_id in self._told:
            return False
        self._told[operation_id] = None
        if len(self._told) > REMEMBERED_MAX:
            self._told.pop(next(iter(self._told), ""), None)  # another thread may have removed it first
        import logging  # imported late: a process without unknown outcomes never needs it

        with suppress(Exception):  # a failing log handler must not cost a command its answer
            logging.getLogger("semel").warning(
                "the outcome of an execution is unknown: operation=%s operation_id=%s caller=%s doubt=%s. Find out "
                "what happened, then run: semel settle %s",
                field(operation),
                operation_id,
                field(caller),
                field(doubt),
                operation_id,
            )
        return True


REMEMBERED_MAX: Final = 1000

# --- text from outside, in logs and on terminals ------------------------------------------------

# Controls, formats (bidi overrides, zero-width), surrogates, private use, unassigned; line and paragraph separators.
_ESCAPED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: str) -> str:
    r"""Escape a text so that a terminal shows it without obeying it, and it stays on its line of a log.

    >>> safe("caf\u00e9 \x1b[31mred\u202e")
    'café \\x1b[31mred\\u202e'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape_char(char) if unicodedata.category(char) in _ESCAPED_CATEGORIES else char for char in text)


def _escape_char(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def field(value: str) -> str:
    """Return a value as one field of a log line: safe, and quoted if it would read as several.

    >>> field("alice"), field("alice operation=pay"), field("")
    ('alice', '"alice operation=pay"', '""')
    """
    text = safe(str(value))
    if text and not any(char in text for char in ' "='):
        return text
    return '"' + text.replace('"', '\\"') + '"'
