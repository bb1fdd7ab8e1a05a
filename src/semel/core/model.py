"""Semel's vocabulary as values: what passes from one layer to the next.

Everything here is immutable. Values made once per request on the hot path are named tuples, which are built several
times faster than frozen dataclasses; the others are frozen dataclasses. This file holds values only: ``decide`` and
``settle`` hold the rules. Times are integers in microseconds since 1970 by the *store's* clock; spans too are in them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from semel.outbox.event import Event


class State(IntEnum):
    """The state of a record (EXPIRED is derived from the clock and never written)."""

    CLAIMED = 1
    PROCESSING = 2
    SUCCEEDED = 3
    FAILED_REPLAYABLE = 4
    FAILED_NOT_REPLAYABLE = 5
    UNKNOWN = 6


OPEN_STATES = (State.CLAIMED, State.PROCESSING)
OVER_STATES = (State.SUCCEEDED, State.FAILED_REPLAYABLE, State.FAILED_NOT_REPLAYABLE)  # the outcome is known
ANSWERED_STATES = (State.SUCCEEDED, State.FAILED_REPLAYABLE)


class Effects(IntEnum):
    """The kind of a handler's side effects; the one declaration that an operation must get right."""

    ATOMIC = 1
    IDEMPOTENT = 2
    EXTERNAL = 3


class AnswerKind(IntEnum):
    """Whether and how the answer is stored."""

    NONE = 0  # none yet
    KEPT = 1
    NOT_KEPT = 2  # the answer was too long or endless, or has been dropped
    SEALED = 3  # encrypted: the engine opens it
    REBUILT = 4  # only its status is stored: the operation's builder makes the answer again


ANSWERABLE = (AnswerKind.KEPT, AnswerKind.SEALED, AnswerKind.REBUILT)  # a retry gets an answer
STORED_ANSWERS = (AnswerKind.KEPT, AnswerKind.SEALED)  # their headers and body are in the store


class AfterExpiry(IntEnum):
    """The reply to an attempt after the answer's retention, but before the tombstone's end."""

    REFUSE = 1
    NEW = 2


class Scope(NamedTuple):
    """The scope of a key: tenant, caller and operation, each a non-empty text."""

    tenant: str
    caller: str
    operation: str


class Answer(NamedTuple):
    """A response as stored and replayed: ``headers`` are raw pairs; ``status`` is None outside HTTP."""

    status: int | None
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Terms(NamedTuple):
    """The part of a policy that is stored with the record: fixed at the claim, even if the policy changes later."""

    effects: Effects
    lease_us: int
    deadline_us: int
    dedup_us: int
    attempts_max: int
    answer_us: int
    tombstone_us: int
    after_expiry: AfterExpiry
    starts: State  # PROCESSING, or CLAIMED where a durable write comes before the first effect


class Kept(NamedTuple):
    """The part of an operation that outlives its key: its business reference, and how long it is kept once settled."""

    business_ref: str | None
    ref_id: bytes | None  # 16 bytes: digest of tenant, operation and business reference
    keep_us: int


class Allowance(NamedTuple):
    """The quota that counts a new record of one caller (``quota.py``)."""

    id: bytes  # 16 bytes: digest of the tenant and the caller, and of the operation where its quota is its own
    new_keys: int | None
    slice_us: int  # a twentieth of the window
    open_max: int | None
    unknown_max: int | None


class Claim(NamedTuple):
    """One attempt to reserve a key. Repeating it with the same nonce is safe and reads back the first."""

    id: bytes  # 16 bytes: digest of scope and key
    nonce: bytes  # 16 random bytes
    scope: Scope
    key_hash: bytes  # 8 bytes, for operators; never the key
    recipe: str
    fingerprint: bytes  # 32 bytes
    operation_id: bytes  # 16 bytes, UUIDv7
    holder: str
    terms: Terms
    kept: Kept | None = None  # None: nothing of the operation outlives the key
    request: bytes | None = None  # kept beside the record until there is an outcome
    quota: Allowance | None = None  # None: new records of this caller are not counted


class Grant(NamedTuple):
    """The right to run a handler: what a successful claim wrote."""

    id: bytes
    nonce: bytes
    fence: int
    state: State
    generation: int
    attempt: int
    lapses: int
    operation_id: bytes
    created_at: int
    first_started_at: int
    lease_until: int
    deadline_at: int
    dedup_until: int


