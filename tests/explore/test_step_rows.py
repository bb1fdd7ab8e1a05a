"""What the model says of a list of steps is what the real statements do, for every state of a record and any holder."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import product

from semel.core.flow import perform
from semel.core.model import Proceed, Record, Renewal, State
from semel.policy import Policy
from semel.steps.store import StepRows
from semel.stores.sqlite.connection import answering
from semel.stores.sqlite.store import SqliteStore
from verification.explore import step_rows, store
from verification.simulate.database import SqliteDatabase

STEPS = Policy(steps=True)
LIST = b"a list"
STANDING = (State.PROCESSING, "step:charge")


def test_reads_and_writes_are_those_of_the_statements() -> None:
    real = StepRows(SqliteStore())
    data = SqliteDatabase()
    connection: sqlite3.Connection = data._connection
    with closing(connection):
        answer = answering(connection, lambda: 1_000)
        [verdict] = perform(SqliteStore().claim((store.claim_of(1, STEPS),)), answer)
        assert isinstance(verdict, Proceed)
        grant = verdict.grant
        compared = 0
        for state, lease, fence, nonce in product(State, (0, grant.lease_until), (0, 1), (1, 2)):
            connection.execute("UPDATE semel_record SET state = ?, lease_until = ?, steps = ?", (state, lease, LIST))
            [row] = SqliteDatabase.rows(data).values()
            assert isinstance(row, Record)
            data._seen = -1
            holder = Renewal(grant.id, grant.fence + fence, store.bits(nonce))
            read, _, _ = step_rows.call(row, LIST, 1_000, lambda holder=holder: step_rows.ROWS.read(holder))  # type: ignore[misc]
            assert perform(real.read(holder), answer) == read
            held, after, steps = step_rows.call(
                row,
                LIST,
                1_000,
                lambda holder=holder: step_rows.ROWS.write(holder, b"another", STANDING),  # type: ignore[misc]
            )
            assert perform(real.write(holder, b"another", STANDING), answer) == held
            [written] = SqliteDatabase.rows(data).values()
            assert (written, SqliteDatabase.steps(data)[grant.id]) == (after, steps)
            compared += held
        assert compared == 3  # of the states, one holder in each: open, or UNKNOWN by a lapse, and not given back
