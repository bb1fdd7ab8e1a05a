"""Interrupts a thread's commands at random instructions, and checks that nothing is lost, held or done twice.

The victim asks for one key after the other, each until it is answered. Another thread raises an exception in it, as
Dramatiq's limit (an asynchronous exception) or Celery's (a signal's handler) does. Bystanders on the same engine are
left alone: they must be served, and must never see that exception.
"""

from __future__ import annotations

import ctypes
import random
import signal
import sqlite3
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import psycopg
import pymysql

from semel import Answer, Command, Engine, Permit, Policy
from semel.errors import CommandError, InProgressError, OutcomeUnknownError, StoreError
from tests.engine.shells import command
from tests.outside.stores import Store, execute

Kind = Literal["external", "atomic", "join"]
By = Literal["thread", "signal"]
MADE: Final = Answer(201, (), b"made")
HANG_SECONDS: Final = 30.0  # without progress
LIBRARIES: Final = (sqlite3.Error, psycopg.Error, pymysql.MySQLError)
SAFE: Final = ("handler", "_finish", "answer_from", "settle")  # where the handler may have begun


class Interrupt(Exception):
    """A time limit."""


@dataclass
class Round:
    """What one round of interruptions has come to."""

    interruptions: int = 0
    answered: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)
    bystanders: int = 0
    wrong: list[str] = field(default_factory=list)


def policy(kind: Kind) -> Policy:
    return Policy() if kind == "external" else Policy(effects="atomic")


class Victim:
    """Asks for one key after the other until it was interrupted so often."""

    def __init__(self, engine: Engine, store: Store, kind: Kind, wanted: int, round: Round) -> None:
        self.engine, self.store, self.kind, self.wanted, self.round = engine, store, kind, wanted, round
        self.number = 0
        self.begun = False  # whether the handler of the present key may have begun
        self.running = False
        self.over = threading.Event()
        self._connection: Any = None

    @property
    def key(self) -> str:
        return f"v-{self.number}"

    def work(self) -> None:
        """To the end, despite interruptions. An exception that comes between two keys is one more interruption."""
        while not self.over.is_set():
            with suppress(Interrupt):  # one that comes while another is noted
                self._work_and_note()

    def _work_and_note(self) -> None:
        while not self.over.is_set():
            try:
                self._work()
            except Interrupt as error:
                self.running = False
                self._note(error)

    def _note(self, error: Interrupt) -> None:
        with suppress(Interrupt):
            self.round.interruptions += 1
            names = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
            self.begun = self.begun or not names.isdisjoint(SAFE)
            if self._connection is not None:
                self._drop_connection()

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _work(self) -> None:
        while not self.over.is_set():
            self.running = True
            try:
                self._ask()
            except OutcomeUnknownError:
                self.running = False
                if self.kind != "external":
                    self.round.wrong.append(f"{self.key}: an ATOMIC command is UNKNOWN")
                if not self.begun:
                    self.round.wrong.append(f"{self.key}: UNKNOWN, and nothing ran")
                self.round.unknown.append(self.key)
            except LIBRARIES:
                self._drop_connection()  # interrupted in the middle of an exchange: the user's own, of no use any more
                continue
            except InProgressError:
                self.round.wrong.append(f"{self.key}: still running, without a holder")
            except (StoreError, CommandError) as error:
                self.round.wrong.append(f"{self.key}: {error!r}")
            else:
                self.running = False
                self.round.answered.append(self.key)
            self.running = False
            self.begun = False
            self.number += 1
            if self.round.interruptions >= self.wanted or self.round.wrong:
                self.over.set()

    def _ask(self) -> None:
        given = command(self.key, policy=policy(self.kind))
        if self.kind == "join":
            self._join(given)
        else:
            self.engine.run(given, self._handler(), wait_seconds=5)

    def _handler(self) -> Callable[[Permit], Answer]:
        key = self.key

        def handler(permit: Permit) -> Answer:
            self.round.runs[key] += 1
            self.begun = True
            if self.kind == "atomic":
                execute(permit.connection, f"INSERT INTO effect VALUES ('{key}')")
            return MADE

        return handler

    def _join(self, given: Command) -> None:
        assert self.store.connect is not None
        if self._connection is None:
            self.running = False  # what opens it is not ours to test
            self._connection = self.store.connect()
            self.running = True
        connection = self._connection
        ends = time.monotonic() + 10
        while True:
            try:
                with self.engine.atomic(connection, given) as once:
                    if not once.replayed:
                        execute(connection, f"INSERT INTO effect VALUES ('{self.key}')")
                        once.answer = MADE
                connection.commit()
            except InProgressError:  # of the connection that was dropped: the server has yet to notice
                connection.rollback()
                if time.monotonic() > ends:
                    raise
            else:
                return


