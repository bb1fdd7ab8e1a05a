"""Look up an execution from Python, by its id or its business reference."""

from __future__ import annotations

from dataclasses import dataclass

from semel.core.contract import Store
from semel.core.flow import Flow
from semel.core.identity import uuid_bytes, uuid_text
from semel.core.model import Operation, Record, State
from semel.engine.async_engine import AsyncEngine
from semel.engine.sync_engine import Engine
from semel.errors import PolicyError, RecordUnreadableError
from semel.operations.flow import find_operation
from semel.operations.references import reference_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The state of one execution. ``remembered``: its key is forgotten, and this is the row that outlives it.

    Times in microseconds by the store's clock. Compare tenant and caller before you show it to a caller.
    """

    operation_id: str
    operation: str
    tenant: str
    caller: str
    state: State
    business_ref: str | None
    resource: tuple[str | None, str] | None
    error_code: str | None
    created_at: int
    settled_at: int | None
    remembered: bool


@dataclass(frozen=True, slots=True)
class Reference:
    """A business reference within its tenant and operation.

    Parameters: ``caller`` who owns it, if the operation has ``reference_scope="caller"``.
    """

    tenant: str
    operation: str
    business_ref: str
    caller: str | None = None


def find_execution(engine: Engine, name: str | Reference) -> Execution | None:
    """Find the state of an execution; None if it was never seen, or is forgotten.

    Parameters: ``name`` its operation id, or a :class:`Reference`.

    Raises PolicyError for a text that is not an operation id, RecordUnreadableError for a damaged one, and StoreError.

    >>> import tempfile
    >>> from semel import Answer, Command, Engine, Policy, Scope
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     engine = Engine.connect(f"sqlite:///{folder}/app.db")
    ...     _ = engine.migrate()
    ...     scope = Scope("acme", "alice", "pay")
    ...     command = Command(scope, "key-1", bytes(32), "demo", Policy(), business_ref="INV-7")
    ...     _ = engine.run(command, lambda permit: Answer(201, (), b"paid"))
    ...     found = find_execution(engine, Reference("acme", "pay", "INV-7"))
    ...     engine.close()
    >>> found.state.name, found.business_ref
    ('SUCCEEDED', 'INV-7')
    """
    return engine.perform("operation", lambda: _find(engine.store, engine.core.id_secret, name))


async def find_execution_async(engine: AsyncEngine, name: str | Reference) -> Execution | None:
    """As :func:`find_execution`."""
    return await engine.perform("operation", lambda: _find(engine.store, engine.core.id_secret, name))


def _find(store: Store, secret: bytes | None, name: str | Reference) -> Flow[Execution | None]:
    if isinstance(name, Reference):
        ref_id = reference_id(name.tenant, name.operation, name.business_ref, secret, caller=name.caller)
        record, operation = yield from find_operation(store, ref_id=ref_id)
    else:
        raw = uuid_bytes(name)
        if raw is None:
            raise PolicyError("an operation id is a UUID, such as permit.operation_id or a result's operation_id")
        record, operation = yield from find_operation(store, operation_id=raw)
    return make_execution(record, operation)


def make_execution(record: Record | None, operation: Operation | None) -> Execution | None:
    """Make an execution from its record and its long-lived row; the record has priority."""
    first: Record | Operation | None = operation if record is None else record
    if first is None:
        return None
    try:
        state = State(first.state)
    except ValueError:
        raise RecordUnreadableError(
            f"the execution's row is damaged: its state is {first.state!r}; restore it from a backup",
            operation_id=uuid_text(first.operation_id) if isinstance(first.operation_id, bytes) else None,
        ) from None
    id = first.resource_id
    return Execution(
        operation_id=uuid_text(first.operation_id),
        operation=first.operation,
        tenant=first.tenant,
        caller=first.caller,
        state=state,
        business_ref=first.business_ref if operation is None else operation.business_ref,
        resource=None if id is None else (first.resource_type, id),
        error_code=first.error_code if operation is None else operation.error_code,
        created_at=first.created_at,
        settled_at=first.settled_at,
        remembered=record is None,
    )
