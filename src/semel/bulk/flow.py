"""A bulk as one flow, chunk by chunk: each transaction also proves that the bulk is still this holder's.

There are two kinds. *Inside*: an item's effects are writes in its chunk's transaction; a crash undoes the chunk, and
the next run begins after the last commit. *Outside*: an item calls another system, so the flow first writes that it
begins, one window of items at a time, together with the outcomes of the window before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from semel.atomic.flow import NOT_ROLLED_BACK, has_left_writes
from semel.bulk.rules import ItemOutcome, ItemState, ListedItem, Tally
from semel.bulk.store import BulkStanding, Items
from semel.core.backoff import retry_seconds
from semel.core.contract import Store
from semel.core.flow import Ask, Flow, ask
from semel.core.model import Grant, Purged
from semel.core.requests import AnyUnit, Begin, Commit, Jitter, Pause, Perform, Rollback, SettleWithin, Within
from semel.errors import EarlyCommit, HandlerRefused, SemelError, StoreError, StoreUnavailable, SupersededError

TRIES_MAX: Final = 8  # tries of one chunk, while the store fails or other transactions win
INTERRUPTED: Final = "interrupted"
COMMITTED_EARLY: Final = "committed-early"
DEDUP_OVER: Final = "dedup-over"
TAKEN_OVER: Final = "another run of this bulk has taken over; read its progress"
ROLLED_BACK: Final = "an item's handler rolled back the transaction of its chunk"
MOVED: Final = "the bulk has changed since this run last wrote it"
LEFT_WRITES: Final = (
    "a chunk of a bulk was rolled back, but the writes of its items to a table without transactions (MyISAM, Aria) "
    "remain; {fate}. Convert such tables: ALTER TABLE … ENGINE=InnoDB; semel doctor names them"
)
UNSETTLED: Final = "the bulk is not settled: its totals omit {begun} of its items; inspect it with semel bulk"


@dataclass(frozen=True, slots=True)
class Handled:
    """The handlers' results for a chunk's first items.

    ``failed`` is the outcome of the item after those of ``outcomes``: its writes must be undone. ``sure``: its handler
    raised ItemFailed; otherwise it is retried alone. ``conflict``: another transaction was first. ``blurred``: a
    failure with several statements in flight, so the item at fault is unknown.
    """

    outcomes: list[ItemOutcome]
    failed: ItemOutcome | None = None
    sure: bool = False
    conflict: BaseException | None = None
    blurred: bool = False


class KnownItems(Protocol):
    """The items done before by any list, for lists that share their items: each is done once over all lists.

    Both flows run in the transaction of a chunk.
    """

    def find_known(self, items: Sequence[ListedItem]) -> Flow[frozenset[int]]:
        """Return the places of items that were done before."""

    def note(self, items: Sequence[ListedItem], outcomes: Sequence[ItemOutcome]) -> Flow[bool]:
        """Record the items that were done now; False if another list was first with one of them."""


class Read(Ask[list[ListedItem]]):
    """A page of the list."""

    __slots__ = ("first", "limit")

    def __init__(self, first: int, limit: int) -> None:
        self.first = first
        self.limit = limit


class HandleInside(Ask[Handled]):
    """Runs the handler for items, one by one, in the unit's transaction; ``exact``: each statement alone.

    ``called`` counts the items begun so far, for a run that is cut short; ``known`` are the places of items that other
    lists have done.
    """

    __slots__ = ("called", "exact", "items", "known", "unit")

    def __init__(
        self, items: Sequence[ListedItem], unit: AnyUnit, *, exact: bool, known: frozenset[int] = frozenset()
    ) -> None:
        self.items = items
        self.unit = unit
        self.exact = exact
        self.known = known
        self.called = 0


class HandleOutside(Ask[list[ItemOutcome]]):
    """Runs the handler for items; each of them gets an outcome."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[ListedItem]) -> None:
        self.items = items


