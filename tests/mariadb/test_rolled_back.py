"""A ROLLBACK that is refused (a node that leaves its cluster refuses everything): its connection is not used again.

The next statement on it would run inside the transaction that is still open: a claim that is never committed, or a
BEGIN that commits half of another command.
"""

from __future__ import annotations

import pytest

from semel.core.flow import Flow, MakeFlow, ask
from semel.stores.mariadb.errors import LOCK_WAIT_TIMEOUT, Lost, MariadbRefused
from semel.stores.mariadb.protocol import converse
from semel.stores.mariadb.requests import SeveralStatements
from semel.stores.sql.statements import TOGETHER, Execute, compose

WRITE = Execute(compose("write", "DELETE FROM semel_meta"), {})
PACKET = 1_000_000


def one_by_one() -> Flow[None]:
    yield from ask(TOGETHER)
    yield from ask(WRITE)


def in_one_packet() -> Flow[None]:
    yield from ask(SeveralStatements([WRITE, WRITE]))


@pytest.mark.parametrize("flow", [one_by_one, in_one_packet])
def test_a_connection_with_a_possibly_open_transaction_is_not_used(flow: MakeFlow[None]) -> None:
    said = converse(flow, None, PACKET)
    text = next(said)
    if text == "START TRANSACTION":
        text = said.send([0])
    assert "DELETE" in text
    assert said.throw(MariadbRefused(LOCK_WAIT_TIMEOUT, "")) == "ROLLBACK"
    with pytest.raises(Lost):
        said.throw(MariadbRefused(1047, "WSREP has not yet prepared node for application use"))
