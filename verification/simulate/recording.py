"""Failing seeds as files: what was found once is run for ever.

A recording is JSON: ``{"format": 1, "seeds": [{"seed": 1227, "found": "what it showed"}]}``. A seed means the same
schedule only under the format it was recorded with, so another one is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semel.errors import ConfigurationError
from verification.simulate.search import FORMAT


class RecordingRefused(ConfigurationError):
    """A recording that cannot be run here; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One seed, and what it has found."""

    seed: int
    found: str


def read_recording(path: Path) -> tuple[Recorded, ...]:
    """The seeds of a recording.

    Raises RecordingRefused: it is no recording, or was made under another format.
    """
    try:
        held: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RecordingRefused(f"{path} is no recording: {error}") from error
    made_under = held.get("format") if isinstance(held, dict) else None
    if made_under != FORMAT:
        raise RecordingRefused(
            f"{path} has format {made_under!r}; this simulator draws by format {FORMAT}, where its seeds are other "
            f"schedules. Run it on the commit that recorded it, or search anew and record what is found"
        )
    seeds = held.get("seeds")
    if not isinstance(seeds, list):
        raise RecordingRefused(f"{path} has no list of seeds; it looks like {{'format': {FORMAT}, 'seeds': [...]}}")
    return tuple(_read_one(path, place, one) for place, one in enumerate(seeds, start=1))


def _read_one(path: Path, place: int, one: object) -> Recorded:
    match one:
        case {"seed": int(seed), "found": str(found)} if not isinstance(seed, bool) and seed >= 0:
            return Recorded(seed, found)
        case _:
            raise RecordingRefused(f"{path}, seed {place}: it looks like {{'seed': 1227, 'found': 'what it showed'}}")


def record(path: Path, seed: int, found: str) -> None:
    """Add a seed to a recording, which is made if it is not there. Raises RecordingRefused as ``read_recording``."""
    known = read_recording(path) if path.exists() else ()
    if all(one.seed != seed for one in known):
        seeds = [asdict(one) for one in (*known, Recorded(seed, found))]
        path.write_text(json.dumps({"format": FORMAT, "seeds": seeds}, indent=2) + "\n", "utf-8")
