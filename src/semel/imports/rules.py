"""The pure rules of imports: a file's key, a job's description, and a row's identity.

The server derives a file's key from the supplier's code and the file's bytes; a client never asserts it. Supplier codes
have no colon, so that one part of a key cannot forge another.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from semel.bulk.rules import checked_text
from semel.core.identity import frame, uuid_text
from semel.core.timing import span_text
from semel.errors import ImportRefused, PolicyError

KEY_LENGTH_MAX: Final = 255  # characters: the column of the unique index
NAME_LENGTH_MAX: Final = 255
_SUPPLIER: Final = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch
_PART: Final = re.compile(r"[A-Za-z0-9._+-]{1,64}").fullmatch
_CLIENT_KEY: Final = re.compile(r"[!-~]{1,180}").fullmatch
_KEY: Final = re.compile(r"[!-~]{1,255}").fullmatch


class ImportState(IntEnum):
    """The state of a job. The numbers are those of the closest :class:`~semel.core.model.State`."""

    QUEUED = 1
    RUNNING = 2
    DONE = 3  # every row has its outcome; counts include failed rows
    FAILED = 5  # the file could not be imported: see ``error_code`` and ``reason``
    UNKNOWN = 6  # the outcome of some of its rows is unknown


OPEN_STATES: Final = frozenset({ImportState.QUEUED, ImportState.RUNNING})


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a key is made from. ``digest`` is the file's SHA-256 in hex; ``now`` has a time zone."""

    supplier: str
    digest: str
    now: datetime
    version: str | None = None
    client_key: str | None = None


class Keying(Protocol):
    """The way files get keys. ``checks_content``: Semel refuses another file under a stored key with 422."""

    @property
    def checks_content(self) -> bool: ...

    def key(self, facts: Facts) -> str:
        """Return the key of a file. Raises ImportRefused where a part of it is missing or malformed."""


@dataclass(frozen=True, slots=True)
class ContentKey:
    """``SUPPLIER:SHA256``: the same bytes of the same supplier are one job under any file name.

    >>> ContentKey().key(Facts("ACME", "a3f8", datetime(2026, 11, 1, tzinfo=UTC)))
    'ACME:a3f8'
    """

    checks_content: bool = field(default=False, init=False)

    def key(self, facts: Facts) -> str:
        return f"{checked_supplier(facts.supplier)}:{facts.digest}"


@dataclass(frozen=True, slots=True)
class PeriodKey:
    """``SUPPLIER:PERIOD:SHA256``: the same bytes may be imported once in each period.

    Parameters: ``form`` of the period as of ``strftime``, such as ``"%Y-%m"``; ``timezone`` by its IANA name. The
    upload's arrival decides the period: a retry after the period's end is another job.

    >>> PeriodKey("%Y-%m").key(Facts("ACME", "a3f8", datetime(2026, 11, 30, 23, tzinfo=UTC)))
    'ACME:2026-11:a3f8'
    >>> PeriodKey("%Y-%m", "Europe/Berlin").key(Facts("ACME", "a3f8", datetime(2026, 11, 30, 23, tzinfo=UTC)))
    'ACME:2026-12:a3f8'
    """

    form: str
    timezone: str = "UTC"
    checks_content: bool = field(default=False, init=False)
    _zone: tzinfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "_zone", UTC if self.timezone == "UTC" else ZoneInfo(self.timezone))
        except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
            raise PolicyError(
                f"timezone must be an IANA name, such as 'Europe/Berlin'; it is {self.timezone!r}"
            ) from None
        periods = {self._period(datetime(2001, 1, 1, tzinfo=UTC)), self._period(datetime(2032, 12, 31, tzinfo=UTC))}
        if len(periods) < 2 or not all(map(_PART, periods)):
            raise PolicyError(
                f"form must be a strftime form whose text changes with time and has only letters, digits and ._+-, "
                f"such as '%Y-%m'; it is {self.form!r}"
            )

    def _period(self, now: datetime) -> str:
        return now.astimezone(self._zone).strftime(self.form) if isinstance(self.form, str) else ""

    def key(self, facts: Facts) -> str:
        return f"{checked_supplier(facts.supplier)}:{self._period(facts.now)}:{facts.digest}"


