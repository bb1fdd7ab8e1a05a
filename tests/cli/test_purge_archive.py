"""`semel purge --archive`: exactly what is forgotten is in a whole file first, and a crash in between loses nothing."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, Engine, Policy
from semel.cli.main import main
from semel.core.flow import perform
from semel.core.model import Find
from semel.core.requests import Perform
from semel.retention.archive import Archive, fix_now
from semel.retention.flow import purge_all
from semel.stores.sql.dialect import dialect_of
from semel.stores.sql.statements import compose
from tests.cli.everything import fill, fresh
from tests.engine.shells import command
from tests.servers import mariadb, postgres, redis
from verification.subjects.mariadb import mariadb_subject
from verification.subjects.postgres import empty_schema

Capture = pytest.CaptureFixture[str]
SCHEMA = f"{postgres.schema()}_archive"
AGO = 1_000_000  # microseconds: long over
CHANGES = (
    f"UPDATE semel_record SET answer_until = {AGO}, forget_after = {AGO} WHERE forget_after IS NOT NULL",
    f"UPDATE semel_operation SET forget_after = {AGO} WHERE forget_after IS NOT NULL",
    f"UPDATE semel_inbox SET forget_after = {AGO}",
    f"UPDATE semel_event SET published_at = {AGO} WHERE published_at IS NOT NULL",
)
FORGOTTEN = {"records": 2, "operations": 1, "bulks": 1, "items": 5, "messages": 2, "events": 1}


def in_sqlite(tmp_path: Path) -> str:
    return fresh(f"sqlite:///{tmp_path / 'all.db'}")


def in_postgres(tmp_path: Path) -> str:
    empty_schema(postgres.postgres(), SCHEMA)
    return fresh(f"{postgres.postgres()}?schema={SCHEMA}")


def in_mariadb(tmp_path: Path) -> str:
    server = mariadb.mariadb()
    mariadb_subject(server, None)
    return fresh(mariadb.url(server))


SQL_STORES = [in_sqlite, in_postgres, in_mariadb]


def make_over(url: str, changes: tuple[str, ...] = CHANGES) -> None:
    """Let the time of everything that has an end be over."""
    with Engine.connect(url) as engine:
        dialect = dialect_of(engine.store, "tests")
        for text in changes:
            returning = " RETURNING 1" if dialect.name == "postgres" else ""
            statement = compose("change", text + returning)
            engine.perform("change", lambda statement=statement: dialect.write(statement, {}))  # type: ignore[misc]


def count_kinds(file: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for document in read(file):
        counts[document["of"]] = counts.get(document["of"], 0) + 1
    return counts


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def purge(url: str, capsys: Capture, *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["purge", "--json", "--chunk", "2", "--url", url, *options]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize("make", SQL_STORES)
def test_the_archive_has_exactly_the_rows_that_the_purge_deletes(
    make: Callable[[Path], str], tmp_path: Path, capsys: Capture
) -> None:
    url = make(tmp_path)
    fill(url)
    empty = tmp_path / "empty.jsonl"
    assert purge(url, capsys, "--archive", str(empty))["archived"] == 0
    assert empty.read_text("utf-8") == ""
    make_over(url)
    file = tmp_path / "purged.jsonl"
    told = purge(url, capsys, "--archive", str(file))
    assert told["archived"] == 12
    assert {
        "records": told["recordsForgotten"],
        "operations": told["operationsForgotten"],
        "messages": told["messagesForgotten"],
        "events": told["eventsForgotten"],
    } == {name: FORGOTTEN[name] for name in ("records", "operations", "messages", "events")}
    assert told["itemsForgotten"] == FORGOTTEN["items"] + FORGOTTEN["bulks"]
    assert count_kinds(file) == FORGOTTEN
    bodies = [document["answerBody"] for document in read(file) if document["of"] == "records"]
    assert "done" in bodies  # what is forgotten has its answer in the archive
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = tmp_path / "again.jsonl"
    assert purge(url, capsys, "--archive", str(again))["archived"] == 0


def test_an_answer_that_is_dropped_is_archived_and_its_record_is_kept(tmp_path: Path, capsys: Capture) -> None:
    url = in_sqlite(tmp_path)
    fill(url)
    make_over(url, ("UPDATE semel_record SET answer_until = 1 WHERE answer_until IS NOT NULL",))
    file = tmp_path / "purged.jsonl"
    told = purge(url, capsys, "--archive", str(file))
    assert (told["answersDropped"], told["recordsForgotten"]) == (count_kinds(file)["answers"], 0)
    assert set(count_kinds(file)) == {"answers"}
    assert "done" in [document["answerBody"] for document in read(file)]


@pytest.mark.parametrize("make", SQL_STORES)
def test_rows_due_after_the_archive_wait_for_the_next_purge(make: Callable[[Path], str], tmp_path: Path) -> None:
    url = make(tmp_path)
    fill(url)
    with Engine.connect(url) as engine:
        archive = Archive(engine, 0)
        assert list(archive.documents())[1:] == []  # one event was published a moment ago
        # Over now, and not yet at the archive's moment: its grace ends a second after it.
        edge = archive.now - 600_000_000 + 1_000_000
        late = archive.now + 1
        changes = (
            f"UPDATE semel_record SET answer_until = {edge}, forget_after = {edge} WHERE forget_after IS NOT NULL",
            f"UPDATE semel_operation SET forget_after = {edge} WHERE forget_after IS NOT NULL",
            f"UPDATE semel_inbox SET forget_after = {late}",
            f"UPDATE semel_event SET published_at = {late} WHERE published_at IS NOT NULL",
        )
        make_over(url, changes)
        done = purge_at(engine, archive)
        assert sum(done[1:]) == 0
        archive.now += 2_000_000
        assert purge_at(engine, archive).records == 2
        assert len(engine.perform("find", lambda: engine.store.find(Find())).records) == 1


def purge_at(engine: Engine, archive: Archive) -> Any:
    def answer(needed: object) -> Any:
        assert isinstance(needed, Perform)
        return engine.perform(needed.verb, fix_now(archive.now, needed.make))

    return perform(purge_all(engine.store, 500, 0, bulks=archive.bulks), answer)


def test_items_missing_from_the_archive_wait_for_the_next_purge(tmp_path: Path, capsys: Capture) -> None:
    url = in_sqlite(tmp_path)
    fill(url)
    with Engine.connect(url) as engine:
        archive = Archive(engine, 86_400_000_000)
        assert list(archive.documents()) == []
        # Another process forgets the bulk's record behind the archive.
        make_over(url, ("DELETE FROM semel_record WHERE operation_id IN (SELECT operation_id FROM semel_bulk)",))
        assert purge_at(engine, archive).items == 0
    assert purge(url, capsys, "--archive", str(tmp_path / "next.jsonl"))["itemsForgotten"] == 6
    assert count_kinds(tmp_path / "next.jsonl") == {"bulks": 1, "items": 5}


def test_a_memory_store_archives_and_purges_at_one_moment() -> None:
    with Engine.connect("memory://") as engine:
        short = Policy(answer_seconds=1, tombstone_seconds=1)
        engine.run(command("kept", policy=short), lambda permit: Answer(201, (), b"done"))
        archive = Archive(engine, 0)
        assert list(archive.documents()) == []
        assert purge_at(engine, archive).records == 0
        archive.now += 3_600_000_000
        [document] = archive.documents()
        assert (document["of"], document["answerBody"]) == ("records", "done")
        assert purge_at(engine, archive).records == 1


KILLED = """
import os, signal, sys
from semel.cli.commands.stores import purge
from semel.cli.whole_file import WholeFile

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "before the file is kept":
    WholeFile.keep = die
