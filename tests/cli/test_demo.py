"""What `semel demo` says where something does not hold. That it holds is tested from the wheel, by tests/house."""

from __future__ import annotations

import pytest

from semel.cli.main import main
from semel.cli.terminal import Output
from semel.reference.demo import stage as demo_stage
from semel.reference.demo.story import Teller


def test_a_failed_expectation_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(Output(machine=False))
    teller.scene("A scene")
    teller.expect("this holds", True)
    teller.expect("this does not", False)
    assert teller.list_failed() == ["this does not"]
    assert "FAILED: this does not" in capsys.readouterr().out


def test_a_service_that_does_not_start_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_stage, "WORKERS", "many")
    assert main(["demo"]) == 1
    assert "SEMEL_WORKERS" in capsys.readouterr().err
