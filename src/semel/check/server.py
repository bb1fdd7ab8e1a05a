"""Ask the servers of an application's stores whether their settings match the declarations.

The command line asks through an engine of its own on the same URL; it does not open the application's engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from semel.admin.doctor.server import look_at_tables
from semel.check.answers import CheckAnswer
from semel.check.discovery import CheckedOperation
from semel.check.outcomes import Level
from semel.core.contract import DoctorFinding, Observable, Observed
from semel.core.model import Effects
from semel.engine.requirements import Needs
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, StoreError
from semel.stores.backend import hide_password

QUESTION = "server's settings"
TABLES = "tables of the database"


def server_answers(operations: Sequence[CheckedOperation]) -> list[CheckAnswer]:
    """Return the shipping answers about each server behind these operations: settings, and non-transactional tables."""
    by_url: dict[str, list[CheckedOperation]] = {}
    for operation in operations:
        backend = operation.engine.backend
        if isinstance(backend.store, Observable) and backend.url:
            by_url.setdefault(backend.url, []).append(operation)
    return [answer for url, used in by_url.items() for answer in _answers(url, used)]


def _answers(url: str, operations: Sequence[CheckedOperation]) -> Iterator[CheckAnswer]:
    name = hide_password(url)
    try:
        seen, accepts_loss, tables = _observe(url)
    except StoreError as error:
        yield CheckAnswer(
            QUESTION, "open", f"{name} cannot be asked: {error}", "run semel check where the server can be reached"
        )
        return
    yield _of_settings(name, seen, operations, accepts_loss=accepts_loss)
    if tables is not None and tables.level != "ok" and (tables.is_bad or any(map(_writes_there, operations))):
        level: Level = "unsafe" if tables.is_bad else "open"
        yield CheckAnswer(TABLES, level, f"{name}: {tables.detail}", tables.remedy or "")


def _writes_there(operation: CheckedOperation) -> bool:
    """Return whether the operation's handlers write in a transaction of the store."""
    if operation.bulk is not None:
        return operation.bulk.effects == "atomic"
    return operation.policy.effects is Effects.ATOMIC or operation.policy.steps


def _of_settings(
    name: str, seen: Sequence[Observed], operations: Sequence[CheckedOperation], *, accepts_loss: bool
) -> CheckAnswer:
    needs = Needs()
    try:
        needs.learn(seen, accepts_loss=accepts_loss)
        for operation in operations:
            needs.declare(operation.name, operation.policy)
    except ConfigurationError as error:
        return CheckAnswer(QUESTION, "unsafe", f"{name}: the engine will not start. {error}", "run: semel doctor")
    if accepts_loss and any(each.level == "forgets" for each in seen):
        return CheckAnswer(
            QUESTION,
            "open",
            f"{name} does not persist, and its URL accepts that (persistence=none)",
            "run: semel doctor",
        )
    warned = [f"{each.check}: {each.detail}" for each in seen if each.level == "warning"]
    if warned:
        return CheckAnswer(QUESTION, "open", f"{name}: {'; '.join(warned)}", "run: semel doctor")
    return CheckAnswer(QUESTION, "ok", f"{name} matches the declaration")


def _observe(url: str) -> tuple[list[Observed], bool, DoctorFinding | None]:
    engine = Engine.connect(url)
    try:
        store = engine.store
        assert isinstance(store, Observable)
        return engine.perform("observe", store.observe), engine.backend.accepts_loss, look_at_tables(engine)
    finally:
        engine.close()
