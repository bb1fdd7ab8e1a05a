"""Every mutant is found by the part of the kit that is meant to find it, and by nothing when there is no mutant."""

from __future__ import annotations

import json

import pytest

from verification.explore.replacing import found
from verification.mutants import MUTANTS, PARTS, Finding, Mutant
from verification.mutants.__main__ import main
from verification.mutants.catalogue import try_mutant

INVARIANTS = {f"I{number}" for number in range(1, 9)}


@pytest.mark.no_cover
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    with mutant.patch():
        finding = PARTS[mutant.part]()
    assert finding is not None, f"{mutant.does}, and {mutant.part} saw nothing"
    assert finding.after >= 1
    assert finding.said
    print(f"{mutant.name}: {finding.part}, {finding.after} {finding.unit}: {finding.said}")


@pytest.mark.no_cover  # the smaller runs below measure the same parts
@pytest.mark.parametrize("part", PARTS)
def test_the_unchanged_code_passes(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part fails on the unchanged code. That no state and no seed beyond these is, tests/explore and tests/simulate
    prove: they begin with the same ones, in the same order, and go further."""
    monkeypatch.setattr("verification.mutants.kit.STATES_MAX", 200)
    monkeypatch.setattr("verification.mutants.kit.SEEDS", range(50))
    assert PARTS[part]() is None


# The seven classic mistakes, and their names here.
NAMED = {
    "drop the fence check": "drop-fence-check",
    "complete before the effect": "complete-before-the-effect",
    "delete on conflict": "delete-on-conflict",
    "a time to live on a running record": "ttl-on-a-running-record",
    "retry on a commit error": "retry-on-a-commit-error",
    "replay before the fingerprint is compared": "replay-before-fingerprint",
    "a claim that is not atomic": "claim-reads-then-writes",
}


def test_the_classic_mistakes_are_among_the_mutants() -> None:
    assert {mutant.name for mutant in MUTANTS}.issuperset(NAMED.values())


def test_there_are_enough_mutants_and_each_is_described() -> None:
    assert len(MUTANTS) >= 30
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.part for mutant in MUTANTS} == set(PARTS)  # every part earns its place
    assert {mutant.breaks for mutant in MUTANTS} <= INVARIANTS
    assert [mutant.name for mutant in MUTANTS if not mutant.does or mutant.does.endswith(".")] == []


def test_a_mutant_leaves_nothing_behind() -> None:
    places = ("semel.core.settle:holds", "semel.engine.sync_engine:Engine.settle", "semel.core.decide:decide")
    before = [found(place)[2] for place in places]
    for mutant in MUTANTS:
        with mutant.patch():
            pass
    assert [found(place)[2] for place in places] == before


def test_a_survivor_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A kit without eyes finds nothing, and the command says so."""
    blind = dict.fromkeys(PARTS, lambda: None)
    monkeypatch.setattr("verification.mutants.catalogue.PARTS", blind)
    assert main(["--only", "drop-both-checks"]) == 1
    said = capsys.readouterr().out
    assert "NOTHING" in said
    assert "1 mutants, 0 found" in said


def test_a_mutant_is_tried_against_one_part_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("orders", 3, "interleavings", "seen")
    parts = dict.fromkeys(PARTS, lambda: None) | {"orders": lambda: finding, "http": lambda: finding}
    monkeypatch.setattr("verification.mutants.catalogue.PARTS", parts)
    assert len(try_mutant(MUTANTS[0]).findings) == 1
    assert len(try_mutant(MUTANTS[0], everything=True).findings) == 2


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "scope-without-caller", "--only", "5xx-is-final"]) == 0
    said = capsys.readouterr().out
    assert "scope-without-caller            I5      http" in said
    assert "one caller was given another's answer" in said
    assert main(["--only", "5xx-is-final", "--json", "--jobs", "2"]) == 0
    [document] = json.loads(capsys.readouterr().out)
    assert (document["mutant"], document["found"]) == ("5xx-is-final", True)


def test_the_command_lists_names_and_refuses_unknown_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(MUTANTS)
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "nothing"])
    assert "there is no mutant 'nothing'; see --list" in capsys.readouterr().err
