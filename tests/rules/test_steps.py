"""The list of steps, and what a later run may do with each: pure, against expectations written by hand."""

from __future__ import annotations

import hashlib

import pytest

from semel import Answer
from semel.core.decide import decide
from semel.core.model import Proceed, Record, Resolution, State
from semel.core.outcomes import Outcome, Refused, Released, Succeeded, Unprovable
from semel.errors import ResolveRefused, StepError
from semel.steps.doubts import UNREADABLE
from semel.steps.findings import apply_finding, steps_after
from semel.steps.rules import (
    STEPS_BYTES_MAX,
    STEPS_MAX,
    BeginStep,
    DoubtfulStep,
    Finished,
    Met,
    Step,
    Steps,
    Unpackable,
    check_name,
    meet,
    outcome_after,
    pack_steps,
    put,
    standing,
    unpack_steps,
    with_result,
    without,
)
from semel.stores.memory.store import grant_row
from semel.testing.attempts import attempt

HOUR = 3_600_000_000
CHARGE = Step("charge", 0, started_at=1_000, repeatable=False)
DONE = CHARGE._replace(finished=True, result=b'"ch_1"')
MAIL = Step("mail", 0, started_at=2_000, repeatable=True)


DAMAGED = "^the list of steps is damaged$"


def test_a_list_is_read_as_it_was_written() -> None:
    steps = (
        DONE,
        MAIL,
        Step("ümlaut", 2**31 - 1, started_at=-1, repeatable=True, finished=True, result=b"\0" * 70_000),
    )
    assert unpack_steps(pack_steps(3, steps), 3) == steps
    assert unpack_steps(pack_steps(3, ()), 3) == unpack_steps(None, 3) == ()


def test_steps_of_another_generation_are_ignored() -> None:
    assert unpack_steps(pack_steps(0, (DONE,)), 1) == ()


@pytest.mark.parametrize("place", [0, 1, 8, 20, -1])
def test_a_flipped_bit_is_seen(place: int) -> None:
    stored = bytearray(pack_steps(0, (DONE, MAIL)))
    stored[place] ^= 1
    with pytest.raises(Unpackable, match=DAMAGED):
        unpack_steps(bytes(stored), 0)


def test_an_invalid_list_is_refused() -> None:
    """SQLite keeps a value of any type in any column; and what is sealed well may still be cut short inside."""
    half = pack_steps(0, (DONE, MAIL))[:-20]
    for stored in (
        "text",
        7,
        b"",
        half + hashlib.sha256(half).digest()[:8],
        b"\1" + hashlib.sha256(b"\1").digest()[:8],
    ):
        with pytest.raises(Unpackable, match=DAMAGED):
            unpack_steps(stored, 0)


def test_steps_of_a_newer_version_are_refused() -> None:
    newer = b"\x02" + pack_steps(0, (DONE,))[1:-8]
    with pytest.raises(Unpackable, match="format 2"):
        unpack_steps(newer + hashlib.sha256(newer).digest()[:8], 0)


def test_only_an_unfinished_step_that_may_not_be_repeated_makes_a_lapse_unknown() -> None:
    assert standing(()) == standing((DONE,)) == standing((DONE, MAIL)) == (State.CLAIMED, None)
    assert standing((CHARGE, MAIL)) == (State.PROCESSING, "step:charge")
    assert standing((CHARGE._replace(ordinal=2),)) == (State.PROCESSING, "step:charge#2")


NOW = 5_000
MEETINGS: list[tuple[str, Steps, Step, Met | type]] = [
    ("never recorded", (), CHARGE, BeginStep(CHARGE)),
    ("finished", (DONE,), CHARGE, Finished(b'"ch_1"')),
    ("finished, now declared otherwise", (DONE,), CHARGE._replace(repeatable=True), Finished(b'"ch_1"')),
    ("unfinished", (CHARGE,), CHARGE, DoubtfulStep),
    ("unfinished, and only now declared repeatable", (CHARGE,), CHARGE._replace(repeatable=True), DoubtfulStep),
    ("unfinished, repeatable", (MAIL,), MAIL._replace(started_at=NOW), BeginStep(MAIL)),
    ("unfinished, repeatable no more", (MAIL,), MAIL._replace(repeatable=False), DoubtfulStep),
    ("unfinished, just in time", (MAIL,), MAIL._replace(started_at=2_000 + HOUR - 1), BeginStep(MAIL)),
    ("unfinished, too late", (MAIL,), MAIL._replace(started_at=2_000 + HOUR), DoubtfulStep),
    ("another one was not asked for", (DONE,), MAIL, StepError),
    ("another one under way was not asked for", (MAIL,), CHARGE, StepError),
]


