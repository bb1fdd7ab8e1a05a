"""Recordings of failing seeds: read, added to, and refused where they mean something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semel.errors import ConfigurationError
from verification.simulate import FORMAT, replay, search
from verification.simulate.recording import Recorded, RecordingRefused, read_recording, record
from verification.simulate.search import seed_of


def test_a_recording_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "seeds.json"
    record(path, 7, "I2 one answer: two of them")
    record(path, 8, "I3 fenced: not so")
    record(path, 7, "again")
    assert read_recording(path) == (Recorded(7, "I2 one answer: two of them"), Recorded(8, "I3 fenced: not so"))


@pytest.mark.parametrize("version", [FORMAT - 1, FORMAT + 1, "1", None])
def test_another_format_is_refused(tmp_path: Path, version: object) -> None:
    path = tmp_path / "seeds.json"
    path.write_text(json.dumps({"format": version, "seeds": [{"seed": 1, "found": "x"}]}))
    with pytest.raises(RecordingRefused, match=rf"has format .*draws by format {FORMAT}.*on the commit that recorded"):
        read_recording(path)
    with pytest.raises(RecordingRefused, match="has format"):
        record(path, 2, "y")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no recording"),
        ("[]", "has format None"),
        ('{"format": 1}', "no list of seeds"),
        ('{"format": 1, "seeds": [7]}', "seed 1: it looks like"),
        ('{"format": 1, "seeds": [{"seed": true, "found": "x"}]}', "seed 1: it looks like"),
        ('{"format": 1, "seeds": [{"seed": 1}]}', "seed 1: it looks like"),
        ('{"format": 1, "seeds": [{"seed": -1, "found": "x"}]}', "seed 1: it looks like"),
    ],
)
def test_an_invalid_recording_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "seeds.json"
    path.write_text(text)
    with pytest.raises(RecordingRefused, match=said):
        read_recording(path)


def test_a_missing_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingRefused, match="no recording"):
        read_recording(tmp_path / "none.json")


@pytest.mark.parametrize("seed", [-1, True, 1.5, None, "", "x", "-1", "1:", "1:x", ":", "٣"])
def test_an_invalid_seed_is_refused_with_the_version(seed: object) -> None:
    """A negative one would draw what its absolute value draws."""
    for use in (replay, lambda given: search([given])):
        with pytest.raises(ConfigurationError, match=f"a seed of format {FORMAT} is a whole number from 0"):
            use(seed)  # type: ignore[arg-type]


def test_a_seed_of_another_format_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=rf"seed 0:7 has format '0'; this simulator draws by format {FORMAT}"):
        seed_of("0:7")
    assert seed_of(f"{FORMAT}:7") == seed_of("7") == seed_of(7) == 7
