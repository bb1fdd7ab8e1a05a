"""SIGSTOP past the lease: every superseded write is refused, and no truth is lost (I3, SCHEDULES 1.10 and 1.16)."""

from __future__ import annotations

from pathlib import Path

from semel import State
from tests.crash.pauses import BUSY_SECONDS, OPERATORS
from tests.crash.processes import run_script
from tests.crash.work import Folder, lines

IDEMPOTENT, EXTERNAL, ATOMIC = 44, 56, 2
PAUSES_MIN = 100
assert IDEMPOTENT + EXTERNAL + ATOMIC >= PAUSES_MIN  # each test asserts its own share
SUPERSEDED_BY_OPERATOR = ("told the-operator-found-it", "refused InProgressError")


def test_an_idempotent_holder_is_superseded(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.create()

    found = run_script("pauses", folder=str(tmp_path), effects="idempotent", count=IDEMPOTENT)

    assert len(found["told"]) == IDEMPOTENT
    assert found["after"] == found["before"]
    assert {state for state, _, _ in found["after"].values()} == {State.SUCCEEDED}
    for key, said in found["told"].items():
        # What leaves is what the store holds: the other one's answer. A loop's handler may be cancelled instead.
        assert said in (f"told {found['answers'][key]}", "refused CancelledError")
    assert all(len(derived) == 1 for derived in folder.derived_keys().values())
    assert folder.judge().operations >= 3 * IDEMPOTENT  # two attempts and a settlement each


def test_an_external_holders_outcome_counts_until_an_operator_settles(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.create()

    found = run_script("pauses", folder=str(tmp_path), effects="external", count=EXTERNAL)

    assert len(found["told"]) == EXTERNAL
    assert {state for state, _, _ in found["unknown"].values()} == {State.UNKNOWN}
    assert folder.effects_by_key() == dict.fromkeys(found["told"], 1)
    tokens = {key: token for key, _, token in lines(folder.ledger)}
    for key, said in found["told"].items():
        if key in found["resolved"]:
            assert found["after"][key] == found["before"][key]
            assert said in SUPERSEDED_BY_OPERATOR
        else:
            assert found["after"][key][0] == State.SUCCEEDED
            assert said == f"told {key}:{tokens[key]}"
            assert found["replays"][key] == f"{key}:{tokens[key]}"
    settled = {key: answer for key, answer in found["replays"].items() if key in found["resolved"]}
    assert settled == dict.fromkeys(settled, OPERATORS.body.decode())
    assert len(settled) == EXTERNAL / 4
    assert folder.judge().operations >= 4 * EXTERNAL  # an attempt, a settlement and two reads each


def test_a_paused_atomic_holder_stops_the_writers_only(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.create()

    found = run_script("pauses", folder=str(tmp_path), effects="atomic", count=ATOMIC)

    assert len(found["told"]) == ATOMIC
    assert all(said.startswith("told atomic-") for said in found["told"].values())
    assert folder.business() == dict.fromkeys(found["told"], 1)
    assert len(found["waits"]) == 2 * ATOMIC  # for a claim by statement and for an ATOMIC one
    assert all(BUSY_SECONDS * 0.9 < wait < BUSY_SECONDS + 1 for wait in found["waits"])
    assert len(found["replays"]) == 2 * ATOMIC
    assert all(seconds < BUSY_SECONDS / 2 for seconds in found["replays"])
    assert folder.judge().operations >= 2 * ATOMIC
