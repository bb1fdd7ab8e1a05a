"""Handlers with steps in the model: the real ``protocol.steps.Ledger`` of every holder, its record and its downstream.

A holder's ledger is kept as a value between two of its asks. What is true of a step is written into accounts that
trust nothing of it: a step that may not be repeated is attempted once for each time that somebody has found out that it
did not happen, a finished one never again, and a recorded result never goes away.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from semel.core.command_flow import make_settlement
from semel.core.flow import Flow
from semel.core.identity import derive_key
from semel.core.model import OPEN_STATES, Proceed, State
from semel.core.outcomes import Outcome, classify_answer, classify_exception
from semel.errors import NothingHappened, SemelError, StoreTimeout
from semel.steps.flow import StepLedger
from semel.steps.rules import Finished, Step, unpack_steps
from verification.explore import step_rows, store
from verification.explore.notebook import note_answer, note_grant, note_write, stands
from verification.explore.step_outside import step_operator, step_time, with_account
from verification.explore.steps import Step as Taken
from verification.explore.steps import (
    after_settling,
    claims,
    crash,
    deliver,
    limbo,
    lose_message,
    put,
    renew,
    upkeep,
)
from verification.explore.world import (
    DEDUP,
    MEMORY,
    RESULT,
    Account,
    Book,
    Broken,
    Flight,
    Letter,
    Mode,
    Pc,
    Phase,
    Worker,
    World,
)

_FIXED: Final = ("_rows", "_holder", "_generation", "_dedup_us")
_FAILED: Final = TimeoutError("no reply")
_RELEASED: Final = NothingHappened("refused at once")


def stepped_steps(world: World, mode: Mode) -> Iterator[Taken]:
    """Every possible next step."""
    idle = False
    for place, worker in enumerate(world.workers):
        if worker.pc is Pc.IDLE and worker.nonce == 0:
            if idle:
                continue
            idle = True
        for label, after in _worker(world, mode, place, worker):
            yield label, _keep_books(world, after, mode)
    for label, after in _without_steps(world, mode):
        yield label, _keep_books(world, after, mode)
    for flight in world.flights:
        label = f"the call of {flight.nonce} for {mode.script[flight.part].name} arrives"
        yield label, _keep_books(world, _arrive(world, mode, flight), mode)
    for letter in world.letters:
        label, after = _deliver(world, mode, letter)
        yield label, _keep_books(world, after, mode)
    for label, after in (*upkeep(world), *step_operator(world, mode), *step_time(world)):
        yield label, _keep_books(world, after, mode)


def _without_steps(world: World, mode: Mode) -> Iterator[Taken]:
    """A version without steps is asked. Where it may run, nothing can have happened; it gives the key back at once."""
    if mode.undeclared is None:
        return
    nonce = world.serial + 1
    attempt = store.claim_of(nonce, mode.undeclared)
    [verdict], row, _ = step_rows.call(world.row, world.steps, world.now, lambda: store.STORE.claim((attempt,)))
    if not isinstance(verdict, Proceed):
        return
    if any(account.open or account.effects for account in world.accounts):
        raise Broken("I4", "a version without steps may run, and a step had begun")
    after = note_grant(world._replace(serial=nonce), row, nonce)
    refused = make_settlement(verdict.grant, classify_exception(_RELEASED, mode.undeclared, begun=True))
    reply, row = store.settle(after.row, after.now, refused)
    yield f"a version without steps runs {nonce}, and does nothing", after_settling(after, nonce, reply, row)


def _worker(world: World, mode: Mode, place: int, worker: Worker) -> Iterator[Taken]:
    match worker.pc:
        case Pc.IDLE:
            yield from claims(world, mode, place)
        case Pc.LIMBO:
            yield from limbo(world, mode, place, worker)
        case _:
            yield from _holder(world, mode, place, worker)
    if worker.pc is not Pc.IDLE and world.left.crashes:
        yield f"worker {worker.nonce} crashes", crash(world, place)


def _keep_books(before: World, after: World, mode: Mode) -> World:
    """What follows of every step: books for new holders, fresh accounts for a new command, and what must hold."""
    workers = tuple(
        [
            worker._replace(book=Book()) if worker.pc is Pc.HOLDS and worker.book is None else worker
            for worker in after.workers
        ]
    )
    after = after._replace(workers=workers)
    if after.row is None or after.spec.epoch != before.spec.epoch:
        fresh = (Account(),) * len(mode.script)
        return after._replace(accounts=fresh, steps=None)
    if after.row != before.row or after.steps != before.steps:
        after = _record_accounts(after, mode)
    return after


def _record_accounts(world: World, mode: Mode) -> World:
    row = world.row
    assert row is not None
    if row.state == State.UNKNOWN and row.doubt not in {f"step:{part.name}" for part in mode.script}:
        raise Broken("I6", f"an UNKNOWN operation names no step of its own: {row.doubt}")
    if row.state not in (*OPEN_STATES, State.UNKNOWN):
        return world
    finished = {step.name for step in unpack_steps(world.steps, row.generation) if step.finished}
    accounts = []
    for part, account in zip(mode.script, world.accounts, strict=True):
        if account.finished and part.name not in finished:
            raise Broken("I4", f"the finished step {part.name} is not recorded any more")
        if part.name in finished and not account.effects:
            raise Broken("I2", f"step {part.name} is recorded as finished, and did not happen")
        accounts.append(account._replace(finished=part.name in finished))
    return world._replace(accounts=tuple(accounts))


# --- holders ------------------------------------------------------------------------------------


def _holder(world: World, mode: Mode, place: int, worker: Worker) -> Iterator[Taken]:
    who, book = f"worker {worker.nonce}", worker.book
    assert book is not None
    assert worker.grant is not None
    in_time = world.true < worker.ends
    if mode.renews and in_time and (renewed := renew(world, mode, place, worker, worker.grant)) is not None:
        yield f"{who} renews its lease", renewed
    match book.phase:
        case Phase.READY if book.place < len(mode.script):
            yield from _begins(world, mode, place, worker, book)
            if world.left.failures:
                yield f"{who} raises between steps", _fail(_failing(world), mode, place, worker, book, _FAILED)
        case Phase.READY:
            outcome = classify_answer(store.answer_by(worker.nonce), mode.policy, begun=True)
            yield from _closes(world, mode, place, worker, book, outcome, "has done all of it")
        case Phase.STARTED:
            if in_time:
                yield f"{who} calls {mode.script[book.place].name}", _calls(world, mode, place, worker, book)
            if world.left.failures:
                proven = _failed_call(_failing(world), mode, place, worker, book, _RELEASED)
                yield f"{who} raises NothingHappened in {mode.script[book.place].name}", proven
        case Phase.FLYING if world.left.failures:
            yield f"{who} waits no longer", _failed_call(_failing(world), mode, place, worker, book, _FAILED)
        case Phase.ENDED:
            yield from _settles(world, mode, place, worker, book)
        case _:
            return


def _failing(world: World) -> World:
    """Lower the number of runs that may still fail."""
    return world._replace(left=world.left._replace(failures=world.left.failures - 1))


def _ledger(worker: Worker, book: Book) -> StepLedger:
    """The holder's real ledger at that time."""
    assert worker.grant is not None
    ledger = StepLedger(step_rows.ROWS, worker.grant, DEDUP)
    for name, value in book.ledger or ():
        setattr(ledger, name, set(value) if isinstance(value, frozenset) else value)
    return ledger


