"""ATOMIC units through every client library, in threads and on an event loop, by the one suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.testing import units
from tests.servers.mariadb import MARK
from tests.units.subjects import SUBJECTS, Pymysql

CASES = [
    pytest.param(subject, name, id=f"{subject.__name__}-{name}", marks=[MARK] if issubclass(subject, Pymysql) else [])
    for subject in SUBJECTS
    for name in units.names(subject)
]


@pytest.mark.parametrize(("subject", "name"), CASES)
def test_the_contract_of_units(subject: type[units.UnitSubject], name: str, tmp_path: Path) -> None:
    made: type = subject
    units.run(name, made(tmp_path))


def test_every_case_says_what_must_hold_and_concerns_a_library() -> None:
    assert [name for name, case in units.CASES.items() if not case.__doc__] == []
    assert {name for subject in SUBJECTS for name in units.names(subject)} == set(units.CASES)
