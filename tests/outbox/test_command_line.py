"""`semel worker` and `semel events`, as operators meet them. 6 s."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.cli.main import main
from semel.outbox.event import Event
from tests.outbox.conftest import SQLITE, Place, make_place

SINK = f"python:{__name__}:deliver"
Run = Callable[..., tuple[int, Any]]


def deliver(event: Event) -> None:
    if event.payload == b'{"n":0}':
        raise ValueError("the first one is poison")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(SQLITE, tmp_path)


@pytest.fixture
def run(place: Place, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = main(["--url", place.url, *arguments, "--json"])
        said = capsys.readouterr().out
        return code, json.loads(said) if said else None

    return run


def test_once_publishes_reaps_and_reports(place: Place, run: Run) -> None:
    place.fill(5, aggregates=5)
    code, said = run("worker", "--once", "--sink", SINK, "--tries", "1")
    assert (code, said["published"], said["parked"], said["lapsed"], said["outage"]) == (0, 4, 1, 0, None)
    code, said = run("worker", "--once")
    assert (code, said) == (0, {"lapsed": 0})


def test_the_sink_may_be_named_by_the_environment(place: Place, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    place.fill(2)
    monkeypatch.setenv("SEMEL_SINK", SINK)
    code, said = run("worker", "--once", "--no-reaper", "--tries", "1", "--parked", "skip")
    assert (code, said["published"], said["parked"]) == (0, 1, 1)


def _held_by_another(place: Place, seconds: float) -> None:
    until = int((time.time() + seconds) * 1_000_000)
    place.change(f"UPDATE semel_lane SET holder = 'dead', lease_until = {until}")
    place.change(f"INSERT INTO semel_relay VALUES ('dead', {until}, 0)")


def test_once_takes_over_what_a_killed_relay_holds(place: Place, run: Run) -> None:
    place.fill(5, aggregates=5)
    _held_by_another(place, 1.0)
    code, said = run("worker", "--once", "--no-reaper", "--sink", SINK, "--tries", "1")
    assert (code, said["published"], said["parked"], said["heldElsewhere"]) == (0, 4, 1, False)


def test_once_reports_that_another_relay_holds_events(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.cli.commands.serve.worker.ONCE_WAITS_SECONDS", 0.1)
    made = place.fill(2, aggregates=2)
    _held_by_another(place, 60.0)
    assert main(["--url", place.url, "worker", "--once", "--no-reaper", "--sink", SINK]) == 1
    assert "another relay still holds" in capsys.readouterr().err
    assert len(place.waiting) == len(made)


def test_a_sink_that_cannot_be_reached_is_an_exit_code(place: Place, run: Run) -> None:
    place.fill(1)
    code, said = run("worker", "--once", "--no-reaper", "--sink", "redis://127.0.0.1:1/0")
    assert (code, said["published"], said["waiting"]) == (1, 0, 1)
    assert "onnection" in said["outage"]


def test_once_reports_that_refused_events_are_not_due(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """No sink is asked for it, so that none can be found away: the exit code says nothing of the sink."""
    place.fill(1)
    command = ["--url", place.url, "worker", "--once", "--no-reaper", "--sink"]
    assert main([*command, SINK]) == 0
    place.change("UPDATE semel_event SET next_at = next_at + 600000000")
    capsys.readouterr()
    assert main([*command, "redis://127.0.0.1:1/0"]) == 0
    said = capsys.readouterr()
    assert "events waiting: 1" in said.out
    assert "the sink was not asked for it" in said.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("worker", "--no-reaper"), "leaves nothing to do"),
        (("worker", "--once", "--sink", "nat://h"), "did you mean 'nats'"),
        (("worker", "--batch", "0"), "--batch"),
        (("events", "retry"), "needs an EVENT_ID"),
        (("events", "retry", "seven"), "needs an EVENT_ID"),
        (("events", "list", "7"), "takes no EVENT_ID"),
        (("events", "park", "0b1f0f2e-6c59-4d1e-9a34-5f1d7c1c2f10"), "--reason"),
        (("events", "burn"), "burn"),
    ],
)
def test_mistakes_are_reported(arguments: tuple[str, ...], says: str, run: Run) -> None:
    code, said = run(*arguments)
    assert code == 2
    assert says in said["error"]


def test_a_store_without_an_outbox_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "memory://", "worker"]) == 2
    assert "memory:// exists only" in capsys.readouterr().err


def test_an_operator_lists_parks_retries_and_drops(place: Place, run: Run) -> None:
    made = place.fill(3, aggregates=3)
    code, said = run("events")
    assert (code, said["waiting"], said["parked"]) == (0, 3, 0)
    assert [each["id"] for each in said["events"]] == [event.id for event in made]
    assert "payload" not in said["events"][0]
    assert run("events", "park", made[1].id, "--reason", "wrong schema")[0] == 0
    _, said = run("events", "--parked")
    [parked] = said["events"]
    assert (parked["id"], parked["state"], parked["reason"]) == (made[1].id, "parked", "wrong schema")
    assert run("events", "park", made[1].id, "--reason", "again")[0] == 4
    assert run("events", "drop", made[0].id)[0] == 4  # it is not parked
    assert run("events", "retry", made[1].id)[0] == 0
    assert run("events", "--parked")[1]["events"] == []
    assert run("events", "park", made[1].id, "--reason", "really")[0] == 0
    assert run("events", "drop", made[1].id)[0] == 0
    assert place.ids == [made[0].id, made[2].id]
    _, said = run("events", "--limit", "1")
    assert run("events", "--after", str(said["nextAfter"]))[1]["events"][0]["id"] == made[2].id


def test_people_get_a_table(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    made = place.fill(1)
    assert main(["--url", place.url, "events"]) == 0
    said = capsys.readouterr().out
    assert "1 waiting" in said
    assert made[0].id in said
    assert "order/0" in said


def test_sigterm_ends_a_worker_after_its_batch(place: Place) -> None:
    place.fill(50, aggregates=5)
    command = [sys.executable, "-m", "semel.cli", "--url", place.url, "worker", "--sink", "python:builtins:repr"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().partition("Z ")[2].startswith("working: relay and reaper on sqlite://")
        process.send_signal(signal.SIGTERM)
        said = process.stdout.read()
        assert process.wait(30) == 0
    assert said.endswith("ended\n")
    [(marked,)] = place.rows("SELECT count(*) FROM semel_event WHERE published_at IS NOT NULL")
    assert marked in (0, 50)
    assert place.rows("SELECT count(*) FROM semel_relay") == [(0,)]


@pytest.mark.parametrize("option", ["--sink", "--reconcile"])
def test_a_users_module_that_cannot_be_imported_is_one_line(
    place: Place, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"broken_{option.strip('-')}"
    (tmp_path / f"{name}.py").write_text('raise RuntimeError("the shop is closed")\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    word = f"python:{name}:deliver" if option == "--sink" else f"{name}:ask"
    assert main(["--url", place.url, "worker", "--once", option, word]) == 2
    said = capsys.readouterr().err
    assert f"semel: {option}" in said
    assert f"{name} could not be imported: RuntimeError: the shop is closed" in said
    assert len(said.splitlines()) == 1
