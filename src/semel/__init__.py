"""Semel (Latin: once): side-effecting commands that are safe to retry.

The names below are the public face; each is loaded on first use, so that ``import semel`` stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.lazy import load_from as _load_from

if TYPE_CHECKING:
    from semel.bulk.declaration import BulkItem as BulkItem
    from semel.bulk.declaration import BulkPolicy as BulkPolicy
    from semel.bulk.declaration import BulkResult as BulkResult
    from semel.bulk.rules import Done as Done
    from semel.bulk.rules import ItemOutcome as ItemOutcome
    from semel.bulk.rules import ItemState as ItemState
    from semel.bulk.rules import Tally as Tally
    from semel.bulk.run_async import AsyncBulk as AsyncBulk
    from semel.bulk.run_sync import Bulk as Bulk
    from semel.core.model import Answer as Answer
    from semel.core.model import Effects as Effects
    from semel.core.model import Scope as Scope
    from semel.core.model import State as State
    from semel.core.outcomes import Refused as Refused
    from semel.engine.async_engine import AsyncEngine as AsyncEngine
    from semel.engine.permit import AsyncPermit as AsyncPermit
    from semel.engine.permit import Permit as Permit
    from semel.engine.result import Result as Result
    from semel.engine.sync_engine import Engine as Engine
    from semel.errors import ItemFailed as ItemFailed
    from semel.errors import NothingHappened as NothingHappened
    from semel.errors import SemelError as SemelError
    from semel.functions.declare import command as command
    from semel.http.fingerprint.fingerprinter import Recipe as Recipe
    from semel.inbox.run import AsyncInbox as AsyncInbox
    from semel.inbox.run import Inbox as Inbox
    from semel.inbox.run import Poison as Poison
    from semel.keys import KeyFormat as KeyFormat
    from semel.operations.run import Execution as Execution
    from semel.operations.run import Reference as Reference
    from semel.operations.run import find_execution as find_execution
    from semel.operations.run import find_execution_async as find_execution_async
    from semel.outbox.run import AsyncOutbox as AsyncOutbox
    from semel.outbox.run import Outbox as Outbox
    from semel.policy import Command as Command
    from semel.policy import Policy as Policy
    from semel.quota import Quota as Quota
    from semel.sealing.rebuild import Rebuilding as Rebuilding
    from semel.sealing.sealer import Sealer as Sealer

__version__ = "0.1.0"

_HOMES = {
    "Answer": "semel.core.model",
    "AsyncBulk": "semel.bulk.run_async",
    "AsyncEngine": "semel.engine.async_engine",
    "AsyncInbox": "semel.inbox.run",
    "AsyncOutbox": "semel.outbox.run",
    "AsyncPermit": "semel.engine.permit",
    "Bulk": "semel.bulk.run_sync",
    "BulkItem": "semel.bulk.declaration",
    "BulkPolicy": "semel.bulk.declaration",
    "BulkResult": "semel.bulk.declaration",
    "Command": "semel.policy",
    "Done": "semel.bulk.rules",
    "Effects": "semel.core.model",
    "Engine": "semel.engine.sync_engine",
    "Execution": "semel.operations.run",
    "Inbox": "semel.inbox.run",
    "ItemFailed": "semel.errors",
    "ItemOutcome": "semel.bulk.rules",
    "ItemState": "semel.bulk.rules",
    "KeyFormat": "semel.keys",
    "NothingHappened": "semel.errors",
    "Outbox": "semel.outbox.run",
    "Permit": "semel.engine.permit",
    "Poison": "semel.inbox.run",
    "Policy": "semel.policy",
    "Quota": "semel.quota",
    "Recipe": "semel.http.fingerprint.fingerprinter",
    "Reference": "semel.operations.run",
    "Refused": "semel.core.outcomes",
    "Result": "semel.engine.result",
    "Scope": "semel.core.model",
    "Rebuilding": "semel.sealing.rebuild",
    "Sealer": "semel.sealing.sealer",
    "SemelError": "semel.errors",
    "State": "semel.core.model",
    "Tally": "semel.bulk.rules",
    "command": "semel.functions.declare",
    "find_execution": "semel.operations.run",
    "find_execution_async": "semel.operations.run",
}

__all__ = [
    "Answer",
    "AsyncBulk",
    "AsyncEngine",
    "AsyncInbox",
    "AsyncOutbox",
    "AsyncPermit",
    "Bulk",
    "BulkItem",
    "BulkPolicy",
    "BulkResult",
    "Command",
    "Done",
    "Effects",
    "Engine",
    "Execution",
    "Inbox",
    "ItemFailed",
    "ItemOutcome",
    "ItemState",
    "KeyFormat",
    "NothingHappened",
    "Outbox",
    "Permit",
    "Poison",
    "Policy",
    "Quota",
    "Rebuilding",
    "Recipe",
    "Reference",
    "Refused",
    "Result",
    "Scope",
    "Sealer",
    "SemelError",
    "State",
    "Tally",
    "command",
    "find_execution",
    "find_execution_async",
]


if not TYPE_CHECKING:  # type checkers report a name that does not exist
    __getattr__ = _load_from(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
