"""The contract of a store: about ten verbs, each a flow over a sequence of requests.

A store describes; a driver performs. Every write names fence and nonce; every list has a limit and an
order. The conformance suite in ``semel.testing`` is the executable form of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from semel.core.flow import Ask, Flow, MakeFlow
from semel.core.model import (
    Answer,
    Audit,
    Claim,
    Find,
    Found,
    Purged,
    QuotaExceeded,
    Record,
    Renewal,
    Replay,
    Resolution,
    Resolving,
    Settlement,
    Settling,
    Verdict,
)
from semel.errors import IdentityMismatch
from semel.sealing.rows import Reseal


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """A store's capabilities, declared by the store and read by the suite: a difference is never a skip."""

    survives_process_crash: bool
    survives_server_crash: bool
    shared_between_processes: bool
    atomic_with_business_writes: bool
    settles_by_proof: bool = (
        False  # inside a unit, its statements see for themselves whether the claim is the unit's own
    )
    counts_new_keys: bool = False  # quotas: a claim that inserts takes a place of its caller's, in the same commit
    holds_features: bool = (
        False  # what features write beside records, in the same commits: operations, steps, items, events, messages
    )
    blocking_units: bool = False  # a unit's connection blocks even on an event loop: there is no network
    forgets_by_itself: bool = False  # the server itself expires records, by its own clock
    balances_attention: bool = False  # a full page of what needs attention has as many UNKNOWN as open records
    looks_max: int = 2_000  # records that one page of a list may read, in a store of any size


@dataclass(frozen=True, slots=True)
class Observed:
    """One observation about a server's actual settings, and how they affect what its store can promise.

    Parameters: ``check`` a short name; ``level`` *forgets* where acknowledged records may be gone after a restart or
    when memory is short: an EXTERNAL command would then run twice; *unusable* where nothing can be granted at all;
    ``remedy`` what to do about it, empty where nothing is wrong.
    """

    check: str
    level: Literal["ok", "note", "warning", "forgets", "unusable"]
    detail: str
    remedy: str = ""


Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class DoctorFinding:
    """The finding of one check. A warning or problem has a remedy, in ``remedy`` or in an error's own text.

    >>> DoctorFinding("disk", "ok", "12 GiB free").is_bad
    False
    """

    check: str
    level: Level
    detail: str
    remedy: str | None = None

    @property
    def is_bad(self) -> bool:
        """Return whether an operator should act."""
        return self.level in ("warning", "problem")


class DoctorCheck(NamedTuple):
    """One check of :meth:`Store.doctor`.

    Parameters: ``name`` of the check; ``look`` makes the flow that reads, and returns what it found; ``refused`` the
    finding where the server refuses the statement to this user (None: the error is raised); ``is_slow`` whether it may
    read the whole store.
    """

    name: str
    look: MakeFlow[list[DoctorFinding]]
    refused: DoctorFinding | None = None
    is_slow: bool = False


@runtime_checkable
class Observable(Protocol):
    """A store whose guarantees depend on its server's settings. Start-up and ``semel doctor`` read them."""

    def observe(self) -> Flow[list[Observed]]:
        """Read the server's current settings."""


@runtime_checkable
class Restorable(Protocol):
    """A store whose server may lose records: it then refuses claims until an operator accepts the loss."""

    def restore(self, store_id: str, secret_check: bytes) -> Flow[list[str]]:
        """As :meth:`Store.migrate`, for a store that has lost records: it grants claims again from now on."""


class LooksAtOnce(Protocol):
    """A driver that reads without waiting: an engine on an event loop looks for a kept answer before it claims."""

    def kept_answer(self, id: bytes, recipe: str, fingerprint: bytes) -> Replay | Literal[False] | None:
        """Return the record's kept answer, if it is this request's. False: no record has this id.

        None: anything else, including a sealed answer. Only a claim can tell which.

        Raises StoreError and SchemaError as a claim does.
        """


Known = tuple[bytes, str, bytes]  # a record's id, and the recipe and fingerprint of the request


class LooksForKept(Protocol):
    """A store whose look takes a round trip: an engine looks before it claims only if it knows of an answer."""

    def look_kept(self, asked: Sequence[Known]) -> Flow[list[Replay | None]]:
        """Return each record's kept answer, if it is this request's. Writes nothing, and takes no lock.

        None: anything else, including a sealed answer or another store. Only a claim can tell which.
        """


class Asked(Protocol):
    """A request with its fingerprint."""

    @property
    def recipe(self) -> str: ...
    @property
    def fingerprint(self) -> bytes: ...


