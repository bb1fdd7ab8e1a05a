"""SIGKILL at the n-th system call on the store's files, for every n: nothing doubled, nothing lost, no key stuck.

The counts are of SQLite's calls and differ a little from one version of it to the next; a run that reached less than
half of them would prove little, and fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel import State
from tests.processes.scenario import run_scenario

# What may be found after the kill, and what the same command then gets: at first and later.
REPLAYED = ("replayed", "replayed")
RAN = ("ran", "replayed")
UNKNOWN = ("OutcomeUnknownError", "OutcomeUnknownError")
Stages = dict[tuple[int | None, int], tuple[str, str]]
EXPECTED: dict[str, Stages] = {
    "external": {(None, 0): RAN, (State.PROCESSING, 0): UNKNOWN, (State.PROCESSING, 1): UNKNOWN},
    "idempotent": {(None, 0): RAN, (State.PROCESSING, 0): RAN, (State.PROCESSING, 1): RAN},
    "atomic": {(None, 0): RAN},  # the record is there with its effect and its answer, or not at all
}
DONE = (State.SUCCEEDED, 1)
CASES = [("sync", False), ("async", True)]


@pytest.mark.parametrize("effects", ["external", "idempotent", "atomic"])
@pytest.mark.parametrize(("style", "beside"), CASES, ids=["alone", "beside-a-service"])
def test_killed_at_every_system_call(effects: str, style: str, beside: bool, tmp_path: Path) -> None:
    found = run_scenario("killing", folder=str(tmp_path), effects=effects, style=style, beside=beside)

    killed, torn, failed = found["killed"], found["torn"], found["failed"]
    print(f"{effects} {style}: {len(killed)} kills, {len(torn)} torn writes, {len(failed)} failed writes")
    assert len(killed) > (25 if beside else 45)
    assert len(torn) > (5 if beside else 12)
    assert len(failed) > (5 if beside else 12)
    for place in (*killed, *torn, *failed):
        check(effects, place)
    # Every stage was reached: before the claim, between claim and answer, after the answer.
    stages = {(place["state"], place["effects"]) for place in killed}
    assert stages == {*EXPECTED[effects], DONE}
    assert found["kept"] == (["kept", "kept"] if beside else None)


def check(effects: str, place: dict[str, Any]) -> None:
    """One kill: what was found at once, and the answer of a retry after the lease."""
    assert place["intact"] == "ok", place
    stage = (place["state"], place["effects"])
    asked, again = place["asked"], place["again"]
    expected = REPLAYED if stage == DONE else EXPECTED[effects].get(stage)
    assert (asked[0], again[0]) == expected, place
    assert asked[0] == UNKNOWN[0] or asked[1] == again[1], place
    if place["acked"]:  # a client's answer stays valid
        assert stage == DONE, place
        assert place["acked"] == [asked[1]], place
    # A second effect only where the other side deduplicates, and then under the same derived key.
    assert place["effects_after"] <= (2 if effects == "idempotent" else 1), place
    assert place["derived_keys"] <= 1, place
