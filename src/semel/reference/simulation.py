"""Trouble on request: delays, failures and crashes around an effect, to watch their consequences.

Only with SEMEL_DEMO=1; otherwise the service refuses a body that asks for it, like any unknown member.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from semel.engine.permit import Permit
from semel.reference.ledger import Ledger, LedgerLine

DELAY_MS_MAX: Final = 60_000
# Set for each request by a dependency that runs before the body is read (see app.py).
DEMO: Final[ContextVar[bool]] = ContextVar("semel_demo", default=False)


class Unreachable(Exception):
    """The other side could not be reached: no effect happened, and that is certain."""


class TimedOut(Exception):
    """The other side did not answer in time: the effect may have happened."""


class Broken(Exception):
    """The handler failed after its effect."""


class Simulation(BaseModel):
    """``delayMs`` passes before the effect; *before* and *after* mean the effect; a crash is SIGKILL of the worker.

    Failures and crashes happen once for each key: retry, and see the state that they left.
    """

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)

    delay_ms: Annotated[int, Field(strict=True, ge=0, le=DELAY_MS_MAX)] = 0
    fail: Literal["before", "after", "timeout"] | None = None
    crash: Literal["before", "after"] | None = None


def check_allowed(value: Any) -> Any:
    """Refuse to simulate anything outside a demonstration."""
    if value is not None and not DEMO.get():
        raise ValueError("is for demonstrations only: start the service with SEMEL_DEMO=1")
    return value


class Troubles:
    """Simulates a failure once for each command, so that a retry sees the state that it left.

    A separate ledger (at ``path``) records these commands: it alone survives a crash or a rollback.
    """

    def __init__(self, path: Path) -> None:
        self._ledger = Ledger(path)

    async def before(self, wanted: Simulation | None, permit: Permit | None) -> None:
        """Simulate the trouble before the effect. Raises Unreachable."""
        if wanted is None:
            return
        if wanted.delay_ms:
            await asyncio.sleep(wanted.delay_ms / 1000)
        if wanted.crash == "before" and await self._first(permit):
            crash()
        if wanted.fail == "before" and await self._first(permit):
            raise Unreachable("simulated: the other side could not be reached; nothing happened")

    async def after(self, wanted: Simulation | None, permit: Permit | None) -> None:
        """Simulate the trouble after the effect. Raises TimedOut and Broken."""
        if wanted is None or (wanted.crash != "after" and wanted.fail not in ("timeout", "after")):
            return
        if not await self._first(permit):
            return
        if wanted.crash == "after":
            crash()
        if wanted.fail == "timeout":
            raise TimedOut("simulated: the other side did not answer in time; it may have happened")
        raise Broken("simulated: a failure after the effect")

    async def _first(self, permit: Permit | None) -> bool:
        if permit is None:  # without a key, a retry cannot be recognised
            return True
        mine = secrets.token_hex(8)
        entry: LedgerLine = {
            "key": permit.grant.id.hex(),
            "id": mine,
            "caller": permit.command.scope.caller,
            "detail": {},
        }
        return (await asyncio.to_thread(self._ledger.append, entry, once=True))["id"] == mine


def crash() -> None:
    """End this process at once, as power loss would: no handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)
