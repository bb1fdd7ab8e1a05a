"""A full disk, a read-only, missing, foreign or damaged file, a corrupt record: refused, and nothing run."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semel import Answer, AsyncEngine, Engine, Permit
from semel.cli.main import main
from semel.errors import (
    ConfigurationError,
    IdentityMismatch,
    RecordUnreadableError,
    SchemaError,
    StoreError,
    StoreUnavailable,
)
from tests.crash.disks import KINDS
from tests.crash.processes import run_script
from tests.crash.work import HEADERS, Folder, command

ANSWER = Answer(201, HEADERS, b"the first answer")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.create()
    return made


def never(permit: Permit) -> Answer:
    raise AssertionError("the handler must not run")


def all_say(found: dict[str, str], start: str) -> bool:
    return set(found) <= set(KINDS) and all(said.startswith(start) for said in found.values())


# --- the disk ---


@pytest.mark.parametrize(
    ("how", "refusal"),
    [
        ("pages", "StoreUnavailable: SQLite: database or disk is full (the disk is full: make room"),
        (
            "bytes",
            "StoreTimeout: SQLite: the commit failed in the middle (disk I/O error): whether it took effect",
        ),
    ],
)
def test_a_full_disk_refuses_commands_and_runs_none_twice(folder: Folder, how: str, refusal: str) -> None:
    found = run_script("disks", folder=str(folder.path), how=how)

    assert all_say(found["first"], "ran: ")
    assert set(found["ran"]) <= {"full-atomic"}  # it may have begun, in a transaction that was rolled back
    assert found["refused"].pop("atomic", "StoreUnavailable").startswith("StoreUnavailable")
    assert all_say(found["refused"], refusal), found["refused"]
    assert how == "pages" or all("the limit on file sizes (ulimit -f)" in said for said in found["refused"].values())
    assert found["replayed"] == {effects: f"replayed: before-{effects}" for effects in KINDS}
    assert found["after"] == {effects: f"ran: full-{effects}" for effects in KINDS}
    assert found["again"] == {effects: f"replayed: full-{effects}" for effects in KINDS}


@pytest.fixture
def public_folder() -> Iterator[Folder]:
    """A folder that another user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        made = Folder(path)
        made.create()
        yield made


def test_a_read_only_file(public_folder: Folder) -> None:
    found = run_script("disks", folder=str(public_folder.path), how="read-only")

    assert found["replayed"] == {effects: f"replayed: before-{effects}" for effects in KINDS}
    assert all_say(found["refused"], "StoreUnavailable: SQLite: attempt to write a readonly database"), found
    assert all("semel.db' cannot be used: this user may not" in said for said in found["refused"].values()), found
    assert found["ran"] == []


# --- the file ---


def missing(database: Path) -> None:
    database.unlink()


def empty(database: Path) -> None:
    database.write_bytes(b"")


def foreign(database: Path) -> None:
    database.write_bytes(b"this is not a database; it is a text of some length\n" * 100)


def truncate(database: Path) -> None:
    database.write_bytes(database.read_bytes()[: 4096 * 3 + 100])


def a_directory(database: Path) -> None:
    database.unlink()
    database.mkdir()


@pytest.mark.parametrize(
    ("harm", "error", "remedy"),
    [
        (missing, SchemaError, "does not exist; run: semel migrate"),
        (empty, SchemaError, "run: semel migrate --url .sqlite:///"),
        (foreign, StoreUnavailable, "not a SQLite database: check the path"),
        (truncate, StoreUnavailable, "damaged: restore it"),
        (
            a_directory,
            StoreUnavailable,
            r"semel.db' cannot be used: it is a directory; name a file in it, such as sqlite",
        ),
    ],
)
def test_a_file_that_is_no_store(
    folder: Folder, harm: Callable[[Path], None], error: type[Exception], remedy: str
) -> None:
    harm(folder.database)
    engine = folder.engine("?busy_seconds=0.5")

    for effects in KINDS:
        with pytest.raises(error, match=remedy):
            engine.run(command("k", effects), never)
    with pytest.raises((StoreError, ConfigurationError)):
        engine.open()
    engine.close()


def test_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "nowhere")
    engine = folder.engine()
    with pytest.raises(StoreUnavailable, match=r"its folder '.*nowhere' does not exist; make it, or correct the path"):
        engine.migrate()
    with pytest.raises(SchemaError, match="does not exist"):
        engine.run(command("k", "external"), never)
    engine.close()


@pytest.mark.parametrize(
    ("forbidden", "why"),
    [
        ("semel.db", "this user may not read and write it; give it to the user"),
        ("", "this user may not write in its folder '.*', where SQLite keeps its log beside it; allow it"),
        ("nothing", r"check the disk, its mount \(read-only\?\), and the limit of open files"),
    ],
)
def test_a_file_that_may_not_be_written_is_distinguished(
    folder: Folder, forbidden: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the system says of rights is replaced: the suite may run as root, who has them all.
    denied = folder.database.parent / forbidden
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != denied)
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN"

    def refuses(*_: object, **__: object) -> sqlite3.Connection:
        raise error

    monkeypatch.setattr(sqlite3, "connect", refuses)
    engine = folder.engine()
    with pytest.raises(StoreUnavailable, match=rf"the database file '.*semel\.db' cannot be used: {why}"):
        engine.run(command("k", "external"), never)
    engine.close()


