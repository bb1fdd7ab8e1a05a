"""The application's own transactions, through every library and of both kinds, by the one suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.testing import joins
from tests.joins.subjects import SUBJECTS, Mariadb, Subject
from tests.servers.mariadb import MARK

CASES = [
    pytest.param(subject, name, id=f"{subject.__name__}-{name}", marks=[MARK] if issubclass(subject, Mariadb) else [])
    for subject in SUBJECTS
    for name in joins.names(subject)
]


@pytest.mark.parametrize(("subject", "name"), CASES)
def test_the_contract_of_joined_transactions(
    subject: type[Subject], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # the cases run on a separate loop
    joins.run(name, subject(tmp_path))


def test_every_case_says_what_must_hold_and_concerns_a_library() -> None:
    assert [name for name, case in joins.CASES.items() if not case.__doc__] == []
    assert {name for subject in SUBJECTS for name in joins.names(subject)} == set(joins.CASES)
