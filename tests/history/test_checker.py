"""The checker's own proof: what really happened always passes, what cannot have happened never does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import permutations, product

import pytest

from semel.core import decide
from tests.history.lines import ask, say
from tests.history.stories import NOBODY_DIED, Story
from verification.history.check import check, smallest
from verification.history.linear import Linear, Stuck, Undecided, linearize
from verification.history.reading import NEVER, Effect, History, Operation
from verification.history.standing import NEW, step

SEEDS = range(400)
EFFECTS = ("external", "idempotent")
Mutation = Callable[[list[Operation], random.Random], bool]


def story(seed: int, operations: int = 30) -> list[Operation]:
    return Story(seed, EFFECTS[seed % 2], operations=operations).tell()


def copy(op: Operation) -> Operation:
    twin = Operation(op.process, op.number, op.kind, op.key, op.by, op.start_ns, dict(op.args))
    twin.end_ns, twin.gave_up = op.end_ns, op.gave_up
    twin.result = None if op.result is None else dict(op.result)
    return twin


def rows_of(operations: list[Operation]) -> list[tuple[object, ...]]:
    return [(op.process, op.kind, op.start_ns, op.end_ns, op.args, op.result) for op in operations]


@pytest.mark.parametrize("clients", [1, 2, 4, 8])
def test_a_real_history_passes(clients: int) -> None:
    """With one client the history is a sequence; with eight, most calls overlap."""
    for seed in SEEDS:
        operations = Story(seed, EFFECTS[seed % 2], operations=30, clients=clients).tell()
        assert isinstance(linearize(operations, NOBODY_DIED), Linear), seed


# --- what cannot have happened ---


def final_before(operations: list[Operation], op: Operation) -> Operation | None:
    """A settlement that had certainly ended the record before this operation began."""
    for other in operations:
        ended = other.kind == "settle" and other.args["state"] == "succeeded" and other.end_ns < op.start_ns
        if ended and other.result == {"settling": "settled"}:
            return other
    return None


def replays(operations: list[Operation]) -> list[Operation]:
    return [
        op
        for op in operations
        if op.kind == "attempt"
        and op.result is not None
        and op.result["verdict"] == "replay"
        and final_before(operations, op)
    ]


def double_win(operations: list[Operation], rng: random.Random) -> bool:
    """A command that had been done is granted again."""
    found = replays(operations)
    if found:
        rng.choice(found).result = {"verdict": "proceed", "fence": NEVER, "generation": 0}
    return bool(found)


def changed_answer(operations: list[Operation], rng: random.Random) -> bool:
    """A replay gives another answer than the first."""
    found = replays(operations)
    if found:
        result = rng.choice(found).result
        assert result is not None
        result["answer"] = "0" * 32
    return bool(found)


def lost_settlement(operations: list[Operation], rng: random.Random) -> bool:
    """An acknowledged end is gone: the key is busy, or unknown, or was never there."""
    found = replays(operations)
    if found:
        rng.choice(found).result = {"verdict": rng.choice(["in-progress", "outcome-unknown"])}
    return bool(found)


def vanished_record(operations: list[Operation], rng: random.Random) -> bool:
    """A look at a record that had certainly been done finds none."""
    found = [op for op in operations if op.kind == "read" and op.result and final_before(operations, op)]
    if found:
        rng.choice(found).result = {"state": None}
    return bool(found)


def other_payload(operations: list[Operation], rng: random.Random) -> bool:
    """Another payload gets the answer."""
    found = replays(operations)
    if found:
        rng.choice(found).args["request"] = "ffffffffffffffff"
    return bool(found)


SPOKEN = ("succeeded", "refused", "unknown")


def unfenced_write(operations: list[Operation], rng: random.Random) -> bool:
    """The store replies to a superseded holder that it wrote the settlement."""
    found = [
        op
        for op in operations
        if op.kind == "settle" and op.result == {"settling": "superseded"} and op.args["state"] in SPOKEN
        if any(
            other.kind == "attempt"
            and other.result is not None
            and other.result.get("fence", 0) > op.args["fence"]
            and other.end_ns < op.start_ns
            for other in operations
        )
    ]
    if found:
        rng.choice(found).result = {"settling": "settled"}
    return bool(found)


def stale_fence(operations: list[Operation], rng: random.Random) -> bool:
    """A later grant has no higher fence than an earlier one."""
    grants = [op for op in operations if op.result is not None and "fence" in op.result and op.kind == "attempt"]
    later = [op for op in grants if any(other.end_ns < op.start_ns for other in grants)]
    settled = {op.args["fence"] for op in operations if op.kind == "settle"}
    later = [op for op in later if op.result is not None and op.result["fence"] not in settled]
    if later:
        rng.choice(later).result = {"verdict": "proceed", "fence": 1, "generation": 0}
    return bool(later)


MUTATIONS: list[Mutation] = [
    double_win,
    changed_answer,
    lost_settlement,
    vanished_record,
    other_payload,
    unfenced_write,
    stale_fence,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_an_impossible_history_never_passes(mutation: Mutation) -> None:
    tried = 0
    for seed in SEEDS:
        operations = [copy(op) for op in story(seed)]
        if mutation(operations, random.Random(seed)):
            tried += 1
            found = linearize(operations, NOBODY_DIED)
            assert isinstance(found, Stuck), (seed, rows_of(operations))
    print(f"{mutation.__name__}: {tried} histories")
    assert tried >= 10


# --- stores that break a promise ---


def remove_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any holder may settle."""
    monkeypatch.setattr("semel.core.settle.holds", lambda row, fence, nonce: row is not None)