async def unmigrated_async(folder: Folder, effects: str) -> None:
    async def never_async(permit: Permit) -> Answer:
        raise AssertionError("it ran")

    engine = AsyncEngine.connect(folder.url)
    try:
        await engine.run(command("k", effects), never_async)
    finally:
        await engine.close()


def test_a_database_that_is_not_migrated(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.sql("CREATE TABLE business (key TEXT)")
    engine = folder.engine()
    for effects in KINDS:
        with pytest.raises(SchemaError, match="no Semel tables; run: semel migrate --url sqlite:///"):
            engine.run(command("k", effects), never)
        with pytest.raises(SchemaError, match="no Semel tables; run: semel migrate --url sqlite:///"):
            asyncio.run(unmigrated_async(folder, effects))
    with pytest.raises(SchemaError, match="run: semel migrate"):
        engine.open()
    engine.migrate()
    with engine:
        assert engine.run(command("k", "external"), lambda permit: ANSWER).answer == ANSWER


def test_a_newer_schema_is_refused(folder: Folder) -> None:
    folder.sql("UPDATE semel_meta SET schema_version = 99")
    engine = folder.engine()
    with pytest.raises(SchemaError, match="upgrade Semel"):
        engine.open()
    engine.close()


@pytest.mark.parametrize("harm", ["'three'", "x'03'", "1.5"])
def test_a_schema_without_a_version_is_refused(folder: Folder, harm: str) -> None:
    folder.sql(f"UPDATE semel_meta SET schema_version = {harm}")
    engine = folder.engine()
    with pytest.raises(SchemaError, match="semel_meta is damaged"):
        engine.open()
    engine.close()


@pytest.mark.parametrize(
    "harm", ["state = 'over'", "answer_until = x'ff'", "forget_after = 'soon'", "forget_after = -1"]
)
def test_a_damaged_record_does_not_stop_renewal(folder: Folder, harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are purged, and every look at the store comes to its end."""
    with folder.engine() as engine:
        for key in ("damaged", "sound"):
            engine.run(command(key, "external"), lambda permit: ANSWER)
    folder.sql("UPDATE semel_record SET answer_until = 0, forget_after = 0")
    folder.sql(f"UPDATE semel_record SET {harm} WHERE seq = 1")
    assert main(["doctor", "--url", folder.url]) in (0, 1)
    assert main(["purge", "--url", folder.url]) == 0
    assert main(["worker", "--once", "--url", folder.url]) == 0
    assert "Traceback" not in capsys.readouterr().err
    # Where a record's time is damaged, no purge may delete the record.
    assert folder.sql("SELECT seq FROM semel_record") == ([(1,)] if harm.startswith("forget_after") else [])


@pytest.mark.parametrize(("made_with", "opened_with"), [(None, b"s" * 16), (b"s" * 16, None), (b"s" * 16, b"t" * 16)])
def test_a_changed_id_secret_is_refused(tmp_path: Path, made_with: bytes | None, opened_with: bytes | None) -> None:
    folder = Folder(tmp_path)
    engine = folder.engine(id_secret=made_with)
    engine.migrate()
    engine.open()
    engine.close()

    other = folder.engine(id_secret=opened_with)
    with pytest.raises(IdentityMismatch, match="restore the former secret"):
        other.open()
    other.close()


# --- the record ---


@pytest.mark.parametrize(
    "harm",
    [
        "body = CAST(x'00' || substr(body, 2) AS BLOB)",
        "body = body || x'00'",
        "body = NULL",
        "body = CAST(body AS TEXT)",
        "headers = CAST(x'ffff' || substr(headers, 3) AS BLOB)",
        "headers = substr(headers, 1, length(headers) - 1)",
        "headers = NULL",
        "headers = 'text'",
        "answer_digest = NULL",
        "answer_digest = x'00'",
        "status = 500",
        "status = 'created'",
        "state = 99",
        "state = 'garbage'",
        "state = 0",
        "recipe = 'another'",
        "recipe = ''",
    ],
)
def test_a_corrupt_record_is_never_replayed_and_never_run(folder: Folder, harm: str) -> None:
    with folder.engine() as engine:
        for effects in KINDS:
            assert engine.run(command(effects, effects), lambda permit: ANSWER).answer == ANSWER
        folder.sql(f"UPDATE semel_record SET {harm}")
        for effects in KINDS:
            with pytest.raises(RecordUnreadableError, match="never run again"):
                engine.run(command(effects, effects), never)
        assert engine.run(command("another", "external"), lambda permit: ANSWER).answer == ANSWER


def test_a_holder_whose_record_was_damaged_does_not_settle(folder: Folder) -> None:
    with folder.engine() as engine:

        def handler(permit: Permit) -> Answer:
            folder.sql("UPDATE semel_record SET state = 99")
            return ANSWER

        with pytest.raises(RecordUnreadableError):
            engine.run(command("k", "external"), handler)
        with pytest.raises(RecordUnreadableError):
            engine.run(command("k", "external"), never)


def test_a_store_that_comes_back_needs_no_restart(folder: Folder) -> None:
    engine: Engine = folder.engine("?busy_seconds=0.5")
    away = folder.database.with_suffix(".away")
    folder.database.rename(away)
    with pytest.raises(SchemaError):
        engine.run(command("k", "external"), never)
    away.rename(folder.database)
    assert engine.run(command("k", "external"), lambda permit: ANSWER).answer == ANSWER
    engine.close()
