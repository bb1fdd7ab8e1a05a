"""The checker's own proof: what really happened always passes, what cannot have happened never does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product

import pytest

from semel.rules import decide
from semel.rules.lease import Retention
from semel.testing.history.check import check, judged, smallest
from semel.testing.history.linear import Finding, Linear, Stuck, Undecided, linearize
from semel.testing.history.reading import NEVER, Effect, History, Operation
from semel.testing.history.standing import NEW, Terms, step
from tests.history.stories import NOBODY_DIED, Story

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


def shown(operations: list[Operation]) -> list[tuple[object, ...]]:
    return [(op.process, op.kind, op.start_ns, op.end_ns, op.args, op.result) for op in operations]


@pytest.mark.parametrize("clients", [1, 2, 4, 8])
def test_what_really_happened_passes(clients: int) -> None:
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
    """Somebody is granted a command that had been done."""
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
    """A holder that was superseded before it spoke is told that its word stands."""
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
def test_what_cannot_have_happened_never_passes(mutation: Mutation) -> None:
    tried = 0
    for seed in SEEDS:
        operations = [copy(op) for op in story(seed)]
        if mutation(operations, random.Random(seed)):
            tried += 1
            found = linearize(operations, NOBODY_DIED)
            assert isinstance(found, Stuck), (seed, shown(operations))
    print(f"{mutation.__name__}: {tried} histories")
    assert tried >= 10


# --- stores that break a promise ---


def unfenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever speaks is believed."""
    monkeypatch.setattr("semel.rules.settle.holds", lambda row, fence, nonce: row is not None)


