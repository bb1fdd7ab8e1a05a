"""`semel send`: people and scripts send commands that survive their process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semel.cli.main import main
from semel.client import Journal
from semel.client.journal import SendingClaim
from tests.cli.conftest import Ran
from tests.client.test_kills import Idempotent, serving


class Shell:
    """Runs `semel send` in its own folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Ran:
        code = main(["send", *arguments])
        said = self._capsys.readouterr()
        return Ran(code, said.out, said.err)


@pytest.fixture
def send(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "body.json").write_text('{"amount": "5.00"}')
    return Shell(capsys)


@pytest.fixture
def server() -> Any:
    with serving(lose_first=False) as running:
        yield running


@pytest.fixture
def losing() -> Any:
    with serving(lose_first=True) as running:
        yield running


def test_a_command_is_sent_and_its_answer_printed(send: Shell, server: Idempotent) -> None:
    ran = send("POST", f"{server.url}/payments", "--body", "@body.json", "--journal", "intents.db")
    assert (ran.code, ran.out) == (0, 'done with status 201\n{"id": 0}\n')
    assert ran.err == "attempt 1: sending\nattempt 1: answered 201\n"


def test_json_with_a_file_is_the_body_and_prints_a_document(send: Shell, server: Idempotent) -> None:
    ran = send("POST", f"{server.url}/payments", "--json", "@body.json", "--journal", "intents.db")
    found = json.loads(ran.out)
    assert (ran.code, found["outcome"], found["status"], found["body"]) == (0, "done", 201, '{"id": 0}')


def test_json_before_the_method_is_only_the_form_of_the_output(send: Shell, server: Idempotent) -> None:
    ran = send("--json", "POST", f"{server.url}/payments", "--body", '{"a": 1}')
    assert (ran.code, json.loads(ran.out)["outcome"]) == (0, "done")


def test_a_lost_answer_is_fetched_by_a_retry_with_progress(send: Shell, losing: Idempotent) -> None:
    ran = send("POST", f"{losing.url}/payments", "--body", "@body.json", "--name", "rent")
    assert ran.code == 0
    assert "attempt 1: no answer (" in ran.err
    assert "attempt 2: answered 201" in ran.err
    assert len(losing.answers) == 1
    again = send("POST", f"{losing.url}/payments", "--body", "@body.json", "--name", "rent")
    assert again.out.startswith("done with status 201 (the stored answer")
    assert len(losing.requests) == 2
    key = losing.requests[0].strip('"')
    assert key not in ran.out + ran.err + again.out + again.err


def test_open_commands_are_listed_and_resumed(send: Shell, losing: Idempotent) -> None:
    first = send("POST", f"{losing.url}/payments?q=secret", "--body", "@body.json", "--attempts", "1", "--name", "rent")
    assert first.code == 1
    assert "go on with semel send --resume" in first.out
    listed = send("--list")
    assert "rent" in listed.out
    assert "secret" not in listed.out
    assert json.loads(send("--list", "--json").out)["commands"][0]["attempts"] == 1
    resumed = send("--resume")
    assert (resumed.code, resumed.out) == (0, "1 open commands\nrent: done with status 201\n")
    assert json.loads(send("--resume", "--json").out) == {"commands": []}
    assert len(losing.answers) == 1


def test_a_command_is_forgotten_only_by_name(send: Shell, server: Idempotent) -> None:
    send("POST", "http://127.0.0.1:1/p", "--body", "1", "--attempts", "1", "--name", "rent")
    ran = send("--forget", "rent")
    assert (ran.code, ran.out) == (0, "forgotten: POST http://127.0.0.1:1/p, which was open\n")
    assert json.loads(send("--list", "--json").out) == {"commands": []}
    ran = send("--forget", "rent")
    assert ran.code != 0
    assert "the journal has no command 'rent'" in ran.err
    assert send("POST", f"{server.url}/p", "--body", "2", "--name", "rent").code == 0  # another command now
    assert "leave name out" in send("--forget", "rent", "--name", "rent").err


def test_headers_are_sent_and_never_kept(send: Shell, server: Idempotent, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Authorization: Bearer canary-1\n\n")
    ran = send("POST", f"{server.url}/p", "--body", "{}", "--header-file", "token", "--header", "X-A: canary-2")
    assert ran.code == 0
    assert b"canary" not in (tmp_path / "intents.db").read_bytes()


def test_another_payload_under_a_name_is_refused(send: Shell, server: Idempotent) -> None:
    send("POST", f"{server.url}/p", "--body", "1", "--name", "rent")
    ran = send("POST", f"{server.url}/p", "--body", "2", "--name", "rent")
    assert ran.code == 1
    assert "nothing was sent" in ran.err
    assert len(server.requests) == 1


def test_a_command_that_another_process_is_sending_is_not_sent(send: Shell, server: Idempotent) -> None:
    send("POST", "http://127.0.0.1:1/p", "--body", "1", "--attempts", "1", "--name", "rent")
    journal = Journal("sqlite:///intents.db")
    [entry] = journal.open()
    assert isinstance(journal.claim(entry.key, 30), SendingClaim)
    ran = send("--resume", "--json")
    [found] = json.loads(ran.out)["commands"]
    assert (ran.code, found["outcome"], found["code"]) == (1, "not-yet", "BUSY")


WRONG = {
    "nothing": ([], "METHOD and ADDRESS"),
    "no address": (["POST"], "METHOD and ADDRESS"),
    "no scheme": (["POST", "shop.example/p", "--body", "1"], "scheme"),
    "missing file": (["POST", "http://127.0.0.1:1/p", "--body", "@none.json"], "none.json"),
    "two bodies": (["POST", "http://127.0.0.1:1/p", "--body", "1", "--json", "@body.json"], "twice"),
    "json value": (["POST", "http://127.0.0.1:1/p", "--json", "five"], "--json takes"),
    "header": (["POST", "http://127.0.0.1:1/p", "--header", "Bearer x"], "Name: value"),
    "header file": (["POST", "http://127.0.0.1:1/p", "--header-file", "none"], "--header-file"),
    "key": (["POST", "http://127.0.0.1:1/p", "--key", "a b"], "space"),
    "own key header": (["POST", "http://127.0.0.1:1/p", "--header", "Idempotency-Key: x"], "--key"),
    "resume and body": (["--resume", "--body", "1"], "leave body out"),
    "resume without journal": (["--resume"], "does not exist"),
    "list without journal": (["--list"], "does not exist"),
    "journal in no folder": (["POST", "http://127.0.0.1:1/p", "--journal", "no/intents.db"], "cannot be created"),
    "attempts": (["POST", "http://127.0.0.1:1/p", "--attempts", "0"], "--attempts"),
    "seconds": (["POST", "http://127.0.0.1:1/p", "--seconds", "never"], "--seconds"),
}


@pytest.mark.parametrize(("arguments", "named"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_get_one_line_and_code_2(send: Shell, arguments: list[str], named: str) -> None:
    ran = send(*arguments)
    assert ran.code == 2
    assert ran.out == "" or json.loads(ran.out)["exitCode"] == 2
    assert named in ran.err
    assert ran.err.count("\n") == 1