def _value(ledger: StepLedger) -> tuple[tuple[str, Any], ...]:
    """A ledger as a value; of its two counters only their difference means anything."""
    held = {name: value for name, value in vars(ledger).items() if name not in _FIXED}
    held["_changes"], held["_written"] = int(held["_changes"] != held["_written"]), 0
    return tuple((name, frozenset(value) if isinstance(value, set) else value) for name, value in sorted(held.items()))


def _drive(world: World, worker: Worker, flow: Flow[Any], fault: str = "") -> tuple[Any, World]:
    """Perform a ledger's flow on the record: its result, or the error that it raised.

    Parameters: ``fault`` is what becomes of its write: its reply is "lost", or it comes "late".
    """
    try:
        needed: Any = next(flow)
        while True:
            try:
                if needed.verb == "write_steps" and fault == "late":
                    world = _as_letter(world, worker, needed)
                    raise StoreTimeout("no reply yet")
                reply, row, steps = step_rows.call(world.row, world.steps, world.now, needed.make)
                if steps != world.steps and not stands(world, worker.nonce):
                    raise Broken("I3", "a superseded holder wrote a list of steps")
                world = note_write(world, row, by=worker.nonce)._replace(steps=steps)
                if needed.verb == "write_steps" and fault == "lost":
                    raise StoreTimeout("the reply is lost")
            except StoreTimeout as error:
                needed = flow.throw(error)
            else:
                needed = flow.send(reply)
    except StopIteration as stop:
        return stop.value, world
    except SemelError as error:
        return error, world