def blind_rerun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lapsed EXTERNAL command is simply run again."""
    monkeypatch.setattr("semel.rules.decide.lapsed_situation", lambda row, now: decide.Situation.IDEMPOTENT_LAPSED)


def deaf_to_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint is not compared."""
    real = decide.situation
    monkeypatch.setattr(
        "semel.rules.decide.situation",
        lambda row, claim, now: real(row, claim if row is None else claim._replace(fingerprint=row.fingerprint), now),
    )


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What had ended is granted anew after a while."""
    monkeypatch.setattr(
        "semel.rules.settle.retention", lambda now, answer, tombstone: Retention(now + 1000, now + 1000)
    )
    monkeypatch.setitem(decide.TABLE, decide.Situation.EXPIRED, decide.TABLE[decide.Situation.EXPIRED_NEW])


@pytest.mark.parametrize(
    "plant", [unfenced, blind_rerun, deaf_to_payloads, forgetful], ids=lambda plant: plant.__name__
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
        assert found == brute_force(operations), (seed, shown(operations))
        agreed[found] += 1
    print(agreed)
    assert min(agreed.values()) >= 100


# --- single promises that random histories seldom reach ---


def op(
    number: int, start: int, end: int | None, kind: str, process: str = "p", gave_up: str | None = None, **words: object
) -> Operation:
    """An operation between two times in milliseconds; ``to_*`` is what it was told."""
    told = {name.removeprefix("to_"): value for name, value in words.items() if name.startswith("to_")}
    asked = {name: value for name, value in words.items() if not name.startswith("to_")}
    made = Operation(process, number, kind, "ab", 1, start * 1_000_000, asked)
    made.gave_up = gave_up
    if end is not None:
        made.end_ns, made.result = end * 1_000_000, told
    return made


def ask(
    number: int, start: int, end: int | None, verdict: str = "", effects: str = "external", **words: object
) -> Operation:
    terms = {"request": "aa", "effects": effects, "lease_us": 1_000_000, "attempts_max": 3}
    told = {"to_verdict": verdict} if end is not None else {}
    return op(number, start, end, "attempt", **{**terms, **told, **words})  # type: ignore[arg-type]


def say(number: int, start: int, end: int | None, fence: int, state: str = "succeeded", **words: object) -> Operation:
    asked = {"fence": fence, "effects": "external", "state": state, "kept": True, "answer": "a1"}
    told = {"to_settling": "settled"} if end is not None else {}
    return op(number, start, end, "settle", **{**asked, **told, **words})  # type: ignore[arg-type]


def judge(*operations: Operation, terms: Terms = NOBODY_DIED) -> type[Finding]:
    return type(linearize(judged(list(operations)), terms))


def test_an_idempotent_command_is_taken_over_after_its_lease_and_not_before() -> None:
    first = ask(0, 0, 1, "proceed", "idempotent", to_fence=5)
    assert judge(first, ask(1, 500, 900, "proceed", "idempotent", to_fence=6)) is Stuck
    assert judge(first, ask(1, 500, 1001, "proceed", "idempotent", to_fence=6)) is Linear
    unjudged = Terms({}, leases_judged=False)
    assert judge(first, ask(1, 500, 900, "proceed", "idempotent", to_fence=6), terms=unjudged) is Linear


def test_an_external_command_is_never_granted_twice() -> None:
    assert judge(ask(0, 0, 1, "proceed", to_fence=5), ask(1, 5000, 5001, "proceed", to_fence=6)) is Stuck
    died_in_its_claim = ask(0, 0, None)
    assert judge(died_in_its_claim, ask(1, 5000, 5001, "proceed", to_fence=6)) is Linear  # it was never written
    seen = ask(1, 5000, 5001, "outcome-unknown")
    assert judge(died_in_its_claim, seen, ask(2, 6000, 6001, "proceed", to_fence=6)) is Stuck


def test_a_claim_that_was_given_up_frees_its_key() -> None:
    given_up = ask(0, 0, None, gave_up="StoreTimeout")
    assert judge(given_up, ask(1, 2, 3, "in-progress"), ask(2, 4, 5, "proceed", to_fence=6)) is Linear


def test_a_refused_attempt_has_left_nothing() -> None:
    """What was recorded as failed is not there any more: a record that only it can have made is a violation."""
    assert judge(ask(1, 2, 3, "in-progress")) is Stuck


def test_nobody_is_kept_waiting_by_the_dead() -> None:
    died = Terms({"p": 10_000_000})
    first = ask(0, 0, 1, "proceed", to_fence=5)
    assert judge(first, ask(1, 900, 901, "in-progress"), terms=died) is Linear
    assert judge(first, ask(1, 1100, 1101, "in-progress"), terms=died) is Stuck
    assert judge(first, ask(1, 1100, 1101, "in-progress")) is Linear  # it lives, and renews


def test_an_unanswered_settlement_may_take_effect_much_later_or_never() -> None:
    history = [ask(0, 0, 1, "proceed", to_fence=5), say(1, 2, None, 5)]
    assert (
        judge(
            *history,
            ask(2, 2000, 2001, "outcome-unknown"),
            ask(3, 3000, 3001, "replay", to_state="succeeded", to_answer="a1"),
        )
        is Linear
    )
    assert judge(*history, ask(2, 9000, 9001, "outcome-unknown")) is Linear
    assert judge(*history, ask(2, 3000, 3001, "replay", to_state="succeeded", to_answer="a2")) is Stuck


def test_an_operator_decides_what_is_unknown_and_the_old_holder_is_refused() -> None:
    first = ask(0, 0, 1, "proceed", to_fence=5)
    decided = op(1, 2000, 2001, "resolve", fence=5, happened=False, answer=None, to_resolving="resolved")
    again = ask(2, 2002, 2003, "proceed", to_fence=9)
    assert judge(first, decided, again, say(3, 2004, 2005, 5, to_settling="superseded")) is Linear
    assert judge(first, decided, again, say(3, 2004, 2005, 5)) is Stuck


def test_an_atomic_command_that_was_rolled_back_was_never_there() -> None:
    first = ask(0, 0, 1, "proceed", "atomic", to_fence=5)
    again = ask(1, 5, 6, "proceed", "atomic", to_fence=6, request="bb", process="q")
    assert judge(first, again, say(2, 7, 8, 6, effects="atomic")) is Linear
    assert judge(first, again, say(2, 7, 8, 6, effects="atomic"), say(3, 9, 10, 5, effects="atomic")) is Stuck


def test_a_process_may_call_its_own_waiting_atomic_command_running() -> None:
    waiting = ask(0, 0, 9, "replay", "atomic", to_state="succeeded", to_answer="a1", process="p")
    elsewhere = [
        ask(1, 1, 2, "proceed", "atomic", to_fence=5, process="q"),
        say(2, 3, 4, 5, effects="atomic", process="q"),
    ]
    assert judge(waiting, *elsewhere, ask(3, 6, 7, "in-progress", "atomic", process="p")) is Linear
    assert judge(waiting, *elsewhere, ask(3, 6, 7, "in-progress", "atomic", process="r")) is Stuck


def test_a_record_locked_by_any_atomic_attempt_is_in_progress_where_records_have_locks() -> None:
    done = [
        ask(0, 0, 1, "proceed", "atomic", to_fence=5, process="p"),
        say(1, 2, 3, 5, effects="atomic", process="p"),
    ]
    waiting = ask(2, 4, 9, "replay", "atomic", to_state="succeeded", to_answer="a1", process="q")
    told = ask(3, 6, 7, "in-progress", "atomic", process="r")
    late = ask(3, 10, 12, "in-progress", "atomic", process="r")

    def locks(*operations: Operation, failed: Sequence[Operation] = (), **died: int) -> type[Finding]:
        return type(linearize(judged([*done, *operations], failed, died, row_locks=True), NOBODY_DIED))

    assert locks(waiting, told) is Linear
    assert locks(waiting, late) is Stuck
    assert locks(told) is Stuck
    assert locks(told, failed=[ask(2, 4, 9, "replay", "atomic", process="q")]) is Linear
    reused = ask(3, 6, 7, "reused", "atomic", process="r")
    assert locks(waiting, reused) is Stuck  # of the same request: nothing explains that
    killed = ask(2, 4, None, "", "atomic", process="q")
    assert locks(killed, ask(3, 1000, 1001, "in-progress", "atomic", process="r"), q=5_000_000) is Linear
    assert locks(killed, ask(3, 1010, 1011, "in-progress", "atomic", process="r"), q=5_000_000) is Stuck


def test_a_claim_that_is_not_committed_yet_hides_that_its_request_is_another() -> None:
    """Found on a Galera node that had lost another: a commit took two seconds, and the lock wait was over after one."""

    def locks(*operations: Operation, row_locks: bool = True, **died: int) -> type[Finding]:
        return type(linearize(judged([*operations], (), died, row_locks=row_locks), NOBODY_DIED))

    told = ask(0, 0, 5, "in-progress", process="p")
    slow = ask(1, 1, 6, "proceed", to_fence=5, request="bb", process="q")
    lost = ask(1, 1, None, "", request="bb", process="q")
    assert locks(told, slow) is Linear
    assert locks(told, lost) is Linear
    assert locks(told, slow, row_locks=False) is Stuck
    assert locks(told, ask(1, 6, 7, "proceed", to_fence=5, request="bb", process="q")) is Stuck
    assert locks(slow, ask(2, 7, 8, "in-progress", process="p")) is Stuck  # it is there to be seen


def test_a_server_that_hangs_in_a_claim_holds_the_lock_of_a_settled_record() -> None:
    """Found on Galera: its last node without a quorum answered two claims never, and a third after a second's wait."""

    def locks(*operations: Operation, row_locks: bool = True, **died: int) -> type[Finding]:
        done = (ask(0, 0, 1, "proceed", to_fence=5), say(1, 1, 2, 5, "succeeded"))
        return type(linearize(judged([*done, *operations], (), died, row_locks=row_locks), NOBODY_DIED))

    hangs = ask(2, 3, None, "", process="q")
    told = ask(3, 4, 9, "in-progress", process="p")
    assert locks(hangs, told) is Linear
    assert locks(hangs, told, row_locks=False) is Stuck
    assert locks(told) is Stuck
    answered = ask(2, 3, 5, "replay", to_state="succeeded", to_answer="a1", process="q")
    assert locks(answered, told) is Stuck
    assert locks(hangs, ask(3, 9000, 9001, "in-progress", process="p"), q=4_000_000) is Stuck


