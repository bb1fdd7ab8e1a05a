"""Records are counted a page at a time: all of them in one statement would outlast what a call may take."""

from __future__ import annotations

import pytest

from semel.testing import conformance
from semel.testing.bench import Mode
from tests.servers.mariadb import MARK, mariadb
from verification.subjects.mariadb import mariadb_subject

pytestmark = MARK


@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", ["keys_of_different_scopes_never_meet", "states_are_counted"])
def test_counts_by_page_add_up(name: str, mode: Mode, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.stores.sql.lapsed_scan.COUNTED_AT_ONCE", page)
    conformance.run(name, lambda clock: mariadb_subject(mariadb(), clock), mode)
