"""SIGKILL of workers while they use a server: 200 effective ones for each store, every operation judged.

``make soak`` kills ten thousand times on each.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.nemeses.scripts import play
from tests.servers import mariadb, postgres
from tests.servers import redis as valkey

KILLS = 200
REPORTED = "kills that hit a working process"
SERVERS: dict[str, Callable[[], str]] = {
    "postgresql": postgres.postgres,
    "redis": lambda: f"redis://127.0.0.1:{valkey.valkey()}",
    "mariadb": lambda: mariadb.url(mariadb.mariadb()),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("store", ["postgresql", "redis", pytest.param("mariadb", marks=mariadb.MARK)])
def test_two_hundred_kills_violate_nothing(
    tmp_path: Path, store: str, record_property: Callable[[str, object], None]
) -> None:
    rounds: Any = play("kills", tmp_path, url=SERVERS[store](), kills=KILLS, seed=2026)

    hits, operations, effects = (sum(each[name] for each in rounds) for name in ("kills", "operations", "effects_made"))
    print(f"{store}: {hits} {REPORTED}, {operations} operations and {effects} effects judged, seeds from 2026")
    record_property(REPORTED, hits)
    assert [each["violations"] for each in rounds if each["violations"]] == []
    assert [each["undecided"] for each in rounds if each["undecided"]] == []
    assert hits >= KILLS
    assert operations > 5 * hits
    assert effects > hits
    kinds = {"external", "idempotent"} if store == "redis" else {"external", "idempotent", "atomic"}
    assert {each["effects"] for each in rounds} == kinds
