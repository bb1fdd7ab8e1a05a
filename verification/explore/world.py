"""The state of the model: one key, its real record, a few workers, a downstream, and the answers of clients.

A :class:`World` is a value. The record in it is a :class:`~semel.core.model.Record` that the real rules wrote;
everything else is the model's own notebook, kept independently of the rules, so that it can contradict them: who was
granted last (``Spec.holder``), when the key was settled, what was acknowledged, how many effects there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from semel.core.model import Answer, Grant, Record, Renewal, Settlement, State
from semel.policy import Policy

SECOND: Final = 1_000_000
START: Final = 1_000 * SECOND
LEASE: Final = 30 * SECOND
DEADLINE: Final = 60 * SECOND
DEDUP: Final = 90 * SECOND
ANSWER: Final = 120 * SECOND
TOMBSTONE: Final = 240 * SECOND
MEMORY: Final = (
    DEDUP + DEADLINE
)  # how long the downstream really remembers: dedup_for leaves a handler's time of margin
RESULT: Final = b"1"  # of every step: that it is recorded is what matters
SPANS: Final = {
    "lease_seconds": LEASE // SECOND,
    "deadline_seconds": DEADLINE // SECOND,
    "dedup_for_seconds": DEDUP // SECOND,
    "answer_seconds": ANSWER // SECOND,
    "tombstone_seconds": TOMBSTONE // SECOND,
}


class Pc(IntEnum):
    """The progress of a worker in its one command."""

    IDLE = 0  # a client may ask it
    LIMBO = 1  # it claimed, and the reply did not come
    HOLDS = 2  # granted; nothing was sent downstream
    FLYING = 3  # its call to the downstream is on its way
    DONE = 4  # the downstream has answered


class Phase(IntEnum):
    """The progress of a run with the next step of its script."""

    READY = 0  # nothing of it was asked for
    STARTED = 1  # its start is recorded
    FLYING = 2  # its call is on its way
    ENDED = 3  # the run is over, and its holder has not settled it


class Book(NamedTuple):
    """What the holder of a run with steps knows: its place in the script, and the state of its real ``StepLedger``."""

    place: int = 0
    phase: Phase = Phase.READY
    ledger: tuple[tuple[str, Any], ...] | None = None
    outcome: Any = None  # of a run that has ENDED


class Worker(NamedTuple):
    """One process. A crash makes it IDLE: what it knew is gone, what it had sent is not."""

    pc: Pc = Pc.IDLE
    nonce: int = 0
    grant: Grant | None = None
    ends: int = 0  # when its handler's deadline is over, in true time
    epoch: int = 0
    book: Book | None = None


class Flight(NamedTuple):
    """A call to the downstream that has not arrived. It arrives before its handler's deadline, or never."""

    nonce: int
    key: str
    ends: int
    epoch: int
    part: int = 0  # of the script


class Letter(NamedTuple):
    """A message to the store that its sender no longer waits for."""

    nonce: int
    settlement: Settlement | None  # None: a claim, or steps
    steps: tuple[Renewal, bytes, tuple[State, str | None]] | None = None  # a list, as its holder has written it


class Part(NamedTuple):
    """One step of a script."""

    name: str
    repeats: bool


class Account(NamedTuple):
    """What really happened to one step, independent of the record. ``open``: an attempt that has not been disproved."""

    effects: int = 0
    open: int = 0
    finished: bool = False  # its result was recorded


class Unit(NamedTuple):
    """The open transaction of an ATOMIC command: what is written in it, and whether the handler wrote."""

    nonce: int
    row: Record | None
    wrote: bool = False


class Spec(NamedTuple):
    """What must be true, noted by the model and not by the rules."""

    epoch: int = 0  # grows when a key is legitimately new: its tombstone's retention is over
    holder: int = 0  # who was granted last
    superseded: bool = False  # another process has settled the holder's record
    settled_at: int | None = None  # true time
    acked: Answer | None = None  # the answer that a client got
    effects: int = 0


class Left(NamedTuple):
    """How many faults of each kind may still happen."""

    crashes: int = 1
    losses: int = 1  # replies that do not come, messages that come late
    resolutions: int = 1
    early_commits: int = 0
    clock_faults: int = 0
    failures: int = 0  # of runs with steps


class World(NamedTuple):
    """One state of everything."""

    row: Record | None
    now: int  # the store's clock
    ahead: int  # true time minus the store's clock
    workers: tuple[Worker, ...]
    left: Left
    spec: Spec = Spec()
    flights: tuple[Flight, ...] = ()
    remembered: tuple[tuple[str, int], ...] = ()  # downstream: derived key, until when (true time)
    letters: tuple[Letter, ...] = ()
    unit: Unit | None = None
    serial: int = 0
    steps: bytes | None = None  # the record's list
    accounts: tuple[Account, ...] = ()

    @property
    def true(self) -> int:
        """The monotonic time."""
        return self.now + self.ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How the modelled engine and operator behave. All False is how Semel does it; each True is an unsafe variant."""

    answers_before_settling: bool = False
    settles_before_the_effect: bool = False
    operator_guesses: bool = False  # it says the contrary of what happened
    operator_forces: bool = False  # it does not wait for the handler's deadline
    downstream_forgets: bool = False  # its memory is shorter than dedup_for says
    calls_before_the_start: bool = False  # of a step, which is recorded afterwards


SAFE: Final = Habits()
NO_FAULTS_LEFT: Final = Left(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One configuration that is explored whole."""

    name: str
    policy: Policy
    workers: int = 2
    left: Left = NO_FAULTS_LEFT
    habits: Habits = SAFE
    script: tuple[Part, ...] = ()  # of a handler with steps
    deduplicates: bool = True  # whether the downstream of steps does
    renews: bool = True  # whether holders with steps renew their leases
    undeclared: Policy | None = None  # of a version of the operation that declares no steps, and may be asked as well

    def first(self) -> World:
        """Return the state in which every exploration begins: no request has been made."""
        accounts = (Account(),) * len(self.script)
        return World(None, START, 0, (Worker(),) * self.workers, self.left, accounts=accounts)


class Broken(Exception):
    """An invariant does not hold. ``invariant`` is its number in the design."""

    def __init__(self, invariant: str, why: str) -> None:
        super().__init__(f"{invariant}: {why}")
        self.invariant = invariant
        self.why = why