@pytest.mark.parametrize("meeting", MEETINGS, ids=lambda meeting: meeting[0])
def test_a_later_run_meets_the_recorded_steps(meeting: tuple[str, Steps, Step, Met | type]) -> None:
    _, recorded, want, expected = meeting
    if expected is StepError:
        with pytest.raises(StepError) as refused:
            meet(recorded, (), want, HOUR)
        assert str(refused.value).endswith(
            "which this run has not called: were the steps renamed or reordered? Finish open commands with the "
            "previous code, or call the recorded steps first, in their order"
        )
        return
    met = meet(recorded, (), want, HOUR)
    if expected is DoubtfulStep:
        assert isinstance(met, DoubtfulStep)
        assert met.why.startswith(f"step '{want.name}' had begun, and i")
        assert met.doubt == f"step:{want.name}"
    else:
        assert met == expected


@pytest.mark.parametrize(
    ("known", "want", "why"),
    [
        (CHARGE, CHARGE, "it is not declared with repeat=True"),
        (MAIL, MAIL._replace(repeatable=False), "it was declared with repeat=True, and is not any more"),
        (
            MAIL,
            MAIL._replace(started_at=2_000 + HOUR),
            "its first start is longer ago than the downstream deduplicates (dedup_for_seconds)",
        ),
    ],
)
def test_a_step_that_may_not_be_repeated_names_the_reason(known: Step, want: Step, why: str) -> None:
    assert meet((known,), (), want, HOUR) == DoubtfulStep(
        f"step:{known.name}", f"step {known.name!r} had begun, and {why}"
    )


def test_a_repeated_step_keeps_its_first_start() -> None:
    """Or its downstream would have forgotten the key while it is still believed to know it."""
    met = meet((MAIL,), (), MAIL._replace(started_at=NOW), HOUR)
    assert isinstance(met, BeginStep)
    assert met.step.started_at == MAIL.started_at


def test_a_name_is_used_once_in_a_run() -> None:
    with pytest.raises(StepError, match="ordinal=1"):
        meet((DONE,), {DONE.identity}, CHARGE, HOUR)
    assert meet((DONE,), {DONE.identity}, CHARGE._replace(ordinal=1), HOUR) == BeginStep(CHARGE._replace(ordinal=1))


def test_there_is_a_limit_to_steps_and_to_their_results() -> None:
    full = tuple(Step(f"s{n}", 0, 0, repeatable=False, finished=True) for n in range(STEPS_MAX))
    assert meet(full[:-1], {step.identity for step in full}, CHARGE, HOUR) == BeginStep(CHARGE)
    with pytest.raises(
        StepError, match=r"would be one more\. Put several into one step, or make a command of each part$"
    ):
        meet(full, {step.identity for step in full}, CHARGE, HOUR)
    room = STEPS_BYTES_MAX - (len(pack_steps(0, (CHARGE, DONE._replace(ordinal=1)))) - 8)
    assert with_result((CHARGE, DONE._replace(ordinal=1)), CHARGE, b"x" * room)[0].finished
    with pytest.raises(StepError, match=f"its result of {room + 1} bytes cannot be recorded"):
        with_result((CHARGE, DONE._replace(ordinal=1)), CHARGE, b"x" * (room + 1))
    with pytest.raises(StepError, match="cannot be recorded"):
        with_result((CHARGE,), CHARGE, b"x" * STEPS_BYTES_MAX)


@pytest.mark.parametrize(
    ("name", "ordinal", "told"),
    [
        ("", 0, r"needs a name, such as permit\.step\('charge', call\); it is ''"),
        (7, 0, "needs a name, .* it is 7"),
        ("x" * 101, 0, "must have at most 100 bytes; it has 101"),
        ("ü" * 51, 0, "it has 102"),
        ("\ud800", 0, r"must be valid Unicode; it is '\\ud800'"),
        *(
            ("x", wrong, f"'x' must be a whole number from 0 to {2**31 - 1}; it is {wrong!r}")
            for wrong in (-1, True, 1.0)
        ),
        ("x", 2**31, f"it is {2**31}"),
    ],
)
def test_an_invalid_step_name_is_refused(name: object, ordinal: object, told: str) -> None:
    with pytest.raises(StepError, match=told):
        check_name(name, ordinal)


