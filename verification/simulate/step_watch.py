"""Watches the records of handlers with steps: whose list is written, what it says, and which doubt is left.

The list is read here by its own decoder, as its format is described, and not by the functions that write it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from struct import Struct
from typing import Any, Final, NamedTuple

from semel.core.model import Record, Renewal, State
from semel.resuming import worker as completer
from semel.steps import flow as protocol_steps
from semel.steps import run as engine_steps
from semel.steps.store import Recorded, StepRows
from verification.simulate.database import Rows
from verification.simulate.server import Server
from verification.simulate.step_ledger import StepLedger
from verification.simulate.violation import Violated
from verification.simulate.watch import OPEN, Asked, Watch, describe
from verification.simulate.world import World

STEP: Final = "step:"
ATTEMPTS_OVER: Final = "attempts-over"
_HEAD: Final = Struct(">BIH")  # format, generation, how many
_ENTRY: Final = Struct(">BIqBI")  # bytes of the name, ordinal, started at, flags, bytes of the result


class Entry(NamedTuple):
    """One step as it is stored."""

    name: str
    finished: bool
    result: bytes


def entries(packed: bytes | None) -> tuple[int, tuple[Entry, ...]]:
    """The generation and the steps of a stored list."""
    if packed is None:
        return 0, ()
    _, generation, count = _HEAD.unpack_from(packed)
    at, found = _HEAD.size, []
    for _ in range(count):
        name_bytes, _, _, flags, result_bytes = _ENTRY.unpack_from(packed, at)
        at += _ENTRY.size + name_bytes
        name = packed[at - name_bytes : at].decode()
        at += result_bytes
        found.append(Entry(name, bool(flags & 1), packed[at - result_bytes : at]))
    return generation, tuple(found)


class NotedRows(StepRows):
    """The real flows of steps, noting what they were asked for, as the store's other verbs are."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._store = store

    def read(self, holder: Renewal, *, within: bool = False) -> Any:
        self._store.asked.append(("read_steps", (holder,)))
        return super().read(holder, within=within)

    def write(self, holder: Renewal, steps: bytes, standing: tuple[State, str | None]) -> Any:
        self._store.asked.append(("write_steps", (holder, steps)))
        return super().write(holder, steps, standing)

    def keep_request(self, holder: Renewal, request: bytes) -> Any:
        self._store.asked.append(("keep_request", (holder,)))
        return super().keep_request(holder, request)


