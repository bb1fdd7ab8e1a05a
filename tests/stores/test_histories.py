"""Random histories over memory and SQLite side by side: every reply and every whole row must agree.

The memory store runs the rules themselves, so that this is also the proof that SQLite's statements say
the same as the rules. Few keys, callers and payloads on one settable clock, so that they meet often.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semel.core.flow import MakeFlow
from semel.core.model import (
    Answer,
    Claim,
    Find,
    Found,
    Grant,
    Proceed,
    Purged,
    Record,
    Resolution,
    Settled,
    State,
)
from semel.policy import Policy
from semel.testing.attempts import EXTERNAL, OK, RECIPE, attempt, renewal, settlement
from semel.testing.clock import SettableClock
from semel.testing.interleave import MemoryWorld, SqliteWorld

POLICIES = (
    EXTERNAL,
    Policy(effects="idempotent", lease_seconds=10, deadline_seconds=60, dedup_for_seconds=60, attempts_max=2),
    Policy(effects="idempotent", attempts_max=1, answer_seconds=60, tombstone_seconds=60, after_expiry="new"),
    Policy(effects="atomic"),
    Policy(answer_seconds=3600, tombstone_seconds=7200, after_expiry="new"),
)
ANSWERS = (OK, Answer(None, (), b""), Answer(409, ((b"x", b"\x00"),), b"\xff\x00"))
SECOND = 1_000_000
STEPS = (1, 9 * SECOND, 10 * SECOND, 30 * SECOND, 60 * SECOND, 600 * SECOND, 3600 * SECOND, 86_400 * SECOND)

claims = st.builds(
    attempt,
    st.sampled_from(["a", "b", "c"]),
    nonce=st.integers(0, 3),
    request=st.sampled_from([0, 0, 0, 1]),
    recipe=st.sampled_from([RECIPE, RECIPE, RECIPE, RECIPE, "2.other"]),
    policy=st.sampled_from(POLICIES),
    starts=st.sampled_from([State.PROCESSING, State.PROCESSING, State.CLAIMED]),
)
finds = st.builds(
    Find,
    states=st.lists(st.sampled_from(State), max_size=2, unique=True).map(tuple),
    operation=st.sampled_from([None, "pay", "nothing"]),
    limit=st.integers(1, 3),
    lapsed=st.booleans(),
    looks=st.just(0),  # what a page looks at differs by store; here all look at all
)


class Histories(RuleBasedStateMachine):
    """One history: the same requests to both stores."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SettableClock()
        self.memory = MemoryWorld(clock=self.clock)
        self.sqlite = SqliteWorld(clock=self.clock)
        self.grants: list[Grant] = []
        self.ids: set[bytes] = set()
        self.operations: set[bytes] = set()
        self.fences: dict[bytes, int] = {}

    def teardown(self) -> None:
        self.memory.close()
        self.sqlite.close()

    def both(self, verb: str, *arguments: Any) -> Any:
        """Ask both the same; what they reply must be the same."""
        replies: list[Any] = []
        for world in (self.memory, self.sqlite):
            make: MakeFlow[Any] = partial(getattr(world.store, verb), *arguments)
            replies.append(world.do(make))
        assert replies[0] == replies[1], (verb, arguments)
        return replies[0]

    # --- what callers do ---

    @rule(batch=st.lists(claims, min_size=1, max_size=3))
    def claim(self, batch: list[Claim]) -> None:
        # A nonce is one attempt's: within one call it comes again with the same claim only, never with other terms.
        first: dict[bytes, Claim] = {}
        batch = [each for each in batch if first.setdefault(each.nonce, each) == each]
        self.both("look", batch)
        verdicts = self.both("claim", batch)
        for claim, verdict in zip(batch, verdicts, strict=True):
            self.ids.add(claim.id)
            self.operations.add(claim.operation_id)
            if isinstance(verdict, Proceed):
                self.grants.append(verdict.grant)

    @rule(claim=claims)
    def claim_in_unit(self, claim: Claim) -> None:
        verdict = self.both("claim_in_unit", claim)
        self.ids.add(claim.id)
        self.operations.add(claim.operation_id)
        if isinstance(verdict, Proceed):
            self.grants.append(verdict.grant)

    def pick(self, data: st.DataObject) -> Grant:
        """A grant that was given: mostly one of the newest, which may still stand."""
        return self.grants[-data.draw(st.integers(1, min(len(self.grants), 6)))]

    @precondition(lambda self: self.grants)
    @rule(
        data=st.data(),
        state=st.sampled_from([state for state in State if state is not State.CLAIMED]),
        answer=st.sampled_from(ANSWERS),
        kept=st.sampled_from([True, True, False]),
        doubt=st.sampled_from(["", "error"]),
    )
    def settle(self, data: st.DataObject, state: State, answer: Answer, kept: bool, doubt: str) -> None:
        last = settlement(self.pick(data), state, answer, kept=kept, doubt=doubt)
        named = last._replace(business_ref=doubt or None, resource_type="payment", resource_id="7", error_code="E")
        [reply] = self.both("settle", (named,))
        assert not isinstance(reply, Settled) or last.fence >= self.fences[last.id]

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        self.both("renew", (renewal(self.pick(data)), renewal(self.pick(data))))

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def mark_not_kept(self, data: st.DataObject) -> None:
        self.both("mark_not_kept", (renewal(self.pick(data)),))

    @rule(claim=claims)
    def abandon(self, claim: Claim) -> None:
        self.both("abandon", ((claim.id, claim.nonce),))

    # --- what operators and workers do ---

    @precondition(lambda self: self.ids)
    @rule(
        data=st.data(),
        happened=st.booleans(),
        answer=st.sampled_from([None, *ANSWERS]),
        forced=st.booleans(),
        current=st.sampled_from([True, True, False]),
        ends=st.booleans(),
        refused=st.booleans(),
    )
    def resolve(
        self,
        data: st.DataObject,
        happened: bool,
        answer: Answer | None,
        forced: bool,
        current: bool,
        ends: bool,
        refused: bool,
    ) -> None:
        id = data.draw(st.sampled_from(sorted(self.ids)))
        fence = self.fences.get(id, 0) if current else 1
        settlement = Resolution(id, fence, happened, answer if happened else None, "olga", "asked", forced)
        self.both("resolve", settlement._replace(refused=refused and happened, ends=() if ends else None))

    @rule(limit=st.integers(1, 3))
    def lapse(self, limit: int) -> None:
        self.both("lapse", limit)

    @rule(chunk=st.integers(1, 4))
    def purge(self, chunk: int) -> None:
        """A whole walk. Cursors are each store's own; what each chunk did must agree."""
        walks: list[list[tuple[int, int, int]]] = []
        for world in (self.memory, self.sqlite):
            walk, after = [], None
            while True:
                done: Purged = world.do(partial(world.store.purge, after, chunk))
                walk.append((done.scanned, done.answers_dropped, done.forgotten))
                after = done.next_after
                if after is None:
                    break
            walks.append(walk)
        assert walks[0] == walks[1]

    @rule(query=finds)
    def find(self, query: Find) -> None:
        """Read all pages of a query on both stores, and compare them."""
        books: list[list[tuple[Record, ...]]] = []
        for world in (self.memory, self.sqlite):
            book, before = [], None
            while True:
                found: Found = world.do(partial(world.store.find, query._replace(before=before)))
                assert found.now == self.clock()
                book.append(found.records)
                before = found.next_before
                if before is None:
                    break
            books.append(book)
        assert books[0] == books[1]

    @rule(step=st.sampled_from(STEPS))
    def time_passes(self, step: int) -> None:
        self.clock.advance(step)

    @rule()
    def the_clock_is_set_back(self) -> None:
        self.clock.advance(-5 * SECOND)

    # --- what must hold after each of them ---

    @invariant()
    def the_rows_agree(self) -> None:
        rows: list[Record | None] = self.both("read", sorted(self.ids))
        self.both("read_operations", sorted(self.operations))
        self.both("counts")
        self.both("audit", None, 100)
        for id, row in zip(sorted(self.ids), rows, strict=True):
            if row is None:
                self.fences.pop(id, None)
                continue
            assert row.fence >= self.fences.get(id, 0)  # never down, while the record is there
            self.fences[id] = row.fence
            ended = row.state not in (State.CLAIMED, State.PROCESSING, State.UNKNOWN)
            assert (row.forget_after is not None) == ended  # what is open or unknown has no end
            assert (row.body is not None) <= (row.state in (State.SUCCEEDED, State.FAILED_REPLAYABLE))


Histories.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestHistories = pytest.mark.no_cover(Histories.TestCase)  # the same lines, thousands of times
