"""The list of steps beside a record, in memory: what ``steps/store.py`` says in SQL, for the model alone.

``tests/explore`` compares it with the real statements on SQLite, for every state of a record and every holder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from semel.core.flow import Flow, MakeFlow, ask, perform
from semel.core.model import OPEN_STATES, Record, Renewal, Resolution, Resolved, Resolving, State
from semel.reconciliation.resolutions import resolve_row
from semel.steps.findings import steps_after
from semel.steps.rules import any_begun, pack_steps
from semel.steps.store import Recorded
from semel.stores.memory.store import Table, TableCall
from verification.explore.store import ID


@dataclass(slots=True)
class StepTable(Table):
    """A memory store's table with lists of steps."""

    steps: dict[bytes, bytes] = field(default_factory=dict)

    def has_begun(self, row: Record) -> bool:
        return any_begun(self.steps.get(row.id), row.generation)


def may_write(row: Record | None, holder: Renewal) -> bool:
    """Whether this holder may read and write the list: its grant is valid, and is neither settled nor released."""
    return (
        row is not None
        and (row.fence, row.nonce) == (holder.fence, holder.nonce)
        and row.state in (*OPEN_STATES, State.UNKNOWN)
        and row.lease_until > 0
    )


class Write(TableCall[bool]):
    """A write of a list; ``said`` is its content, for one that arrives late."""

    __slots__ = ("said",)

    def __init__(self, holder: Renewal, steps: bytes, standing: tuple[State, str | None]) -> None:
        self.said = holder, steps, standing

        def act(table: Any, now: int) -> bool:
            row = table.row(holder.id)
            if row is None or not may_write(row, holder):
                return False
            table.put(row._replace(state=standing[0], doubt=standing[1]))
            table.steps[holder.id] = steps
            return True

        super().__init__("write_steps", act)


class ModelRows:
    """Replaces :class:`~semel.steps.store.StepRows`."""

    settles_by_proof = False

    def read(self, holder: Renewal, *, within: bool = False) -> Flow[Recorded | None]:
        def act(table: Any, now: int) -> Recorded | None:
            stands = may_write(table.row(holder.id), holder)
            return Recorded(table.steps.get(holder.id), None) if stands else None

        return ask(TableCall("read_steps", act))

    def write(self, holder: Renewal, steps: bytes, standing: tuple[State, str | None]) -> Flow[bool]:
        return ask(Write(holder, steps, standing))


ROWS: Any = ModelRows()


def call(row: Record | None, steps: bytes | None, now: int, make: MakeFlow[Any]) -> tuple[Any, Record | None, Any]:
    """Perform a flow of steps; its reply, the record and the list afterwards."""
    table = StepTable()
    if row is not None:
        table.put(row)
    if steps is not None:
        table.steps[ID] = steps
    reply = perform(make(), lambda needed: needed.act(table, now))  # type: ignore[attr-defined]
    return reply, table.row(ID), table.steps.get(ID)


def resolve(
    row: Record, steps: bytes | None, now: int, resolution: Resolution
) -> tuple[Resolving, Record | None, bytes | None]:
    """One settlement by an operator, of a step or of the whole, as the SQL stores make it."""
    after = steps_after(row, resolution, steps, now)
    reply, written = resolve_row(row, resolution, now, after)
    if written is None or not isinstance(reply, Resolved):
        return reply, row, steps
    return reply, written, steps if after is None else pack_steps(written.generation, after)
