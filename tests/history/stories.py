"""Histories that really happened: clients whose calls overlap, on the memory store, under a clock that a seed moves.

Each call starts, takes effect and ends at three moments with those of others in between; some clients die on the way.
The store runs the real rules, so nothing here knows the checker's model.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from semel.core.flow import Ask, Flow, perform
from semel.core.model import Answer, Claim, Grant, Proceed, Record, Resolution, Settlement, State
from semel.policy import Command, Policy
from semel.stores.memory.store import MemoryStore, Table
from semel.testing.attempts import attempt, renewal, settlement
from semel.testing.clock import SettableClock
from verification.history.engines import read_words, resolve_words
from verification.history.events import (
    Words,
    attempt_words,
    digest,
    resolving_words,
    settling_words,
    verdict_words,
)
from verification.history.linear import linearize
from verification.history.reading import Operation
from verification.history.standing import Terms

LEASE_SECONDS = 1.0
NOBODY_DIED = Terms({})
STATES = {
    "external": (State.SUCCEEDED, State.SUCCEEDED, State.FAILED_REPLAYABLE, State.FAILED_NOT_REPLAYABLE, State.UNKNOWN),
    "idempotent": (State.SUCCEEDED, State.FAILED_REPLAYABLE, State.FAILED_NOT_REPLAYABLE, State.PROCESSING),
}


class Story:
    """One key's history, made from a seed."""

    def __init__(self, seed: int, effects: str, *, operations: int, clients: int = 4) -> None:
        self.random = random.Random(seed)
        self.policy = Policy.of(effects=effects, lease_seconds=LEASE_SECONDS, deadline_seconds=60, attempts_max=3)
        self.effects = effects
        self.clock = SettableClock()
        self.store = MemoryStore()
        self.table = Table()
        self.operations: list[Operation] = []
        self._nonces = 0
        self._left = operations
        self._lives: list[Iterator[None]] = [self.life(number) for number in range(clients)]

    def tell(self) -> list[Operation]:
        """The whole history, in the order of its starts."""
        clients = len(self._lives)
        while self._lives:
            life = self.random.choice(self._lives)
            self.clock.advance(seconds=self.random.choice((0.0, 0.001, 0.01, 0.05)))
            try:
                next(life)
            except StopIteration:
                self._lives.remove(life)
                if self._left > 0:
                    clients += 1
                    self._lives.append(self.life(clients))
        return sorted(self.operations, key=lambda op: op.start_ns)

    def now_ns(self) -> int:
        return self.clock.advance(1) * 1000  # no two events at one moment

    def do(self, flow: Flow[Any]) -> Any:
        def answering(needed: Ask[Any]) -> Any:
            return needed.act(self.table, self.clock())  # type: ignore[attr-defined]

        return perform(flow, answering)

    def call(
        self, who: int, kind: str, args: Words, act: Callable[[], Any], words: Callable[[Any], Words]
    ) -> Iterator[Any]:
        """One operation in three moments; yields its reply at the last. A client may die before each of them."""
        self._left -= 1
        key = attempt("k").id.hex()
        op = Operation(f"p{who}", len(self.operations), kind, key, who, self.now_ns(), args)
        self.operations.append(op)
        yield None
        if self.random.random() < 0.02:
            return
        reply = act()
        yield None
        if self.random.random() < 0.02:
            return
        op.end_ns, op.result = self.now_ns(), words(reply)
        yield reply

    def life(self, who: int) -> Iterator[None]:
        """A client: attempts, and what follows from each, until it dies or there is nothing left to do."""
        while self._left > 0:
            chosen = self.random.random()
            if chosen < 0.08:
                yield from self.operate(who)
            elif chosen < 0.16:
                yield from self.step_of(self.reading(who))
            else:
                self._nonces += 1
                request = int(self.random.random() < 0.1)
                claim = attempt("k", nonce=self._nonces, request=request, policy=self.policy)
                grant = yield from self.last_of(self.attempting(who, claim))
                if grant == "died":
                    return
                if grant is not None and (yield from self.hold(who, grant)):
                    return

    def step_of(self, calls: Iterator[Any]) -> Iterator[None]:
        for _ in calls:
            yield None

    def last_of(self, calls: Iterator[Any]) -> Generator[None, None, Any]:
        """Go through a call's moments; what it answered, or "died"."""
        moments = []
        for moment in calls:
            moments.append(moment)
            yield None
        return moments[2] if len(moments) == 3 else "died"

    def attempting(self, who: int, claim: Claim) -> Iterator[Any]:
        command = Command(claim.scope, "k", claim.fingerprint, claim.recipe, self.policy)
        for reply in self.call(
            who,
            "attempt",
            attempt_words(command),
            lambda: self.do(self.store.claim([claim]))[0],
            verdict_words,
        ):
            yield reply.grant if isinstance(reply, Proceed) else None

    def hold(self, who: int, grant: Grant) -> Generator[None, None, bool]:
        """Hold a grant for a while, renew it or pause; settle it, or die. True: died."""
        for _ in range(self.random.randrange(4)):
            if self.random.random() < 0.5:
                self.do(self.store.renew([renewal(grant)]))
            yield None
        chance = self.random.random()
        if chance < 0.15:
            return True
        if chance < 0.35:  # paused past its lease
            self.clock.advance(seconds=LEASE_SECONDS * 1.1)
            yield None
        state = self.random.choice(STATES[self.effects])
        said = settlement(grant, state, Answer(200, (), str(grant.fence).encode()))
        reply = yield from self.last_of(self.settling(who, said))
        return bool(reply == "died")

    def settling(self, who: int, said: Settlement) -> Iterator[Any]:
        names = {State.FAILED_REPLAYABLE: "refused", State.FAILED_NOT_REPLAYABLE: "released"}
        state = "given-back" if said.state is State.PROCESSING else names.get(said.state, said.state.name.lower())
        args = {
            "fence": said.fence,
            "effects": self.effects,
            "state": state,
            "kept": True,
            "answer": digest(said.answer),
        }
        return self.call(who, "settle", args, lambda: self.do(self.store.settle([said]))[0], settling_words)

    def operate(self, who: int) -> Iterator[None]:
        """The reaper, or an operator who settles what is unknown."""
        self.do(self.store.lapse(10))
        yield None
        row: Record | None = self.do(self.store.read([attempt("k").id]))[0]
        if row is not None and row.state == State.UNKNOWN:
            happened = self.random.random() < 0.5
            answer = Answer(200, (), b"found") if happened and self.random.random() < 0.7 else None
            said = Resolution(row.id, row.fence, happened, answer, "operator", "looked", True)
            yield from self.step_of(
                self.call(
                    who, "resolve", resolve_words(said), lambda: self.do(self.store.resolve(said)), resolving_words
                )
            )

    def reading(self, who: int) -> Iterator[Any]:
        return self.call(who, "read", {}, lambda: self.do(self.store.read([attempt("k").id]))[0], read_words)


def main() -> None:
    """The checker's rate, by operations a key."""
    for operations in (10, 30, 100, 300):
        stories = [Story(seed, ("external", "idempotent")[seed % 2], operations=operations) for seed in range(200)]
        told = [story.tell() for story in stories]
        started = time.process_time()
        for history in told:
            linearize(history, NOBODY_DIED)
        seconds = time.process_time() - started
        sys.stdout.write(
            f"{operations} operations a key: {sum(map(len, told)) / seconds:,.0f} operations/s of CPU time\n"
        )


if __name__ == "__main__":
    main()