def test_a_valid_step_name_is_accepted() -> None:
    for name, ordinal in (("x", 0), ("x" * 100, 1), ("ü" * 50, 2**31 - 1)):
        check_name(name, ordinal)


OK = Answer(200, (), b"")
RELEASED, UNPROVABLE = Released("http-503", proven=True), Unprovable("error:ValueError")
ENDS: list[tuple[str, Steps, str | None, Outcome, Outcome]] = [
    ("nothing had begun", (), None, UNPROVABLE, Released("error:ValueError", proven=True)),
    ("nothing had begun, released", (), None, RELEASED, RELEASED),
    ("all finished", (DONE,), None, UNPROVABLE, Released("error:ValueError", proven=True, resumes=True)),
    ("repeatable", (DONE, MAIL), None, RELEASED, Released("http-503", proven=True, resumes=True)),
    ("one in doubt", (CHARGE,), None, UNPROVABLE, Unprovable("step:charge", "error:ValueError")),
    ("one in doubt, released", (CHARGE,), None, RELEASED, Unprovable("step:charge", "http-503")),
    ("one in doubt, and the handler knows", (CHARGE,), None, Refused(OK), Refused(OK)),
    ("one was refused", (), "step:mail", UNPROVABLE, Unprovable("step:mail", "error:ValueError")),
    ("one was refused, and the handler went on", (), "step:mail", Succeeded(OK), Unprovable("step:mail", "answered")),
    ("the list cannot be read", (), UNREADABLE, UNPROVABLE, Unprovable(UNREADABLE, "error:ValueError")),
    ("one was dropped by the code", (MAIL,), None, Succeeded(OK), Unprovable("step:mail", "answered")),
    ("answered", (DONE,), None, Succeeded(OK), Succeeded(OK)),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end[0])
def test_the_outcome_of_a_run_follows_from_its_steps(end: tuple[str, Steps, str | None, Outcome, Outcome]) -> None:
    _, recorded, doubt, given, expected = end
    meant = outcome_after(given, recorded, (), doubt, first=True)
    assert meant == expected
    assert outcome_after(meant, recorded, (), doubt, first=True) == meant  # a repetition means the same


def test_a_later_run_without_steps_does_not_prove_that_nothing_happened() -> None:
    assert outcome_after(RELEASED, (), (), None, first=False) == Released("http-503", proven=True, resumes=True)


def test_a_step_is_replaced_in_the_list() -> None:
    assert put((CHARGE, MAIL), DONE) == (DONE, MAIL)
    assert without((CHARGE, MAIL), MAIL.identity) == (CHARGE,)
    assert without((CHARGE, DONE._replace(name="ship"), MAIL), MAIL.identity) == (CHARGE, DONE._replace(name="ship"))
    assert without((), MAIL.identity) == ()


# --- a step that is known not to have happened ------------------------------------------------

GONE = CHARGE._replace(disproved=True)


def test_a_step_that_did_not_happen_keeps_its_place_without_doubt() -> None:
    assert without((CHARGE, MAIL), CHARGE.identity) == (GONE, MAIL)
    assert unpack_steps(pack_steps(3, (GONE, MAIL)), 3) == (GONE, MAIL)
    assert standing((GONE, MAIL)) == (State.CLAIMED, None)
    assert standing((GONE, CHARGE._replace(ordinal=1))) == (State.PROCESSING, "step:charge#1")


def test_a_step_that_did_not_happen_begins_as_declared_now() -> None:
    later = CHARGE._replace(started_at=HOUR, repeatable=True)
    assert meet((GONE, MAIL), (), later, HOUR) == BeginStep(later)


def test_a_step_that_did_not_happen_need_not_be_called_again() -> None:
    assert meet((DONE, GONE._replace(name="ship")), {DONE.identity}, MAIL, HOUR) == BeginStep(MAIL)
    answered = Succeeded(Answer(201, (), b""))
    assert outcome_after(answered, (DONE, GONE._replace(name="ship")), {DONE.identity}, None, first=False) == answered


