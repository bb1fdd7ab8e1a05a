"""Interruptions at random instructions, for each store, kind and way; ``python -m tests.outside`` has more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.outside.interrupting import By, Kind, interrupt
from tests.outside.stores import STORES
from tests.servers import mariadb

TIMES = 40
CASES = [
    pytest.param(store, kind, marks=[mariadb.MARK] if store == "mariadb" else [])
    for store in STORES
    for kind in ("external", "atomic", "join")
    if store != "redis" or kind == "external"
]


@pytest.mark.parametrize("by", ["thread", "signal"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_an_interrupted_caller_leaves_nothing_behind(name: str, kind: Kind, by: By, tmp_path: Path) -> None:
    round = interrupt(STORES[name](tmp_path), kind, by, times=TIMES)
    assert round.wrong == []
    assert round.interruptions >= TIMES
    assert round.answered
    assert round.bystanders