@dataclass(slots=True)
class BulkRun:
    """One run of a bulk under one grant.

    ``size`` is the number of items in a chunk (or window); ``effects`` are the handler's declared effects, and
    ``inside`` whether they are writes in the chunk's transaction; ``repeatable_us`` for how long a begun item may be
    run again (0: never); ``describe`` returns, by place, the detail of a failed or UNKNOWN item whose outcome has none.
    """

    store: Store
    grant: Grant
    total: int
    size: int
    effects: bytes
    inside: bool
    repeatable_us: int = 0
    known: KnownItems | None = None
    describe: Callable[[int], bytes] | None = None
    items: Items = field(init=False)
    tally: Tally = field(init=False)
    handling: HandleInside | None = field(default=None, init=False)  # the chunk whose transaction is open
    carried: list[ItemOutcome] = field(default_factory=list, init=False)  # known outcomes before that chunk's items

    def __post_init__(self) -> None:
        self.items = Items(self.store)
        self.tally = Tally(self.total)

    def flow(self) -> Flow[Tally]:
        """Run the remaining items, and return the tally of the whole list.

        Raises SupersededError: another run continues it; StoreError: the store failed for too long; SemelError: an
        item has no outcome although all are done, so that the bulk must not be settled.
        """
        yield from self.stand(begin=True)
        if self.tally.begun:
            yield from _doubtful(self)
        yield from (_inside(self) if self.inside else _outside(self))
        if self.tally.begun:
            raise SemelError(UNSETTLED.format(begun=self.tally.begun))
        return self.tally

    def stand(self, *, begin: bool = False) -> Flow[None]:
        """Read the bulk's progress, and make items UNKNOWN whose transaction was committed early.

        Raises EarlyCommit: it was this run's own; SupersededError.
        """
        standing = yield from self.read(begin=begin)
        self.tally, written = standing.tally, standing.written
        lost = self.tally.done - written
        while written < self.tally.done:
            page = yield from ask(Read(written, min(self.size, self.tally.done - written)))
            puts = [item.as_unknown(COMMITTED_EARLY) for item in page]
            yield from self.put(puts, self.tally.after(puts))
            written += len(page)
        if lost and not begin:
            raise EarlyCommit(
                "the transaction of a bulk's chunk was committed by its handler; its items are UNKNOWN now. Write no "
                "COMMIT or DDL in the handler"
            )

    def read(self, *, begin: bool = False) -> Flow[BulkStanding]:
        """Read the progress of the bulk. Raises SupersededError."""
        standing: BulkStanding | None = yield from ask(Perform("bulk", self._begin if begin else self._standing))
        if standing is None:
            raise SupersededError(TAKEN_OVER)
        return standing

    def _begin(self) -> Flow[BulkStanding | None]:
        return self.items.begin(self.grant, self.total)

    def _standing(self) -> Flow[BulkStanding | None]:
        return self.items.standing(self.grant)

    def put(self, puts: Sequence[ItemOutcome], now: Tally) -> Flow[None]:
        """Write outcomes and started items in a separate commit, until the store confirms it."""
        was = self.tally
        puts = self.add_details(puts)
        for tried in range(TRIES_MAX):
            try:
                done = yield from ask(Perform("bulk", lambda: self.items.advance_held(self.grant, was, now, puts)))
                if done is False:  # already written, by a call whose reply was lost
                    standing = yield from ask(Perform("bulk", self._standing))
                    done = None if standing is None or standing.tally != now else True
            except StoreError:
                if tried == TRIES_MAX - 1:
                    raise
                yield from self.pause(tried)
                continue
            if done is None:
                raise SupersededError(TAKEN_OVER)
            self.tally = now
            return

    def add_details(self, puts: Sequence[ItemOutcome]) -> Sequence[ItemOutcome]:
        """Add details to failed and UNKNOWN outcomes that have none."""
        describe = self.describe
        if describe is None:
            return puts
        return [
            put._replace(detail=describe(put.place))
            if put.detail is None and put.state in (ItemState.FAILED, ItemState.UNKNOWN)
            else put
            for put in puts
        ]

    def undo(self, unit: AnyUnit) -> Flow[None]:
        """Roll a chunk back, and make the items UNKNOWN whose writes the server could not undo.

        Raises EarlyCommit if there are such items: they are never run again, and the bulk stops; SupersededError.
        """
        yield from ask(Rollback(unit))
        handling, self.handling = self.handling, None
        if handling is None or handling.unit is not unit or not has_left_writes(unit):
            return
        called = handling.items[: handling.called]
        left = [item.as_unknown(NOT_ROLLED_BACK) if item.error is None else item.as_refused() for item in called]
        known = [*self.carried, *left]
        fate = f"its {len(called)} items are UNKNOWN now"
        try:
            yield from self.put(known, self.tally.after(known, begun=len(known)))
        except StoreError as error:
            fate = f"this could not be recorded, and the bulk's next run may repeat its items ({error})"
        raise EarlyCommit(LEFT_WRITES.format(fate=fate))

    def pause(self, tried: int) -> Flow[None]:
        """Pause before the next request to the store."""
        yield from ask(Pause(retry_seconds(tried, (yield from ask(Jitter())))))


