"""Watches every write of the store: which changes of a record are allowed, by whom and when.

This is the second opinion on ``rules/``: it is written from the guarantees and imports none of its functions,
so that a rule which has changed its mind is noticed at the very write. What the outside sees (effects, answers)
is checked by the ledger and the clients, without looking into the store at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from semel.core.model import (
    AfterExpiry,
    AnswerKind,
    Claim,
    Effects,
    KeyReused,
    OutcomeUnknown,
    Proceed,
    Record,
    Replay,
    State,
    Superseded,
    Unreadable,
)
from verification.simulate.coverage import Counts, state_name
from verification.simulate.database import Rows
from verification.simulate.ledger import Execution, Ledger
from verification.simulate.violation import Violated
from verification.simulate.world import World

OPEN: Final = (State.CLAIMED, State.PROCESSING)
ANSWERED: Final = (State.SUCCEEDED, State.FAILED_REPLAYABLE)
GRACE_US: Final = 600_000_000  # the purge's ten minutes of grace (docs/retention.md)
Asked = list[tuple[str, tuple[Any, ...]]]
_GIVEN: Final = {
    State.SUCCEEDED: "settle: succeeded",
    State.FAILED_REPLAYABLE: "settle: refused",
    State.FAILED_NOT_REPLAYABLE: "settle: nothing happened",
    State.PROCESSING: "settle: give back",
    State.CLAIMED: "settle: give back",
    State.UNKNOWN: "settle: unknown",
}


class Watch:
    """Sees each step of each flow: the records before it and after it."""

    def __init__(self, world: World, ledger: Ledger, clock: Callable[[], int]) -> None:
        self._world = world
        self._ledger = ledger
        self._clock = clock
        self.coverage: Counts = {}
        self.grants: dict[tuple[bytes, int], int] = {}  # (record, fence) -> the life it was granted in
        self.operations: dict[bytes, bytes] = {}  # every operation id that was granted -> its record
        self.begun: dict[bytes, list[Execution]] = {}  # by record: runs that were not settled as "did not happen"
        self.given_up: set[bytes] = set()  # the nonces of claims that their callers gave up on
        self.repeated: set[bytes] = set()  # the nonces of claims that the network delivered late or twice
        self.on_lapse: Callable[[Record], None] | None = None
        self._settled_at: dict[bytes, int] = {}

    # --- writes -------------------------------------------------------------------------------

    def check_step(self, who: str, asked: Asked, before: Rows, after: Rows, now: int) -> None:
        """Check the changes of one step of a flow. Raises Violated if a change was not allowed."""
        for id, row in after.items():
            was = before.get(id)
            if was is not row and was != row:
                self._check_change(who, asked, was, row, now)
        if len(before) > len(after) or before.keys() - after.keys():
            for id in [id for id in before if id not in after]:
                self._check_forgotten(who, asked, before[id], now)

    def check_commit(self, who: str, before: Rows, after: Rows, *, early: bool) -> None:
        """Check an ATOMIC unit that was committed; its writes were checked one by one before."""
        for id, row in after.items():
            if before.get(id) != row:
                if self._world.tracing:
                    note = " in the middle of the handler" if early else ""
                    self._world.tell(who, f"COMMIT{note}: {describe(row)}")
                if not early and row.state in OPEN:
                    raise Violated("I1 one effect", f"an ATOMIC unit was committed without its answer: {describe(row)}")

    def _check_change(self, who: str, asked: Asked, was: Record | None, row: Record, now: int) -> None:
        verb, given = asked[-1] if asked else ("nothing", ())
        if self._world.tracing:
            self._world.tell(who, f"{verb}: {describe(was)} -> {describe(row)}")
        match verb:
            case "claim" | "claim_in_unit":
                self._check_granted(was, row, now)
            case "settle" if len(asked) > 1 and (was is None or was.state not in OPEN):
                self._check_granted(was, row, now)  # a refused ATOMIC command: claim and settle in one transaction
            case "settle" | "renew" | "mark_not_kept":
                self._check_held(verb, given[0], was, row, now)
            case "abandon":
                self._check_abandoned(given[0], was, row)
            case "lapse":
                self._check_lapsed(was, row, now)
            case "resolve":
                self._check_resolved(given[0], was, row, now)
            case "purge":
                self._answer_dropped(was, row, now)
            case _:
                raise Violated("I3 fenced", f"{verb} wrote a record: {describe(was)} -> {describe(row)}")
        ends = row.state in ANSWERED or row.state == State.FAILED_NOT_REPLAYABLE
        if ends and (was is None or was.state != row.state):
            self._settled_at[row.id] = now
            if row.state == State.FAILED_NOT_REPLAYABLE:
                self._nothing_happened(verb, row)

    def _check_granted(self, was: Record | None, row: Record, now: int) -> None:
        self.operations[row.operation_id] = row.id
        life = self._ledger.life(row.id)
        if was is not None:
            self._may_be_granted(was, row, now)
            if was.state in ANSWERED:
                self._ledger.begin_life(row.id)
                self.begun.pop(row.id, None)
                life += 1
            if row.fence <= was.fence:
                raise Violated("I3 fenced", f"a new grant has no higher fence: {describe(was)} -> {describe(row)}")
        self.grants[row.id, row.fence] = life
        if row.lease_until > min(now + row.lease_us, row.deadline_at):
            raise Violated("I6 progress", f"a lease is longer than its terms say: {describe(row)}")

    def _may_be_granted(self, was: Record, row: Record, now: int) -> None:
        seen = f"{describe(was)} -> {describe(row)} at {now - was.created_at} µs after its creation"
        if was.state in ANSWERED:
            until = self._settled_at.get(was.id, now) + was.answer_us
            if was.after_expiry != AfterExpiry.NEW or now < until:
                raise Violated("I2 one answer", f"an answered command was granted again within its retention: {seen}")
            return
        if row.fingerprint != was.fingerprint:
            raise Violated("I7 loud misuse", f"another request was granted the same key: {seen}")
        if was.state == State.UNKNOWN:
            raise Violated("I4 no blind rerun", f"an UNKNOWN command was granted, and nobody had settled it: {seen}")
        if was.state in OPEN and now < was.lease_until:
            raise Violated("I3 fenced", f"granted while the lease of another holder was live: {seen}")
        if was.state == State.PROCESSING and was.effects != Effects.IDEMPOTENT:
            name = "I1 one effect" if was.effects == Effects.ATOMIC else "I4 no blind rerun"
            raise Violated(name, f"a lapsed {Effects(was.effects).name} command was granted anew: {seen}")
        if was.state == State.PROCESSING:
            if self.on_lapse is not None and was.lease_until > 0:
                self.on_lapse(was)
            if now >= was.dedup_until:
                raise Violated("I1 one effect", f"granted anew after the downstream may have forgotten it: {seen}")
            if was.lapses + (was.lease_until > 0) >= was.attempts_max:
                raise Violated("I6 progress", f"granted once more after attempts_max lapses: {seen}")
            if (row.first_started_at, row.dedup_until, row.generation) != (
                was.first_started_at,
                was.dedup_until,
                was.generation,
            ):
                raise Violated("I1 one effect", f"a takeover forgot when the command began: {seen}")

    def _check_held(self, verb: str, held: Any, was: Record | None, row: Record, now: int) -> None:
        mine = was is not None and any(w.id == was.id and w.fence == was.fence and w.nonce == was.nonce for w in held)
        seen = f"{verb}: {describe(was)} -> {describe(row)}"
        if was is None or not mine:
            raise Violated("I3 fenced", f"the write of a superseded holder took effect: {seen}")
        if was.state in ANSWERED:
            raise Violated("I2 one answer", f"an answered record was written over: {seen}")
        if was.state == State.FAILED_NOT_REPLAYABLE:
            raise Violated("I3 fenced", f"a released record was written by its former holder: {seen}")
        if was.state == State.PROCESSING and was.lease_until == 0:
            raise Violated("I3 fenced", f"what its holder had given back was written by it once more: {seen}")
        if row.fence != was.fence or row.nonce != was.nonce or row.generation != was.generation:
            raise Violated("I3 fenced", f"only a grant or a resolution moves fence, nonce and generation: {seen}")
        if verb == "renew" and row.lease_until > min(now + row.lease_us, row.deadline_at):
            raise Violated("I6 progress", f"a lease was renewed past its terms or its deadline: {seen}")
        if verb == "renew" and was.state == State.UNKNOWN and was.doubt != "lapsed":
            raise Violated("I4 no blind rerun", f"a doubt that its holder had stated was taken back: {seen}")
        if row.state in (State.UNKNOWN, *OPEN) and row.forget_after is not None:
            raise Violated("I6 progress", f"a record without an outcome was given an end: {seen}")

    def _check_abandoned(self, nonces: Any, was: Record | None, row: Record) -> None:
        seen = f"abandon: {describe(was)} -> {describe(row)}"
        if was is None or (was.id, was.nonce) not in nonces or was.state not in (*OPEN, State.UNKNOWN):
            raise Violated("I3 fenced", f"a claim was released that is not the caller's: {seen}")
        for run in self.begun.get(row.id, ()):
            if run.nonce == was.nonce:
                raise Violated("I4 no blind rerun", f"a claim was given up although its handler ran ({run}): {seen}")

    def _check_lapsed(self, was: Record | None, row: Record, now: int) -> None:
        if was is None or was.state != State.PROCESSING or row.state != State.UNKNOWN or now < was.lease_until:
            raise Violated("I6 progress", f"the reaper wrote: {describe(was)} -> {describe(row)}")
        if self.on_lapse is not None:
            self.on_lapse(was)

    def _check_resolved(self, resolution: Any, was: Record | None, row: Record, now: int) -> None:
        seen = f"resolve: {describe(was)} -> {describe(row)}"
        if was is None or was.fence != resolution.fence or row.fence <= was.fence:
            raise Violated("I3 fenced", f"a resolution is a compare-and-set on the fence, and moves it: {seen}")
        if was.state != State.UNKNOWN and not (was.state == State.PROCESSING and now >= was.lease_until):
            raise Violated("I2 one answer", f"what is not UNKNOWN was resolved: {seen}")
        if now < was.deadline_at and not resolution.forced:
            raise Violated("I4 no blind rerun", f"resolved while the handler may still be running: {seen}")
        if not resolution.happened and row.generation != was.generation + 1:
            raise Violated("I4 no blind rerun", f"'did not happen' must begin a new generation: {seen}")

    def _answer_dropped(self, was: Record | None, row: Record, now: int) -> None:
        until = None if was is None else self._settled_at.get(was.id)
        self._count(was, now, "purge: answer dropped")
        if was is None or was.state not in ANSWERED or until is None or now < until + was.answer_us + GRACE_US:
            raise Violated("I2 one answer", f"an answer was dropped within its retention: {describe(was)}")
        if row.state != was.state or row.answer_kind != AnswerKind.NOT_KEPT:
            raise Violated("I2 one answer", f"a purge drops the answer alone: {describe(was)} -> {describe(row)}")

    def _check_forgotten(self, who: str, asked: Asked, was: Record, now: int) -> None:
        if self._world.tracing:
            self._world.tell(who, f"forgets {describe(was)}")
        self._count(was, now, "purge: forgotten")
        since = self._settled_at.get(was.id)
        settled = was.state in ANSWERED or was.state == State.FAILED_NOT_REPLAYABLE
        if not settled or since is None or now < since + max(was.answer_us, was.tombstone_us) + GRACE_US:
            raise Violated("I4 no blind rerun", f"a record was forgotten that is still needed: {describe(was)}")
        self._ledger.begin_life(was.id)
        self.begun.pop(was.id, None)

    def _nothing_happened(self, verb: str, row: Record) -> None:
        if self._ledger.has_happened(row.id):
            raise Violated("I4 no blind rerun", f"{verb} says that nothing happened, but it did: {describe(row)}")
        self.begun.pop(row.id, None)

    # --- replies ------------------------------------------------------------------------------

    def check_reply(self, who: str, asked: Asked, before: Rows, reply: Any, fault: str) -> None:
        """Check the reply of a flow that has ended, and count its pairs of state and event."""
        now = self._clock()
        for verb, given in asked:
            match verb:
                case "claim" | "claim_in_unit":
                    claims = (given[0],) if verb == "claim_in_unit" else given[0]
                    verdicts = reply if isinstance(reply, list) else [reply]
                    for claim, verdict in zip(claims, verdicts, strict=False):
                        self._check_attempt(who, claim, before.get(claim.id), verdict, now, fault)
                case "settle":
                    for settlement, ended in zip(given[0], reply if isinstance(reply, list) else [reply], strict=False):
                        late = isinstance(ended, Superseded)
                        self._count(
                            before.get(settlement.id), now, "settle: superseded" if late else _GIVEN[settlement.state]
                        )
                        if fault:
                            self._count(before.get(settlement.id), now, f"settle, {fault}")
                case "renew":
                    for renewal, mine in zip(given[0], reply, strict=True):
                        self._count(before.get(renewal.id), now, "renew" if mine else "renew: refused")
                case "abandon":
                    for (id, nonce), seen in zip(given[0], reply, strict=True):
                        self._check_given_up(before.get(id), nonce, seen, now)
                case "mark_not_kept":
                    for mark in given[0]:
                        self._count(before.get(mark.id), now, "mark not kept")
                case "lapse" | "purge":
                    for row in before.values():
                        self._count(row, now, verb)
                case "resolve":
                    self._count(before.get(given[0].id), now, "resolve")
                case _:
                    pass  # a look changes nothing and ends nothing

    def _check_given_up(self, row: Record | None, nonce: bytes, seen: bool, now: int) -> None:
        self.given_up.add(nonce)
        self._count(row, now, "abandon" if seen else "abandon: nothing there")
        mine = row is not None and row.nonce == nonce and row.state in (*OPEN, State.UNKNOWN) and row.lease_until > 0
        if mine and not seen:
            raise Violated("I6 progress", f"a claim that nobody owns was not released: {describe(row)}")

    def _check_attempt(self, who: str, claim: Claim, row: Record | None, verdict: Any, now: int, fault: str) -> None:
        same = row is None or row.fingerprint == claim.fingerprint
        self._count(row, now, "attempt" if same else "attempt, other payload")
        if fault:
            self._count(row, now, f"claim, {fault}")
            if fault in ("twice", "late request"):
                self.repeated.add(claim.nonce)
        if self._world.tracing:
            self._world.tell(who, f"attempt met {describe(row)}: {type(verdict).__name__}")
        if isinstance(verdict, OutcomeUnknown) and row is not None and row.state == State.PROCESSING and self.on_lapse:
            self.on_lapse(row)
        if row is not None and not same and not isinstance(verdict, KeyReused | Unreadable | Proceed):
            raise Violated("I7 loud misuse", f"another payload met {type(verdict).__name__}: {describe(row)}")
        if isinstance(verdict, Replay) and (row is None or row.state not in ANSWERED):
            raise Violated("I2 one answer", f"an answer was replayed from {describe(row)}")
        if isinstance(verdict, KeyReused) and same and row is not None:
            raise Violated("I7 loud misuse", f"the same payload was refused as another one: {describe(row)}")

    def _count(self, row: Record | None, now: int, event: str) -> None:
        pair = (state_name(row, now), event)
        self.coverage[pair] = self.coverage.get(pair, 0) + 1

    def note_lost(self, asked: Asked, rows: Rows) -> None:
        """Note what a request that never arrived was about."""
        now = self._clock()
        for verb, given in asked:
            if verb in ("claim", "settle"):
                for request in given[0]:
                    self._count(rows.get(request.id), now, f"{verb}, lost request")
            elif verb == "abandon":
                self.given_up.update(nonce for _, nonce in given[0])

    def count_all(self, rows: Rows, ids: set[bytes], event: str) -> None:
        """An event that no flow makes, such as the crash of a worker, met these records."""
        now = self._clock()
        for id in sorted(ids):
            self._count(rows.get(id), now, event)


def describe(row: Record | None) -> str:
    """A record on one line: never its key or answer."""
    if row is None:
        return "no record"
    kept = AnswerKind(row.answer_kind).name.lower() if row.answer_kind else ""
    doubt = f" doubt={row.doubt}" if row.doubt else ""
    return (
        f"{row.id.hex()[:6]} {State(row.state).name} fence={row.fence} nonce={row.nonce.hex()[:4]} "
        f"attempt={row.attempt} gen={row.generation} lapses={row.lapses}{doubt}{' answer=' + kept if kept else ''}"
    )