class AnswersAtOnce(Protocol):
    """A driver whose store is this process's own memory: an engine on an event loop gets its replies without awaiting.

    Each method answers one request as the store's verb does. Such a store keeps no events.
    """

    def claim_at_once(
        self, id: bytes, asked: Asked, attempt: Callable[[Any, bytes], Claim]
    ) -> Replay | tuple[Claim, Verdict | int]:
        """Return the kept answer of this request; or its claim, and the verdict on it.

        For a key that was never seen, the fence of its first grant takes the verdict's place.

        Parameters: ``id`` of the record; ``asked`` the request; ``attempt`` makes a claim of both: a replay needs none.

        Raises StoreError as a claim does, and what ``attempt`` raises.
        """

    def settle_at_once(self, settlement: Settlement) -> Settling:
        """Write one settlement, if the record still has its fence and nonce. Raises StoreError as ``settle`` does."""

    def succeed_at_once(self, claim: Claim, fence: int, answer: Answer) -> bool:
        """Settle a command that succeeded, if its record is unchanged since ``claim_at_once`` granted this fence.

        Parameters: ``answer`` of what cannot change. False: nothing is written; only the store's ``settle`` can tell.

        Raises StoreError as ``settle`` does.
        """


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a store: its row in ``semel_meta``."""

    store_id: str
    schema_version: int
    epoch: int
    id_format: int
    secret_check: bytes


def another_store(store_id: str) -> IdentityMismatch:
    """Return the error for a store that is no longer ``store_id``, which this process has opened."""
    return IdentityMismatch(
        f"another store is in the place of the one that this process has opened ({store_id}): it was emptied or "
        "replaced, and keys that were issued before may run again. Put the former one back; or find out from your own "
        "systems which commands ran, and restart this process"
    )


class Store(Protocol):
    """The contract of a store. Replies come in the order of the requests; one request is a batch of one.

    ``migrations`` names all that :meth:`migrate` may run, in order: none for a store that keeps nothing.
    """

    capabilities: Capabilities
    migrations: tuple[str, ...]

    def claim(self, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        """Decide each attempt and write its grant, atomically per record."""

    def look(self, claims: Sequence[Claim]) -> Flow[list[Verdict | None]]:
        """Decide without writing: return the verdicts that need no write, and None for the others."""

    def claim_in_unit(self, claim: Claim) -> Flow[Verdict]:
        """Claim in a transaction that is already open and will commit together with other writes."""

    def take_place(self, claim: Claim) -> Flow[QuotaExceeded | None]:
        """Take a place of the claim's quota in a separate commit, if the claim would insert; returns the refusal, if
        any.

        Only stores that declare ``settles_by_proof`` and ``counts_new_keys`` are asked for it, before a unit begins;
        the others count within the unit.
        """

    def settle(self, settlements: Sequence[Settlement]) -> Flow[list[Settling]]:
        """Write each holder's outcome, if its fence and nonce are still current."""

    def settle_within(self, settlement: Settlement) -> Ask[Any]:
        """Return the ask that settles inside a unit whose claim is its own, and fails its transaction otherwise.

        Only stores that declare ``settles_by_proof`` are asked for it.
        """

    def commit_together(self) -> Flow[None]:
        """Commit the rest of this flow as one. Does nothing if the driver commits every flow as one."""

    def mark_not_kept(self, renewals: Sequence[Renewal]) -> Flow[list[bool]]:
        """Note on open records that their answer will not be kept, before its first byte leaves."""

    def renew(self, renewals: Sequence[Renewal]) -> Flow[list[bool]]:
        """Extend leases up to the deadline; False where the holder is superseded or settled."""

    def abandon(self, nonces: Sequence[tuple[bytes, bytes]]) -> Flow[list[bool]]:
        """Release open claims (record id, nonce) whose handler never ran; False where none is there (yet)."""

    def read(self, ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        """Read the records with these ids."""

    def read_operations(self, operation_ids: Sequence[bytes]) -> Flow[list[Record | None]]:
        """Read the records with these operation ids."""

    def find(self, query: Find) -> Flow[Found]:
        """Read a page of records for operators, newest first, without bodies."""

    def resolve(self, resolution: Resolution) -> Flow[Resolving]:
        """Settle an UNKNOWN (or lapsed) record by compare-and-set, and write it to the audit trail."""

    def reseal(self, changes: Sequence[Reseal]) -> Flow[list[bool]]:
        """Store answers in another form; False if a record is missing, or its answer has changed."""

    def lapse(self, limit: int) -> Flow[list[Record]]:
        """Make lapsed records whose outcome is unknown visible as UNKNOWN; returns those it marked."""

    def purge(self, after: int | None, chunk: int) -> Flow[Purged]:
        """Drop expired answers and forget expired tombstones in one chunk."""

    def forget_quotas(self) -> Flow[int]:
        """Drop the counts of callers without new keys that still count; return how many. Only if keys are counted."""

    def counts(self) -> Flow[dict[int, int]]:
        """Count the records in each state."""

    def audit(self, record: bytes | None, limit: int) -> Flow[list[Audit]]:
        """Read the newest lines of the audit trail, of one record or of all."""

    def now(self) -> Flow[int]:
        """Read the store's time in microseconds since 1970: the only clock for leases and retentions."""

    def identity(self) -> Flow[Identity | None]:
        """Read the identity of this store; None before its first migration."""

    def migrate(self, store_id: str, secret_check: bytes) -> Flow[list[str]]:
        """Bring the schema up to date; return the names of the migrations that ran."""

    def missing_additions(self) -> Flow[list[str]]:
        """Return the migrations without a version that :meth:`migrate` would run: optional tables, which come later."""

    def doctor(self, *, full: bool, quick: bool) -> Sequence[DoctorCheck]:
        """Return the checks of ``semel doctor`` on the store, its server and its disk, besides those of ``observe``.

        Parameters: ``full`` reads the whole store, however large it is; ``quick`` leaves out what reads every row.
        """
