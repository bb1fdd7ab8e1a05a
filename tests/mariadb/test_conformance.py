"""MariaDB through the suite that every store passes, in threads (PyMySQL) and on an event loop (asyncmy)."""

from __future__ import annotations

import pytest

from semel.testing import conformance
from semel.testing.bench import Mode
from tests.servers.mariadb import MARK, mariadb
from verification.subjects.mariadb import mariadb_subject

pytestmark = MARK


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", conformance.CASES)
def test_the_contract(name: str, mode: Mode) -> None:
    conformance.run(name, lambda clock: mariadb_subject(mariadb(), clock), mode)