@dataclass(frozen=True, slots=True)
class VersionKey:
    """``SUPPLIER:v=VERSION:SHA256``: a new version lets the client send the same bytes again.

    Parameters: ``field`` the name of the query parameter, or of the form field, that has the version over HTTP.

    >>> VersionKey("version").key(Facts("ACME", "a3f8", datetime(2026, 11, 1, tzinfo=UTC), version="2"))
    'ACME:v=2:a3f8'
    """

    field: str = "version"
    checks_content: bool = False

    def key(self, facts: Facts) -> str:
        if facts.version is None or not _PART(facts.version):
            raise ImportRefused(
                f"{self.field} must be 1 to 64 letters, digits or ._+-: it identifies the version of the file",
                "INVALID_VERSION",
            )
        return f"{checked_supplier(facts.supplier)}:v={facts.version}:{facts.digest}"


@dataclass(frozen=True, slots=True)
class ClientKey:
    """``SUPPLIER:key=CLIENT-KEY``: the client names the upload by its ``Idempotency-Key``, and its content must match.

    Semel refuses another file under the same key with 422.

    >>> ClientKey().key(Facts("ACME", "a3f8", datetime(2026, 11, 1, tzinfo=UTC), client_key="n-1"))
    'ACME:key=n-1'
    """

    checks_content: bool = field(default=True, init=False)

    def key(self, facts: Facts) -> str:
        if facts.client_key is None or not _CLIENT_KEY(facts.client_key):
            raise ImportRefused(
                "Idempotency-Key must be 1 to 180 visible ASCII characters: it names this upload", "INVALID_KEY"
            )
        return f"{checked_supplier(facts.supplier)}:key={facts.client_key}"


def checked_supplier(supplier: object) -> str:
    """Return a supplier's code. Raises ImportRefused where it is malformed.

    >>> checked_supplier("ACME-7")
    'ACME-7'
    >>> checked_supplier("ACME:7")
    Traceback (most recent call last):
        ...
    semel.errors.ImportRefused: supplier must be 1 to 64 letters, digits, dots, underscores or hyphens of ASCII
    """
    if not isinstance(supplier, str) or not _SUPPLIER(supplier):
        raise ImportRefused(
            "supplier must be 1 to 64 letters, digits, dots, underscores or hyphens of ASCII", "INVALID_SUPPLIER"
        )
    return supplier


def supplier_of_key(key: str) -> str | None:
    """Return the supplier in a key, or in the beginning of one; None where it has none.

    >>> supplier_of_key("ACME:a3f8"), supplier_of_key("a3f8")
    ('ACME', None)
    """
    supplier, colon, _ = key.partition(":")
    return supplier if colon and _SUPPLIER(supplier) and _KEY(key) else None


def key_range(beginning: str) -> tuple[str, str]:
    """Return the range of keys with a beginning: at least the first, less than the second."""
    return beginning, beginning + "\x7f"


def checked_name(name: str | None) -> str:
    """Return a file's name, used only as data: cut to the column's length, without characters that stores refuse."""
    text = (name or "").encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")
    return text[:NAME_LENGTH_MAX]


# --- rows ------------------------------------------------------------------------------------------


class RowInvalid(ValueError):
    """This row is wrong: raise it from a validating function, or from a row's handler before it has written.

    Parameters: the wrong ``column``, or None; ``reason`` for people, without the row's values.

    >>> raise RowInvalid("quantity", "must be at least 1")
    Traceback (most recent call last):
        ...
    semel.imports.rules.RowInvalid: quantity: must be at least 1
    """

    def __init__(self, column: str | None, reason: str) -> None:
        super().__init__(reason if column is None else f"{column}: {reason}")
        self.column = column
        self.reason = reason


class BadRow(NamedTuple):
    """The reason that a row cannot be booked: its line (from 1), the column, a code for machines, the reason."""

    line: int
    column: str | None
    code: str
    reason: str


DETAIL_TEXT_MAX: Final = 300


def packed_detail(bad: BadRow) -> bytes:
    """Return the reason that a row failed, as stored with its outcome."""
    column = None if bad.column is None else bad.column[:DETAIL_TEXT_MAX]
    return _pack_json({"line": bad.line, "column": column, "reason": bad.reason[:DETAIL_TEXT_MAX]})


