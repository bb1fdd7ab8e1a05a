"""`semel imports` on a store that a service has used: list, show, rows, retry, purge and watch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel.cli.commands.records import imports as command
from semel.cli.main import main
from tests.bulk.fellows import Home
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


def test_an_invalid_question_is_refused(here: Place, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_watching_tells_the_pace_until_it_is_asked_to_end(
    here: Place, tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = here.tell(here.imports().submit(csv_of(1), supplier="ACME"))
    rests: list[float] = []
    monkeypatch.setattr(command, "rest", rests.append)
    code, said = _semel(capsys, f"sqlite:///{tmp_path / 'imports.db'}", "watch", job.id, "--count", "3", "--every", "7")
    assert (code, rests, said.count("QUEUED")) == (0, [7.0, 7.0], 3)