class Record(NamedTuple):
    """The durable row for one scoped key, in the order of the store's columns."""

    id: bytes
    format: int
    tenant: str
    caller: str
    operation: str
    key_hash: bytes
    recipe: str
    fingerprint: bytes
    state: int
    effects: int
    fence: int
    nonce: bytes
    holder: str
    attempt: int
    lapses: int
    generation: int
    operation_id: bytes
    created_at: int
    first_started_at: int
    lease_until: int
    deadline_at: int
    dedup_until: int
    lease_us: int
    attempts_max: int
    answer_us: int
    tombstone_us: int
    after_expiry: int
    settled_at: int | None = None
    answer_until: int | None = None
    forget_after: int | None = None
    doubt: str | None = None
    business_ref: str | None = None
    resource_type: str | None = None
    resource_id: str | None = None
    error_code: str | None = None
    answer_kind: int = AnswerKind.NONE
    answer_digest: bytes | None = None
    sealing_key_id: str | None = None
    status: int | None = None
    headers: bytes | None = None
    request: bytes | None = None
    body: bytes | None = None


class Operation(NamedTuple):
    """One logical execution, remembered even after its key is forgotten: key -> operation -> business result."""

    operation_id: bytes  # 16 bytes, UUIDv7
    record_id: bytes  # the record of the key that requested it
    tenant: str
    caller: str
    operation: str
    business_ref: str | None
    state: int
    resource_type: str | None
    resource_id: str | None
    error_code: str | None
    created_at: int
    settled_at: int | None
    forget_after: int | None


RECORD_FORMAT = 1


# --- verdicts: what the rules decide for an attempt -------------------------------------------


class Proceed(NamedTuple):
    """Run the handler under this grant."""

    grant: Grant


class Replay(NamedTuple):
    """Give the stored answer again."""

    answer: Answer
    operation_id: bytes
    state: State


@dataclass(frozen=True, slots=True)
class Unseal:
    """Open the sealed answer and replay it. Only the engine can: it turns this verdict into a Replay or Unreadable."""

    id: bytes  # of the record that it was sealed for
    answer: Answer  # its status in clear, the rest sealed
    operation_id: bytes
    state: State


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Have the operation's builder make the answer again. The engine turns this into a Replay or NotReplayable."""

    status: int | None
    operation_id: bytes
    state: State
    resource_type: str | None = None
    resource_id: str | None = None
    business_ref: str | None = None


@dataclass(frozen=True, slots=True)
class InProgress:
    """A process is running the command; ``lease_left_us`` until the holder must have renewed.

    ``own`` False: another command with the same business reference runs, or its owner could not be read.
    ``waited_us``: how long this attempt has waited in vain. ``state``: that of the running command's record.
    """

    operation_id: bytes
    lease_left_us: int
    own: bool = field(default=True, compare=False)
    waited_us: int = field(default=0, compare=False)
    state: State = State.PROCESSING

    @property
    def retry_us(self) -> int:
        """Return how long to wait before the next attempt: see :func:`pause_us`."""
        return pause_us(self.lease_left_us, self.waited_us)


def pause_us(lease_left_us: int, passed_us: int) -> int:
    """Return how long to wait before asking again for a command that was waited for, or ran, ``passed_us`` so far.

    It is the same time again, at least one second: most commands end within milliseconds, and clients poll a slow one
    less and less often. It is at most the rest of its lease, after which another attempt may take over.

    >>> pause_us(30_000_000, 0), pause_us(30_000_000, 4_000_000), pause_us(250_000, 4_000_000)
    (1000000, 4000000, 250000)
    """
    return min(lease_left_us, max(RETRY_US_MIN, passed_us))


@dataclass(frozen=True, slots=True)
class KeyReused:
    """Another request of the same caller holds this key: its operation and that operation's state.

    ``state`` is also UNKNOWN if the holder's lease ran out and the outcome cannot be proven. None: not known here.
    """

    operation_id: bytes | None = None
    state: State | None = None


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """The outcome cannot be proven; ``doubt`` says where it was lost."""

    operation_id: bytes
    doubt: str


@dataclass(frozen=True, slots=True)
class KeyExpired:
    """The answer's retention is over; the record that it happened remains until the tombstone's end."""

    operation_id: bytes


@dataclass(frozen=True, slots=True)
class NotReplayable:
    """The command was done, and its answer could not be kept."""

    operation_id: bytes
    resource_type: str | None = None
    resource_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReferenceTaken:
    """Another caller's command has this business reference. Nothing else about it is disclosed."""


@dataclass(frozen=True, slots=True)
class QuotaExceeded:
    """The key is new, and its caller has used up a quota. Nothing was written.

    ``limit``: ``new_keys``, ``open_at_once`` or ``unknown_at_once``; ``retry_us`` until there may be a place.
    """

    limit: str
    retry_us: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """This process cannot go on from the record, and does not run the command again.

    ``reason``: ``recipe`` (unknown here, and named), ``corrupt``, ``steps`` (some have begun, and this process's
    operation declares none), ``unsealed`` (its answer is sealed, and this process has no sealer), ``sealing-key`` (it
    has one, without the key), or ``seal`` (the answer does not open: it was changed, or is another record's).
    """

    operation_id: bytes
    reason: str
    recipe: str | None = None
    key: str | None = None  # the name of the sealing key