def _as_letter(world: World, worker: Worker, needed: Any) -> World:
    """A write that its sender no longer waits for: what it says is read off its ask."""
    sent = next(needed.make())
    return world._replace(letters=(*world.letters, Letter(worker.nonce, None, sent.said)))


def _faults(world: World) -> tuple[str, ...]:
    return ("", "lost", "late") if world.left.losses else ("",)


def _begins(world: World, mode: Mode, place: int, worker: Worker, book: Book) -> Iterator[Taken]:
    part, who = mode.script[book.place], f"worker {worker.nonce}"
    want = Step(part.name, 0, world.now, part.repeats)
    if mode.habits.calls_before_the_start:
        unrecorded = _ledger(worker, book)
        unrecorded._steps = (*unrecorded._steps, want)
        early = book._replace(phase=Phase.STARTED, ledger=_value(unrecorded))
        yield f"{who} is about to call {part.name}, unrecorded", put(world, place, worker._replace(book=early))
        return
    for fault in _faults(world):
        ledger = _ledger(worker, book)
        met, after = _drive(lose_message(world) if fault else world, worker, ledger.begin(want), fault)
        if fault and not isinstance(met, StoreTimeout):
            continue  # it wrote nothing that could be lost
        label = f"{who} begins {part.name}{fault and f'; its write is {fault}'}: {type(met).__name__}"
        now = book._replace(ledger=_value(ledger))
        match met:
            case Finished():
                yield label, put(after, place, worker._replace(book=now._replace(place=book.place + 1)))
            case Step():
                yield label, put(after, place, worker._replace(book=now._replace(phase=Phase.STARTED)))
            case _:
                yield label, _fail(after, mode, place, worker, now, met)


def _calls(world: World, mode: Mode, place: int, worker: Worker, book: Book) -> World:
    part, account, grant = mode.script[book.place], world.accounts[book.place], worker.grant
    assert grant is not None
    if account.open and not part.repeats:
        raise Broken("I4", f"step {part.name} may not be repeated, and is begun again")
    if account.finished and (not part.repeats or stands(world, worker.nonce)):
        raise Broken("I4", f"step {part.name} is finished, and is run again")
    recorded = world.row is not None and unpack_steps(world.steps, grant.generation)
    if stands(world, worker.nonce) and part.name not in {step.name for step in recorded or ()}:
        raise Broken("I4", f"step {part.name} is called before its start is recorded")
    world = with_account(world, book.place, account._replace(open=1))
    key = derive_key(grant.id, grant.generation, part.name)
    flight = Flight(worker.nonce, key, worker.ends, worker.epoch, book.place)
    flying = world._replace(flights=(*world.flights, flight))
    return put(flying, place, worker._replace(book=book._replace(phase=Phase.FLYING)))


def _arrive(world: World, mode: Mode, flight: Flight) -> World:
    world = world._replace(flights=tuple([other for other in world.flights if other != flight]))
    world = _land_step(world, mode, flight)
    for place, worker in enumerate(world.workers):
        book = worker.book
        if worker.nonce != flight.nonce or book is None or (book.phase, book.place) != (Phase.FLYING, flight.part):
            continue
        ledger = _ledger(worker, book)
        step = next(step for step in ledger._steps if step.name == mode.script[flight.part].name)
        ledger.finish(step, RESULT)
        done = book._replace(place=book.place + 1, phase=Phase.READY, ledger=_value(ledger))
        return put(world, place, worker._replace(book=done))
    return world


