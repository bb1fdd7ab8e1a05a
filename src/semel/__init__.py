"""Semel (Latin: once): side-effecting commands that are safe to retry.

The names below are the public face; each is loaded on first use, so that ``import semel`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.drivers.sealing import Sealer as Sealer
    from semel.engine.aio import AsyncEngine as AsyncEngine
    from semel.engine.bulk import BulkItem as BulkItem
    from semel.engine.bulk import BulkPolicy as BulkPolicy
    from semel.engine.bulk import BulkResult as BulkResult
    from semel.engine.bulk_aio import AsyncBulk as AsyncBulk
    from semel.engine.bulk_sync import Bulk as Bulk
    from semel.engine.events import AsyncOutbox as AsyncOutbox
    from semel.engine.events import Outbox as Outbox
    from semel.engine.inbox import AsyncInbox as AsyncInbox
    from semel.engine.inbox import Inbox as Inbox
    from semel.engine.inbox import Poison as Poison
    from semel.engine.operations import Execution as Execution
    from semel.engine.operations import Reference as Reference
    from semel.engine.operations import find_execution as find_execution
    from semel.engine.operations import find_execution_async as find_execution_async
    from semel.engine.permit import Permit as Permit
    from semel.engine.result import Result as Result
    from semel.engine.sync import Engine as Engine
    from semel.errors import ItemFailed as ItemFailed
    from semel.errors import NothingHappened as NothingHappened
    from semel.errors import SemelError as SemelError
    from semel.functions.declare import command as command
    from semel.model import Answer as Answer
    from semel.model import Effects as Effects
    from semel.model import Scope as Scope
    from semel.model import State as State
    from semel.policy import Command as Command
    from semel.policy import Policy as Policy
    from semel.rules.classify import Refused as Refused
    from semel.rules.fingerprint import Recipe as Recipe
    from semel.rules.items import Done as Done
    from semel.rules.items import ItemOutcome as ItemOutcome
    from semel.rules.items import ItemState as ItemState
    from semel.rules.items import Tally as Tally
    from semel.rules.keys import KeyFormat as KeyFormat

__version__ = "0.1.0"

_HOMES = {
    "Answer": "semel.model",
    "AsyncBulk": "semel.engine.bulk_aio",
    "AsyncEngine": "semel.engine.aio",
    "AsyncInbox": "semel.engine.inbox",
    "AsyncOutbox": "semel.engine.events",
    "Bulk": "semel.engine.bulk_sync",
    "BulkItem": "semel.engine.bulk",
    "BulkPolicy": "semel.engine.bulk",
    "BulkResult": "semel.engine.bulk",
    "Command": "semel.policy",
    "Done": "semel.rules.items",
    "Effects": "semel.model",
    "Engine": "semel.engine.sync",
    "Execution": "semel.engine.operations",
    "Inbox": "semel.engine.inbox",
    "ItemFailed": "semel.errors",
    "ItemOutcome": "semel.rules.items",
    "ItemState": "semel.rules.items",
    "KeyFormat": "semel.rules.keys",
    "NothingHappened": "semel.errors",
    "Outbox": "semel.engine.events",
    "Permit": "semel.engine.permit",
    "Poison": "semel.engine.inbox",
    "Policy": "semel.policy",
    "Recipe": "semel.rules.fingerprint",
    "Reference": "semel.engine.operations",
    "Refused": "semel.rules.classify",
    "Result": "semel.engine.result",
    "Scope": "semel.model",
    "Sealer": "semel.drivers.sealing",
    "SemelError": "semel.errors",
    "State": "semel.model",
    "Tally": "semel.rules.items",
    "command": "semel.functions.declare",
    "find_execution": "semel.engine.operations",
    "find_execution_async": "semel.engine.operations",
}

__all__ = [
    "Answer",
    "AsyncBulk",
    "AsyncEngine",
    "AsyncInbox",
    "AsyncOutbox",
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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'semel' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return __all__