def test_an_atomic_refusal_whose_reply_was_lost_is_superseded_by_itself() -> None:
    refused = say(1, 2, 3, 5, "refused", effects="atomic", to_settling="superseded")
    first = ask(0, 0, 1, "proceed", "atomic", to_fence=5)
    assert judge(first, refused, ask(2, 4, 5, "replay", "atomic", to_state="refused", to_answer="a1")) is Linear
    assert judge(first, refused, ask(2, 4, 5, "replay", "atomic", to_state="refused", to_answer="b2")) is Stuck
    other = [ask(2, 4, 5, "proceed", "atomic", to_fence=6), say(3, 6, 7, 6, effects="atomic")]
    assert judge(first, refused, *other) is Linear


def test_a_process_tells_a_duplicate_what_its_own_granted_attempt_means() -> None:
    """Found by the lost replies of MariaDB: one that only waited made the rightful retry "reused"."""
    done = [ask(0, 0, 1, "proceed", "atomic", to_fence=5), say(1, 1, 2, 5, "succeeded", effects="atomic")]
    retry = ask(3, 4, 5, "reused", "atomic")
    hidden = ask(2, 3, 9, "in-progress", "atomic", request="bb")
    locks = ask(2, 3, 9, "reused", "atomic", request="bb", process="q")

    def judge_all(*operations: Operation) -> type[Finding]:
        return type(linearize(judged([*done, *operations], (), {}, row_locks=True), NOBODY_DIED))

    assert judge_all(locks, hidden) is Linear
    assert judge_all(locks, hidden, retry) is Stuck  # nobody knows yet that it is the other one's key
    assert judge_all(ask(2, 3, 9, "in-progress", "atomic", request="bb", process="q"), retry) is Stuck
    unseen = ask(2, 3, None, "", "atomic", request="bb")
    assert judge_all(unseen, retry) is Linear  # perhaps it was granted


