"""Rounds of a soak on a server until so many kills were effective; each round's kind of effects is another one."""

from __future__ import annotations

from pathlib import Path

from tests.nemeses.scripts import read_arguments, tell
from verification.soak.round import Outcome, Round

LIFE_SECONDS_MAX = 0.015
KILLS_AT_ONCE = 70


def main() -> None:
    options = read_arguments()
    rounds: list[Outcome] = []
    while (missing := options["kills"] - sum(each.kills for each in rounds)) > 0:
        place = Path(options["folder"]) / str(len(rounds))
        place.mkdir()
        kills = max(10, min(KILLS_AT_ONCE, missing))
        seed = options["seed"] + len(rounds)
        played = Round(place, seed, url=options["url"], kills=kills, pauses=0, life_seconds_max=LIFE_SECONDS_MAX).play()
        rounds.append(played)
        if not played.ok:
            break
    tell([each.words() for each in rounds])


if __name__ == "__main__":
    main()
