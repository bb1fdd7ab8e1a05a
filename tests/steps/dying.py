"""A process with a handler of three steps that is killed (SIGKILL) at one numbered point; what it did is in a file."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any

from semel import Answer, Engine, Permit, Policy
from semel.stores.backend import Backend
from semel.stores.clock import Clock, system_clock
from semel.stores.postgres.url import postgres_backend
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend
from tests.engine.shells import command
from tests.steps.conftest import step_command

POINTS = (
    "before the first start",
    "after a start, before its call",
    "after a call, before its result",
    "between steps",
    "in local writes",
    "after local writes",
    "before a repeatable call",
    "after a repeatable call",
    "before the settlement",
    "never",
)


def backend(url: str, schema: str, clock: Clock = system_clock) -> Backend:
    """The store of a URL; a clock of the test's own shows it a lease that is over."""
    if url.startswith("postgresql"):
        return postgres_backend(url, schema=schema, clock=None if clock is system_clock else clock)
    return sqlite_backend(SqliteDriver(url, clock=clock), 5.0)


class Handler:
    """Three steps, and the end of the process at one point."""

    def __init__(self, log: str, point: str) -> None:
        self._log = log
        self._point = point

    def _reach(self, point: str) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)

    def _effect(self, line: str) -> str:
        with open(self._log, "a") as log:
            log.write(f"{line}\n")
        return line

    def __call__(self, permit: Permit) -> Answer:
        self._reach("before the first start")

        def charge() -> str:
            self._reach("after a start, before its call")
            self._effect("charge")
            self._reach("after a call, before its result")
            return "ch_1"

        permit.step("charge", charge)
        self._reach("between steps")

        def write(connection: Any) -> None:
            connection.execute("INSERT INTO effect VALUES (1)")
            self._reach("in local writes")

        permit.local_step("write", write)
        self._reach("after local writes")

        def mail() -> None:
            self._reach("before a repeatable call")
            self._effect(f"mail {permit.key_for('mail')}")
            self._reach("after a repeatable call")

        permit.step("mail", mail, repeat=True)
        self._reach("before the settlement")
        return Answer(201, (), b"done")


def main(url: str, schema: str, log: str, point: str) -> None:
    engine = Engine(backend(url, schema))
    with suppress(KeyboardInterrupt):
        engine.run(step_command(), Handler(log, point))
    engine.close()


def abandoned_policy() -> Policy:
    """Of an operation that is left in the middle of a step, with a lease that a test can wait for."""
    return Policy(steps=True, lease_seconds=1.0, deadline_seconds=3.0)


def abandon(url: str) -> None:
    """Die in the middle of a step."""

    def charge() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def handler(permit: Permit) -> Answer:
        permit.step("charge", charge)
        return Answer(201, (), b"done")

    Engine(backend(url, "")).run(command("k", policy=abandoned_policy()), handler)


if __name__ == "__main__":
    if sys.argv[1] == "abandon":
        abandon(sys.argv[2])
    else:
        main(*sys.argv[1:])