@pytest.mark.parametrize("state", ["released", "given-back"])
def test_a_word_that_frees_the_record_may_meet_what_came_after_it(state: str) -> None:
    """Found by lost replies: released, granted to another, settled; then the repetition is told "superseded"."""
    first = ask(0, 0, 1, "proceed", to_fence=5)
    twice = say(1, 2, 9, 5, state, to_settling="superseded")
    other = [ask(2, 3, 4, "proceed", to_fence=6, process="q"), say(3, 5, 6, 6, process="q")]
    assert judge(first, twice, *other) is Linear
    assert judge(first, say(1, 2, 9, 5, "unknown", to_settling="superseded"), *other) is Stuck
    assert judge(first, say(1, 5, 9, 5, state, to_settling="superseded"), *other) is Stuck  # granted before it began


def test_an_operators_word_may_meet_itself_on_the_wire() -> None:
    """Found by lost replies: one of two settled it, its answer was lost, and both were told "moved on"."""
    doubt = [ask(0, 0, 1, "proceed", to_fence=5), say(1, 1, 2, 5, "unknown")]
    word = {"fence": 5, "happened": False, "answer": None, "to_resolving": "moved-on"}
    told = [op(number, 3, 4, "resolve", **word) for number in (2, 3)]  # type: ignore[arg-type]
    again = ask(4, 5, 6, "proceed", to_fence=7, to_generation=1)

    def by_wire(*operations: Operation, wire: bool = True) -> type[Finding]:
        return type(linearize(judged([*doubt, *operations], row_locks=wire), NOBODY_DIED))

    assert by_wire(*told, again) is Linear
    assert by_wire(*told, again, wire=False) is Stuck
    assert by_wire(again) is Stuck


def test_a_refusal_that_is_stored_late_is_of_its_own_request() -> None:
    """Found by the lost replies of PostgreSQL: another request was granted and released before it was stored."""
    first = ask(0, 0, 1, "proceed", "atomic", to_fence=5)
    stored = say(1, 2, 9, 5, "refused", effects="atomic")
    other = [
        ask(2, 3, 4, "proceed", "atomic", to_fence=6, request="bb", process="q"),
        say(3, 5, 6, 6, "released", effects="atomic", process="q"),
    ]
    assert judge(first, stored, *other, ask(4, 10, 11, "reused", "atomic", request="bb", process="q")) is Linear
    assert judge(first, stored, *other, ask(4, 10, 11, "reused", "atomic", process="q")) is Stuck


# --- reports ---


def test_the_smallest_part_that_shows_it_is_found() -> None:
    operations = [copy(one) for one in story(8, operations=60)]
    assert double_win(operations, random.Random(8))
    found = linearize(operations, NOBODY_DIED)
    assert isinstance(found, Stuck)

    fewer, again = smallest(operations, found, NOBODY_DIED, 10_000)

    assert isinstance(again, Stuck)
    assert len(fewer) < len(operations) / 2
    assert any(one.result == {"verdict": "proceed", "fence": NEVER, "generation": 0} for one in fewer)


def test_a_key_with_too_much_is_undecided_and_said_to_be() -> None:
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
def test_effects_and_answers(kind: str, operations: list[Operation], effects: list[Effect]) -> None:
    history = History(effects=effects)
    history.keys["ab"] = operations
    assert {one.kind for one in check(history).violations} - {"not-linearizable"} == ({kind} if kind else set())