# --- inside: chunks in one transaction ----------------------------------------------------------


@dataclass(slots=True)
class _Cut:
    """How to cut the next chunk, after failures of the previous one.

    ``carried``: known, unwritten outcomes of items before it; ``ending``: the outcome of the item after it;
    ``suspect``: the place of an item that has failed once; ``exact``: no pipelining; ``alone_until``: items before this
    place run one by one, since one of them broke the commit of all.
    """

    size: int
    carried: list[ItemOutcome] = field(default_factory=list)
    ending: ItemOutcome | None = None
    suspect: int = -1
    exact: bool = False
    alone_until: int = 0


def _inside(run: BulkRun) -> Flow[None]:
    cut = _Cut(run.size)
    tried = 0
    while run.tally.done < run.total:
        try:
            went = yield from _chunk(run, cut)
        except StoreError:
            cut = _Cut(run.size)
            tried += 1
            if tried == TRIES_MAX:
                raise
            yield from run.pause(tried)
            yield from _restand(run)
            continue
        tried = 0 if went else tried


def _restand(run: BulkRun) -> Flow[None]:
    for tried in range(TRIES_MAX):
        try:
            yield from run.stand()
            return
        except StoreError:
            if tried == TRIES_MAX - 1:
                raise
            yield from run.pause(tried)


def _chunk(run: BulkRun, cut: _Cut) -> Flow[bool]:
    """Try one chunk once; return whether anything was committed."""
    first = run.tally.done + len(cut.carried)
    room = min(cut.size, run.total - first)
    if room == 0 or len(cut.carried) >= run.size:
        puts = cut.carried
        yield from run.put(puts, run.tally.after(puts, begun=len(puts)))
        cut.carried = []
        return True
    page = yield from ask(Read(first, room))
    entered = run.tally._replace(done=first + len(page))
    unit = yield from ask(Begin())
    try:
        handled = yield from _handle(run, cut, unit, page, entered)
        if handled.failed is None and not handled.blurred:
            yield from _commit(run, cut, unit, page, handled.outcomes, entered)
            return True
    except HandlerRefused:
        yield from run.undo(unit)
        _cut_at_commit(cut, page)
        return False
    except SemelError:
        yield from run.undo(unit)
        raise
    yield from run.undo(unit)
    _cut_at(run, cut, handled)
    return False


def _handle(run: BulkRun, cut: _Cut, unit: AnyUnit, page: list[ListedItem], entered: Tally) -> Flow[Handled]:
    was = run.tally
    if not (yield from ask(Within(unit, "bulk", lambda: run.items.enter(run.grant, was, entered)))):
        raise StoreUnavailable(MOVED)  # read again: another run has it by now, or a commit's reply was lost
    known = frozenset[int]()
    ledger = run.known
    if ledger is not None:
        known = yield from ask(Within(unit, "bulk", lambda: ledger.find_known(page)))
    unit.hand_out()
    run.carried, run.handling = cut.carried, HandleInside(page, unit, exact=cut.exact, known=known)
    handled = yield from ask(run.handling)
    if handled.conflict is not None:
        raise StoreUnavailable("other transactions won every attempt") from handled.conflict
    return handled


