"""The warehouse: another system with its own database, which gets every order.

The relay calls ``deliver`` for each event, at least once and always under the same id: an event that it was told of
before changes nothing. ``python -m examples.orders.warehouse`` says what it has. ``WAREHOUSE_DIES=1`` ends the process
once it has taken an event, before the relay can note that.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing

from semel.outbox.event import Event

FILE = os.environ.get("WAREHOUSE", "warehouse.db")
DIES = os.environ.get("WAREHOUSE_DIES") == "1"


def warehouse() -> closing[sqlite3.Connection]:
    """Open the warehouse's database."""
    db = sqlite3.connect(FILE)
    db.execute("CREATE TABLE IF NOT EXISTS parcels (event TEXT PRIMARY KEY, what TEXT)")
    db.execute("CREATE TABLE IF NOT EXISTS deliveries (event TEXT, topic TEXT)")
    return closing(db)


def deliver(event: Event) -> None:
    """Pack one parcel for each event: the delivery and the parcel are one transaction."""
    with warehouse() as db, db:
        db.execute("INSERT INTO deliveries VALUES (?, ?)", (event.id, event.topic))
        db.execute("INSERT INTO parcels VALUES (?, ?) ON CONFLICT DO NOTHING", (event.id, event.payload.decode()))
    if DIES:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Print what the warehouse was sent, and what it has packed."""
    with warehouse() as db:
        [(told, events)] = db.execute("SELECT count(*), count(DISTINCT event) FROM deliveries")
        print(f"told {told} times of {events} events")
        for _, what in db.execute("SELECT event, what FROM parcels ORDER BY what"):
            print(f"parcel: {what}")


if __name__ == "__main__":
    main()
