"""Process one file's rows: read and check each, hand it to the application, and record its outcome."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Final, Literal, NamedTuple

from semel.atomic.own_transaction import in_own_transaction
from semel.bulk.declaration import BulkItem, PackedDetail, check_detail, failure_inside, success_outcome
from semel.bulk.rules import KNOWN, Done, ItemOutcome, ItemState, ListedItem
from semel.core.model import Scope
from semel.errors import HandlerError, ItemFailed, StoreUnavailable, is_wrong_for_all
from semel.imports.readers import Format, Lines
from semel.imports.rules import (
    BadRow,
    Checks,
    RowInvalid,
    bad_item,
    hide_ids,
    invalid_of,
    packed_detail,
    read_detail,
    read_hidden_ids,
    row_item,
)
from semel.stores.backend import Backend

NOT_BOOKED: Final = "NOT_BOOKED"
Verdict = Literal["BOOKED", "SKIPPED", "FAILED", "UNKNOWN", "BEGUN"]
_SAVEPOINT: Final = "semel_preview"
_ENDED: Final = (
    "the preview could not leave a row's savepoint ({error}): the handler must not call commit() or rollback() itself "
    "there. Remove these calls, since Semel commits a row's writes and rolls back a failed row's; or skip them "
    "where row.preview is true"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One row, as its handler gets it.

    ``number`` of the row from 1 and ``line`` of its file; ``value`` the row as ``validate`` returned it;
    ``connection`` on which an atomic handler writes (None for others); ``id`` its name in the job; ``preview`` whether
    a rollback follows.
    """

    number: int
    line: int
    value: Any
    connection: Any
    id: str
    supplier: str
    tenant: str
    preview: bool
    _item: BulkItem = field(repr=False)

    def key_for(self, name: str, ordinal: int = 0) -> str:
        """Derive a key for one downstream call of this row, stable over retries; see :meth:`BulkItem.key_for`."""
        return self._item.key_for(name, ordinal)


RowHandler = Callable[[Row], Awaitable[object]]


class RowOutcome(NamedTuple):
    """The outcome of a row.

    ``number`` counts rows from 1; ``line`` (from 1, of the file) belongs to a failed or UNKNOWN one, ``column`` and
    ``reason`` to a failed one.
    """

    number: int
    state: Verdict
    line: int | None = None
    column: str | None = None
    error_code: str | None = None
    reason: str | None = None
    target_id: str | None = None
    result_id: str | None = None
    retryable: bool = False

    def document(self) -> dict[str, Any]:
        """Return the outcome as JSON."""
        return {
            "row": self.number,
            "state": self.state,
            "line": self.line,
            "column": self.column,
            "errorCode": self.error_code,
            "reason": self.reason,
            "targetId": self.target_id,
            "resultId": self.result_id,
            "retryable": self.retryable,
        }


def row_outcome(outcome: ItemOutcome) -> RowOutcome:
    """Convert an item's outcome to that of its row."""
    told = read_detail(outcome.detail) if outcome.state in (ItemState.FAILED, ItemState.UNKNOWN) else {}
    target, result = read_hidden_ids(outcome.detail)
    skipped = outcome.state is ItemState.SUCCEEDED and outcome.error_code == KNOWN
    names: dict[ItemState, Verdict] = {
        ItemState.SUCCEEDED: "BOOKED",
        ItemState.FAILED: "FAILED",
        ItemState.UNKNOWN: "UNKNOWN",
        ItemState.BEGUN: "BEGUN",
    }
    return RowOutcome(
        outcome.place + 1,
        "SKIPPED" if skipped else names[outcome.state],
        told.get("line"),
        told.get("column"),
        None if skipped else outcome.error_code,
        told.get("reason"),
        outcome.target_id or target,
        outcome.result_id or result,
        outcome.retryable,
    )


def items_of(form: Format, file: IO[bytes], lines: Lines) -> Iterator[bytes]:
    """Yield the rows of a file as items of a bulk. Raises UnreadableFile."""
    file.seek(0)
    for row in form.rows(file, lines):
        yield bad_item(row) if isinstance(row, BadRow) else row_item(row)


