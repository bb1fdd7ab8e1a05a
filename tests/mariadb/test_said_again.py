"""A statement that is lost on an idle connection is retried once; what that means if the server is down by then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel import Answer, Permit
from semel.core.model import State
from semel.errors import StoreTimeout
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import Fellow, Outside, Writes, never
from tests.servers.mariadb import MARK
from tests.servers.relay import Relay

pytestmark = MARK
MakeFellow = Callable[..., Fellow]
CLAIM = "INSERT INTO semel_record"


async def other(permit: Permit, db: Writes) -> Answer:
    return MADE


def test_a_claim_that_may_have_landed_before_the_server_went_away_is_released(
    make_fellow: MakeFellow, outside: Outside, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not mean 'nothing was written': the claim would not be released, and would read UNKNOWN without a run."""
    fellow = make_fellow(port=relay.port, patience_seconds=1.0)
    fellow.run(command("before"), other)
    port, relay._server = relay._server, ("127.0.0.1", 1)  # later connections find no server
    relay.lose("reply", CLAIM)
    with pytest.raises(StoreTimeout):
        fellow.run(command("lost"), never)
    assert outside.states == [State.SUCCEEDED, State.PROCESSING]
    relay._server = port
    fellow.tell(_close(fellow))
    assert outside.states == [State.SUCCEEDED, State.FAILED_NOT_REPLAYABLE]


def test_a_claim_that_may_have_landed_is_released_although_its_retry_was_refused(
    make_fellow: MakeFellow, outside: Outside, relay: Relay
) -> None:
    """Found on Galera: the node died with the claim, and the one that was asked instead refused it."""
    fellow = make_fellow(port=relay.port, patience_seconds=1.0)
    fellow.run(command("before"), other)
    outside.fetch(
        "CREATE OR REPLACE TRIGGER semel_test BEFORE INSERT ON semel_record FOR EACH ROW "
        "IF (SELECT count(*) FROM semel_record) > 1 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not here'; END IF"
    )
    relay.lose("reply", CLAIM)
    with pytest.raises(StoreTimeout, match="not here"):
        fellow.run(command("lost"), never)
    outside.fetch("DROP TRIGGER semel_test")
    fellow.tell(_close(fellow))
    assert outside.states == [State.SUCCEEDED, State.FAILED_NOT_REPLAYABLE]


async def _close(fellow: Fellow) -> None:
    closing = fellow.engine.close()
    if closing is not None:
        await closing