class Bystander:
    """Calls on the same engine, and is not interrupted."""

    def __init__(self, engine: Engine, name: str, kind: Kind, round: Round) -> None:
        self._engine, self._name, self._kind, self._round = engine, name, kind, round
        self.asked_at = time.monotonic()
        self.over = threading.Event()

    def work(self) -> None:
        number = 0
        while not self.over.is_set() and not self._round.wrong:
            number += 1
            self.asked_at = time.monotonic()
            kind: Kind = "external" if self._kind == "external" else "atomic"
            try:
                self._engine.run(command(f"{self._name}-{number}", policy=policy(kind)), lambda permit: MADE)
            except BaseException as error:  # noqa: BLE001 -- any exception here is wrong
                self._round.wrong.append(f"bystander {self._name}: {error!r}")
            self._round.bystanders += 1
            self.over.wait(0.002)


def interrupt(
    store: Store, kind: Kind, by: By, *, times: int, seed: int = 0, bystanders: int = 2, hurry: float = 0.03
) -> Round:
    """Run one round: ``times`` interruptions, each within ``hurry`` seconds of the last one's end.

    Parameters: ``by`` "signal" only in the main thread.
    """
    round = Round()
    store.make_table()
    with closing(Engine.connect(store.url)) as engine:
        engine.migrate()
        engine.open()
        others = [Bystander(engine, f"b{n}", kind, round) for n in range(bystanders)]
        threads = [threading.Thread(target=other.work, daemon=True) for other in others]
        victim = Victim(engine, store, kind, times, round)
        for thread in threads:
            thread.start()
        _run(victim, by, random.Random(seed), hurry)
        victim._drop_connection()
        for other in others:
            other.over.set()
        for thread, other in zip(threads, others, strict=True):
            thread.join(HANG_SECONDS)
            if thread.is_alive():
                round.wrong.append(f"a bystander hangs since {time.monotonic() - other.asked_at:.0f} s")
        _check(engine, store, kind, round)
    return round


def _run(victim: Victim, by: By, chance: random.Random, hurry: float) -> None:
    if by == "thread":
        thread = threading.Thread(target=victim.work, daemon=True)
        thread.start()
        assert thread.ident is not None
        _fire(victim, _raise_in(thread.ident), chance, hurry)
        thread.join(HANG_SECONDS)
        return

    def limit(*_: object) -> None:
        if victim.running:
            raise Interrupt

    signal.signal(signal.SIGUSR2, limit)  # for good: a last signal may come late
    main = threading.get_ident()
    kill = lambda: signal.pthread_kill(main, signal.SIGUSR2)  # noqa: E731 -- a name for a partial without its type
    killer = threading.Thread(target=_fire, args=(victim, kill, chance, hurry), daemon=True)
    killer.start()
    victim.work()
    killer.join(HANG_SECONDS)


def _raise_in(ident: int) -> Callable[[], object]:
    return lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Interrupt))


def _fire(victim: Victim, fire: Callable[[], object], chance: random.Random, hurry: float) -> None:
    """Raise the exception in the victim while it asks, and see that it continues."""
    moved, seen = time.monotonic(), (-1, -1)
    while not victim.over.wait(chance.random() ** 2 * hurry):
        at = (victim.round.interruptions, victim.number)
        if at != seen:
            moved, seen = time.monotonic(), at
        if time.monotonic() - moved > HANG_SECONDS:
            victim.round.wrong.append(f"{victim.key}: the victim hangs after {at[0]} interruptions")
            victim.over.set()
        if victim.running and victim.round.interruptions < victim.wanted:
            fire()


def _check(engine: Engine, store: Store, kind: Kind, round: Round) -> None:
    """After the storm: nothing is held, in this process or for another one, and nothing was done twice."""
    twice = [key for key, runs in round.runs.items() if kind == "external" and runs > 1]
    if twice:
        round.wrong.append(f"run twice: {twice}")
    if kind != "external":
        rows = Counter(store.rows())
        if any(rows[key] != 1 for key in round.answered) or set(rows) - set(round.answered):
            odd = {key: count for key, count in rows.items() if count != 1}
            round.wrong.append(f"rows and answers differ: {odd or sorted(set(rows) ^ set(round.answered))}")
    if engine.core.live or engine.core.running or engine.core.entering or engine.core.units:
        round.wrong.append(f"left behind: {engine.core.live} {engine.core.running} {engine.core.entering}")
    with closing(Engine.connect(store.url)) as other:  # a neighbour, with connections of its own
        for each, who in ((engine, "mine"), (other, "another")):
            for number in range(10):  # more than there are connections
                what = "external" if store.connect is None else "atomic"
                given = command(f"{who}-after-{number}", policy=Policy.of(effects=what))
                try:
                    each.run(given, lambda permit: MADE)
                except (StoreError, CommandError) as error:
                    round.wrong.append(f"after the storm, {who} engine: {error!r}")
                    return
