"""The invariants, each with the tests that try to break it."""

from __future__ import annotations

from typing import Final, NamedTuple

from guarantee_pages.markdown import table
from guarantee_pages.named_tests import link_to


class Invariant(NamedTuple):
    """A promise, and the tests that try to break it: ``file::test``, or the name of a conformance case."""

    name: str
    promise: str
    tests: tuple[str, ...]


INVARIANTS: Final = (
    Invariant(
        "I1 one effect",
        "An ATOMIC key has at most one committed effect, whatever crashes.",
        (
            "tests/crash/test_kill.py::test_kills_at_every_statement",
            "tests/crash/test_crowd.py::test_one_effect_and_one_answer",
            "tests/processes/test_system_calls.py::test_killed_at_every_system_call",
        ),
    ),
    Invariant(
        "I2 one answer",
        "Once a client has a final answer, every replay is that answer until its retention ends.",
        (
            "tests/crash/test_kill.py::test_kills",
            "tests/stores/test_interleavings.py::test_two_callers_have_one_effect_and_one_answer",
            "an_answer_is_replayed_as_it_was",
        ),
    ),
    Invariant(
        "I3 fenced",
        "Nothing that a superseded holder writes takes effect.",
        (
            "tests/crash/test_pause.py::test_an_idempotent_holder_is_superseded",
            "tests/processes/test_heartbeat.py::test_an_idempotent_holder_is_superseded",
            "tests/stores/test_interleavings.py::test_a_takeover_a_late_settlement_and_a_renewal",
            "a_superseded_holder_writes_nothing",
        ),
    ),
    Invariant(
        "I4 no blind rerun",
        "An EXTERNAL handler runs again for its key only after a settlement that nothing had happened. One "
        "with steps continues, and never repeats a finished step, whatever is settled about the others.",
        (
            "tests/steps/test_did_not_happen.py::test_a_finished_charge_is_never_made_again",
            "tests/crash/test_pause.py::test_an_external_holders_outcome_counts_until_an_operator_settles",
            "tests/crash/test_kill.py::test_kills",
            "a_lapsed_external_command_is_never_run_again",
        ),
    ),
    Invariant(
        "I5 no leak",
        "No caller learns of another caller's keys or answers, and sessions and credentials are not stored.",
        (
            "tests/web/test_commands.py::test_two_callers_never_see_each_other",
            "tests/web/test_commands.py::test_no_session_and_no_credential_reaches_the_store",
            "keys_of_different_scopes_never_meet",
        ),
    ),
    Invariant(
        "I6 progress",
        "A key blocked for longer than its lease reads UNKNOWN and is visible to operators, a second later at most; "
        "dead processes add their [turns](operating.md#the-reaper).",
        (
            "tests/worker/test_reaper.py::test_a_lapse_is_visible_within_the_lease_and_one_second",
            "tests/crash/test_kill.py::test_kills",
            "a_lapse_makes_the_unknown_visible",
        ),
    ),
    Invariant(
        "I7 loud misuse",
        "A different request under a used key is refused in every state.",
        (
            "tests/web/test_commands.py::test_another_payload_is_refused_with_the_state_of_the_first",
            "another_request_is_refused_in_every_state",
            "two_requests_race_for_one_key",
        ),
    ),
    Invariant(
        "I8 events",
        "An event is published at least once if its transaction was committed, never if it was not, and always under "
        "the same id.",
        (
            "tests/outbox/test_kills.py::test_two_relays_are_killed_again_and_again_while_commands_commit",
            "tests/outbox/test_kills.py::test_after_a_relay_dies_between_publish_and_mark_another_publishes_again",
            "tests/outbox/test_emit.py::test_a_crash_at_every_ask_leaves_the_event_iff_the_command_succeeded",
        ),
    ),
)


def invariants() -> str:
    """The invariants with the tests that try to break them."""
    rows = (
        (f"**{found.name}**", found.promise, "<br>".join(link_to(name) for name in found.tests)) for found in INVARIANTS
    )
    return table(("invariant", "what it promises", "tests that try to break it"), rows)
