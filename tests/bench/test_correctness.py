"""The table says what happened: an unprotected application reads "twice", a leaking one as leaking. A few seconds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from bench.correctness import main as program
from bench.correctness.cases import CASES, NAMES, Run
from bench.correctness.client import Answer, Reply, Silence
from bench.correctness.run import compare, examine
from bench.correctness.subjects import Subject, semel, subjects
from bench.correctness.table import as_text
from bench.correctness.verdicts import LEGEND, Finding, Verdict, judge, judge_callers, judge_payloads
from bench.peers.environment import Installed
from bench.peers.registry import PEERS
from bench.processes import BenchError

pytestmark = pytest.mark.no_cover  # coverage of the bench is not measured

NOBODY = Installed("/nowhere/python", {})


def found(subject: Subject, folder: Path, names: Iterable[str]) -> dict[str, Finding]:
    chosen = [case for case in CASES if case.name in names]
    return asyncio.run(examine(subject, chosen, folder, {}))


def plant(module: str, *, store: str = "memory") -> Subject:
    return Subject(package="planted", store=store, module=module, lease_seconds=None)


# --- planted faults are called by their names ---


def test_an_unprotected_application_reads_twice(tmp_path: Path) -> None:
    names = ["retry", "parallel", "slow", "gone", "payload", "stream", "error", "raised", "killed", "quoted"]
    before = ["killed-before", "raised-before"]

    cells = found(plant("bench.bare", store="sqlite"), tmp_path, [*names, *before])

    # What failed before its effect is done by the retry: there is nothing to protect.
    assert {name: cell.words() for name, cell in cells.items()} == {
        **dict.fromkeys(names, "twice"),
        **dict.fromkeys(before, "once"),
    }


def test_a_leaking_application_reads_as_leaking(tmp_path: Path) -> None:
    cells = found(plant("tests.bench.leaking"), tmp_path, ["retry", "parallel", "callers", "scoped", "payload"])

    assert {name: cell.verdict for name, cell in cells.items()} == {
        "retry": Verdict.ONCE,
        "parallel": Verdict.TWICE,
        "callers": Verdict.LEAK,
        "scoped": Verdict.LEAK,
        "payload": Verdict.WRONG_PAYLOAD,
    }
    assert "64 × 201" in cells["parallel"].note


def test_an_application_that_refuses_its_settings_is_reported_as_not_starting(tmp_path: Path) -> None:
    cells = found(plant("tests.bench.not_starting"), tmp_path, ["callers", "scoped"])

    assert cells["callers"] == Finding(Verdict.NO_START, "The exception: “who is calling?”")
    assert cells["scoped"].verdict is Verdict.SEPARATE


def test_an_application_that_never_starts_stops_the_table(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"bench\.nothing on memory:// did not start; it said: ModuleNotFoundError"):
        found(plant("bench.nothing"), tmp_path, ["retry"])


def test_a_case_that_a_subject_does_not_offer_needs_no_server(tmp_path: Path) -> None:
    subject = Subject(
        package="planted", store="memory", module="bench.nothing", not_offered={"stream": "It has no streams."}
    )

    cells = found(subject, tmp_path, ["stream", "killed"])

    assert cells["stream"] == Finding(Verdict.NOT_OFFERED, "It has no streams.")
    assert cells["killed"].verdict is Verdict.NOT_OFFERED


def test_semel_with_a_file_holds_what_the_table_says(tmp_path: Path) -> None:
    names = ["parallel", "killed", "callers", "scoped", "payload", "binary", "stream", "raised", "empty", "quoted"]
    names += ["killed-before", "raised-before"]

    findings = compare([semel("sqlite")], [case for case in CASES if case.name in names], tmp_path, {})

    assert {name: finding.words() for (_, name), finding in findings.items()} == {
        "parallel": "once",
        "killed": "once, told unknown 409",
        "callers": "does not start",
        "scoped": "once each",
        "payload": "once, then refused 422",
        "binary": "once",
        "stream": "once",
        "raised": "once, told unknown 409",
        "killed-before": "not done, told unknown 409",
        "raised-before": "not done, told unknown 409",
        "empty": "refused 400",
        "quoted": "once",
    }


# --- the words ---

DONE = Answer(201, b"application/json", b'{"order":"1"}')
OTHER = Answer(201, b"application/json", b'{"order":"2"}')
BUSY = Answer(409, b"application/json", b'{"code":"in_progress"}')
UNKNOWN = Answer(409, b"application/json", b'{"code":"OUTCOME_UNKNOWN"}')
FAILED = Answer(500, b"text/plain", b"Internal Server Error")
CLOSED = Silence(hung=False)
HUNG = Silence(hung=True)


@pytest.mark.parametrize(
    ("effects", "replies", "words"),
    [
        (1, [DONE, DONE], "once"),
        (1, [FAILED, FAILED], "once"),
        (1, [DONE, BUSY], "once, then refused 409"),
        (1, [CLOSED, BUSY, UNKNOWN], "once, told unknown 409"),
        (1, [DONE, FAILED], "once, then an error 500"),
        (1, [DONE, CLOSED], "once, then an error"),
        (1, [DONE, OTHER], "once, another answer"),
        (1, [DONE, Answer(201, b"text/plain", DONE.body)], "once, another answer"),
        (1, [DONE, HUNG], "hangs"),
        (2, [DONE, DONE], "twice"),
        (3, [FAILED, BUSY], "twice"),
        (1, [FAILED, DONE], "once"),
        (1, [CLOSED, BUSY, DONE], "once"),
        (0, [BUSY, BUSY], "refused 409"),
        (0, [FAILED, BUSY], "not done, refused 409"),
        (0, [CLOSED, UNKNOWN, UNKNOWN], "not done, told unknown 409"),
        (0, [FAILED, FAILED], "an error 500"),
        (0, [CLOSED, CLOSED], "an error"),
    ],
)
def test_observations_become_table_words(effects: int, replies: list[Reply], words: str) -> None:
    assert judge(effects, replies).words() == words


@pytest.mark.parametrize(
    ("effects", "other", "words"),
    [
        (2, OTHER, "once each"),
        (1, DONE, "answer of another caller"),
        (2, DONE, "answer of another caller"),
        (1, BUSY, "once, then refused 409"),
    ],
)
def test_results_of_two_callers_become_table_words(effects: int, other: Reply, words: str) -> None:
    assert judge_callers(effects, DONE, other).words() == words


@pytest.mark.parametrize(
    ("effects", "other", "words"),
    [(1, DONE, "answer of another payload"), (2, OTHER, "twice"), (1, BUSY, "once, then refused 409")],
)
def test_results_of_two_payloads_become_table_words(effects: int, other: Reply, words: str) -> None:
    assert judge_payloads(effects, DONE, other).words() == words


def test_every_verdict_has_a_legend_and_every_server_has_a_case() -> None:
    assert set(LEGEND) == set(Verdict)
    assert {case.run for case in CASES} == set(Run)
    assert len(NAMES) == len(set(NAMES))


# --- what is printed ---


def test_stores_are_named_where_they_differ_and_notes_are_given_for_every_cell() -> None:
    columns = [plant("x"), plant("x", store="redis"), semel("memory")]
    once, twice = Finding(Verdict.ONCE, "One."), Finding(Verdict.TWICE, "Two.")
    findings = {
        ("planted-memory", "retry"): once,
        ("planted-redis", "retry"): twice,
        ("semel-memory", "retry"): once,
    }

    text = as_text(findings, columns, [CASES[0]], {"took": "1 s"})

    assert "| case | planted | semel |" in text
    assert "| retry after the answer | once (memory); twice (redis) | once |" in text
    assert "- planted (memory): One.\n- planted (redis): Two.\n- semel: One." in text
    assert "| twice | the effect happened more than once |" in text
    assert "hangs" not in text
    assert text.endswith("- took: 1 s")


def test_a_run_prints_json_and_names_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "find_installed", lambda: NOBODY)

    assert program.main(["--only", "semel-memory,idemkit-*", "--cases", "retry", "--json"]) == 0

    said = capsys.readouterr()
    document = json.loads(said.out)
    assert [(cell["subject"], cell["case"], cell["verdict"]) for cell in document["cells"]] == [
        ("semel-memory", "retry", "once")
    ]
    assert "bench: left out: not installed: idemkit, idemgate, " in said.err
    assert "`make peers` installs them" in said.err
    assert "`make peers` installs them" in document["about"]["left out"]
    assert document["about"]["command"].startswith("python -m bench.correctness --only")


def test_a_server_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    everybody = Installed("/nowhere/python", {peer.name: "1.0" for peer in PEERS})
    monkeypatch.setattr(program, "find_installed", lambda: everybody)
    monkeypatch.setattr(program, "redis_program", lambda: None)

    assert program.main(["--only", "idemgate-*"]) == 1

    said = capsys.readouterr().err
    assert "left out: no Redis server here: idemgate-redis (install redis-server" in said
    assert "nothing is left to compare" in said


def test_help_shows_examples_and_an_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        program.main(["--help"])
    assert "python -m bench.correctness --cases killed,slow" in capsys.readouterr().out

    with pytest.raises(SystemExit, match="2"):
        program.main(["--cases", "kill"])
    assert "unknown case 'kill'; known are retry, parallel, killed" in capsys.readouterr().err


def test_every_installed_peer_is_a_column_for_each_of_its_stores() -> None:
    columns = subjects(Installed("python", {"idemkit": "1.0.2"}), ["postgresql://shop@db/shop"])

    assert [column.name for column in columns] == [
        "semel-memory",
        "semel-sqlite",
        "semel-redis",
        "semel-postgresql",
        "idemkit-memory",
        "idemkit-redis",
    ]
