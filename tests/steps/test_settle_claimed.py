"""The output about a command that died between its steps: nothing is in doubt, and a retry continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel import Answer, Engine, Permit, Policy, State
from semel.cli.main import main
from semel.core.identity import uuid_text
from semel.core.model import Find
from tests.engine.shells import MADE, command


@pytest.mark.parametrize(
    "word", [("--did-not-happen",), ("--succeeded", "--no-answer"), ("--did-not-happen", "--force")]
)
def test_settle_of_a_claimed_command_names_the_remedy(
    word: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    charged: list[str] = []
    failing = [True]

    def charge() -> str:
        charged.append("ch_1")
        return "ch_1"

    def handler(permit: Permit) -> Answer:
        permit.step("charge", charge)
        if failing:
            raise RuntimeError("the worker dies here")
        return MADE

    assert main(["migrate", "--url", url]) == 0
    with Engine.connect(url) as engine:
        with pytest.raises(RuntimeError, match="the worker dies"):
            engine.run(command("k", policy=Policy(steps=True)), handler)
        [record] = engine.perform("find", lambda: engine.store.find(Find())).records
        assert record.state == State.CLAIMED
        id = uuid_text(record.operation_id)
        assert main(["settle", id, *word, "--reason", "it died", "--url", url]) != 0
        said = " ".join(capsys.readouterr().err.split())
        assert "none of its steps is in doubt" in said
        assert "A retry with the same key and request continues" in said
        assert f"semel explain {id}" in said
        failing.clear()
        assert engine.run(command("k", policy=Policy(steps=True)), handler).answer == MADE
    assert charged == ["ch_1"]
