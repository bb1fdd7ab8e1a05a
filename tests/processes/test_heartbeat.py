"""The heartbeat stops and its holder does not: a lapse destroys nothing, a new grant does (I3, I4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.processes.scenario import run_scenario

HOW = ["thread", "loop"]


def run(tmp_path: Path, how: str, effects: str, *, resumed: bool = False) -> dict[str, Any]:
    found = run_scenario("heartbeat", folder=str(tmp_path), how=how, effects=effects, resumed=resumed)
    assert found["ends"] == [0, 0]
    assert found["derived"] == 1
    return found


@pytest.mark.parametrize("how", HOW)
def test_an_external_holder_still_settles(how: str, tmp_path: Path) -> None:
    """A retry after the lease gets UNKNOWN, and nothing runs twice; the holder's settlement is kept."""
    found = run(tmp_path, how, "external")

    assert found["first"] == ["told", "OutcomeUnknownError"]
    assert found["held"][:2] == ["told", "ran"]
    assert found["second"] == ["told", "replayed", found["held"][2]]
    assert found["effects"] == 1


@pytest.mark.parametrize("how", HOW)
def test_an_idempotent_holder_is_superseded(how: str, tmp_path: Path) -> None:
    """The command is granted again; the former holder's settlement is refused, and its caller gets the stored one."""
    found = run(tmp_path, how, "idempotent")

    assert found["first"][:2] == ["told", "ran"]
    assert found["held"] == ["told", "replayed", found["first"][2]]
    assert found["second"] == ["told", "replayed", found["first"][2]]
    assert found["effects"] == 2  # under one derived key


def test_a_heartbeat_that_comes_back_renews(tmp_path: Path) -> None:
    """Past the lease, but before any retry: the permit is renewed."""
    found = run(tmp_path, "thread", "external", resumed=True)

    assert found["first"] == ["told", "InProgressError"]
    assert found["held"][:2] == ["told", "ran"]
    assert found["second"] == ["told", "replayed", found["held"][2]]
    assert found["effects"] == 1
