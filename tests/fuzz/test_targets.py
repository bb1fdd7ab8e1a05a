"""Every fuzz target over its seed corpus, over inputs spliced from it, and over what hypothesis makes of it.

Deterministic: the mutator by its seed, hypothesis by the test itself. Atheris searches further: `python -m tests.fuzz`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import __main__ as command
from tests.fuzz.corpus import BYTES_MAX, FOLDER, seeds
from tests.fuzz.splicing import smallest, splice
from tests.fuzz.targets import NAMES, target

SEED = 20_260_101
# A few seconds each at most: files are opened for each input, keys are read in microseconds.
INPUTS = {"files": 1200, "urls": 600, "exchange": 5000, "records": 12_000, "fingerprint": 8000, "multipart": 12_000}
INPUTS_MORE = 20_000
GENERATED = {"files": 50}
GENERATED_MORE = 200
ALL = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]


@pytest.mark.parametrize("name", NAMES)
def test_the_oracles_hold_for_the_seeds(name: str) -> None:
    for data in seeds(name):
        target(name).one(data)


@pytest.mark.no_cover  # the same lines as the seeds, thousands of times
@pytest.mark.parametrize("name", NAMES)
def test_the_oracles_hold_for_spliced_seeds(name: str) -> None:
    chosen = target(name)
    for data in splice(seeds(name), chosen.tokens, SEED, INPUTS.get(name, INPUTS_MORE)):
        if breaks(chosen.one, data):
            data = smallest(data, lambda less: breaks(chosen.one, less))
            print(f"{name}, seed {SEED}: the smallest input found that fails is {data!r}")
            chosen.one(data)


def breaks(one: Callable[[bytes], None], data: bytes) -> bool:
    """Whether the target fails on an input in any way."""
    try:
        one(data)
    except Exception:  # noqa: BLE001 - any exception is judged again and raised then
        return True
    return False


@pytest.mark.no_cover
@pytest.mark.parametrize("name", NAMES)
def test_the_oracles_hold_for_generated_inputs(name: str) -> None:
    chosen = target(name)
    pieces = st.sampled_from(chosen.tokens) | st.sampled_from(seeds(name)) | st.binary(max_size=6)

    @settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=GENERATED.get(name, GENERATED_MORE),
        suppress_health_check=ALL,
    )
    @given(st.lists(pieces, max_size=10).map(b"".join))
    def judge(data: bytes) -> None:
        chosen.one(data)

    judge()


def test_a_broken_oracle_is_reported_with_a_minimal_input() -> None:
    def one(data: bytes) -> None:
        assert b'"' not in data

    found = [data for data in splice(seeds("keys"), target("keys").tokens, SEED, 200) if breaks(one, data)]
    assert len(found) > 20
    assert {smallest(data, lambda less: breaks(one, less)) for data in found} == {b'"'}


def test_seeds_are_few_and_small_and_named_by_what_they_hold() -> None:
    assert {folder.name for folder in FOLDER.iterdir()} == set(NAMES)
    for name in NAMES:
        found = seeds(name)
        assert 1 <= len(found) <= 400
        assert max(map(len, found)) <= BYTES_MAX


def test_without_atheris_the_command_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "atheris", None)
    assert command.main(["keys"]) == 2
    assert "pip install atheris" in capsys.readouterr().err


def test_one_input_is_judged_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "input").write_bytes(b'"key-1"')
    assert command.main(["keys", "--input", str(tmp_path / "input")]) == 0
    assert "the oracles hold" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["nothing"], ["keys", "--keep", "3"], ["keys", "--seconds", "0"]])
def test_wrong_arguments_of_the_fuzzer_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err
