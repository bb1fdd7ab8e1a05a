"""Every batch is sent in the order of its ids: two that lock the same rows in opposite orders die of a deadlock.

A driver says what a deadlock undid again, so that nothing breaks without the order; it only costs, and nobody would
see it. What is sent is looked at, and no server is needed.
"""

from __future__ import annotations

from typing import Any

from semel.core.decide import first_grant
from semel.core.flow import Flow
from semel.stores.mariadb.requests import Reserve
from semel.stores.mariadb.store import MariadbStore
from semel.testing.attempts import attempt, settlement

CLAIMS = [attempt(f"k{number}") for number in range(50)]
IDS = [claim.id for claim in CLAIMS]


def ids_of(flow: Flow[Any]) -> list[bytes]:
    """The ids of a flow's first round trip, as they go out."""
    needed: Any = next(flow)
    if not isinstance(needed, Reserve):
        return list(needed.params["ids"])
    params: Any = needed.query.params
    return [values[0] for values in params["rows"].values]


def test_a_batch_is_sorted_and_each_record_is_in_it_once() -> None:
    assert sorted(IDS) != IDS
    settlements = [settlement(first_grant(claim, 1)) for claim in CLAIMS]
    assert ids_of(MariadbStore().claim([*CLAIMS, CLAIMS[0]])) == sorted(IDS)
    assert ids_of(MariadbStore().settle([*settlements, settlements[0]])) == sorted(IDS)
