"""What memory keeps unread is the record that the rules would have made, whatever is done to it and whenever."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from semel import Answer, Policy
from semel.core.command_flow import make_success
from semel.core.decide import first_grant
from semel.core.flow import MakeFlow
from semel.core.model import Claim, Find, Grant, Proceed, Renewal, Settled, State
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore
from semel.testing.attempts import attempt, claim_at_once, settlement
from semel.testing.clock import SettableClock

BRIEF: dict[str, Any] = {"lease_seconds": 10, "deadline_seconds": 60, "answer_seconds": 60, "tombstone_seconds": 120}
POLICIES = (
    Policy(),
    Policy(**BRIEF),
    Policy(**BRIEF, after_expiry="new"),
    Policy(**BRIEF, effects="idempotent", dedup_for_seconds=300),
)
STORE = MemoryStore()


class History:
    """The same acts on two drivers: one replies at once where it can, and of the other every record is read at once."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = SettableClock()
        self.quick, self.slow = LocalDriver(clock=self.clock), LocalDriver(clock=self.clock)
        self.held: list[tuple[Claim, Grant, bool]] = []
        self.attempts = 0
        self.after: int | None = None

    def both(self, make: MakeFlow[Any]) -> Any:
        said = self.quick.run(make)
        assert said == self.slow.run(make)
        return said

    def claim(self) -> None:
        self.attempts += 1
        number, request = self.random.randrange(5), self.random.choice((0, 0, 0, 1))
        starts = State.CLAIMED if number == 4 else State.PROCESSING
        claim = attempt(f"{number}", nonce=self.attempts, request=request, policy=POLICIES[number % 4], starts=starts)
        known = (claim.id, claim.recipe, claim.fingerprint)
        assert self.quick.kept_answer(*known) == self.slow.kept_answer(*known)
        met = claim_at_once(self.quick, claim)
        verdict = Proceed(first_grant(claim, met)) if isinstance(met, int) else met
        assert self.slow.run(partial(STORE.claim, (claim,))) == [verdict]
        if isinstance(verdict, Proceed):
            self.held.append((claim, verdict.grant, isinstance(met, int)))

    def succeed(self) -> None:
        claim, grant, is_first = self.random.choice(self.held)
        answer = Answer(201, ((b"etag", b"x"),), self.random.choice((b"made", b"other")))
        said = make_success(grant.id, grant.fence, grant.nonce, answer)
        at_once = is_first and self.quick.succeed_at_once(claim, grant.fence, answer)
        reply = Settled() if at_once else self.quick.settle_at_once(said)
        assert self.slow.run(partial(STORE.settle, (said,))) == [reply]

    def fail(self) -> None:
        _, grant, _ = self.random.choice(self.held)
        state = self.random.choice((State.UNKNOWN, State.FAILED_NOT_REPLAYABLE, State.FAILED_REPLAYABLE))
        said = settlement(grant, state, Answer(409, (), b"no") if state is State.FAILED_REPLAYABLE else None)
        assert self.slow.run(partial(STORE.settle, (said,))) == [self.quick.settle_at_once(said)]

    def hold(self) -> None:
        _, grant, _ = self.random.choice(self.held)
        renewal = Renewal(grant.id, grant.fence, grant.nonce)
        verbs = (
            partial(STORE.renew, (renewal,)),
            partial(STORE.mark_not_kept, (renewal,)),
            partial(STORE.abandon, ((grant.id, grant.nonce),)),
        )
        self.both(self.random.choice(verbs))

    def look(self) -> None:
        operations = [grant.operation_id for _, grant, _ in self.held]
        verbs = (STORE.counts, partial(STORE.find, Find(limit=3)), partial(STORE.read_operations, operations))
        self.both(self.random.choice(verbs))

    def tidy(self) -> None:
        self.both(partial(STORE.lapse, self.random.choice((1, 10))))
        self.after = self.both(partial(STORE.purge, self.after, self.random.choice((1, 10)))).next_after

    def wait(self) -> None:
        self.clock.advance(seconds=self.random.choice((1, 5, 11, 40, 61, 130, 700)))

    def run(self) -> None:
        acts = [self.claim, self.claim, self.claim, self.wait, self.wait, self.look, self.tidy]
        of_holders = [self.succeed, self.succeed, self.succeed, self.fail, self.hold]
        for _ in range(60):
            self.random.choice(acts + (of_holders if self.held else []))()
            self.slow.run(STORE.counts)
        self.both(STORE.counts)
        tables = (self.quick._table, self.slow._table)
        for table in tables:
            table.place()
        assert list(tables[0].records.items()) == list(tables[1].records.items())
        assert tables[0].seqs == tables[1].seqs


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_a_compact_record_equals_the_record_of_the_rules(first: int) -> None:
    for seed in range(first, first + 100):
        History(seed).run()
