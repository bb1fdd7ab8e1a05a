"""Files: what processes leave behind is read back whole, what is damaged is refused by file and line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest

from semel import Answer, Command, NothingHappened, Permit, Policy, Scope
from semel.errors import CommandError
from verification.history.__main__ import BROKEN, OK, UNDECIDED, USAGE, main
from verification.history.check import check
from verification.history.engines import AsyncRecordingEngine, RecordingEngine
from verification.history.events import HistoryError
from verification.history.reading import read_history
from verification.history.recorder import Recorder

SCOPE = Scope("acme", "alice", "pay")


def command(key: str, effects: str = "external", request: int = 0) -> Command:
    return Command(SCOPE, key, bytes([request]) * 32, "history", Policy.of(effects=effects, wait_seconds=0))


def record_threads(folder: Path, effects: str, seed: int) -> None:
    """Six threads of a real engine on the same five keys: commands, errors, refusals, other payloads."""
    url = "memory://" if effects != "atomic" else f"sqlite:///{folder}.db?synchronous=NORMAL"
    recorder = Recorder(folder, store=url, settings={"seed": seed})

    def work(engine: RecordingEngine, rng: Random) -> None:
        for _ in range(30):
            asked = command(f"k{rng.randrange(5)}", effects, int(rng.random() < 0.1))

            def handler(permit: Permit) -> Answer:
                if rng.random() < 0.2:
                    raise NothingHappened
                answer = Answer(201 if rng.random() < 0.9 else 422, (), str(rng.random()).encode())
                if effects != "atomic":
                    recorder.effect(permit, answer)
                if rng.random() < 0.1:
                    raise ValueError
                return answer

            with contextlib.suppress(CommandError, NothingHappened, ValueError):  # the next client asks again
                engine.run(asked, handler)

    migrating = RecordingEngine.recording(url, recorder)
    migrating.migrate()
    migrating.close()
    with recorder, RecordingEngine.recording(url, recorder) as engine:
        threads = [threading.Thread(target=work, args=(engine, Random(seed * 10 + n))) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("effects", ["external", "idempotent", "atomic"])
def test_threads_of_a_real_engine(tmp_path: Path, effects: str) -> None:
    for seed in range(5):
        record_threads(tmp_path / str(seed), effects, seed)
        history = read_history([tmp_path / str(seed)])
        report = check(history)
        assert report.ok, report.violations
        assert report.operations >= 180
        assert (report.effects > 0) == (effects != "atomic")
        assert report.unanswered == 0


def test_tasks_of_a_real_engine(tmp_path: Path) -> None:
    async def play() -> None:
        with Recorder(tmp_path, store="memory://") as recorder:
            async with AsyncRecordingEngine.recording("memory://", recorder) as engine:

                async def handler(permit: Permit) -> Answer:
                    await asyncio.sleep(0)
                    answer = Answer(201, (), os.urandom(4))
                    recorder.effect(permit, answer)
                    return answer

                async def one(key: str) -> None:
                    with contextlib.suppress(CommandError):
                        await engine.run(command(key), handler)

                await asyncio.gather(*(one(f"k{place % 4}") for place in range(80)))
                row = await engine.read(bytes(16))
                assert row is None

    asyncio.run(play())
    report = check(read_history([tmp_path]))
    assert report.ok, report.violations
    assert (report.operations, report.effects) == (85, 4)


# --- what a file may look like ---


def sound(folder: Path, *, answer: bytes = b"done") -> Path:
    """A small history of one process: a command that is done, and its replay."""
    with (
        Recorder(folder, store="memory://") as recorder,
        RecordingEngine.recording("memory://", recorder) as engine,
    ):
        for _ in range(2):
            engine.run(command("k"), lambda permit: Answer(200, (), answer))
    return recorder.path


def break_history(folder: Path) -> Path:
    """The same, with a replay that gives another answer."""
    path = sound(folder)
    lines = path.read_text().splitlines()
    event = json.loads(lines[-1])
    event["answer"] = "0" * 32
    path.write_text("\n".join([*lines[:-1], json.dumps(event)]) + "\n")
    return path


def test_a_torn_last_line_and_an_operation_without_an_end_are_what_a_kill_leaves(tmp_path: Path) -> None:
    path = sound(tmp_path)
    path.write_bytes(path.read_bytes()[:-7])

    history = read_history([path])
    report = check(history)

    assert report.ok
    assert (report.operations, report.unanswered) == (3, 1)
    assert report.notes == [f"{path.name}: the last line is cut: its process died while it was writing"]


def test_processes_that_died_before_they_began(tmp_path: Path) -> None:
    sound(tmp_path)
    (tmp_path / "0.0.history.jsonl").write_bytes(b'{"format":"semel.hi')
    report = check(read_history([tmp_path]))
    assert report.ok
    assert len(report.notes) == 2


def edit_header(path: Path, **words: object) -> None:
    header, _, rest = path.read_text().partition("\n")
    path.write_text(json.dumps({**json.loads(header), **words}) + "\n" + rest)


def test_another_version_is_refused_with_the_version_that_wrote_it(tmp_path: Path) -> None:
    path = sound(tmp_path)
    edit_header(path, version=7, semel="9.9")
    with pytest.raises(HistoryError) as refused:
        read_history([path])
    assert str(refused.value) == (
        f"{path}, line 1: history version 7, written by semel 9.9; this semel reads version 1: check it with the semel "
        "that wrote it, or record anew"
    )


@pytest.mark.parametrize(
    ("line", "text", "said"),
    [
        (1, "not json", "no header of format 'semel.history'"),
        (1, '{"format":"semel.history","version":1}', "the header lacks"),
        (3, "{]", "it is no JSON"),
        (3, "[1]", "it is no event"),
        (3, '{"event":"ok","op":99,"at":1}', "an event that does not fit"),
        (3, '{"event":"ok","op":0}', "an event that does not fit"),
        (3, '{"event":"ok","op":0,"at":"soon"}', "'at' must be nanoseconds"),
        (3, '{"event":"maybe","at":1}', "an unknown event 'maybe'"),
        (2, '{"event":"invoke","op":0,"at":1,"kind":"attempt","key":"ab","by":1}', "it lacks attempts_max, effects"),
        (2, '{"event":"invoke","op":0,"at":1,"kind":"dance","key":"ab","by":1}', "an event that does not fit"),
    ],
)
def test_damage_is_refused_by_file_and_line(tmp_path: Path, line: int, text: str, said: str) -> None:
    path = sound(tmp_path)
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(HistoryError) as refused:
        read_history([path])
    assert str(refused.value).startswith(f"{path}, line {line}: ")
    assert said in str(refused.value)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one, other = sound(tmp_path / "one"), sound(tmp_path / "other")
    with pytest.raises(HistoryError, match="named twice"):
        read_history([one, one])
    edit_header(other, store="sqlite:///else.db")
    with pytest.raises(HistoryError, match="differ in 'store'; one check is about one store"):
        read_history([one, other])
    edit_header(other, store="memory://", boot="another")
    with pytest.raises(HistoryError, match="differ in 'boot'"):
        read_history([one, other])
    with pytest.raises(HistoryError, match="no such file"):
        read_history([tmp_path / "nothing"])
    with pytest.raises(HistoryError, match=r"no \*\.history\.jsonl file"):
        read_history([tmp_path])


def test_a_stepped_clock_is_noticed_and_leases_are_not_judged(tmp_path: Path) -> None:
    one, other = sound(tmp_path), sound(tmp_path)
    edit_header(other, wall_offset_ns=json.loads(one.read_text().splitlines()[0])["wall_offset_ns"] + 10**9)
    history = read_history([one, other])
    assert not history.leases_judged
    assert "the wall clock was stepped" in history.notes[0]


def test_a_forked_child_writes_its_own_file(tmp_path: Path) -> None:
    """In a process of its own: this one has threads."""
    code = """
