"""What the schedules have in common: handlers, the effects that remain, an operator's word."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from semel import Answer, Engine, Permit, Policy
from semel.core.model import (
    Grant,
    Resolution,
    Resolving,
)
from semel.testing.clock import SettableClock
from tests.engine.drivers import sqlite
from tests.engine.shells import MADE, Shell

ATOMIC, IDEMPOTENT = Policy(effects="atomic"), Policy(effects="idempotent")
REFUSED = Answer(409, (), b"out of stock")


def effects(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        [[count]] = connection.execute("SELECT count(*) FROM effect").fetchall()
    return int(count)


def migrate(file: Path, clock: SettableClock) -> None:
    engine = Engine(sqlite(file, clock))
    engine.migrate()
    engine.close()


def writes_effect(permit: Permit) -> Answer:
    permit.connection.execute("INSERT INTO effect VALUES (1)")
    return MADE


def never(permit: Permit) -> Answer:
    raise AssertionError("this must not run")


def resolve(shell: Shell, grant: Grant, *, happened: bool, forced: bool = False) -> Resolving:
    resolution = Resolution(grant.id, grant.fence, happened, MADE if happened else None, "olga", "asked", forced)
    reply: Resolving = shell.perform("resolve", lambda: shell.engine.store.resolve(resolution))
    return reply
