"""A check of every verb of a store against every other, in every order of steps: each must appear atomic.

From each situation of a record, two (or three) verbs run concurrently. For every order of their steps, their replies
and the final state must equal those of some order of *whole* verbs. There is no other expectation, so the check also
holds for future stores and verbs.

    counted = check_pairs(SqliteWorld)
    print(counted.interleavings)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, combinations_with_replacement, permutations
from typing import Any, Final

from semel.core.contract import Store
from semel.core.flow import Flow, MakeFlow, ask
from semel.core.model import Answer, AnswerKind, Find, Grant, Proceed, Purged, Resolution, State
from semel.core.record import answer_digest, pack_headers
from semel.core.requests import Perform
from semel.policy import Policy
from semel.sealing.rows import Reseal
from semel.testing.attempts import OK, attempt, renewal, settlement
from semel.testing.interleave import MemoryWorld, Program, World, interleavings

LEASE_US: Final = 30_000_000
DAY_US: Final = 86_400_000_000
MINE: Final = attempt(nonce=1)
_OK_DIGEST: Final = answer_digest(OK.status, pack_headers(OK.headers), OK.body)
_SEALED: Final = Answer(OK.status, ((b"", b"2026"),), b"sealed")
Verb = Callable[[Store, Grant], MakeFlow[Any]]


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of the record before the verbs, and its policy."""

    name: str
    policy: Policy
    prepare: Callable[[World, Grant], None]
    claimed: bool = True


def _nothing(world: World, grant: Grant) -> None:
    return None


def _lapse(world: World, grant: Grant) -> None:
    world.clock.advance(LEASE_US)


def _mark(world: World, grant: Grant) -> None:
    world.clock.advance(LEASE_US)
    world.do(partial(world.store.lapse, 1))


def _settle(state: State, later_us: int = 0) -> Callable[[World, Grant], None]:
    def prepare(world: World, grant: Grant) -> None:
        world.do(partial(world.store.settle, (settlement(grant, state),)))
        world.clock.advance(later_us)

    return prepare


_EXTERNAL: Final = Policy()
_IDEMPOTENT: Final = Policy(effects="idempotent", dedup_for_seconds=3600, attempts_max=3)
_NEW: Final = Policy(after_expiry="new")
SITUATIONS: Final = (
    Situation("never seen", _EXTERNAL, _nothing, claimed=False),
    Situation("running", _EXTERNAL, _nothing),
    Situation("lapsed EXTERNAL", _EXTERNAL, _lapse),
    Situation("lapsed IDEMPOTENT", _IDEMPOTENT, _lapse),
    Situation("UNKNOWN", _EXTERNAL, _mark),
    Situation("given back", _IDEMPOTENT, _settle(State.PROCESSING)),
    Situation("released", _EXTERNAL, _settle(State.FAILED_NOT_REPLAYABLE)),
    Situation("answered", _EXTERNAL, _settle(State.SUCCEEDED)),
    Situation("answer over, key new", _NEW, _settle(State.SUCCEEDED, 2 * DAY_US)),
    Situation("tombstone over", _EXTERNAL, _settle(State.SUCCEEDED, 31 * DAY_US)),
    Situation("tombstone over, key new", _NEW, _settle(State.SUCCEEDED, 31 * DAY_US)),
)
"""Every situation that a record can be in."""


def _claims(nonce: int, request: int = 0) -> Verb:
    return lambda store, grant: partial(store.claim, (attempt(nonce=nonce, request=request, policy=_policy_of(grant)),))


def _policy_of(grant: Grant) -> Policy:
    return next(situation.policy for situation in SITUATIONS if first_grant(situation) == grant)


def _settles(state: State, doubt: str = "lost") -> Verb:
    return lambda store, grant: partial(store.settle, (settlement(grant, state, doubt=doubt),))


def _claims_in_unit(store: Store, grant: Grant) -> MakeFlow[Any]:
    """Claim and settle in one flow with one commit, as a refusal of an ATOMIC command does.

    A store without such commits (by its capabilities) only claims.
    """

    def flow() -> Flow[Any]:
        yield from store.commit_together()
        verdict = yield from store.claim_in_unit(attempt(nonce=6, policy=_policy_of(grant)))
        if not isinstance(verdict, Proceed) or not store.capabilities.atomic_with_business_writes:
            return verdict
        return (yield from store.settle((settlement(verdict.grant, State.FAILED_REPLAYABLE),)))

    return flow


