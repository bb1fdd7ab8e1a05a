"""A store that fails, times out or dies at every ask: record and operation are both written, or neither is."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from semel import Answer, Engine, Permit, Policy
from semel.core.model import State
from semel.errors import SemelError
from semel.testing.clock import SettableClock
from semel.testing.faults import KINDS, Crash, Faults, Kind, When, every_fault, faulty_sqlite
from tests.operations.worlds import Cashier, World, paying

HELD = {State.CLAIMED, State.PROCESSING, State.SUCCEEDED, State.UNKNOWN}


def read_states(world: World) -> list[tuple[bytes, int]]:
    """Return the states of the records, which the operations must share."""
    with world.outside() as execute:
        records = execute("SELECT operation_id, state FROM semel_record ORDER BY operation_id")
        operations = execute("SELECT operation_id, state FROM semel_operation ORDER BY operation_id")
        holders = execute("SELECT state FROM semel_operation WHERE holds IS NOT NULL")
    assert records == operations
    assert len(holders) == len([state for _, state in records if state in HELD]) <= 1
    return records


@pytest.mark.parametrize(("kind", "when", "once"), KINDS, ids=lambda each: str(getattr(each, "value", each)))
@pytest.mark.parametrize("effects", ["external", "atomic"])
def test_record_and_operation_are_written_together_under_each_fault(
    effects: str, kind: Kind, when: When, once: bool, tmp_path: Path
) -> None:
    policy = Policy(effects="atomic" if effects == "atomic" else "external")
    for fault in every_fault(kind, when, once=once):
        world = World("sqlite", tmp_path / str(fault.n))
        world.path.mkdir()
        world.prepare()
        faults = Faults(fault)
        cashier = Cashier()

        def act(permit: Permit, cashier: Cashier = cashier) -> Answer:
            if permit.unit is not None:
                permit.connection.execute("INSERT INTO effect VALUES (1)")
            return cashier(permit)

        backend = faulty_sqlite(str(world.path / "semel.db"), world.clock, faults)
        engine = Engine(backend.backend, confirm_seconds=0.05)
        with suppress(SemelError, Crash):
            engine.run(paying("a", policy=policy), act, wait_seconds=0)
        faults.rest()
        if kind is not Kind.CRASH:
            engine._upkeep.close()
        backend.bury()
        read_states(world)
        end_story(world, policy, act)
        effects_made = len(world.effects()) if effects == "atomic" else len(cashier.ran)
        assert effects_made <= 1, str(fault)
        if faults.clean:
            return


def end_story(world: World, policy: Policy, act: object) -> None:
    """When the lease is over, both retry: the first key, and another one with the same reference."""
    world.clock.advance(seconds=31)
    shell = world.shell()
    for key in ("a", "b", "a"):
        with suppress(SemelError):
            shell.run(paying(key, policy=policy), act, wait_seconds=0)  # type: ignore[arg-type]
    shell.reap()
    world.close()


def test_the_fault_driver_sees_the_operations_own_asks(tmp_path: Path) -> None:
    world = World("sqlite", tmp_path)
    world.prepare()
    faults = Faults()
    backend = faulty_sqlite(str(tmp_path / "semel.db"), SettableClock(), faults)
    with Engine(backend.backend) as engine:
        faults.asks.clear()
        engine.run(paying("a"), Cashier())
    assert [name for name in faults.asks if name in ("insert_claim", "keep", "settle", "mirror", "COMMIT")] == [
        "insert_claim",
        "keep",
        "COMMIT",
        "settle",
        "mirror",
        "COMMIT",
    ]
