"""Forty thousand schedules, in chunks that run side by side; and every seed that has ever found something.

``make soak`` plays a million. The first chunk is the large one of ``test_coverage``. None of them is measured: a
coverage tool would see the same lines over and over. What it sees of the simulator comes from the smaller runs of the
other modules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.simulate.test_coverage import SCHEDULES as FIRST
from verification.simulate import search
from verification.simulate.recording import Recorded, read_recording

SCHEDULES: Final = 40_000
CHUNK: Final = 2_000
SEEDS: Final = Path(__file__).parent / "seeds.json"


@pytest.mark.no_cover
@pytest.mark.parametrize("start", range(FIRST, SCHEDULES, CHUNK))
def test_every_invariant_holds(start: int) -> None:
    ran: list[int] = []
    violation = search(range(start, start + CHUNK), progress=ran.append)
    assert violation is None, violation.report()
    assert len(ran) == CHUNK
    print(f"{len(ran)} schedules, seeds {start} to {start + CHUNK - 1}")


@pytest.mark.parametrize("recorded", read_recording(SEEDS), ids=lambda recorded: str(recorded.seed))
def test_earlier_findings_do_not_recur(recorded: Recorded) -> None:
    violation = search([recorded.seed])
    assert violation is None, violation.report()
