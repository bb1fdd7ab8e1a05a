"""Single promises that random histories seldom reach: what passes and what does not, one story each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.history.lines import ask, judge, op, say
from tests.history.stories import NOBODY_DIED
from verification.history.check import select_operations
from verification.history.linear import Finding, Linear, Stuck, linearize
from verification.history.reading import Operation
from verification.history.standing import Terms


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


def test_a_dead_holder_blocks_no_waiter() -> None:
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


def test_a_rolled_back_atomic_command_leaves_no_trace() -> None:
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
        return type(linearize(select_operations([*done, *operations], failed, died, row_locks=True), NOBODY_DIED))

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
        return type(linearize(select_operations([*operations], (), died, row_locks=row_locks), NOBODY_DIED))

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
        return type(linearize(select_operations([*done, *operations], (), died, row_locks=row_locks), NOBODY_DIED))

    hangs = ask(2, 3, None, "", process="q")
    told = ask(3, 4, 9, "in-progress", process="p")
    assert locks(hangs, told) is Linear
    assert locks(hangs, told, row_locks=False) is Stuck
    assert locks(told) is Stuck
    answered = ask(2, 3, 5, "replay", to_state="succeeded", to_answer="a1", process="q")
    assert locks(answered, told) is Stuck
    assert locks(hangs, ask(3, 9000, 9001, "in-progress", process="p"), q=4_000_000) is Stuck


def test_a_repeated_atomic_refusal_may_supersede_itself() -> None:
    refused = say(1, 2, 3, 5, "refused", effects="atomic", to_settling="superseded")
    first = ask(0, 0, 1, "proceed", "atomic", to_fence=5)
    assert judge(first, refused, ask(2, 4, 5, "replay", "atomic", to_state="refused", to_answer="a1")) is Linear
    assert judge(first, refused, ask(2, 4, 5, "replay", "atomic", to_state="refused", to_answer="b2")) is Stuck
    other = [ask(2, 4, 5, "proceed", "atomic", to_fence=6), say(3, 6, 7, 6, effects="atomic")]
    assert judge(first, refused, *other) is Linear


def test_a_process_may_answer_a_duplicate_from_its_own_grant() -> None:
    """Found by the lost replies of MariaDB: one that only waited made the rightful retry "reused"."""
    done = [ask(0, 0, 1, "proceed", "atomic", to_fence=5), say(1, 1, 2, 5, "succeeded", effects="atomic")]
    retry = ask(3, 4, 5, "reused", "atomic")
    hidden = ask(2, 3, 9, "in-progress", "atomic", request="bb")
    locks = ask(2, 3, 9, "reused", "atomic", request="bb", process="q")

    def judge_all(*operations: Operation) -> type[Finding]:
        return type(linearize(select_operations([*done, *operations], (), {}, row_locks=True), NOBODY_DIED))

    assert judge_all(locks, hidden) is Linear
    assert judge_all(locks, hidden, retry) is Stuck  # it is not known yet that the key is the other's
    assert judge_all(ask(2, 3, 9, "in-progress", "atomic", request="bb", process="q"), retry) is Stuck
    unseen = ask(2, 3, None, "", "atomic", request="bb")
    assert judge_all(unseen, retry) is Linear  # perhaps it was granted


@pytest.mark.parametrize("state", ["released", "given-back"])
def test_a_releasing_settlement_may_arrive_after_a_later_claim(state: str) -> None:
    """Found by lost replies: released, granted to another, settled; then the repetition gets "superseded"."""
    first = ask(0, 0, 1, "proceed", to_fence=5)
    twice = say(1, 2, 9, 5, state, to_settling="superseded")
    other = [ask(2, 3, 4, "proceed", to_fence=6, process="q"), say(3, 5, 6, 6, process="q")]
    assert judge(first, twice, *other) is Linear
    assert judge(first, say(1, 2, 9, 5, "unknown", to_settling="superseded"), *other) is Stuck
    assert judge(first, say(1, 5, 9, 5, state, to_settling="superseded"), *other) is Stuck  # granted before it began


def test_an_operators_resolution_may_arrive_twice() -> None:
    """Found by lost replies: one of two settled it, its answer was lost, and both got "moved on"."""
    doubt = [ask(0, 0, 1, "proceed", to_fence=5), say(1, 1, 2, 5, "unknown")]
    word = {"fence": 5, "happened": False, "answer": None, "to_resolving": "moved-on"}
    told = [op(number, 3, 4, "resolve", **word) for number in (2, 3)]  # type: ignore[arg-type]
    again = ask(4, 5, 6, "proceed", to_fence=7, to_generation=1)

    def by_wire(*operations: Operation, wire: bool = True) -> type[Finding]:
        return type(linearize(select_operations([*doubt, *operations], row_locks=wire), NOBODY_DIED))

    assert by_wire(*told, again) is Linear
    assert by_wire(*told, again, wire=False) is Stuck
    assert by_wire(again) is Stuck


def test_a_refusal_stored_late_belongs_to_its_own_request() -> None:
    """Found by the lost replies of PostgreSQL: another request was granted and released before it was stored."""
    first = ask(0, 0, 1, "proceed", "atomic", to_fence=5)
    stored = say(1, 2, 9, 5, "refused", effects="atomic")
    other = [
        ask(2, 3, 4, "proceed", "atomic", to_fence=6, request="bb", process="q"),
        say(3, 5, 6, 6, "released", effects="atomic", process="q"),
    ]
    assert judge(first, stored, *other, ask(4, 10, 11, "reused", "atomic", request="bb", process="q")) is Linear
    assert judge(first, stored, *other, ask(4, 10, 11, "reused", "atomic", process="q")) is Stuck
