"""What `semel check` asks the servers of an application's stores: whether their settings hold what is declared.

An engine of the command line's own asks, through the same URL; the application's engine is not opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.check.answers import CheckAnswer
from semel.check.discovery import CheckedOperation
from semel.core.contract import Observable, Observed
from semel.engine.backend import shown_url
from semel.engine.requirements import Needs
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, StoreError

QUESTION = "server's settings"


def server_answers(operations: Sequence[CheckedOperation]) -> list[CheckAnswer]:
    """One answer for each server whose settings the promise of these operations hangs on; the worst operation's."""
    by_url: dict[str, list[CheckedOperation]] = {}
    for operation in operations:
        backend = operation.engine.backend
        if isinstance(backend.store, Observable) and backend.url:
            by_url.setdefault(backend.url, []).append(operation)
    return [_answer(url, used) for url, used in by_url.items()]


def _answer(url: str, operations: Sequence[CheckedOperation]) -> CheckAnswer:
    name = shown_url(url)
    try:
        seen, accepts_loss = _observed(url)
    except StoreError as error:
        return CheckAnswer(
            QUESTION, "open", f"{name} cannot be asked: {error}", "run semel check where the server is reached"
        )
    needs = Needs()
    try:
        needs.learn(seen, accepts_loss=accepts_loss)
        for operation in operations:
            needs.declare(operation.name, operation.policy)
    except ConfigurationError as error:
        return CheckAnswer(QUESTION, "unsafe", f"{name}: the engine will not start. {error}", "run: semel doctor")
    if accepts_loss and any(each.level == "forgets" for each in seen):
        return CheckAnswer(
            QUESTION, "open", f"{name} forgets, and its URL accepts that (persistence=none)", "run: semel doctor"
        )
    warned = [f"{each.check}: {each.detail}" for each in seen if each.level == "warning"]
    if warned:
        return CheckAnswer(QUESTION, "open", f"{name}: {'; '.join(warned)}", "run: semel doctor")
    return CheckAnswer(QUESTION, "ok", f"{name} keeps what is declared")


def _observed(url: str) -> tuple[list[Observed], bool]:
    engine = Engine.connect(url)
    try:
        store = engine.store
        assert isinstance(store, Observable)
        return engine.perform("observe", store.observe), engine.backend.accepts_loss
    finally:
        engine.close()
