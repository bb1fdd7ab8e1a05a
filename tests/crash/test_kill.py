"""SIGKILL of working processes: no double effect, no lost answer, no key stuck past its lease (I1, I2, I4, I6)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from semel import Answer, Effects, Permit, State
from semel.errors import OutcomeUnknownError
from tests.crash.processes import pause, run_script
from tests.crash.work import LEASE_SECONDS, Folder, command
from verification.history.recorder import Recorder

KINDS = [(effects, style) for effects in ("external", "idempotent", "atomic") for style in ("sync", "async")]
HITS = 65  # of each kind
STATEMENTS_MIN = 10  # of one command, with those that open its connections; each is met twice
HITS_TOGETHER_MIN = 500
assert len(KINDS) * (HITS + 2 * STATEMENTS_MIN) >= HITS_TOGETHER_MIN  # each test asserts its own share
REPORTED = "kills that hit a working process"


@pytest.mark.parametrize(("effects", "style"), KINDS)
def test_kills(tmp_path: Path, effects: str, style: str, record_property: Callable[[str, object], None]) -> None:
    folder = Folder(tmp_path)
    folder.create()

    found = run_script("kills", timeout=150, folder=str(tmp_path), effects=effects, style=style, seed=2026, hits=HITS)

    print(f"{effects} {style}: {found['hits']} {REPORTED} (of {found['kills']}), {len(found['keys'])} keys")
    record_property(REPORTED, found["hits"])
    assert found["hits"] >= HITS
    check(folder, effects, found["keys"], found["last_kill"])


@pytest.mark.parametrize(("effects", "style"), KINDS)
def test_kills_at_every_statement(
    tmp_path: Path, effects: str, style: str, record_property: Callable[[str, object], None]
) -> None:
    folder = Folder(tmp_path)
    folder.create()

    found = run_script("statements", folder=str(tmp_path), effects=effects, style=style)

    print(f"{effects} {style}: {found['hits']} {REPORTED}, one at each statement")
    record_property(REPORTED, found["hits"])
    assert found["hits"] >= 2 * STATEMENTS_MIN
    check(folder, effects, found["keys"], found["last_kill"])


def check(folder: Folder, effects: str, keys: list[str], last_kill: float) -> None:
    """Every promise over what the killed processes left behind, then every operation of their histories."""
    recorder = folder.recorder()
    pause(last_kill + LEASE_SECONDS - time.time())
    # Half of what was interrupted is met by a retry first, the other half by the reaper.
    interrupted = [key for key, state in folder.states(keys).items() if state == State.PROCESSING]
    ask_again(folder, effects, interrupted[::2], recorder)
    with folder.recording(recorder) as engine:
        started = time.monotonic()
        while engine.perform("lapse", lambda: engine.store.lapse(100)):
            pass
        assert time.monotonic() < started + 1, "a reaper that began in time would not have been done in time"
    told = folder.read_acks()
    assert {key: answers for key, answers in told.items() if len(answers) > 1} == {}
    before = folder.states(keys)
    assert set(told) <= {key for key, state in before.items() if state == State.SUCCEEDED}
    if effects == "external":
        done = set(folder.effects_by_key())
        assert {before[key] for key in done} <= {State.SUCCEEDED, State.UNKNOWN}
        assert {before[key] for key in before} <= {State.SUCCEEDED, State.UNKNOWN}

    after = ask_again(folder, effects, keys, recorder)

    assert {key: after[key] for key in told} == {key: answer for key, (answer,) in told.items()}
    stuck = {key: answer for key, answer in after.items() if answer != "unknown" and not answer.startswith("[201,")}
    assert stuck == {}
    check_effects(folder, effects, keys, after)
    recorder.close()
    judged = folder.judge()
    print(f"{judged.operations} operations of {judged.processes} processes judged, {judged.unanswered} without an end")
    assert judged.operations > len(keys)
    assert judged.unanswered > 0  # the kills are in it


def ask_again(folder: Folder, effects: str, keys: list[str], recorder: Recorder) -> dict[str, str]:
    """Return what each key answers now that no process holds it."""
    found = {}
    with folder.recording(recorder) as engine:
        for key in keys:

            def handler(permit: Permit, key: str = key) -> Answer:
                return folder.perform_effect(permit, key, recorder)

            try:
                answer = engine.run(command(key, effects), handler).answer
                found[key] = json.dumps([answer.status, answer.body.decode()]).replace(" ", "")
            except OutcomeUnknownError:
                found[key] = "unknown"
    return found


def check_effects(folder: Folder, effects: str, keys: list[str], after: dict[str, str]) -> None:
    answered = {key for key, answer in after.items() if answer != "unknown"}
    if effects == Effects.ATOMIC.name.lower():
        assert "unknown" not in after.values()
        assert folder.business() == dict.fromkeys(answered, 1)
        tokens = dict(folder.sql("SELECT key, token FROM business"))
        assert after == {key: f'[201,"{key}:{tokens[key]}"]' for key in keys}
        return
    counted = folder.effects_by_key()
    assert answered <= set(counted)
    if effects == "external":
        assert [key for key, count in counted.items() if count > 1] == []
    else:
        assert [key for key, derived in folder.derived_keys().items() if len(derived) > 1] == []
        assert set(folder.states(keys).values()) <= {State.SUCCEEDED, State.UNKNOWN}