def blind_rerun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lapsed EXTERNAL command is simply run again."""
    proceeds = decide.TABLE[decide.Situation.IDEMPOTENT_LAPSED]
    monkeypatch.setitem(decide.TABLE, decide.Situation.EXTERNAL_LAPSED, proceeds)


def deaf_to_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint is not compared."""
    real = decide.situation
    monkeypatch.setattr(
        "semel.core.decide.situation",
        lambda row, claim, now, **known: real(
            row, claim if row is None else claim._replace(fingerprint=row.fingerprint), now, **known
        ),
    )


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store forget ended commands after a while and grant them again."""
    monkeypatch.setattr("semel.core.settle.retention", lambda now, answer, tombstone: (now + 1000, now + 1000))
    monkeypatch.setitem(decide.TABLE, decide.Situation.EXPIRED, decide.TABLE[decide.Situation.EXPIRED_NEW])


@pytest.mark.parametrize(
    "plant", [remove_fence, blind_rerun, deaf_to_payloads, forgetful], ids=lambda plant: plant.__name__
)
def test_a_store_that_breaks_a_promise_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = sum(isinstance(linearize(story(seed), NOBODY_DIED), Stuck) for seed in SEEDS)
    print(f"{plant.__name__}: found in {found} of {len(SEEDS)} histories")
    assert found >= 10


# --- the search, compared with trying every order ---


def brute_force(operations: list[Operation]) -> bool:
    """Every order of every choice of the unanswered ones."""
    closed = [op for op in operations if op.result is not None]
    opened = [op for op in operations if op.result is None and op.kind not in ("read", "look")]
    for chosen in product((False, True), repeat=len(opened)):
        some = closed + [op for op, took_effect in zip(opened, chosen, strict=True) if took_effect]
        if any(in_time(order) and walk(order) for order in permutations(some)):
            return True
    return False


def in_time(order: tuple[Operation, ...]) -> bool:
    return all(not later.end_ns < op.start_ns for place, op in enumerate(order) for later in order[place + 1 :])


def walk(order: tuple[Operation, ...]) -> bool:
    at = NEW
    for op in order:
        after = step(at, op, NOBODY_DIED)
        if after is None:
            return False
        at = after
    return True


def nonsense(operations: list[Operation], rng: random.Random) -> None:
    """Give some operation the answer of another: often wrong, sometimes not."""
    told = [op for op in operations if op.result is not None and op.kind == "attempt"]
    if len(told) > 1:
        one, other = rng.sample(told, 2)
        one.result, other.result = other.result, one.result


def small_histories() -> Iterator[tuple[int, list[Operation]]]:
    for seed in range(1500):
        operations = [copy(op) for op in Story(seed, EFFECTS[seed % 2], operations=5, clients=4).tell()[:6]]
        if seed % 3:
            nonsense(operations, random.Random(seed))
        yield seed, operations


def test_the_search_agrees_with_trying_every_order() -> None:
    agreed = {True: 0, False: 0}
    for seed, operations in small_histories():
        found = isinstance(linearize(operations, NOBODY_DIED), Linear)
        assert found == brute_force(operations), (seed, rows_of(operations))
        agreed[found] += 1
    print(agreed)
    assert min(agreed.values()) >= 100


# --- reports ---


def test_a_violation_is_reduced_to_its_smallest_history() -> None:
    operations = [copy(one) for one in story(8, operations=60)]
    assert double_win(operations, random.Random(8))
    found = linearize(operations, NOBODY_DIED)
    assert isinstance(found, Stuck)

    fewer, again = smallest(operations, found, NOBODY_DIED, 10_000)

    assert isinstance(again, Stuck)
    assert len(fewer) < len(operations) / 2
    assert any(one.result == {"verdict": "proceed", "fence": NEVER, "generation": 0} for one in fewer)


def test_a_key_with_too_many_operations_is_reported_as_undecided() -> None:
    history = History()
    history.keys["ab"] = [ask(place, place * 10, place * 10 + 1, "reused") for place in range(11)]
    report = check(history, operations_per_key_max=10)
    assert not report.ok
    assert report.undecided == ["key ab: 11 operations, more than 10"]


def test_a_search_that_remembers_too_much_is_given_up() -> None:
    granted = [ask(place, 0, 100, "proceed", "idempotent", to_fence=5 + place) for place in range(6)]
    assert isinstance(linearize(granted, NOBODY_DIED, places_max=3), Undecided)


def effect(effects: str = "external", answer: str = "a1", derived: str = "d", generation: int = 0) -> Effect:
    return Effect("ab", effects, generation, derived, answer, 5)


DONE = (ask(0, 0, 1, "proceed", to_fence=5), say(1, 2, 3, 5))
RELEASED = say(1, 2, 3, 5, "released", answer=None)
DOUBLE: list[tuple[str, list[Operation], list[Effect]]] = [
    ("", [*DONE], [effect()]),
    ("two-effects", [*DONE], [effect(), effect(answer="a2")]),
    ("two-effects", [ask(0, 0, 1, "proceed", "atomic", to_fence=5)], [effect("atomic"), effect("atomic")]),
    ("", [DONE[0], RELEASED, ask(2, 4, 5, "proceed", to_fence=6)], [effect(), effect(answer="a2")]),
    ("", [ask(0, 0, 1, "proceed", "idempotent", to_fence=5)], [effect("idempotent"), effect("idempotent")]),
    ("derived-keys-differ", [], [effect("idempotent"), effect("idempotent", derived="e")]),
    ("", [], [effect("idempotent"), effect("idempotent", derived="e", generation=1)]),
    ("answer-without-effect", [*DONE], [effect(answer="a2")]),
    ("changed-answer", [*DONE, ask(2, 9, 10, "replay", to_state="succeeded", to_answer="a2")], []),
]


@pytest.mark.parametrize(("kind", "operations", "effects"), DOUBLE)
def test_effects_that_contradict_answers_are_violations(
    kind: str, operations: list[Operation], effects: list[Effect]
) -> None:
    history = History(effects=effects)
    history.keys["ab"] = operations
    assert {one.kind for one in check(history).violations} - {"not-linearizable"} == ({kind} if kind else set())
