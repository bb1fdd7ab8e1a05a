"""A bulk in its own process: `python -m tests.bulk.worker URL DIES_AT [orm]`; ``orm``: by SQLAlchemy's session.

It kills itself in the handler of the item at DIES_AT (-1: never), or before its n-th commit of a chunk (`commit:n`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from semel import Bulk, Engine
from semel.bulk.declaration import BulkItem
from semel.stores.urls import connect_backend
from tests.bulk.lists import die, number_items

ITEMS = 100
CHUNK = 10


def main(url: str, dies_at: str, by: str = "") -> None:
    if by == "orm":
        from tests.bulk.rows import add_row  # SQLAlchemy takes longer to import than most of these processes live
    engine = Engine(connect_backend(url))
    bulk = Bulk(engine, operation="count", effects="atomic", chunk_items=CHUNK, chunk_seconds=60, lease_seconds=1)
    kind, _, number = dies_at.partition(":")
    text = "INSERT INTO effect VALUES (?)" if url.startswith("sqlite") else "INSERT INTO effect VALUES (%s)"

    def handler(item: BulkItem) -> None:
        if by == "orm":
            add_row(item)
        else:
            item.connection.execute(text, (item.value["n"],))
        if kind == "item" and item.place == int(number):
            die()

    if kind in ("before", "after"):
        _die_around_commits(kind, int(number))
    done = bulk.run(number_items(ITEMS), handler, key="k", caller="alice", wait_seconds=60)
    print(done.tally.succeeded, done.replayed)


def _die_around_commits(kind: str, number: int) -> None:
    """Before or after the n-th chunk's commit, on any store, at the flow's own last ask."""
    from semel.core.requests import Commit, SettleWithin
    from semel.engine.runner import SyncPerformer

    real: Callable[..., Any] = SyncPerformer.drive
    seen = [0]

    def drive(self: SyncPerformer, flow: Any, *more: Any) -> Any:
        needed = flow.gi_frame.f_locals.get("needed")  # `ask(needed)`: a flow of one ask
        if type(needed) in (Commit, SettleWithin):
            seen[0] += 1
            if kind == "before" and seen[0] == number:
                die()
            reply = real(self, flow, *more)
            if kind == "after" and seen[0] == number:
                die()
            return reply
        return real(self, flow, *more)

    setattr(SyncPerformer, "drive", drive)  # noqa: B010 - a method of a class that is typed otherwise


if __name__ == "__main__":
    main(*sys.argv[1:])
