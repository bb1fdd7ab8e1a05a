"""What `semel demo` says where something does not hold. That it holds is tested from the wheel, by tests/house."""

from __future__ import annotations

import tomllib
from importlib.util import find_spec

import pytest

from semel.cli.commands.serve import serve
from semel.cli.main import main
from semel.cli.terminal import Output
from semel.reference.demo import stage as demo_stage
from semel.reference.demo.story import Teller
from tests.house.sources import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


def test_a_failed_expectation_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(Output(machine=False))
    teller.scene("A scene")
    teller.expect("this holds", True)
    teller.expect("this does not", False)
    assert teller.list_failed() == ["this does not"]
    assert "FAILED: this does not" in capsys.readouterr().out


@pytest.mark.parametrize("library", serve.LIBRARIES)
@pytest.mark.parametrize("command", ["demo", "serve"])
def test_a_library_of_the_extra_that_is_missing_is_named_with_its_remedy(
    command: str, library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == library else find_spec(name))
    assert main([command]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"semel: the service needs {library.replace('_', '-')}; install it: pip install ")
    assert "[service]" in said


def test_the_libraries_of_the_extra_are_those_that_are_looked_for() -> None:
    extra = {each.partition(">")[0] for each in EXTRAS["service"]}
    assert {name.replace("_", "-") for name in serve.LIBRARIES} == extra - {
        "orjson"
    }  # without it: the standard library


def test_a_service_that_does_not_start_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_stage, "WORKERS", "many")
    assert main(["demo"]) == 1
    assert "SEMEL_WORKERS" in capsys.readouterr().err