@dataclass(frozen=True, slots=True)
class Booking:
    """The bulk's handler: converts each item to a row and calls the row's handler, also in a preview.

    Parameters: ``handler`` None where it must not be called; ``refuses`` every row, since one of them is wrong;
    ``hides`` the ids that the handler returns in the detail, which is sealed.
    """

    checks: Checks
    handler: RowHandler | None
    lines: Lines
    scope: Scope
    refuses: bool = False
    preview: bool = False
    hides: bool = False

    async def __call__(self, item: BulkItem) -> object:
        """Book the row of an item. Raises ItemFailed, with the line, the column and the reason."""
        found = item.value
        if len(found) == 2:
            raise _item_failed(BadRow(*found[1]), written=False)
        line = self.lines.line_of(item.place)
        try:
            value = self.checks(found[0])
        except Exception as error:  # from pydantic, a function, or a row that a function does not expect
            if is_wrong_for_all(error):
                raise
            raise _item_failed(invalid_of(error, line), written=False) from None
        if self.refuses:
            reason = "another row of the file is wrong, and all of them are booked or none"
            raise _item_failed(BadRow(line, None, NOT_BOOKED, reason), written=False)
        if self.handler is None:
            return None
        scope = self.scope
        row = Row(item.place + 1, line, value, item.connection, item.id, scope.caller, scope.tenant, self.preview, item)
        try:
            returned = await self.handler(row)
            return _move_ids_to_detail(returned) if self.hides else returned
        except RowInvalid as error:
            raise _item_failed(invalid_of(error, line), written=True) from None
        except ItemFailed as error:
            if error.detail is None:
                error.detail = self.describe(item.place)
            if self.hides and error.target_id is not None:
                error.detail, error.target_id = _hide(error.detail, error.target_id, None), None
            raise

    def describe(self, place: int) -> bytes:
        """Make the detail of a row whose handler left none: its line alone, as an exception's text may hold values."""
        return packed_detail(BadRow(self.lines.line_of(place), None, "", ""))

    def first_wrong(self, listed: Iterator[bytes]) -> bool:
        """Return whether any row is unreadable or invalid, without calling the handler."""
        from semel.bulk.rules import read_item

        for raw in listed:
            found = read_item(raw)
            if len(found) == 2:
                return True
            try:
                self.checks(found[0])
            except Exception as error:  # as in booking the row
                if is_wrong_for_all(error):
                    raise
                return True
        return False


def _item_failed(bad: BadRow, *, written: bool) -> ItemFailed:
    return ItemFailed(bad.code, written=written, detail=packed_detail(bad))


def _move_ids_to_detail(returned: object) -> object:
    """Move the ids of a handler's result into the detail. An unknown type stays unchanged."""
    done = Done(returned) if isinstance(returned, str) else returned
    if not isinstance(done, Done) or (done.result_id is None and done.target_id is None):
        return done
    return Done(detail=_hide(done.detail, done.target_id, done.result_id))


def _hide(detail: bytes | None, target_id: str | None, result_id: str | None) -> PackedDetail:
    """Return a detail with the ids in it. The handler's own detail keeps its usual size limit."""
    check_detail(detail)
    return PackedDetail(hide_ids(detail, target_id, result_id))


async def try_row(booking: Booking, backend: Backend, listed: ListedItem, connection: Any) -> ItemOutcome:
    """Try a row in a transaction that is rolled back later; a failed row's writes are rolled back at once.

    Raises errors that affect all rows, such as HandlerError where the handler ended the row's savepoint; and
    StoreUnavailable for a conflict.
    """
    if listed.error is not None:
        return listed.as_refused()._replace(detail=booking.describe(listed.place))
    item = BulkItem(listed.place, listed.item_id, listed.raw, connection, booking.scope, bytes(16), 0)
    for attempt in range(2):
        if connection is not None:
            await _execute(connection, f"SAVEPOINT {_SAVEPOINT}")
        try:
            with in_own_transaction(backend, booking.scope.operation, connection):
                outcome = success_outcome(listed, await booking(item))
        except Exception as error:
            if is_wrong_for_all(error):
                raise
            if backend.conflicts(error):
                raise StoreUnavailable("another transaction was first; ask for the preview again") from error
            if connection is not None:
                await _leave(connection, f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            outcome, sure, _ = failure_inside(listed, error)
            if sure or attempt:  # as in a run, an undeclared failure is retried
                return outcome if outcome.detail is not None else outcome._replace(detail=booking.describe(item.place))
        else:
            if connection is not None:
                await _leave(connection, f"RELEASE SAVEPOINT {_SAVEPOINT}")
            return outcome
    raise AssertionError("a row has an outcome after two attempts")


async def _leave(connection: Any, text: str) -> None:
    """Leave a row's savepoint. Raises HandlerError where it no longer exists."""
    try:
        await _execute(connection, text)
    except Exception as error:
        raise HandlerError(_ENDED.format(error=error)) from error


async def _execute(connection: Any, text: str) -> None:
    target = connection if hasattr(connection, "execute") else connection.cursor()
    done = target.execute(text)
    if inspect.isawaitable(done):
        await done


def check_handler(handler: object) -> None:
    """Raise HandlerError for a handler that is not a coroutine function."""
    called = getattr(handler, "__call__", None)  # noqa: B004 - whether an object's call is awaited
    if not inspect.iscoroutinefunction(handler) and not inspect.iscoroutinefunction(called):
        raise HandlerError("a row's handler must be a coroutine function: async def book(row): ...")
