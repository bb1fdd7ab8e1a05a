"""Every state of the protocol, and every unsafe variant of it refused with its shortest counterexample."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from semel.policy import Policy
from verification.explore import MODES, VARIANTS, Left, Mode, Variant, explore
from verification.explore.__main__ import main
from verification.explore.canonical import canonical
from verification.explore.replacing import NothingToReplace, found, lines_replaced, replace_everywhere, text_replaced
from verification.explore.steps import steps
from verification.explore.world import SPANS, World

# The shortest counterexamples, in steps. A longer one means that the model has lost an order of events.
SHORTEST = {
    "no-fence": 4,
    "no-unknown": 7,
    "unknown-proceeds": 7,
    "blind-takeover": 6,
    "replay-before-comparing": 3,
    "answers-first": 4,
    "settles-first": 2,
    "operator-forces": 8,
    "downstream-forgets": 7,
}


# Explored whole by ``make soak``; here only so many of their states, since CI's time is short.
LONGER = {
    "idempotent": 15_000,
    "steps-renewed": 4_000,
    "steps-repeated": 4_000,
    "steps-raising": 4_000,
    "steps-undeclared": 4_000,
    "steps-late": 4_000,
}


@pytest.mark.no_cover  # the same lines, a hundred thousand times; the variants below and tests/rules measure them
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_every_state_keeps_the_invariants(mode: Mode) -> None:
    most = LONGER.get(mode.name)
    found = explore(mode) if most is None else explore(mode, states_max=most)
    assert found.violation is None, found.violation
    assert found.whole or most is not None
    assert found.states > 1000
    print(f"{found.mode}: {found.states} states, {found.transitions} transitions, {found.seconds:.1f} s")


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_an_unsafe_variant_is_refused(variant: Variant) -> None:
    with variant.patch():
        found = explore(variant.make_mode())
    assert found.violation is not None, f"{variant.does}, and it was not noticed in {found.states} states"
    assert found.violation.invariant == variant.breaks, found.violation
    assert len(found.violation.trace) == SHORTEST.get(variant.name, len(found.violation.trace))
    assert len(found.violation.trace) == found.depth


def test_merged_states_have_the_same_futures() -> None:
    """With any world as the canonical form of a state, the same states are reached in as many steps."""
    mode = Mode(name="small", policy=Policy.of(effects="idempotent", **SPANS), left=Left(1, 1, 0))
    for world in some_worlds(mode, 400):
        other = world._replace(workers=tuple(reversed(world.workers)))
        assert canonical(other) == canonical(world)
        mine = {canonical(after) for _, after in steps(world, mode)}
        assert {canonical(after) for _, after in steps(other, mode)} == mine


def some_worlds(mode: Mode, count: int) -> list[World]:
    """The first worlds that are reached, one for each canonical form."""
    seen = {canonical(mode.first()): mode.first()}
    for world in (frontier := [mode.first()]):
        for _, after in steps(world, mode):
            if len(seen) < count and canonical(after) not in seen:
                seen[canonical(after)] = after
                frontier.append(after)
    return list(seen.values())


def test_a_later_start_is_the_same_state() -> None:
    """Only distances in time count, never the time."""
    mode = MODES[0]
    for world in some_worlds(mode, 200):
        later = shift(world, 12_345_000)
        assert canonical(later) == canonical(world)


def shift(world: World, by: int) -> World:
    moments = ("created_at", "first_started_at", "lease_until", "deadline_at", "dedup_until", "fence")
    late = ("settled_at", "answer_until", "forget_after")
    row = world.row
    if row is not None:
        row = row._replace(**{name: getattr(row, name) + by for name in moments if getattr(row, name)})
        row = row._replace(**{name: getattr(row, name) + by for name in late if getattr(row, name) is not None})
    workers = tuple(
        worker
        if worker.grant is None
        else worker._replace(
            ends=worker.ends + by,
            grant=worker.grant._replace(
                fence=worker.grant.fence + by, first_started_at=worker.grant.first_started_at + by
            ),
        )
        for worker in world.workers
    )
    letters = tuple(
        letter
        if letter.settlement is None
        else letter._replace(settlement=letter.settlement._replace(fence=letter.settlement.fence + by))
        for letter in world.letters
    )
    spec = world.spec
    if spec.settled_at is not None:
        spec = spec._replace(settled_at=spec.settled_at + by)
    flights = tuple(flight._replace(ends=flight.ends + by) for flight in world.flights)
    return world._replace(row=row, workers=workers, letters=letters, spec=spec, flights=flights, now=world.now + by)


# --- patches that cannot be silently neutered ---


def test_a_patch_applies_everywhere_and_is_undone() -> None:
    modules = [import_module(f"semel.{name}") for name in ("core.settle", "stores.memory.store", "stores.sqlite.store")]
    before = vars(modules[0])["settle_row"]
    with replace_everywhere("semel.core.settle:settle_row", lambda original: "patched"):
        assert [vars(module)["settle_row"] for module in modules] == ["patched"] * 3
    assert [vars(module)["settle_row"] for module in modules] == [before] * 3


def test_a_patch_of_nothing_is_refused() -> None:
    for place in ("semel.core.settle:gone", "semel.nowhere:x", "semel.engine.sync_engine:Engine.gone"):
        with pytest.raises(NothingToReplace, match="point the patch"):
            found(place)
    table = lines_replaced("semel.core.decide:TABLE", {"gone": 1})
    with pytest.raises(NothingToReplace, match="no line"):
        table.__enter__()
    from semel.stores.sqlite.store import SQL

    text = text_replaced(SQL["settle"], "AND moon = full", "")
    with pytest.raises(NothingToReplace, match="does not say"):
        text.__enter__()


# --- the command ---


def test_the_command_explores_the_named_modes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["atomic-3"]) == 0
    said = capsys.readouterr().out
    assert "whole" in said
    assert "1 explored" in said


def test_the_command_shows_a_counterexample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--unsafe", "no-fence", "settles-first"]) == 0
    said = capsys.readouterr().out
    assert "I3: a superseded holder was told that its lease stands" in said
    assert "  1. a client asks worker 1: Proceed" in said


def test_the_command_fails_where_the_rules_are_broken(capsys: pytest.CaptureFixture[str]) -> None:
    unsafe = next(variant for variant in VARIANTS if variant.name == "no-unknown")
    with unsafe.patch():
        assert main(["external", "--json"]) == 1
    [found] = json.loads(capsys.readouterr().out)
    assert found["violation"]["invariant"] == "I4"
    assert found["good"] is False


def test_the_command_lists_names_and_refuses_unknown_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(MODES) + len(VARIANTS)
    with pytest.raises(SystemExit, match="2"):
        main(["nothing"])
    assert "there is no 'nothing'; there are external" in capsys.readouterr().err