class StepWatch(Watch):
    """As :class:`Watch`, for records whose handlers have steps."""

    def __init__(self, world: World, ledger: StepLedger, clock: Callable[[], int]) -> None:
        super().__init__(world, ledger, clock)
        self._steps = ledger
        self._started: dict[tuple[bytes, int], set[str]] = {}  # (record, fence) -> starts that its holder has recorded
        self._lists: dict[bytes, bytes] = {}
        self._fences: dict[bytes, int] = {}
        self.faultless = False  # no reply gets lost in this schedule
        self.undeclared = False  # some workers declare no steps

    def has_started(self, id: bytes, fence: int, name: str) -> bool:
        """Whether the holder of this fence has recorded that a step begins."""
        return name in self._started.get((id, fence), ())

    def is_superseded(self, id: bytes, fence: int) -> bool:
        """Whether a fence is not the record's any more."""
        return self._fences.get(id, fence) != fence

    def lists_are(self, lists: Mapping[bytes, bytes], read: Callable[[], Rows]) -> None:
        """Check what is stored of every record's steps after a write of them. Raises Violated."""
        for id, packed in lists.items():
            if self._lists.get(id) == packed:
                continue
            self._lists[id] = packed
            row = read()[id]
            generation, found = entries(packed)
            if generation == row.generation:
                self._steps.check_recorded(id, {entry.name: entry.result for entry in found if entry.finished})

    # --- writes -------------------------------------------------------------------------------

    def _check_change(self, who: str, asked: Asked, was: Record | None, row: Record, now: int) -> None:
        verb, given = asked[-1] if asked else ("nothing", ())
        self._fences[row.id] = row.fence
        if verb in ("write_steps", "keep_request"):
            if self._world.tracing:
                self._world.tell(who, f"{verb}: {describe(was)} -> {describe(row)}")
            self._check_held(verb, given[:1], was, row, now)
            if row.state not in OPEN:
                raise Violated("I6 progress", f"{verb} wrote: {describe(was)} -> {describe(row)}")
            return
        super()._check_change(who, asked, was, row, now)
        without_steps = was is not None and row.fence != was.fence and row.state == State.PROCESSING
        if without_steps and self._steps.may_have_happened(row.id):
            raise Violated("I4 no blind rerun", f"granted without its steps: {describe(was)} -> {describe(row)}")
        if row.state == State.UNKNOWN and (was is None or was.state != State.UNKNOWN):
            self._doubt_is_named(verb, row)

    def check_reply(self, who: str, asked: Asked, before: Rows, reply: Any, fault: str) -> None:
        verb, given = asked[-1] if asked else ("nothing", ())
        if verb == "write_steps" and reply:
            self._is_held(given[0], before.get(given[0].id), "a list of steps was written")
            names = {entry.name for entry in entries(given[1])[1]}
            self._started.setdefault((given[0].id, given[0].fence), set()).update(names)
        elif verb == "read_steps" and isinstance(reply, Recorded):
            self._is_held(given[0], before.get(given[0].id), "a list of steps was read")
        super().check_reply(who, asked, before, reply, fault)

    def _is_held(self, holder: Renewal, row: Record | None, what: str) -> None:
        mine = row is not None and (row.fence, row.nonce) == (holder.fence, holder.nonce)
        if row is None or not mine or row.state not in (*OPEN, State.UNKNOWN) or row.lease_until == 0:
            raise Violated("I3 fenced", f"{what} by a holder whose grant does not stand: {describe(row)}")

    def check_commit(self, who: str, before: Rows, after: Rows, *, early: bool) -> None:
        if self._world.tracing:
            for id, row in after.items():
                if before.get(id) != row:
                    self._world.tell(who, f"COMMIT of a local step: {describe(row)}")

    def _doubt_is_named(self, verb: str, row: Record) -> None:
        """UNKNOWN says in which step the outcome was lost: one that had begun, and is not recorded as finished."""
        doubt = row.doubt or ""
        if doubt == ATTEMPTS_OVER:
            return
        if self.undeclared and not doubt.startswith(STEP) and not self._steps.may_have_happened(row.id):
            return  # a run without steps
        name = doubt.removeprefix(STEP)
        known = {part.name for part in self._steps.script}
        if not doubt.startswith(STEP) or name not in known:
            raise Violated("I6 progress", f"{verb} made it UNKNOWN, and names no step: {describe(row)}")
        account = self._steps.account(row.id, self._steps.life(row.id), name)
        begun = account.attempts or any(name in names for (id, _), names in self._started.items() if id == row.id)
        # Where replies get lost, a holder may not know that the store has the result, and has to doubt it.
        if not begun or (account.finished is not None and self.faultless):
            raise Violated("I6 progress", f"{verb} names a step that is not in doubt: {describe(row)}")

    def _check_held(self, verb: str, held: Any, was: Record | None, row: Record, now: int) -> None:
        if verb == "renew" and was is not None and was.state == State.UNKNOWN and (was.doubt or "").startswith(STEP):
            if row.doubt != was.doubt or row.state != State.PROCESSING:
                raise Violated("I6 progress", f"a renewal lost a doubt: {describe(was)} -> {describe(row)}")
            was = was._replace(doubt="lapsed")  # what the first watch expects of a lapse; the doubt itself is kept
        given_back = was is not None and was.state == State.CLAIMED and was.lease_until == 0
        if given_back and verb != "keep_request":  # a request that comes late is the one that was kept before
            raise Violated("I3 fenced", f"what its holder had given back was written once more: {describe(was)}")
        super()._check_held(verb, held, was, row, now)

    def _may_be_granted(self, was: Record, row: Record, now: int) -> None:
        super()._may_be_granted(was, row, now)
        if row.generation != was.generation:
            raise Violated("I4 no blind rerun", f"a grant moved the generation: {describe(was)} -> {describe(row)}")

    def _check_abandoned(self, nonces: Any, was: Record | None, row: Record) -> None:
        super()._check_abandoned(nonces, was, row)
        if row.state == State.FAILED_NOT_REPLAYABLE and self._steps.anything_happened(row.id):
            raise Violated("I4 no blind rerun", f"a claim freed a key whose steps had happened: {describe(row)}")

    def _check_resolved(self, resolution: Any, was: Record | None, row: Record, now: int) -> None:
        seen = f"resolve: {describe(was)} -> {describe(row)}"
        kept = row if was is None or resolution.happened else row._replace(generation=was.generation + 1)
        super()._check_resolved(resolution, was, kept, now)  # its rule for the generation is for handlers without steps
        assert was is not None
        if resolution.happened:
            return
        doubt = was.doubt or ""
        if not doubt.startswith(STEP):
            return
        if row.generation != was.generation:
            raise Violated("I1 one effect", f"'did not happen' of one step changed the derived keys of all: {seen}")
        self._steps.did_not_happen(row.id, doubt.removeprefix(STEP))

    def _nothing_happened(self, verb: str, row: Record) -> None:
        if verb != "resolve" and self._steps.anything_happened(row.id):
            raise Violated("I4 no blind rerun", f"{verb} says that nothing happened, and a step had: {describe(row)}")
        self.begun.pop(row.id, None)


@contextmanager
def steps_are_noted(server: Server, *, faultless: bool, undeclared: bool = False) -> Iterator[None]:
    """Have every flow of steps noted by this server, and what it has recorded looked at, until the block is left."""
    watch, modules = server.watch, (engine_steps, protocol_steps, completer)
    assert isinstance(watch, StepWatch)
    watch.faultless, watch.undeclared = faultless, undeclared
    server.on_steps = lambda: watch.lists_are(server.data.steps(), server.data.rows)
    before = [vars(module)["StepRows"] for module in modules]
    try:
        for module in modules:
            setattr(module, "StepRows", NotedRows)  # noqa: B010 - a constant name of three modules
        yield
    finally:
        for module, real in zip(modules, before, strict=True):
            setattr(module, "StepRows", real)  # noqa: B010 - as above