def _land_step(world: World, mode: Mode, flight: Flight) -> World:
    part, account = mode.script[flight.part], world.accounts[flight.part]
    if flight.epoch != world.spec.epoch:
        raise Broken("I1", "an effect arrived after its command's tombstone was forgotten")
    if part.repeats and mode.deduplicates:
        remembered = tuple([(key, until) for key, until in world.remembered if world.true < until])
        if any(key == flight.key for key, _ in remembered):
            return world._replace(remembered=remembered)
        world = world._replace(remembered=(*remembered, (flight.key, world.true + MEMORY)))
    if account.effects and not (part.repeats and not mode.deduplicates):
        raise Broken("I1" if part.repeats else "I4", f"a second effect of step {part.name}")
    world = with_account(world, flight.part, account._replace(effects=1))
    if all(account.effects for account in world.accounts):
        world = world._replace(spec=world.spec._replace(effects=1))
    return world


def _failed_call(world: World, mode: Mode, place: int, worker: Worker, book: Book, error: Exception) -> World:
    """A step's call raises: it proves that nothing happened, or nothing at all."""
    ledger = _ledger(worker, book)
    name = mode.script[book.place].name
    step = next(step for step in ledger._steps if step.name == name)
    ledger.fail(step, nothing_happened=isinstance(error, NothingHappened))
    return _fail(world, mode, place, worker, book._replace(ledger=_value(ledger)), error)


def _fail(world: World, mode: Mode, place: int, worker: Worker, book: Book, error: Exception) -> World:
    outcome = classify_exception(error, mode.policy, begun=True)
    return put(world, place, worker._replace(book=book._replace(phase=Phase.ENDED, outcome=(outcome, False))))


def _closes(
    world: World, mode: Mode, place: int, worker: Worker, book: Book, outcome: Outcome, how: str
) -> Iterator[Taken]:
    """Before the settlement: results that were not written yet are written, or are in doubt."""
    label = f"worker {worker.nonce} {how}"
    for fault in _faults(world):
        ledger = _ledger(worker, book)
        before = world.letters
        _, after = _drive(lose_message(world) if fault else world, worker, ledger.close(outcome), fault)
        if fault and after.letters == before and after.steps == world.steps and after.row == world.row:
            continue
        ended = book._replace(phase=Phase.ENDED, ledger=_value(ledger), outcome=(ledger.outcome(outcome), True))
        yield f"{label}{fault and f'; its last write is {fault}'}", put(after, place, worker._replace(book=ended))


def _settles(world: World, mode: Mode, place: int, worker: Worker, book: Book) -> Iterator[Taken]:
    outcome, closed = book.outcome
    grant, who = worker.grant, f"worker {worker.nonce}"
    assert grant is not None
    if not closed:
        yield from _closes(world, mode, place, worker, book, outcome, "ends its run")
        return
    settlement = make_settlement(grant, outcome)
    reply, row = store.settle(world.row, world.now, settlement)
    settled = after_settling(world, worker.nonce, reply, row)
    ended = put(settled, place, Worker())
    label = f"{who} settles {type(outcome).__name__}: {type(reply).__name__}"
    mine = type(reply).__name__ != "Superseded"
    yield label, note_answer(ended, settlement.answer) if settlement.answer is not None and mine else ended
    if world.left.losses:
        yield f"{who} settles; the reply is lost", after_settling(lose_message(world), worker.nonce, reply, row)
    if world.left.crashes:
        late = world._replace(letters=(*world.letters, Letter(worker.nonce, settlement)))
        yield f"{who} crashes with its settlement on the way", crash(late, place)


def _deliver(world: World, mode: Mode, letter: Letter) -> Taken:
    if letter.steps is None:
        return deliver(world, mode, letter)
    rest = world._replace(letters=tuple([other for other in world.letters if other != letter]))
    holder, packed, standing = letter.steps
    held, row, steps = step_rows.call(
        world.row, world.steps, world.now, lambda: step_rows.ROWS.write(holder, packed, standing)
    )
    if held and not stands(world, letter.nonce):
        raise Broken("I3", "a late list of a superseded holder was written")
    return f"a late list of {letter.nonce} arrives: {held}", note_write(rest, row, by=letter.nonce)._replace(
        steps=steps
    )