else:
    purge.purge_all = die
from semel.cli.main import main
main(["purge", "--url", sys.argv[2], "--archive", sys.argv[3]])
"""


@pytest.mark.parametrize("when", ["before the file is kept", "between archive and purge"])
def test_a_kill_loses_no_row_and_leaves_no_partial_archive(when: str, tmp_path: Path, capsys: Capture) -> None:
    url = in_sqlite(tmp_path)
    fill(url)
    make_over(url)
    file = tmp_path / "first.jsonl"
    ended = subprocess.run([sys.executable, "-c", KILLED, when, url, str(file)], check=False)
    assert ended.returncode == -signal.SIGKILL
    if when == "before the file is kept":
        assert not file.exists()
    else:
        assert count_kinds(file) == FORGOTTEN
    again = tmp_path / "second.jsonl"
    assert purge(url, capsys, "--archive", str(again))["archived"] == 12  # twice at worst, and nothing is lost
    assert count_kinds(again) == FORGOTTEN


def test_an_archive_is_never_replaced(tmp_path: Path, capsys: Capture) -> None:
    url = in_sqlite(tmp_path)
    fill(url)
    make_over(url)
    file = tmp_path / "purged.jsonl"
    file.write_text("last month\n", "utf-8")
    assert main(["purge", "--url", url, "--archive", str(file)]) == 1
    assert "an archive is never replaced, give another name" in capsys.readouterr().err
    assert file.read_text("utf-8") == "last month\n"
    assert main(["purge", "--url", url, "--archive", "-"]) == 2
    assert "--archive must be a file" in capsys.readouterr().err
    assert purge(url, capsys)["recordsForgotten"] == 2


def test_redis_is_refused_with_the_reason(tmp_path: Path, capsys: Capture) -> None:
    url = fresh(f"redis://127.0.0.1:{redis.valkey()}/0?prefix={redis.prefix()}_archive")
    assert main(["purge", "--url", url, "--archive", str(tmp_path / "purged.jsonl")]) == 2
    assert "Redis deletes a record itself" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