def _resolves(happened: bool) -> Verb:
    return lambda store, grant: partial(
        store.resolve, Resolution(grant.id, grant.fence, happened, OK if happened else None, "olga", "asked", True)
    )


VERBS: Final[Mapping[str, Verb]] = {
    "claim": _claims(2),
    "claim by a third": _claims(3),
    "claim again": _claims(1),
    "claim another request": _claims(4, request=1),
    "claim in unit": _claims_in_unit,
    "look": lambda store, grant: partial(store.look, (attempt(nonce=5, policy=_policy_of(grant)),)),
    "settle succeeded": _settles(State.SUCCEEDED),
    "settle refused": _settles(State.FAILED_REPLAYABLE),
    "settle released": _settles(State.FAILED_NOT_REPLAYABLE, doubt=""),
    "settle unknown": _settles(State.UNKNOWN),
    "give back": _settles(State.PROCESSING),
    "mark_not_kept": lambda store, grant: partial(store.mark_not_kept, (renewal(grant),)),
    "renew": lambda store, grant: partial(store.renew, (renewal(grant),)),
    "abandon": lambda store, grant: partial(store.abandon, ((grant.id, grant.nonce),)),
    "resolve happened": _resolves(True),
    "resolve did not": _resolves(False),
    "reseal": lambda store, grant: partial(store.reseal, (Reseal(grant.id, _OK_DIGEST, _SEALED, AnswerKind.SEALED),)),
    "lapse": lambda store, grant: partial(store.lapse, 10),
    "purge": lambda store, grant: partial(store.purge, None, 10),
    "read": lambda store, grant: partial(store.read, (grant.id,)),
    "read_operations": lambda store, grant: partial(store.read_operations, (grant.operation_id,)),
    "find": lambda store, grant: partial(store.find, Find(states=(State.UNKNOWN, State.PROCESSING))),
    "counts": lambda store, grant: store.counts,
    "audit": lambda store, grant: partial(store.audit, None, 10),
}
"""Every verb that reads or writes a record, on the one key of these checks."""

USES: Final[Mapping[str, tuple[str, ...]]] = {
    "claim": ("claim", "claim by a third", "claim again", "claim another request"),
    "look": ("look",),
    "claim_in_unit": ("claim in unit",),
    "settle": ("settle succeeded", "settle refused", "settle released", "settle unknown", "give back"),
    "commit_together": ("claim in unit",),
    "mark_not_kept": ("mark_not_kept",),
    "renew": ("renew",),
    "abandon": ("abandon",),
    "read": ("read",),
    "read_operations": ("read_operations",),
    "find": ("find",),
    "resolve": ("resolve happened", "resolve did not"),
    "reseal": ("reseal",),
    "lapse": ("lapse",),
    "purge": ("purge",),
    "counts": ("counts",),
    "audit": ("audit",),
}
"""Every method of the contract (``core/contract.py``) that is paired here, and the names it is paired under."""

NOT_PAIRED: Final[Mapping[str, str]] = {
    "forget_quotas": "writes no record: rows of callers alone, in commits of their own",
    "take_place": "writes no record, and locks its caller's row by its own statement (tests/postgres/test_quotas.py)",
    "settle_within": "one ask of a server's own transaction, for stores that declare settles_by_proof: no flow",
    "now": "reads no record",
    "identity": "reads no record",
    "migrate": "runs before any other verb may",
    "missing_additions": "reads no record",
    "doctor": "describes checks, each of which only reads",
}
"""The methods of the contract that are not, each with the reason."""

MAY_PASS: Final[Mapping[str, Any]] = {"lapse": []}
"""Verbs that may pass over a record which another process writes at that moment, and what they reply then.

A reaper looks again within a second; it must not fight for a record with its holder.
"""

TRIPLES: Final = (
    *("claim", "claim by a third", "settle succeeded", "renew", "abandon", "resolve did not", "lapse", "purge"),
)
TRIPLE_SITUATIONS: Final = ("running", "lapsed EXTERNAL", "lapsed IDEMPOTENT", "UNKNOWN", "tombstone over")


@dataclass(slots=True)
class Counted:
    """The number of checked orders."""

    cases: int = 0
    interleavings: int = 0


