"""`semel imports` on a store that a service has used: list, show, rows, retry, purge and watch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel.cli.commands.records import imports as command
from semel.cli.main import main
from semel.imports import Imports, Row
from semel.imports.rules import ImportJob
from tests.bulk.fellows import Home, write
from tests.imports.places import Place, csv_of
from tests.servers import mariadb as maria
from tests.servers.postgres import postgres, schema


def _url(place: Place, tmp_path: Any) -> str:
    if place.kind == "sqlite-async":
        return f"sqlite:///{tmp_path / 'imports.db'}"
    if place.kind == "asyncmy":  # the command line speaks by PyMySQL
        return maria.url(maria.mariadb())
    return f"{postgres()}?schema={schema()}"


def _semel(capsys: pytest.CaptureFixture[str], url: str, *words: str) -> tuple[int, str]:
    code = main(["--url", url, "imports", *words])
    told = capsys.readouterr()
    return code, told.out + told.err


def test_an_operator_sees_jobs_and_rows_and_has_one_processed_again(
    place: Place, home: Home, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    imports = place.imports(rows="skip-known", keep_content_seconds=1)
    job = place.tell(imports.submit(csv_of(1, -2, "x"), supplier="ACME", filename="a\x1b[2Jb.csv"))
    place.tell(imports.run_due())
    other = place.tell(imports.submit(csv_of(1), supplier="BETA"))
    url = _url(place, tmp_path)

    code, said = _semel(capsys, url, "list")
    assert code == 0
    assert job.id in said
    assert other.id in said
    code, said = _semel(capsys, url, "list", "--supplier", "BETA", "--state", "queued", "--json")
    assert [each["id"] for each in json.loads(said)["imports"]] == [other.id]
    code, said = _semel(capsys, url, "list", "--limit", "1")
    assert f"--before {other.id}" in said
    assert job.id in _semel(capsys, url, "list", "--before", other.id)[1]

    code, said = _semel(capsys, url, "show", job.key[:12])
    assert code == 0
    assert "DONE, 3 of 3 rows, 1 booked, 0 skipped, 2 failed, 0 unknown" in said
    assert "\x1b" not in said
    code, said = _semel(capsys, url, "rows", job.id, "--state", "failed")
    assert "line 3" in said
    assert "NEGATIVE" in said
    assert "line 4, n" in said
    assert "must be a number" in said
    assert "  1  BOOKED" in _semel(capsys, url, "rows", job.id, "--limit", "1")[1]

    assert _semel(capsys, url, "retry", job.id)[0] == 2
    assert _semel(capsys, url, "retry", other.id, "--reason", "hurry")[0] == 1
    code, said = _semel(capsys, url, "retry", job.id, "--reason", "the sign was wrong", "--actor", "olga")
    assert (code, "QUEUED" in said) == (0, True)
    assert home.fetch("SELECT actor, reason FROM semel_audit") == [("olga", "the sign was wrong")]
    place.tell(imports.run_due())
    code, said = _semel(capsys, url, "watch", job.id)
    assert (code, "0 booked, 1 skipped, 2 failed" in said) == (0, True)  # what was booked is known

    home.fetch("UPDATE semel_import SET content_until = 1, forget_after = 1 WHERE ended_at IS NOT NULL")
    home.fetch("UPDATE semel_import_blob SET touched_at = 0")
    home.fetch("UPDATE semel_import_row SET forget_after = 1")
    code, said = _semel(capsys, url, "purge", "--json")
    assert json.loads(said) == {"jobsForgotten": 2, "contentsForgotten": 2, "rowsForgotten": 1}
    assert _semel(capsys, url, "show", job.id)[0] == 4


def test_invalid_arguments_are_refused(here: Place, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'imports.db'}"
    here.tell(here.imports().submit(csv_of(1), supplier="ACME"))
    here.tell(here.imports().submit(csv_of(2), supplier="ACME"))
    for words, said in (
        (("show",), "needs an IMPORT"),
        (("list", "x"), "takes no IMPORT"),
        (("show", "ACME:"), "names several"),
        (("show", "GAMMA:"), "no such import"),
        (("list", "--state", "booked"), "--state must be one of queued"),
        (("list", "--before", "x"), "--before must be an id"),
    ):
        code, told = _semel(capsys, url, *words)
        assert code != 0
        assert said in told, words


def test_watch_shows_the_pace_until_it_is_stopped(
    here: Place, tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = here.tell(here.imports().submit(csv_of(1), supplier="ACME"))
    rests: list[float] = []
    monkeypatch.setattr(command, "rest", rests.append)
    code, said = _semel(capsys, f"sqlite:///{tmp_path / 'imports.db'}", "watch", job.id, "--count", "3", "--every", "7")
    assert (code, rests, said.count("QUEUED")) == (0, [7.0, 7.0], 3)


def test_a_file_that_is_still_read_has_no_pace(
    here: Place, tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = here.tell(here.imports().submit(csv_of(1), supplier="ACME"))
    here.home.fetch("UPDATE semel_import SET state = 2")
    monkeypatch.setattr(command, "rest", lambda seconds: None)
    code, said = _semel(capsys, f"sqlite:///{tmp_path / 'imports.db'}", "watch", job.id, "--count", "2")
    line = f"{job.key}: RUNNING, its file is being read, 0 booked, 0 skipped, 0 failed, 0 unknown"
    assert (code, said.splitlines()) == (0, [line, line])


class Killed(BaseException):
    """The process is gone: nothing of the run behind this line happens."""


def _abandon(place: Place) -> ImportJob:
    """An import whose process was killed in the middle of its rows, longer ago than its lease."""
    imports = Imports(place.engine, operation="stock.import", chunk_items=2)

    @imports.row
    async def book(row: Row) -> None:
        if row.value["n"] == "3":
            raise Killed
        await write(row, int(row.value["n"]))  # type: ignore[arg-type]

    job = place.tell(imports.submit(csv_of(0, 1, 2, 3, 4), supplier="ACME"))
    with pytest.raises(Killed):
        place.tell(imports.run_due())
    place.home.fetch("UPDATE semel_import SET state = 2, next_at = created_at + 1")
    place.home.fetch("UPDATE semel_import SET next_at = next_at - 600000000, created_at = created_at - 900000000")
    place.home.fetch("UPDATE semel_record SET lease_until = 1 WHERE state = 1")
    found = place.tell(imports.job(job.id))
    assert found is not None
    return found


def test_the_tools_report_an_import_that_no_process_runs(
    place: Place, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    url = _url(place, tmp_path)
    job = _abandon(place)
    assert job.state.name == "RUNNING"
    for words, expected in (
        (("list",), 0),
        (("show", job.id), 0),
        (("retry", job.id, "--reason", "it stands still"), 1),
    ):
        code, said = _semel(capsys, url, *words)
        assert code == expected
        assert "its lease ended 10 min ago, and no process has taken it over" in said, words
        assert "ImportWorker" in said, words
        assert "goes on by itself" not in said
    assert "no process has taken it over" in _semel(capsys, url, "watch", job.id, "--count", "1")[1]
    [listed] = json.loads(_semel(capsys, url, "list", "--json")[1])["imports"]
    assert 600 <= listed["overdueSeconds"] < 1200
    main(["--url", url, "doctor"])
    said = capsys.readouterr().out
    assert f"1 wait, and no process runs them; the first is {job.id} of stock.import, RUNNING" in said
    assert "ImportWorker" in said


def test_explain_describes_rows_by_their_import(
    place: Place, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """No client has its key: the output suggests no retry with it, and names no effects."""
    url = _url(place, tmp_path)
    job = _abandon(place)
    assert job.bulk_id is not None
    assert main(["--url", url, "explain", job.bulk_id]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"It holds the rows of the import {job.id} ({job.key}), which is RUNNING." in said
    assert "no process has taken it over" in said
    assert f"semel imports show {job.id}" in said
    assert "Send the file again" in said
    assert not [word for word in ("EXTERNAL", "same key", "A retry continues", "KEY_REUSED") if word in said]

    place.tell(place.imports().run_due())
    assert main(["--url", url, "explain", job.bulk_id]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "which is DONE" in said
    assert f"semel imports retry {job.id} --reason" in said


def test_a_running_import_is_neither_stuck_nor_overdue(
    place: Place, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    url = _url(place, tmp_path)
    job = place.tell(place.imports().submit(csv_of(1), supplier="ACME"))
    said = _semel(capsys, url, "show", job.id)[1]
    assert "the next process of the service that looks takes it" in said
    assert "ImportWorker" not in said
    main(["--url", url, "doctor"])
    assert "imports  " not in capsys.readouterr().out
    place.home.fetch("UPDATE semel_import SET state = 2, next_at = created_at + 3600000000")
    code, said = _semel(capsys, url, "retry", job.id, "--reason", "hurry")
    assert code == 1
    assert "a process runs it; if that process has died, another takes it over in" in said
    [listed] = json.loads(_semel(capsys, url, "list", "--json")[1])["imports"]
    assert listed["overdueSeconds"] == 0
