"""A statement that is lost on an idle connection is retried once; what that means if the server is down by then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel import Answer, Permit
from semel.core.model import State
from semel.errors import StoreTimeout
from tests.engine.shells import MADE, command
from tests.postgres.conftest import Fellow, Outside, Writes, never
from tests.servers.postgres import schema
from tests.servers.relay import Relay

MakeFellow = Callable[..., Fellow]
CLAIM = "pg_try_advisory_xact_lock_shared(w.lock"


async def other(permit: Permit, db: Writes) -> Answer:
    return MADE


def test_a_claim_that_may_have_landed_before_the_server_went_away_is_released(
    make_fellow: MakeFellow, outside: Outside, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not mean 'nothing was written': the claim would not be released, and would read UNKNOWN without a run."""
    fellow = make_fellow(conninfo=relay.conninfo(), patience_seconds=1.0)
    fellow.run(command("before"), other)
    port, relay._server = relay._server, ("127.0.0.1", 1)  # later connections find no server
    relay.lose("reply", CLAIM)
    with pytest.raises(StoreTimeout):
        fellow.run(command("lost"), never)
    assert outside.states == [State.SUCCEEDED, State.PROCESSING]
    relay._server = port
    fellow.tell(_close(fellow))
    assert outside.states == [State.SUCCEEDED, State.FAILED_NOT_REPLAYABLE]


def test_a_claim_that_may_have_landed_is_not_refused_if_its_retry_is(
    make_fellow: MakeFellow, outside: Outside, relay: Relay
) -> None:
    """The second attempt reaches another server, which takes no writes."""
    role = f"said_{schema()}"
    outside.connection.execute(f"DROP ROLE IF EXISTS {role}")
    outside.connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    fellow = make_fellow(conninfo=relay.conninfo().replace("postgres@", f"{role}@"), patience_seconds=1.0)
    fellow.run(command("before"), other)
    outside.connection.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")  # of new connections
    relay.lose("reply", CLAIM)
    with pytest.raises(StoreTimeout, match="read-only"):
        fellow.run(command("lost"), never)
    assert outside.states == [State.SUCCEEDED, State.PROCESSING]  # it cannot be released yet
    outside.connection.execute(f"ALTER ROLE {role} RESET ALL")
    outside.connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")
    fellow.tell(_close(fellow))
    outside.connection.execute(f"DROP ROLE {role}")


async def _close(fellow: Fellow) -> None:
    closing = fellow.engine.close()
    if closing is not None:
        await closing