Refusal = (
    Replay
    | InProgress
    | KeyReused
    | OutcomeUnknown
    | KeyExpired
    | NotReplayable
    | ReferenceTaken
    | QuotaExceeded
    | Unreadable
)
"""The verdicts, as they leave the engine, on an attempt that is not granted."""
Verdict = Proceed | Unseal | Rebuild | Refusal


# --- settlement ------------------------------------------------------------------------------


class Settlement(NamedTuple):
    """The end of a grant by its holder. ``state`` PROCESSING releases the lease."""

    id: bytes
    fence: int
    nonce: bytes
    state: State
    answer: Answer | None = None
    answer_kind: AnswerKind = AnswerKind.NONE
    doubt: str | None = None
    error_code: str | None = None
    business_ref: str | None = None
    resource_type: str | None = None
    resource_id: str | None = None
    keeps: bool = False  # also settle the operation, which outlives its key
    events: tuple[Event, ...] = ()  # written in the settlement's own commit


@dataclass(frozen=True, slots=True)
class Settled:
    """The settlement was written."""


@dataclass(frozen=True, slots=True)
class AlreadyMine:
    """The same holder had settled the same way before: a repeated call, not a loss."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """The record has another grant or settlement; nothing was written. ``state``: its own (None: gone, unreadable)."""

    state: State | None


Settling = Settled | AlreadyMine | Superseded


class Renewal(NamedTuple):
    """A live holder's request to extend its lease."""

    id: bytes
    fence: int
    nonce: bytes


class Resolution(NamedTuple):
    """An operator's or reconciler's settlement of an UNKNOWN record: compare-and-set on ``fence``."""

    id: bytes
    fence: int
    happened: bool
    answer: Answer | None
    actor: str
    reason: str
    forced: bool = False
    resource_type: str | None = None  # the resource that was made, if known
    resource_id: str | None = None
    step: str | None = None  # in doubt when the record was read; "did not happen" then refers to that step alone
    result: bytes | None = None  # of the step in doubt, as JSON: the step happened, and the execution goes on
    answer_kind: AnswerKind = AnswerKind.KEPT  # of ``answer``, if there is one
    refused: bool = False  # with ``happened``: the command ended in a definite refusal, which ``answer`` states
    # Ends the execution, even between its steps: for each step that had begun, whether it happened.
    ends: tuple[tuple[str, bool], ...] | None = None

    @property
    def state(self) -> State:
        """The state of an execution that ends with this resolution."""
        if not self.happened:
            return State.FAILED_NOT_REPLAYABLE
        return State.FAILED_REPLAYABLE if self.refused else State.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Resolved:
    """The resolution was written; the former holder is superseded."""

    state: State


@dataclass(frozen=True, slots=True)
class TooEarly:
    """The handler's deadline has not passed: it may still be running. ``wait_us`` until it has."""

    wait_us: int


@dataclass(frozen=True, slots=True)
class MovedOn:
    """The record is no longer what the operator saw (None: gone, or unreadable).

    Perhaps only because the same resolution was sent twice.
    """

    state: State | None


Resolving = Resolved | TooEarly | MovedOn


RETRY_US_MIN: Final = 1_000_000  # the shortest pause in Retry-After
CURSOR_MAX: Final = 2**63 - 1  # of a page's cursor: Redis uses times finer than microseconds


class Find(NamedTuple):
    """A page of records for operators, newest first. ``before`` is the last page's cursor.

    ``attention``: only what the store finds by its own list of records that need attention, however large it is: all
    UNKNOWN ones, and open ones. A server's list may lack open records that are younger than its reaper's last look.
    With ``states`` and nothing else that narrows, a server looks at four times ``limit`` of them at most, and where
    they do not fit into a page, it has as many UNKNOWN as open ones.
    ``looks``: a store looks at about so many records for the page (0: at all). Where it stops before the page is full,
    ``next_before`` leads on.
    """

    states: tuple[State, ...] = ()
    tenant: str | None = None
    caller: str | None = None
    operation: str | None = None
    limit: int = 50
    before: int | None = None
    lapsed: bool = False
    attention: bool = False
    looks: int = 0

    @property
    def is_census(self) -> bool:
        """Return whether this query wants only a bounded part of the records that need attention."""
        narrows = (self.before, self.tenant, self.caller, self.operation) != (None, None, None, None)
        return self.attention and bool(self.states) and not narrows


class Found(NamedTuple):
    """A page: records without bodies, the cursor of the next page, the store's time."""

    records: tuple[Record, ...]
    next_before: int | None
    now: int


class Purged(NamedTuple):
    """The result of one chunk of a purge, and where the next one begins (None: the end was reached)."""

    scanned: int
    answers_dropped: int
    forgotten: int
    next_after: int | None


class Audit(NamedTuple):
    """One line of the audit trail."""

    at: int
    record_id: bytes
    actor: str
    action: str
    reason: str
    fence: int
