"""asyncpg connections that the server has just ended: its last message is read, the end of the stream is not."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from semel import Answer, Permit
from semel.policy import Policy
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, Fellow, Writes

FIELDS = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
LAST_WORD = b"E" + struct.pack("!i", len(FIELDS) + 4) + FIELDS
EXTERNAL = Policy(effects="external")


@pytest.fixture
def fellow(conninfo: str) -> Any:
    made = Fellow("asyncpg", conninfo)
    yield made
    made.close()


async def other(permit: Permit, db: Writes) -> Answer:
    return MADE


async def _end(fellow: Fellow) -> int:
    """End the session as a server does that shuts down, a moment before it closes its side."""
    driver, units = fellow.engine.backend.driver, fellow.engine.backend.unit_async.__self__
    idle = [each.connection for each in driver._loop()._connections.idle] + units.lifo.idle
    for connection in idle:
        connection._protocol.data_received(LAST_WORD)
    return len(idle)


@pytest.mark.parametrize("policy", [EXTERNAL, ATOMIC], ids=["external", "atomic"])
def test_a_connection_that_ended_while_idle_is_replaced(fellow: Fellow, policy: Policy) -> None:
    fellow.run(command("before", policy=policy), other)
    assert fellow.tell(_end(fellow)) > 0
    assert fellow.run(command("after", policy=policy), other).answer == MADE
    assert fellow.run(command("after", policy=policy), other).replayed
    fellow.tell(_end(fellow))