def _commit(
    run: BulkRun, cut: _Cut, unit: AnyUnit, page: list[ListedItem], outcomes: list[ItemOutcome], entered: Tally
) -> Flow[None]:
    ledger = run.known
    if ledger is not None and not (yield from ask(Within(unit, "bulk", lambda: ledger.note(page, outcomes)))):
        raise StoreUnavailable("another list claimed one of the items first")  # read again: it is known by then
    puts = [*cut.carried, *outcomes]
    if cut.ending is not None and run.tally.done + len(puts) == entered.done:
        puts.append(cut.ending)
    now, stored = run.tally.after(puts, begun=len(puts)), run.add_details(puts)
    if not (yield from ask(Within(unit, "bulk", lambda: run.items.advance(run.grant, entered, now, stored)))):
        standing = yield from run.read()
        # The chunk's begin mark is gone: only the handler can have rolled it back.
        if standing.tally == run.tally:
            raise HandlerRefused(ROLLED_BACK)
        raise StoreUnavailable(MOVED)
    if run.store.capabilities.settles_by_proof:
        stands = yield from ask(SettleWithin(unit, run.items.hold_in_unit(run.grant)))
    else:
        stands = yield from ask(Within(unit, "bulk", lambda: run.items.hold(run.grant)))
        if stands:
            yield from ask(Commit(unit))
    if not stands:
        raise SupersededError(TAKEN_OVER)
    run.tally = now
    alone = now.done < cut.alone_until
    cut.size, cut.carried, cut.ending, cut.exact = 1 if alone else run.size, [], None, alone


def _cut_at(run: BulkRun, cut: _Cut, handled: Handled) -> None:
    """Cut at an item that failed; its chunk was undone. Repeat the earlier items; retry it alone, or fail it."""
    cut.exact = True
    if handled.blurred:
        return
    failed = handled.failed
    assert failed is not None
    sure = handled.sure or cut.suspect == failed.place
    cut.suspect, cut.ending = failed.place, None
    before = len(handled.outcomes)
    if before:
        cut.size, cut.ending = before, failed if sure else None
    elif sure:
        cut.size = run.size
        cut.carried.append(failed)
    else:
        cut.size = 1


def _cut_at_commit(cut: _Cut, page: list[ListedItem]) -> None:
    """Handle a commit that the database refused because of one item: run the items one by one, so that it fails."""
    cut.ending = None
    if cut.exact and len(page) == 1:
        cut.carried.append(page[0].as_failed(HandlerRefused.__name__))
    else:
        cut.size, cut.exact, cut.alone_until = 1, True, page[-1].place + 1


# --- outside: windows that begin before they call -------------------------------------------------


def _outside(run: BulkRun) -> Flow[None]:
    ended: list[ItemOutcome] = []
    while ended or run.tally.done < run.total:
        window = []
        if run.tally.done < run.total:
            window = yield from ask(Read(run.tally.done, min(run.size, run.total - run.tally.done)))
        begun = [item.as_begun(run.effects) for item in window]
        yield from run.put([*ended, *begun], run.tally.after([*ended, *begun], begun=len(begun)))
        ended = yield from ask(HandleOutside([item for item in window if item.error is None]))


def _doubtful(run: BulkRun) -> Flow[None]:
    """Handle items that a former run began and did not end: run them again if that is safe, else make them UNKNOWN.

    It is safe if both the handler that began the item and today's are declared so.
    """
    while True:
        begun = yield from ask(Perform("bulk", lambda: run.items.find_begun(run.grant, run.tally.done, run.size)))
        if not begun:
            return
        again: list[ListedItem] = []
        puts: list[ItemOutcome] = []
        for place, effects, age_us in begun:
            [item] = yield from ask(Read(place, 1))
            repeatable_us = run.repeatable_us if effects == run.effects else 0
            if age_us < repeatable_us and item.error is None:
                again.append(item)
            else:
                puts.append(item.as_unknown(DEDUP_OVER if repeatable_us else INTERRUPTED))
        if again:
            puts += yield from ask(HandleOutside(again))
        yield from run.put(puts, run.tally.after(puts))


# --- retention ------------------------------------------------------------------------------------


def purge_items(store: Store, chunk: int, only: Collection[bytes] | None = None) -> Flow[Purged]:
    """Delete the items of bulks whose record is forgotten, chunk by chunk; return the number of rows.

    Parameters: ``only`` these bulks, by operation id; None for every one.
    """
    items = Items(store)
    forgotten = 0
    while True:
        done = yield from ask(Perform("purge_items", lambda: items.forget(chunk, only)))
        if not done.forgotten:
            return Purged(forgotten, 0, forgotten, None)
        forgotten += done.forgotten