def _pack_json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def read_detail(detail: bytes | None) -> dict[str, Any]:
    """Read the stored detail of a row's outcome; empty if it is not Semel's."""
    try:
        found = json.loads(detail or b"{}")
    except ValueError:
        return {}
    return {name: found.get(name) for name in ("line", "column", "reason")} if isinstance(found, dict) and found else {}


_HIDDEN: Final = b'{"semelIds":'


def hide_ids(detail: bytes | None, target_id: str | None, result_id: str | None) -> bytes:
    """Add the ids of a row's outcome to its detail, for imports whose details are sealed: stored ids are not.

    Raises PolicyError where an id cannot be kept.

    >>> hidden = hide_ids(b'{"line":3}', "stock-7", None)
    >>> read_hidden_ids(hidden), read_detail(hidden)["line"]
    (('stock-7', None), 3)
    """
    try:
        ids = [checked_text("target_id", target_id), checked_text("result_id", result_id)]
    except (TypeError, ValueError) as error:
        raise PolicyError(f"the handler's result for a row cannot be stored: {error}") from None
    told = {**read_detail(detail)}
    if detail is not None and detail != _pack_json(told):  # not, or not only, Semel's members
        told["detail"] = base64.b64encode(detail).decode()
    return _pack_json({"semelIds": ids, **told})


def read_hidden_ids(detail: bytes | None) -> tuple[str | None, str | None]:
    """Read the ids of target and result in a detail; None where it has none."""
    if detail is None or not detail.startswith(_HIDDEN):
        return None, None
    try:
        target, result = json.loads(detail)["semelIds"]
    except (ValueError, TypeError):  # the application's own
        return None, None
    return target, result


def row_item(row: bytes) -> bytes:
    """Return a row's JSON as an item of the bulk."""
    return b"[" + row + b"]"


def bad_item(bad: BadRow) -> bytes:
    """Return an unreadable row as an item of the bulk, which fails it."""
    return b"[null," + json.dumps(bad, separators=(",", ":")).encode() + b"]"


def known_row(tenant: str, operation: str, supplier: str, raw: bytes, occurrence: int) -> bytes:
    """Return a row's name among all rows ever booked: 32 bytes; equal rows of one file differ by occurrence."""
    row = hashlib.sha256(raw).digest()
    return hashlib.sha256(frame("semel.import.row.1", tenant, operation, supplier, row, str(occurrence))).digest()


# --- jobs ------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """A job as the store has it; times in microseconds. ``sha256`` and ids are bytes."""

    id: bytes
    tenant: str
    operation: str
    supplier: str
    key: str
    generation: int
    sha256: bytes
    size: int
    media_type: str
    recipe: str
    state: int
    attempts: int
    next_at: int
    error_code: str | None
    reason: str | None
    row_count: int | None
    booked: int | None
    skipped: int
    failed: int | None
    unknown: int | None
    submissions: int
    bulk_id: bytes | None
    content_ref: str | None
    content_until: int | None
    keep_content_us: int
    keep_us: int
    created_at: int
    last_seen_at: int
    started_at: int | None
    ended_at: int | None
    forget_after: int | None

    @property
    def bulk_key(self) -> str:
        """The key of the bulk that processes this job's rows."""
        return f"import:{uuid_text(self.id)}:{self.generation}"


OVERDUE_US: Final = 15_000_000  # a worker looks every 5 seconds
ROWS_REFUSED: Final = "ROWS_REFUSED"
WRONG_ROW: Final = "a row is wrong, and all of them are booked or none"
TAKE_OVER: Final = (
    "start a process that runs these imports: the application, or an ImportWorker. Over WSGI (Flask, Django) a process "
    "runs them from its first request to the imports' own paths on, such as GET /imports/ID, or from open() on; semel "
    "worker runs no imports"
)


def waiting_text(state: int, lapse_us: int) -> str:
    """Describe in words what an open import waits for.

    Parameters: ``state`` QUEUED or RUNNING; ``lapse_us`` for how many microseconds any process could have taken it;
    less than 0 while one holds it, or until its next attempt.

    >>> waiting_text(ImportState.RUNNING, -20_000_000)
    'a process runs it; if that process has died, another takes it over in 20 s'
    >>> waiting_text(ImportState.RUNNING, 60_000_000)
    'its lease ended 60 s ago, and no process has taken it over'
    """
    is_running, span = state == ImportState.RUNNING, span_text(abs(lapse_us))
    if lapse_us > OVERDUE_US:
        return (
            f"its lease ended {span} ago, and no process has taken it over"
            if is_running
            else f"it has been due for {span}, and no process has taken it"
        )
    if lapse_us > 0:
        return "the next process of the service that looks takes it, within seconds"
    if is_running:
        return f"a process runs it; if that process has died, another takes it over in {span}"
    return f"it is tried again in {span}"


