"""A reconciler's input: everything known about one execution with an unknown outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.core.identity import derive_key, uuid_text
from semel.core.model import Operation, Record
from semel.outbox.event import Event
from semel.outbox.run import Emission
from semel.steps.doubts import step_of


class Case:
    """One UNKNOWN execution.

    ``doubt`` says where the outcome was lost: ``step:charge`` in that step, ``lapsed`` with its holder,
    ``error:ReadTimeout`` or ``http-504`` as the handler stated it; ``cause`` its origin, where that says more.
    """

    def __init__(self, record: Record, operation: Operation | None, asked: int) -> None:
        self.record = record
        self.asked = asked
        self.operation_id = uuid_text(record.operation_id)
        self.operation = record.operation
        self.tenant = record.tenant
        self.caller = record.caller
        self.doubt = record.doubt or "unknown"
        self.cause = record.error_code
        self.business_ref = None if operation is None else operation.business_ref
        self._emission = Emission(record.id, record.generation, record.operation_id, record.tenant)

    @property
    def step(self) -> str | None:
        """The step in which the outcome was lost; None where the operation declares none."""
        return step_of(self.doubt)

    def key_for(self, name: str, ordinal: int = 0) -> str:
        """Return the key that the handler gave to this downstream call, as :meth:`Permit.key_for`, to ask by."""
        return derive_key(self.record.id, self.record.generation, name, ordinal)

    def emit(
        self,
        topic: str,
        payload: Any,
        *,
        type: str | None = None,
        aggregate: tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        name: str | None = None,
        ordinal: int = 0,
    ) -> str:
        """Emit an event that the handler would have emitted, under the same id, as :meth:`Permit.emit`.

        It is written in the commit that settles the record, and only with ``SucceededWith``. Raises PolicyError.
        """
        return self._emission.add(topic, payload, type, aggregate, headers, name, ordinal)

    @property
    def events(self) -> tuple[Event, ...]:
        """The events emitted so far."""
        return tuple(self._emission.events.values())