def test_the_key_is_free_if_no_other_step_has_begun() -> None:
    assert outcome_after(RELEASED, (GONE,), (), None, first=True) == outcome_after(RELEASED, (), (), None, first=True)
    resumes = Released("http-503", proven=True, resumes=True)
    assert outcome_after(RELEASED, (GONE, DONE), (), None, first=True) == resumes


FOUND: list[tuple[str, Steps, bytes | None, Steps]] = [
    ("it did not happen", (DONE, MAIL, CHARGE._replace(ordinal=1)), None, (DONE, MAIL, GONE._replace(ordinal=1))),
    ("its start was never written", (DONE, MAIL), None, (DONE, MAIL)),
    ("it is recorded as finished", (DONE._replace(ordinal=1),), None, (DONE._replace(ordinal=1),)),
    ("it happened", (CHARGE._replace(ordinal=1),), b'"ch_1"', (DONE._replace(ordinal=1),)),
    ("it happened, and was found to have", (DONE._replace(ordinal=1),), b'"ch_2"', (DONE._replace(ordinal=1),)),
]


@pytest.mark.parametrize("finding", FOUND, ids=[each[0] for each in FOUND])
def test_the_list_after_a_finding(finding: tuple[str, Steps, bytes | None, Steps]) -> None:
    _, recorded, result, expected = finding
    assert apply_finding(recorded, "step:charge#1", result) == expected


def test_a_step_without_a_start_has_not_finished() -> None:
    with pytest.raises(ResolveRefused, match="no start of step 'charge#1' is recorded"):
        apply_finding((DONE,), "step:charge#1", b'"ch_1"')
    with pytest.raises(StepError, match="cannot be recorded"):
        apply_finding((CHARGE,), "step:charge", b"x" * STEPS_BYTES_MAX)


# --- what a finding makes of the list -----------------------------------------------------------


def unknown(doubt: str | None = "step:charge", state: State = State.UNKNOWN) -> Record:
    verdict = decide(None, attempt(), HOUR)
    assert isinstance(verdict, Proceed)
    return grant_row(None, attempt(), verdict.grant)._replace(state=state, doubt=doubt)


def resolution_of(row: Record, happened: bool = False, result: bytes | None = None, fence: int = 0) -> Resolution:
    return Resolution(row.id, row.fence + fence, happened, None, "olga", "why", result=result)


@pytest.mark.parametrize(
    ("doubt", "listed", "happened", "result", "left"),
    [
        ("step:charge", (DONE._replace(name="a"), CHARGE), False, None, (DONE._replace(name="a"), GONE)),
        ("step:charge", (CHARGE,), True, b'"ch_1"', (DONE,)),
        ("step:charge", (CHARGE,), True, None, None),  # a resolution of the whole execution
        ("step:charge", (), False, None, ()),
        ("attempts-over", (DONE,), False, None, (DONE,)),
        ("attempts-over", (), False, None, None),
    ],
)
def test_a_resolution_updates_the_list_of_steps(
    doubt: str, listed: Steps, happened: bool, result: bytes | None, left: Steps | None
) -> None:
    row = unknown(doubt)
    assert steps_after(row, resolution_of(row, happened, result), pack_steps(0, listed), HOUR) == left
    running = row._replace(state=State.PROCESSING)  # lapsed, and not marked yet
    assert steps_after(running, resolution_of(running, happened, result), pack_steps(0, listed), HOUR) == left


def test_a_record_that_moved_on_keeps_its_list() -> None:
    row, listed = unknown(), pack_steps(0, (CHARGE,))
    assert steps_after(None, resolution_of(row), listed, HOUR) is None
    assert steps_after(row, resolution_of(row, fence=1), listed, HOUR) is None
    assert steps_after(row._replace(lease_until=1 << 60), resolution_of(row), listed, HOUR) is None
    for state in (State.CLAIMED, State.SUCCEEDED, State.FAILED_NOT_REPLAYABLE):
        assert steps_after(row._replace(state=state), resolution_of(row), listed, HOUR) is None


def test_a_list_that_cannot_be_read_is_settled_as_a_whole_only() -> None:
    row = unknown()
    told = (
        "the list of steps is damaged, so that it is not known which steps have finished, and a retry might make them "
        "again; settle the whole command as succeeded, with an answer that tells the client how it ended"
    )
    with pytest.raises(ResolveRefused, match=f"^{told}$"):
        steps_after(row, resolution_of(row), b"damaged", HOUR)
    assert steps_after(row, resolution_of(row, happened=True), b"damaged", HOUR) is None
