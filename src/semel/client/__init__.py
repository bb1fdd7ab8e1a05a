"""A client that retries safely: one key per intent, written to a journal before the first byte is sent.

See docs/client.md. ``Client``, ``AsyncClient`` and the transports need httpx (the extra ``client``); the plan
and the journal need the standard library alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from semel.client.answers import Answered
from semel.client.deadline import deadline
from semel.client.journal import Journal, JournalError, PayloadMismatch
from semel.client.limits import Breaker, Budget
from semel.client.plan import Done, InDoubt, NotYet, Outcome, Refused
from semel.extras import install_command

if TYPE_CHECKING:
    from semel.client.async_client import AsyncClient, AsyncIntent
    from semel.client.intents import Progress
    from semel.client.sync_client import Client, Intent
    from semel.client.transport import AsyncRetryTransport, RetryTransport

__all__ = [
    "Answered",
    "AsyncClient",
    "AsyncIntent",
    "AsyncRetryTransport",
    "Breaker",
    "Budget",
    "Client",
    "Done",
    "InDoubt",
    "Intent",
    "Journal",
    "JournalError",
    "NotYet",
    "Outcome",
    "PayloadMismatch",
    "Progress",
    "Refused",
    "RetryTransport",
    "deadline",
]

_LAZY = {
    "AsyncClient": "async_client",
    "AsyncIntent": "async_client",
    "AsyncRetryTransport": "transport",
    "Client": "sync_client",
    "Intent": "sync_client",
    "Progress": "intents",
    "RetryTransport": "transport",
}


if not TYPE_CHECKING:  # so that type checkers report unknown names

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(f"semel.client.{_LAZY[name]}")
        except ImportError as error:
            if error.name != "httpx":
                raise
            raise ImportError(f"semel.client.{name} needs httpx: {install_command('client')}", name="httpx") from error
        return getattr(module, name)
