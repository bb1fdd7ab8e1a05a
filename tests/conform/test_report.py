"""A report in each of its forms; what a server sends reaches none of them as markup or as a control character."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from semel.cli.main import main
from semel.conform import Report, load_catalogue
from semel.conform.report import Result

CHECKS = {check.id: check for check in load_catalogue()}
EVIL = "<b>|\x1b[31m\x00"
REPORT = Report(
    "http://127.0.0.1",
    "POST /payments",
    "semel",
    (
        Result(CHECKS["replay-once"], "failed", f"HTTP 201; {EVIL}"),
        Result(CHECKS["json-order"], "failed", "HTTP 422"),
        Result(CHECKS["key-doubled"], "passed"),
        Result(CHECKS["key-optional"], "not-tried", "key.required is true"),
    ),
)


def test_the_text_states_what_was_sent_received_meant_and_to_change() -> None:
    text = "\n".join(line for _, line in REPORT.lines())
    assert "MUST replay-once: a retry has no second effect" in text
    for label in ("sent:", "came:", "means:", "change:", "clause:"):
        assert text.count(label) == 2
    assert "key.required is true: key-optional" in text
    assert "4 checks: 1 must, 0 should, 1 best failed; 1 passed, 1 not tried" in text
    assert "ok        key-doubled" in "\n".join(line for _, line in REPORT.lines(every=True))


def test_the_name_of_a_check_is_never_broken() -> None:
    names = sorted(CHECKS)
    text = "\n".join(line for _, line in _report(*names).lines())
    assert set(names) <= {word.strip(",") for word in text.split()}


def _report(*names: str) -> Report:
    return Report("u", "o", "semel", tuple(Result(CHECKS[name], "not-tried", "the case has none") for name in names))


def test_a_report_that_cannot_be_written_is_still_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*_: object, **__: object) -> Report:
        return REPORT

    monkeypatch.setattr("semel.conform.conform", run)
    case = tmp_path / "case.toml"
    case.write_text('[request]\npath = "/p"\njson = {a = 1}\n[effects]\nfile = "x"\n')
    assert main(["conform", "http://127.0.0.1:9", "--case", str(case), "--html", "/dev/full"]) == 1
    captured = capsys.readouterr()
    assert "MUST replay-once" in captured.out
    assert captured.err == "semel: --html /dev/full cannot be written: No space left on device\n"


def test_a_failed_best_check_is_not_a_failure() -> None:
    calm = Report("u", "o", "semel", REPORT.results[1:])
    assert calm.ok
    assert ElementTree.fromstring(calm.junit().partition("\n")[2]).attrib["failures"] == "0"


def test_a_report_in_which_nothing_passed_is_not_ok() -> None:
    assert not Report("u", "o", "semel", REPORT.results[3:]).ok


def test_junit_has_a_case_for_each_check() -> None:
    suite = ElementTree.fromstring(REPORT.junit().partition("\n")[2])
    assert {name: suite.attrib[name] for name in ("tests", "failures", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "skipped": "1",
    }
    assert [case.attrib["name"] for case in suite] == ["replay-once", "json-order", "key-doubled", "key-optional"]


def test_html_and_markdown_show_markup_as_text() -> None:
    assert "<b>" not in REPORT.html()
    assert "<b>" not in REPORT.markdown()
    assert "## MUST replay-once" in REPORT.markdown()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "none.toml"], "none.toml: cannot be read"),
        (["--case", "case.toml", "--profile", "x"], "argument --profile: invalid choice: 'x'"),
        (["--case", "case.toml", "--level", "most"], "--level must be some of must, should, best"),
        (["--case", "case.toml", "--only", "none"], "--only 'none' is neither a check"),
        (["--case", "case.toml", "--at-once", "41"], "--at-once must be 1 to 40, not 41"),
        (["--case", "case.toml", "--junit", "no/out.xml"], "--junit no/out.xml must be a file in a folder that exists"),
        (["--case", "case.toml", "--html", "."], "--html . must be a file in a folder that exists"),
        ([], "the following arguments are required: --case"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("case.toml").write_text('[request]\npath = "/p"\njson = {a = 1}\n[effects]\nfile = "x"\n')
    assert main(["conform", "http://127.0.0.1:9", *arguments]) == 2
    captured = capsys.readouterr().err
    assert message in captured
    assert len(captured.splitlines()) == 1


def test_an_api_that_cannot_be_tested_is_one_line_and_exit_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = tmp_path / "case.toml"
    case.write_text('[request]\npath = "/p"\njson = {a = 1}\n[effects]\nfile = "x"\n')
    assert main(["conform", "http://8.8.8.8", "--case", str(case)]) == 3
    assert capsys.readouterr().err.count("\n") == 1
