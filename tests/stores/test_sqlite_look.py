"""The look for a kept answer on SQLite reads a few columns, and says what the rules say of the whole record."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel.core.decide import KEPT_COLUMNS, find_replay
from semel.core.model import Claim, Proceed, Record, Replay, Settlement
from semel.errors import StoreUnavailable
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.store import FIND_KEPT_ANSWER, SqliteStore
from semel.testing.attempts import attempt, settlement
from semel.testing.clock import SettableClock
from tests.servers.files import migrated_file

STORE = SqliteStore()
CLAIM = attempt()
# What a flipped bit or a statement by hand may leave, as SQL; a text need not be UTF-8.
DAMAGE = (
    *("NULL", "0", "1", "2", "3", "6", "-1", "7", "1.0", "1 << 57", "(1 << 57) - 1", "9e18"),
    *("''", "'1'", "'soon'", "x''", "x'01'", "zeroblob(16)", "CAST(x'ff' AS TEXT)", "CAST(x'c3' AS TEXT)"),
)
STATED: dict[str, dict[str, str]] = {
    "plain": {},
    "with a resource": {"business_ref": "'order-1'", "resource_type": "'payment'", "resource_id": "'1'"},
}


@pytest.fixture(params=STATED)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[SqliteDriver, sqlite3.Connection]]:
    path = tmp_path / "semel.db"
    migrated_file(path)
    driver = SqliteDriver(str(path), synchronous="OFF", clock=SettableClock())
    [verdict] = driver.run(lambda: STORE.claim((CLAIM,)))
    assert isinstance(verdict, Proceed)
    last: Settlement = settlement(verdict.grant)
    driver.run(lambda: STORE.settle((last,)))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for column, value in STATED[request.param].items():
            connection.execute(f"UPDATE semel_record SET {column} = {value}")
        yield driver, connection
    driver.close()


def by_the_rules(driver: SqliteDriver, claim: Claim) -> Any:
    try:
        [row] = driver.run(lambda: STORE.read((CLAIM.id,)))
    except StoreUnavailable as error:
        return str(error)
    return find_replay(row, claim.id, claim.recipe, claim.fingerprint, driver.clock())


def by_the_look(driver: SqliteDriver, claim: Claim) -> Any:
    try:
        return driver.kept_answer(CLAIM.id, claim.recipe, claim.fingerprint)
    except StoreUnavailable as error:
        return str(error)


def test_the_look_reads_the_columns_that_the_rules_name() -> None:
    head = FIND_KEPT_ANSWER.text.partition("CASE")[0].removeprefix("SELECT")
    assert tuple(name.strip() for name in head.split(",") if name.strip()) == KEPT_COLUMNS


def test_the_look_agrees_with_the_rules(file: tuple[SqliteDriver, sqlite3.Connection]) -> None:
    driver, _ = file
    assert isinstance(by_the_look(driver, CLAIM), Replay)
    other = attempt(request=1)
    assert by_the_look(driver, CLAIM) == by_the_rules(driver, CLAIM)
    assert by_the_look(driver, other) is by_the_rules(driver, other) is None
    assert driver.kept_answer(bytes(16), CLAIM.recipe, CLAIM.fingerprint) is False


@pytest.mark.parametrize("column", [name for name in Record._fields if name != "id"])
def test_the_look_detects_damage_as_the_rules_do(column: str, file: tuple[SqliteDriver, sqlite3.Connection]) -> None:
    """A kept answer is recognised where the whole record is sound, and is as it was."""
    driver, connection = file
    found: set[str] = set()
    for value in DAMAGE:
        connection.execute("BEGIN")
        try:
            connection.execute(f"UPDATE semel_record SET {column} = {value}")
        except sqlite3.IntegrityError:  # the schema takes no NULL there
            connection.execute("ROLLBACK")
            continue
        connection.execute("COMMIT")
        seen, ruled = by_the_look(driver, CLAIM), by_the_rules(driver, CLAIM)
        if isinstance(ruled, str):  # a text that cannot be decoded: an error of both, or no replay
            assert seen is None or "not UTF-8" in seen, (column, value)
        else:
            assert seen == ruled, (column, value)
        found.add(type(ruled).__name__)
    assert "NoneType" in found
