"""Every system call on the store's files fails, one by one: what a caller gets, and that no restart is needed.

Where the claim failed the handler did not run; where the settlement failed the caller learns that it is not known yet,
and it is written once the disk works again; each refusal names its remedy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel import State
from tests.processes.scenario import run_scenario

REMEDIES = ("make room", "check its owner", "is writable", "check the disk", "restore it", "permissions of its")
NOT_KNOWN = ("is being repeated", "could not be read back")  # beside the remedies
# Error, from then on, effects, engine; at least so many places must be reached.
CASES = [
    ("ENOSPC", False, "external", "sync", 15),
    ("ENOSPC", True, "external", "async", 15),
    ("ENOSPC", False, "atomic", "async", 13),
    ("ENOSPC", True, "atomic", "sync", 13),
    ("ENOSPC", True, "idempotent", "sync", 15),
    ("EFBIG", True, "external", "sync", 11),
    ("EROFS", True, "external", "sync", 13),
    ("EROFS", False, "atomic", "sync", 13),
    ("EIO", False, "external", "sync", 35),
    ("EIO", True, "external", "sync", 35),
    ("EIO", False, "atomic", "async", 35),
    ("EIO", True, "atomic", "sync", 35),
]


@pytest.mark.parametrize(("error", "on", "effects", "style", "places_min"), CASES)
def test_a_failing_system_call_causes_no_second_effect(
    error: str, on: bool, effects: str, style: str, places_min: int, tmp_path: Path
) -> None:
    found = run_scenario("failing", folder=str(tmp_path), error=error, on=on, effects=effects, style=style)

    lives = found["lives"]
    hits = sum(life["hits"] for life in lives)
    print(f"{error} {'on' if on else 'once'} {effects} {style}: {len(lives)} places, {hits} failed calls")
    assert len(lives) > places_min
    for life in lives:
        check(effects, life)
    kinds = {life["said"][0][0] for life in lives}
    assert kinds >= {"StoreUnavailable"}
    if effects != "atomic" and on:  # also at the settlement: the handler had run, and it is not lost
        assert any(kind == "StoreTimeout" and ran for kind, _, ran in (life["said"][0] for life in lives))


def check(effects: str, life: dict[str, Any]) -> None:
    """One failure: the answers of the three attempts, and how often the handler had run by then."""
    assert life["code"] == 0, life
    assert life["intact"] == "ok", life
    first, second, third = life["said"]
    kind, text, ran = first
    if kind == "ran":
        assert ran == 1, life
    elif kind == "StoreUnavailable":
        assert ran == 0 or effects == "atomic", life  # an ATOMIC one may have run: it was rolled back
        assert any(remedy in text for remedy in REMEDIES) or text.endswith("nothing of it remains"), life
    elif kind == "StoreTimeout":
        assert any(remedy in text for remedy in (*REMEDIES, *NOT_KNOWN)), life
    else:
        assert kind in ("OperationalError", "DatabaseError"), life  # of an ATOMIC handler's own statement
        assert effects == "atomic", life
    # The disk works again: no restart, no operator, no second effect.
    assert second[0] in ("ran", "replayed"), life
    assert third[0] == "replayed", life
    assert {said[1] for said in life["said"] if said[0] in ("ran", "replayed")} == {third[1]}, life
    assert third[2] == 1 or effects == "atomic", life
    assert life["state"] == State.SUCCEEDED, life
    assert life["effects"] == 1, life
    assert life["derived_keys"] <= 1, life
