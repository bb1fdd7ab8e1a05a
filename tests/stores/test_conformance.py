"""Every store through the one suite, performed in threads and on an event loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.testing import conformance
from semel.testing.bench import Mode, Subject
from semel.testing.clock import SettableClock


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("name", conformance.CASES)
def test_the_contract(name: str, store: str, mode: Mode, tmp_path: Path) -> None:
    def subject(clock: SettableClock) -> Subject:
        if store == "memory":
            return conformance.memory_subject(clock)
        return conformance.sqlite_subject(str(tmp_path / "semel.db"), clock)

    conformance.run(name, subject, mode)


def test_every_case_says_why() -> None:
    assert [name for name, case in conformance.CASES.items() if not case.__doc__] == []