class NotAtomic(AssertionError):
    """An order of steps gave a result that no order of whole verbs gives."""


def pairs() -> Iterator[tuple[Situation, tuple[str, ...]]]:
    """Yield every pair of verbs, also each with itself, in every situation."""
    for situation in SITUATIONS:
        for names in combinations_with_replacement(VERBS, 2):
            yield situation, names


def triples() -> Iterator[tuple[Situation, tuple[str, ...]]]:
    """Yield three writing verbs at once, in the situations in which they interact."""
    for situation in SITUATIONS:
        if situation.name in TRIPLE_SITUATIONS:
            for names in combinations(TRIPLES, 3):
                yield situation, names


def check_all(make: Callable[[], World], cases: Iterator[tuple[Situation, tuple[str, ...]]]) -> Counted:
    """Check these cases; return the number of interleavings. Raises NotAtomic."""
    counted = Counted()
    for situation, names in cases:
        counted.cases += 1
        counted.interleavings += check(make, situation, names)
    return counted


def check(make: Callable[[], World], situation: Situation, names: Sequence[str]) -> int:
    """Check all interleavings of these verbs from this situation; return their number. Raises NotAtomic."""
    grant = first_grant(situation)
    flows = [VERBS[name] for name in names]
    whole = whole_results(make, situation, names)
    programs = [_program(verb, grant) for verb in flows]
    count = 0
    for run in interleavings(partial(prepare, make, situation, grant), programs):
        count += 1
        seen = result_text(run.results, run.world)
        if seen not in whole:
            raise NotAtomic(
                f"{' and '.join(names)}, from {situation.name!r}, in the order {run.schedule}: {seen}\n"
                f"whole verbs give: {sorted(whole)}"
            )
    return count


def whole_results(make: Callable[[], World], situation: Situation, names: Sequence[str]) -> set[str]:
    """Return the results of these verbs from this situation, each performed whole, in every order."""
    grant = first_grant(situation)
    return {
        _in_order(make, situation, grant, names, order, passing)
        for order in permutations(range(len(names)))
        for passing in _passing(names)
    }


def _passing(names: Sequence[str]) -> Iterator[frozenset[int]]:
    """Yield the choices of a passing verb: none, or one of those that may pass."""
    yield frozenset()
    yield from (frozenset((place,)) for place, name in enumerate(names) if name in MAY_PASS)


def result_text(replies: Sequence[Any], world: World) -> str:
    """Return replies and the store's state as a text to compare, without the number of records that a purge read."""
    said = [reply._replace(scanned=0) if isinstance(reply, Purged) else reply for reply in replies]
    held = world.do(partial(world.store.read, (MINE.id,))), world.do(partial(world.store.audit, None, 10))
    return repr((said, held))


def _program(verb: Verb, grant: Grant) -> Program:
    def program(world: World) -> Flow[Any]:
        return (yield from ask(Perform("verb", verb(world.store, grant))))

    return program


def _in_order(
    make: Callable[[], World],
    situation: Situation,
    grant: Grant,
    names: Sequence[str],
    order: Sequence[int],
    passing: frozenset[int],
) -> str:
    """Return the result of whole verbs in this order."""
    world = prepare(make, situation, grant)
    try:
        replies: list[Any] = [MAY_PASS.get(name) for name in names]
        for place in order:
            if place not in passing:
                replies[place] = world.do(VERBS[names[place]](world.store, grant))
        return result_text(replies, world)
    finally:
        world.close()


def prepare(make: Callable[[], World], situation: Situation, grant: Grant) -> World:
    """Make a world in this situation."""
    world = make()
    if situation.claimed:
        world.do(partial(world.store.claim, (attempt(nonce=1, policy=situation.policy),)))
    situation.prepare(world, grant)
    return world


def first_grant(situation: Situation) -> Grant:
    """Return the grant of a first claim, equal in every world because all clocks start at the same time."""
    if situation.name not in _GRANTS:
        world = MemoryWorld()
        [verdict] = world.do(partial(world.store.claim, (attempt(nonce=1, policy=situation.policy),)))
        assert isinstance(verdict, Proceed)
        _GRANTS[situation.name] = verdict.grant
    return _GRANTS[situation.name]


_GRANTS: Final[dict[str, Grant]] = {}
