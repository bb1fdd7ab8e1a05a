"""Servers that die, fail over, lose replies or are cut off: nothing is broken, or just what the documents predict.

The table of ``docs/nemeses.md`` has a line for each of these; a test there compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.nemeses.scripts import ROOT, play
from tests.servers import mariadb

# What a lost record looks like in a history: the command looks never asked for, and a retry runs it again.
LOSSES = {"not-linearizable", "two-effects", "changed-answer", "answer-without-effect", "derived-keys-differ"}
AFTER = 100  # operations after the recovery, at least

SOUND = [  # nemesis, store, effects, setting
    ("server killed", "postgresql", "external", ""),
    ("server killed", "mariadb", "atomic", ""),
    ("server killed", "redis", "external", "always"),
    ("server killed", "redis", "idempotent", "everysec"),
    ("immediate stop", "postgresql", "atomic", ""),
    ("backend killed", "asyncpg", "external", ""),
    ("connections killed", "mariadb", "external", ""),
    ("lost replies", "postgresql", "atomic", ""),
    ("lost replies", "asyncpg", "external", ""),
    ("lost replies", "mariadb", "atomic", ""),
    ("lost replies", "redis", "external", "always"),
    ("partition", "postgresql", "atomic", ""),
    ("partition", "mariadb", "external", ""),
    ("partition", "redis", "idempotent", "always"),
    ("synchronous standby", "postgresql", "external", ""),
    ("synchronous standby, cut off", "postgresql", "atomic", ""),
]
LOSING = [
    ("server killed", "redis", "external", "none"),
    ("asynchronous standby, cut off", "postgresql", "external", ""),
    ("asynchronous standby, cut off", "postgresql", "atomic", ""),
    ("replica promoted, cut off", "redis", "external", "always"),
]


def cases(lines: list[tuple[str, str, str, str]]) -> list[Any]:
    """Each line as a parameter with a name."""
    return [
        pytest.param(*line, id=" ".join(line).strip(), marks=[mariadb.MARK] if line[1] == "mariadb" else [])
        for line in lines
    ]


def played(folder: Path, line: tuple[str, str, str, str], record_property: Callable[[str, object], None]) -> Any:
    name, store, effects, setting = line
    verdict = play("scenarios", folder, name=name, store=store, effects=effects, setting=setting, seed=2026)
    told = {word: verdict[word] for word in ("operations", "unanswered", "effects", "after", "kinds", "more")}
    print(f"{' '.join(line).strip()}: {told}")
    record_property("judged", told)
    assert verdict["undecided"] == []
    assert verdict["after"] >= AFTER
    assert verdict["effects"] > 0
    return verdict


def test_the_documents_have_a_line_for_each() -> None:
    page = (ROOT / "docs" / "nemeses.md").read_text("utf-8")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    told = {(line[0], line[1], line[2], line[3]): line[4] for line in lines if len(line) == 5}
    for line in SOUND:
        assert told[line].startswith("0 violations"), line
    for line in LOSING:
        assert told[line].startswith("predicted: "), line
    assert len(told) == 2 + len(SOUND) + len(LOSING)  # with the head and its rule


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "store", "effects", "setting"), cases(SOUND))
def test_nothing_is_broken(
    tmp_path: Path,
    name: str,
    store: str,
    effects: str,
    setting: str,
    record_property: Callable[[str, object], None],
) -> None:
    verdict = played(tmp_path, (name, store, effects, setting), record_property)

    assert verdict["kinds"] == {}, "\n".join(verdict["shown"])
    if name == "lost replies":
        lost = verdict["more"]["lost"]
        assert lost["reply"] >= 5
        assert lost["reply:EVALSHA" if store == "redis" else "reply:COMMIT"] > 0 or store == "asyncpg"


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "store", "effects", "setting"), cases(LOSING))
def test_the_predicted_loss_is_found(
    tmp_path: Path,
    name: str,
    store: str,
    effects: str,
    setting: str,
    record_property: Callable[[str, object], None],
) -> None:
    """The documents say that confirmed records are lost here, and a checker that is to be believed must see it."""
    verdict = played(tmp_path, (name, store, effects, setting), record_property)

    assert verdict["kinds"].get("changed-answer", 0) > 0
    assert verdict["kinds"].keys() <= LOSSES
    # Of an ATOMIC command the effect is lost with the record; any other has happened, and happens again.
    assert ("two-effects" in verdict["kinds"]) == (effects != "atomic")
    assert verdict["young"] == []  # commands after the recovery are as safe as any
