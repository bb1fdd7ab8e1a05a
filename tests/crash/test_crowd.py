"""Eight processes, half of them on event loops, ask for the same commands at once: one effect and one answer each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.processes import run_script
from tests.crash.work import Folder

PROCESSES, KEYS = 8, 50


@pytest.mark.parametrize("effects", ["external", "idempotent", "atomic"])
def test_one_effect_and_one_answer(tmp_path: Path, effects: str) -> None:
    folder = Folder(tmp_path)
    folder.create()

    found = run_script("crowd", folder=str(tmp_path), effects=effects, processes=PROCESSES, keys=KEYS)

    first, *others = found["told"]
    assert len(first) == KEYS
    assert others == [first] * (PROCESSES - 1)
    counted = folder.business() if effects == "atomic" else folder.effects_by_key()
    assert counted == dict.fromkeys(first, 1)
    assert folder.judge().operations >= (PROCESSES + 1) * KEYS  # an attempt of each, and a settlement