import os, sys
from verification.history.recorder import Recorder
words = dict(request="aa", effects="external", lease_us=1, attempts_max=1)
recorder = Recorder(sys.argv[1], store="memory://")
recorder.ok(recorder.invoke("attempt", bytes(16), **words), verdict="in-progress")
if os.fork() == 0:
    recorder.invoke("attempt", bytes(16), **words)
    os.kill(os.getpid(), 9)
pid, status = os.wait()
recorder.note_end(pid)
print(pid)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    history = read_history([tmp_path])
    assert len(history.headers) == 2
    assert history.operations == 2
    assert [process.split(".")[0] for process in history.deaths_ns] == [run.stdout.strip()]


def test_a_line_that_cannot_be_written_ends_the_recording(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, store="memory://")
    recorder.close()
    with pytest.raises(HistoryError, match="cannot be written"):
        recorder.invoke("read", bytes(16))


# --- the command line ---


def test_check_reports_what_it_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound(tmp_path)
    assert main(["check", str(tmp_path)]) == OK
    assert capsys.readouterr().out.startswith("3 operations (0 unanswered) of 1 processes on 1 keys, 0 effects, in ")


def test_check_shows_what_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = break_history(tmp_path)
    assert main(["check", str(path)]) == BROKEN
    out = capsys.readouterr().out
    assert "not-linearizable: key " in out
    assert "clients were told 2 different answers" in out
    assert "+" in out
    assert "attempt  request=" in out

    assert main(["check", "--json", str(path)]) == BROKEN
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert {one["kind"] for one in found["violations"]} == {"not-linearizable", "changed-answer"}


def test_check_reports_what_it_could_not_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound(tmp_path)
    assert main(["check", str(tmp_path), "--operations-per-key", "2"]) == UNDECIDED
    assert "undecided: key " in capsys.readouterr().out


def test_show_prints_one_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sound(tmp_path)
    assert main(["show", str(path), "--key", ""]) == OK
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 4
    assert "proceed fence=" in out[1]
    assert "settle" in out[2]
    assert "replay state=succeeded" in out[3]

    assert main(["show", str(path), "--key", "zz"]) == USAGE
    assert "--key zz: 0 keys begin so" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["check"], ["show", "x"], ["check", "x", "--operations-per-key", "0"], ["dance"]]
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == USAGE
    assert "error" in capsys.readouterr().err


def test_an_invalid_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", str(tmp_path / "none")]) == USAGE
    said = capsys.readouterr()
    assert "no such file" in json.loads(said.out)["error"]
    assert said.err.startswith("error: ")
