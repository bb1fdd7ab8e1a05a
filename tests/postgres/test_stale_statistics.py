"""Just after many records were loaded, and before PostgreSQL knows of them: what idle workers ask looks at few rows.

A planner that expects one record rather walks them all than joins by their ids. No hint keeps it from that, but a
form that leaves it no choice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from semel import Answer, Permit
from semel.core.flow import Flow, MakeFlow, ask
from semel.core.model import Find, State
from semel.outbox.partitions import Partitions
from semel.outbox.run import own_event
from semel.outbox.store import Events
from semel.steps.store import StepRows
from semel.stores.postgres.store import SQL
from semel.stores.sql.statements import Query, compose
from semel.workers.rules import REAPER
from tests.engine.shells import MADE, command
from tests.postgres.conftest import Fellow, Outside, Writes

LOADED = 10_000
FEW = 50
REPORTS = compose("reports", "SELECT pg_stat_force_next_flush()::text")
LOOKED_AT = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint FROM pg_stat_user_tables
WHERE schemaname = current_schema() AND relname IN ('semel_record', 'semel_event')
"""


async def answers(permit: Permit, db: Writes) -> Answer:
    return MADE


class Loaded:
    """A fellow's store with many settled records and published events, of which the planner knows one each."""

    def __init__(self, fellow: Fellow, outside: Outside) -> None:
        self._fellow = fellow
        self._outside = outside
        fellow.run(command("first"), answers)
        events = Events(fellow.engine.store.dialect)
        made = own_event(None, "orders", {"n": 1}, None, ("order", "1"), None, "")
        fellow.performs("write", lambda: events.write([made]))
        outside.connection.execute("UPDATE semel_event SET published_at = 1")
        for table in ("semel_record", "semel_event"):
            outside.connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            outside.connection.execute(f"ANALYZE {table}")
        self.turns = itertools.count(1)
        for _ in range(8):  # a connection may settle on a plan
            self.turn()
        self._copy("semel_record", {"id": "decode(md5(n::text), 'hex')", "operation_id": "decode(md5(n::text), 'hex')"})
        self._copy("semel_event", {"id": "md5(n::text)::uuid"})
        outside.connection.execute("UPDATE semel_meta SET horizon = (SELECT max(seq) FROM semel_record)")

    def _copy(self, table: str, instead: dict[str, str]) -> None:
        columns = [
            name
            for (name,) in self._outside.fetch(
                f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 "
                "AND NOT attisdropped AND attname <> 'seq' AND attgenerated = ''"
            )
        ]
        values = ", ".join(instead.get(name, name) for name in columns)
        self._outside.connection.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) "
            f"SELECT {values} FROM (SELECT * FROM {table} LIMIT 1) AS one, generate_series(1, {LOADED}) AS n"
        )

    def turn(self) -> None:
        store = self._fellow.engine.store
        self._fellow.performs("turn", lambda: store.turn(f"completer:{next(self.turns)}", None, 1, False))

    def looked_at(self, verb: str, make: MakeFlow[Any]) -> int:
        """How many rows of both tables the server has looked at for this."""
        before = self._count_after_reports()
        self._fellow.performs(verb, make)
        return self._count_after_reports() - before

    def _count_after_reports(self) -> int:
        self._fellow.performs("reports", lambda: ask(Query(REPORTS, {})))
        return int(self._outside.fetch(LOOKED_AT)[0][0])


def questions(fellow: Fellow) -> dict[str, tuple[str, Callable[[], Any]]]:
    """What idle workers, and those who look after a store, ask again and again."""
    store, steps, events = fellow.engine.store, StepRows(fellow.engine.store), Events(fellow.engine.store.dialect)
    needing = Find(states=(State.UNKNOWN, State.PROCESSING), attention=True)
    every = (1 << 32) - 1
    return {
        "a reaper's turn": ("turn", lambda: store.turn(REAPER, None, 1, True)),
        "a completer's turn": ("turn", lambda: store.turn("completer", None, 1, False)),
        "an idle relay's turn": ("turn", lambda: _relay_turn(store, None)),
        "a turn of all workers of a process": ("turn", lambda: _relay_turn(store, True)),
        "a reaper's round": ("lapse", lambda: store.lapse(100)),
        "abandoned executions": ("abandoned", lambda: steps.find_abandoned(50)),
        "what is due of events": ("events_due", lambda: events.due(every, 50, 1_000_000, hold=True)),
        "what needs somebody": ("find", lambda: store.find(needing)),
        "what is UNKNOWN": ("find", lambda: store.find(Find(states=(State.UNKNOWN,), attention=True))),
        "the horizon": ("keep", lambda: ask(Query(SQL["keep_horizon"], {"ids": [bytes(16)], "horizon": 0}))),
    }


def _relay_turn(store: Any, reaps: bool | None) -> Flow[Any]:
    records = yield from store.turn_params(reaps)
    partitions = Partitions(store.dialect)
    return (yield from partitions.turn("all", None, 1, records, "relay", hold=True, listens=False, gauge=True))


@pytest.mark.parametrize("knows", [False, True], ids=["stale", "analyzed"])
def test_idle_workers_look_at_few_rows(make_fellow: Callable[..., Fellow], outside: Outside, knows: bool) -> None:
    fellow = make_fellow(connections_max=1)
    loaded = Loaded(fellow, outside)
    if knows:
        outside.connection.execute("ANALYZE semel_record, semel_event")
    counted = {name: loaded.looked_at(verb, make) for name, (verb, make) in questions(fellow).items()}
    assert {name: rows for name, rows in counted.items() if rows > FEW} == {}