class FileName(NamedTuple):
    """A file name under which a job's bytes were sent."""

    name: str
    times: int
    first_seen_at: int
    last_seen_at: int


class Counts(NamedTuple):
    """The number of a job's rows (None: not read yet), and of each outcome so far."""

    rows: int | None = None
    done: int = 0
    booked: int = 0
    skipped: int = 0
    failed: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class ImportJob:
    """The current state of a job.

    Parameters: ``is_new`` whether this submission created it; ``names`` under which its bytes were sent; the rest as
    in :class:`Job`.
    """

    id: str
    key: str
    supplier: str
    operation: str
    tenant: str
    state: ImportState
    counts: Counts
    sha256: str
    size: int
    media_type: str
    is_new: bool
    submissions: int
    generation: int
    error_code: str | None
    reason: str | None
    names: tuple[FileName, ...]
    has_content: bool
    created_at: int
    last_seen_at: int
    started_at: int | None
    ended_at: int | None
    bulk_id: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, so that only an operator changes it."""
        return self.state not in OPEN_STATES

    def document(self) -> dict[str, Any]:
        """Return the job as JSON, for clients and operators."""
        return {
            "id": self.id,
            "key": self.key,
            "supplier": self.supplier,
            "operation": self.operation,
            "state": self.state.name,
            "counts": self.counts._asdict(),
            "sha256": self.sha256,
            "bytes": self.size,
            "mediaType": self.media_type,
            "submissions": self.submissions,
            "generation": self.generation,
            "errorCode": self.error_code,
            "reason": self.reason,
            "fileNames": [
                {"name": name, "times": times, "firstSeenAt": clock_text(first), "lastSeenAt": clock_text(last)}
                for name, times, first, last in self.names
            ],
            "contentKept": self.has_content,
            "createdAt": clock_text(self.created_at),
            "lastSeenAt": clock_text(self.last_seen_at),
            "startedAt": None if self.started_at is None else clock_text(self.started_at),
            "endedAt": None if self.ended_at is None else clock_text(self.ended_at),
        }


def clock_text(microseconds: int) -> str:
    """Format a time for clients.

    >>> clock_text(0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- checking rows ---------------------------------------------------------------------------------


class Checks(Protocol):
    """Turns a row into its handler's input. Raises RowInvalid, ValueError or a pydantic model's errors."""

    def __call__(self, value: Any) -> Any: ...


def checks_of(validate: Any) -> Checks:
    """Make the check of rows: a pydantic model, a function, or nothing. Raises PolicyError."""
    if validate is None:
        return lambda value: value
    model = getattr(validate, "model_validate", None)
    if isinstance(validate, type) and callable(model):
        return model  # type: ignore[no-any-return]
    if not callable(validate):
        raise PolicyError(f"validate must be a pydantic model or a function of a row; it is {validate!r}")
    return validate  # type: ignore[no-any-return]


def invalid_of(error: Exception, line: int) -> BadRow:
    """Return the reason that a check refused a row."""
    if isinstance(error, RowInvalid):
        return BadRow(line, error.column, "ROW_INVALID", error.reason)
    for found in _errors_of(error):
        where = found.get("loc") or ()
        column = ".".join(str(part) for part in where) or None
        return BadRow(line, column, "ROW_INVALID", str(found.get("msg", "is invalid")))
    reason = str(error) if isinstance(error, ValueError) else f"the check failed: {type(error).__name__} {error}"
    return BadRow(line, None, "ROW_INVALID", reason or type(error).__name__)


def _errors_of(error: Exception) -> Iterator[Mapping[str, Any]]:
    """Yield the single errors of a pydantic ValidationError, without the rejected values."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        try:
            yield from errors(include_url=False, include_context=False, include_input=False)
        except TypeError:
            return
