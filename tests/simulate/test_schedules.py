"""Every seed that has ever found something. What has not yet is played by ``test_coverage``, and by ``make soak``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from verification.simulate import search
from verification.simulate.recording import Recorded, read_recording

SEEDS: Final = Path(__file__).parent / "seeds.json"


@pytest.mark.parametrize("recorded", read_recording(SEEDS), ids=lambda recorded: str(recorded.seed))
def test_earlier_findings_do_not_recur(recorded: Recorded) -> None:
    violation = search([recorded.seed])
    assert violation is None, violation.report()
