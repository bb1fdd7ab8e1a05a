"""Shared parts of sync and async bulks: the declaration, the items that handlers get, and their outcomes."""

from __future__ import annotations

import inspect
import os
import stat
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import IO, Any, Final, Literal, TypedDict

from semel.articles import name_type
from semel.bulk.flow import BulkRun, Handled, KnownItems
from semel.bulk.rules import (
    Done,
    ItemOutcome,
    ItemState,
    ListedItem,
    ListTerms,
    Tally,
    bulk_fingerprint_under,
    bulk_recipe,
    checked_text,
    read_item,
    tally_of,
)
from semel.bulk.spool import ItemSpool
from semel.bulk.store import Items
from semel.core.contract import Store
from semel.core.flow import Flow
from semel.core.identity import derive_key, frame, record_id, uuid_bytes, uuid_text
from semel.core.model import Answer, Grant, Record, Scope, State, Verdict
from semel.core.outcomes import Succeeded
from semel.engine.result import Refusal, Result, stored_result, superseded_result
from semel.errors import (
    BulkRefused,
    HandlerError,
    InvalidKey,
    ItemFailed,
    MissingKey,
    NothingHappened,
    PolicyError,
    RecordUnreadableError,
    is_wrong_for_all,
)
from semel.http.fingerprint.fingerprinter import BodyCheck
from semel.keys import KEY_LENGTH_MAX
from semel.policy import Command, Policy
from semel.sealing.rules import Seals, about_item, open_part
from semel.stores.backend import Backend

Source = Iterable[Any] | PathLike[str]
PAGE: Final = 1000
NO_FILE: Final = "content_digest is for a file: give items as a pathlib.Path, or leave it out"
REPEATS: Final = 3  # of an item's call that failed, where it may be repeated
DETAIL_BYTES_MAX: Final = 65_536
_SPACE: Final = b" \t\r\n"  # stripped from a line, so that a list is the same from a file, with CRLF, and over HTTP
_NO_ROLLBACK: Final = (
    "an item's handler may not roll back the transaction of its chunk, which holds other items; raise ItemFailed, "
    "which undoes only this item's writes"
)


class CallingOptions(TypedDict, total=False):
    """The options of :class:`BulkPolicy` that say how items are handled."""

    chunk_items: int
    chunk_seconds: float
    pipelined: bool
    at_once: int
    nothing_happened: tuple[type[BaseException], ...]
    dedup_for_seconds: float
    lease_seconds: float
    deadline_seconds: float


class BulkOptions(CallingOptions, total=False):
    """The options of :class:`BulkPolicy`, as keyword arguments beside the name of the operation."""

    effects: Literal["atomic", "idempotent", "external"]
    member: str | None
    bad_item: Literal["refuse", "fail"]
    items_max: int
    item_bytes_max: int
    answer_seconds: float
    tombstone_seconds: float
    answers: Literal["keep", "seal", "forget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkPolicy:
    """The policy of one bulk operation.

    Parameters (spans in seconds, sizes in bytes):
        operation: its name.
        effects: of each item: ``"atomic"`` (writes on ``item.connection``, committed with its outcome),
            ``"idempotent"`` (the downstream deduplicates by ``item.key_for``) or ``"external"`` (default).
        member: where an item's own name is; an item without it is named by its content.
        bad_item: ``"refuse"`` the whole list before anything is done, or let that one item ``"fail"``.
        items_max, item_bytes_max: limits of a list and of one item.
        chunk_items, chunk_seconds: how many atomic items are one transaction, and for how long it may be open.
        pipelined: statements of atomic items travel together (psycopg only: several times as fast; a handler then
            sees no ``rowcount`` before it has fetched something). After a failure the chunk is done over without.
        at_once: how many items with external effects begin together; that many may be UNKNOWN after a crash.
        nothing_happened: exception types that prove that an item had no effect.
        dedup_for_seconds: how long the downstream deduplicates (idempotent items).
        lease_seconds, deadline_seconds: as in :class:`~semel.Policy`, of the whole bulk.
        answer_seconds, tombstone_seconds: likewise; the items' outcomes are kept as long as the bulk's record.
        answers: whether the details of items (``Done(detail=...)``, ``ItemFailed(detail=...)``) are kept as they are,
            sealed by the engine's sealer (``"seal"``), or not stored (``"forget"``). Their names and result ids are
            stored in any case.

    Raises PolicyError, naming the option.

    >>> BulkPolicy(operation="cases.approve", effects="atomic").chunk_items
    500
    >>> BulkPolicy(operation="cases.approve", at_once=0)
    Traceback (most recent call last):
        ...
    semel.errors.PolicyError: at_once must be a whole number from 1 to 1000; it is 0
    """

    operation: str
    effects: Literal["atomic", "idempotent", "external"] = "external"
    member: str | None = "clientItemId"
    bad_item: Literal["refuse", "fail"] = "refuse"
    items_max: int = 1_000_000
    item_bytes_max: int = 65_536
    chunk_items: int = 500
    chunk_seconds: float = 0.5
    pipelined: bool = False
    at_once: int = 1
    nothing_happened: tuple[type[BaseException], ...] = ()
    dedup_for_seconds: float = 23 * 3600
    lease_seconds: float = 30
    deadline_seconds: float = 86_400
    answer_seconds: float = 24 * 3600
    tombstone_seconds: float = 30 * 86_400
    answers: Literal["keep", "seal", "forget"] = "keep"
    policy: Policy = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("items_max", 1, 100_000_000),
            ("item_bytes_max", 1, 16 * 1024 * 1024),
            ("chunk_items", 1, 10_000),
            ("at_once", 1, 1000),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise PolicyError(f"{name} must be a whole number from {least} to {most}; it is {value!r}")
        for name, choices in (
            ("effects", ("atomic", "idempotent", "external")),
            ("bad_item", ("refuse", "fail")),
            ("answers", ("keep", "seal", "forget")),
        ):
            if getattr(self, name) not in choices:
                raise PolicyError(f"{name} must be one of {', '.join(choices)}; it is {getattr(self, name)!r}")
        if type(self.chunk_seconds) not in (int, float) or not 0 < self.chunk_seconds <= 60:
            raise PolicyError(f"chunk_seconds must be more than 0 and at most 60; it is {self.chunk_seconds!r}")
        made = Policy(
            effects="external",
            nothing_happened=self.nothing_happened,
            lease_seconds=self.lease_seconds,
            deadline_seconds=self.deadline_seconds,
            answer_seconds=self.answer_seconds,
            tombstone_seconds=self.tombstone_seconds,
            dedup_for_seconds=self.dedup_for_seconds,
            answers="seal" if self.answers == "seal" else "keep",  # "forget" keeps the tally: it says nothing secret
        )
        # A durable write precedes each item's effect: a lapsed bulk is granted again, and continues where it stopped.
        object.__setattr__(made, "terms", made.terms._replace(starts=State.CLAIMED))
        object.__setattr__(self, "policy", made)

    @property
    def list_terms(self) -> ListTerms:
        """The limits of a list."""
        return ListTerms(self.member, self.items_max, self.item_bytes_max, self.bad_item)

    def command(
        self,
        scope: tuple[str, str],
        key: str,
        listed: bytes,
        counts: Mapping[str, str] | None = None,
        refusal: BulkRefused | None = None,
    ) -> Command:
        """Return the command of a whole list.

        Parameters: ``scope`` tenant and caller; ``listed`` the list's fingerprint; ``counts`` the values that count
        beside it; ``refusal`` the limit that the list breaks: it is refused unless its key is on record.

        Raises MissingKey and InvalidKey.
        """
        further = counts or {}
        if key is None or key == "":
            raise MissingKey("key is empty; give a text that is the same whenever this list is sent again")
        if (
            not isinstance(key, str)
            or len(key) > KEY_LENGTH_MAX
            or any("\ud800" <= letter < "\ue000" for letter in key)
        ):
            raise InvalidKey(
                f"key must be a text of at most {KEY_LENGTH_MAX} characters; give a digest of a longer one"
            )
        return Command(
            scope=Scope(*scope, self.operation),
            key=key,
            fingerprint=listed,
            recipe=bulk_recipe(further),
            policy=self.policy,
            under=lambda recipe: bulk_fingerprint_under(recipe, further, listed),
            refusal=refusal,
        )

    def begin(
        self,
        store: Store,
        grant: Grant,
        total: int,
        known: KnownItems | None = None,
        describe: Callable[[int], bytes] | None = None,
    ) -> BulkRun:
        """One run under a grant."""
        inside = self.effects == "atomic"
        repeatable_us = self.policy.terms.dedup_us if self.effects == "idempotent" else 0
        size = self.chunk_items if inside else self.at_once
        return BulkRun(store, grant, total, size, self.effects.encode(), inside, repeatable_us, known, describe)


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The result of a bulk: its operation's id, its tally, and whether it is an earlier call's answer."""

    operation_id: str
    tally: Tally
    replayed: bool


@dataclass(frozen=True, slots=True)
class BulkItem:
    """One item, as a bulk's handler gets it.

    ``place`` counts from 0; ``id`` is its name in the list; ``raw`` its canonical JSON; ``connection`` is for the
    writes of an atomic item's handler (None for others); ``scope`` is the list's: its caller and operation.
    """

    place: int
    id: str
    raw: bytes
    connection: Any
    scope: Scope
    record: bytes = field(repr=False)
    generation: int = field(repr=False)

    @property
    def value(self) -> Any:
        """The item as Python values; a whole number with too many digits for an int is a ``Decimal``."""
        return read_item(self.raw)

    def key_for(self, name: str, ordinal: int = 0) -> str:
        """Return a key for one downstream call of this item, stable over retries, takeovers and a lost claim.

        Raises HandlerError if the call has no name.
        """
        if not name:
            raise HandlerError("key_for needs a name, such as item.key_for('charge')")
        return derive_key(self.record, self.generation, frame("item", self.id, name).decode(), ordinal)


def make_item(listed: ListedItem, scope: Scope, grant: Grant, connection: Any) -> BulkItem:
    """Make an item as its handler gets it."""
    return BulkItem(listed.place, listed.item_id, listed.raw, connection, scope, grant.id, grant.generation)


def answer_of(tally: Tally) -> Succeeded:
    """Return the answer of a whole bulk: a success, whatever the outcomes of its items."""
    return Succeeded(Answer(None, (), tally.pack()))


def success_outcome(listed: ListedItem, returned: object) -> ItemOutcome:
    """Return the outcome of a handler that returned.

    Raises HandlerError if its result is neither None, a text nor Done; PolicyError if it cannot be stored.
    """
    done = Done(returned) if isinstance(returned, str) else Done() if returned is None else returned
    if not isinstance(done, Done):
        if inspect.iscoroutine(returned):
            returned.close()  # otherwise Python warns that it was never awaited
        raise HandlerError(
            f"a bulk's handler must return None, a text (the result's id) or Done; it was {name_type(returned)}"
        )
    try:
        target, result = checked_text("target_id", done.target_id), checked_text("result_id", done.result_id)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"the handler's result cannot be stored: {error}") from None
    check_detail(done.detail)
    place, name = listed.place, listed.item_id
    return ItemOutcome(place, name, ItemState.SUCCEEDED, target, result, detail=done.detail)


class PackedDetail(bytes):
    """A detail around one of the application's, which was checked already."""


def check_detail(detail: object) -> None:
    """Raise PolicyError if an item's detail cannot be stored."""
    if isinstance(detail, PackedDetail):
        return
    if detail is not None and (not isinstance(detail, bytes) or len(detail) > DETAIL_BYTES_MAX):
        raise PolicyError(f"an item's detail must be bytes, at most {DETAIL_BYTES_MAX}")


def failure_inside(listed: ListedItem, error: Exception) -> tuple[ItemOutcome, bool, bool]:
    """Return an atomic item's outcome after an exception, whether that is sure, and whether it may have written."""
    if isinstance(error, ItemFailed):
        return _failure_outcome(listed, error), True, error.written
    outcome = listed.as_failed(type(error).__name__)
    return outcome, isinstance(error, NothingHappened), not isinstance(error, NothingHappened)


def failure_outside(listed: ListedItem, error: Exception, policy: BulkPolicy) -> ItemOutcome:
    """Return the outcome of an item with external effects whose handler raised."""
    if isinstance(error, ItemFailed):
        return _failure_outcome(listed, error)
    if isinstance(error, (NothingHappened, *policy.nothing_happened)):
        return listed.as_failed(type(error).__name__)
    return listed.as_unknown(f"error:{type(error).__name__}")


def _failure_outcome(listed: ListedItem, error: ItemFailed) -> ItemOutcome:
    try:
        code, target = checked_text("code", error.code), checked_text("target_id", error.target_id)
    except (TypeError, ValueError) as wrong:
        raise PolicyError(f"the content of ItemFailed cannot be stored: {wrong}") from None
    check_detail(error.detail)
    place, name = listed.place, listed.item_id
    return ItemOutcome(place, name, ItemState.FAILED, target, None, code, bool(error.retryable), error.detail)


def may_repeat(error: Exception, policy: BulkPolicy, tried: int) -> bool:
    """Return whether this run calls an item's handler again."""
    final = isinstance(error, (ItemFailed, NothingHappened, *policy.nothing_happened))
    return policy.effects == "idempotent" and not final and tried < REPEATS


def left_by(
    backend: Backend,
    outcomes: list[ItemOutcome],
    listed: ListedItem,
    error: Exception,
    cover: Callable[[ItemOutcome], ItemOutcome],
) -> Handled | None:
    """Return the consequence of an atomic item's exception for its chunk; None: the outcome is recorded, continue.

    Parameters: ``cover`` turns an outcome into its stored form.

    Raises the error itself if it shows that the handler is wrong.
    """
    if is_wrong_for_all(error):
        raise error
    if backend.conflicts(error):
        return Handled(outcomes, conflict=error)
    failed, sure, wrote = failure_inside(listed, error)
    outcome = cover(failed)
    if wrote:
        return Handled(outcomes, outcome, sure)
    outcomes.append(outcome)
    return None


def replay_result(verdict: Refusal) -> BulkResult:
    """Return the result of a bulk that was done before. Raises a CommandError for every other verdict."""
    return _parse_result(stored_result(verdict))


def instead(verdict: Verdict) -> BulkResult:
    """Return the result of a run whose end was refused: the record's current outcome."""
    return _parse_result(superseded_result(verdict))


def _parse_result(result: Result) -> BulkResult:
    """Parse the result of a bulk that another run ended. Raises RecordUnreadableError if its answer is not a tally."""
    try:
        return BulkResult(result.operation_id, tally_of(result.answer.body), True)
    except (ValueError, TypeError):  # such as an answer from an operator's settlement
        raise RecordUnreadableError(
            "the stored answer is not from a bulk; the command never runs again: see semel bulk",
            operation_id=result.operation_id,
        ) from None


class ItemRollback:
    """Replaces ``connection.rollback`` while items are handled: it may undo only the running item's writes.

    A session opened on the connection commits earlier writes, so that a rollback stops there, and then marks the item.
    Any other rollback is refused, and the bulk stops.
    """

    def __init__(self, real: Callable[..., Any]) -> None:
        self._real = real
        self._is_marked = False

    def begin_item(self) -> None:
        """Begin the next item: earlier writes belong to another one."""
        self._is_marked = False

    def mark(self) -> None:
        """Keep the writes so far: a later rollback undoes only this item's writes."""
        self._is_marked = True

    def __call__(self, *args: Any) -> Any:
        if not self._is_marked:
            raise HandlerError(_NO_ROLLBACK)
        return self._real(*args)


@contextmanager
def no_rollback(connection: Any) -> Iterator[None]:
    """Confine a handler's rollback to its own item."""
    try:
        connection.rollback = ItemRollback(connection.rollback)
    except AttributeError:  # asyncpg's connections have none
        yield
        return
    try:
        yield
    finally:
        with suppress(AttributeError):
            del connection.rollback


Counts = Mapping[str, object] | Callable[[], Mapping[str, object]]


def check_counts(counts: Counts | None) -> dict[str, str]:
    """Return the values that count beside a list, as texts. Raises PolicyError unless they are a mapping."""
    given = counts() if callable(counts) else counts
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise PolicyError(f"counts must be a mapping of names to values, such as {{'store': 8}}; it is {given!r}")
    return {name: str(value) for name, value in given.items()}


def check_source(items: object) -> None:
    """Refuse a value that is not a list of items, with the remedy."""
    text = isinstance(items, (str, bytes, bytearray, dict))
    if text or not isinstance(items, (Iterable, AsyncIterable, PathLike)):
        raise PolicyError(
            f"items must be an iterable of items, or a pathlib.Path of JSON lines; it is {name_type(items)}"
        )


def fill(spool: ItemSpool, items: Source, content_digest: str | None = None) -> None:
    """Read a whole source: a path of JSON lines, or an iterable of values (bytes: JSON as it is).

    Parameters: ``content_digest`` of a path's file (RFC 9530), which is checked.

    Raises BulkRefused, InvalidBody and PolicyError.
    """
    check_source(items)
    if isinstance(items, PathLike):
        check = BodyCheck(content_digest)
        try:
            with Path(items).open("rb") as lines:
                before = file_stamp(lines)
                spool.add_lines(_strip_lines(lines, check))
                if file_stamp(lines) != before:
                    raise BulkRefused(None, None, FILE_CHANGED, "UNREADABLE")
            check.finish()
        except OSError as error:
            raise BulkRefused(None, None, f"the file cannot be read: {error.strerror}", "UNREADABLE") from error
    elif content_digest is not None:
        raise PolicyError(NO_FILE)
    else:
        spool.add_values(items)


FILE_CHANGED: Final = (
    "the file changed while it was read, so that a line may be half of one: give it again once it is complete; "
    "the program that writes it should write under another name, and rename the file at its end"
)


def file_stamp(file: IO[bytes]) -> tuple[int, int] | None:
    """Return a file's size in bytes and its time in nanoseconds, which a write changes; None for a pipe or a device."""
    found = os.fstat(file.fileno())
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _strip_lines(lines: Iterable[bytes], check: BodyCheck) -> Iterator[bytes]:
    for line in lines:
        check.feed(line)
        if stripped := line.strip(_SPACE):
            yield stripped


def check_same(record: Record | None, spool: ItemSpool) -> None:
    """Refuse a list that is not the bulk's: its places would name other items. ``record`` None: it is forgotten."""
    if record is not None and record.fingerprint != spool.fingerprint():
        raise BulkRefused(
            None, None, "this is not the list of the bulk; give the same items, in the same order", "ANOTHER_LIST"
        )


def operation_bytes(operation_id: str) -> bytes:
    """Return the 16 bytes of an operation's id. Raises PolicyError if it is not one."""
    found = uuid_bytes(operation_id)
    if found is None:
        raise PolicyError("an operation's id is a UUID, such as 018f2b7e-…; take it from the bulk's result")
    return found


def with_details(page: list[ItemOutcome], operation_id: bytes, sealer: Seals | None) -> list[ItemOutcome]:
    """Open the sealed details of outcomes. Raises ConfigurationError and RecordUnreadableError."""
    return [
        each
        if each.detail is None
        else each._replace(
            detail=open_part(
                each.detail, about_item(operation_id, each.place), sealer, f"the detail of item {each.item_id!r}"
            )
        )
        for each in page
    ]


@dataclass(frozen=True, slots=True)
class Looking:
    """A look for a bulk that may be running elsewhere: by its operation's id, or by its key and caller."""

    store: Store
    items: Items
    operation: str
    secret: bytes | None

    def id(self, key: str, caller: str, tenant: str) -> Flow[str | None]:
        """Return the operation's id of the bulk with this key."""
        name = record_id(Scope(tenant, caller, self.operation), key, self.secret)
        [row] = yield from self.store.read((name,))
        return None if row is None else uuid_text(row.operation_id)

    def progress(
        self, operation_id: str | None, key: str | None, caller: str | None, tenant: str
    ) -> Flow[Tally | None]:
        """Return the progress of a bulk. Raises PolicyError if the arguments do not identify one."""
        if (operation_id is None) == (key is None) or (key is None) != (caller is None):
            raise PolicyError("progress needs the operation_id alone, or key= and caller= together")
        if key is not None and caller is not None:
            operation_id = yield from self.id(key, caller, tenant)
        return None if operation_id is None else (yield from self.items.tally(operation_bytes(operation_id)))
