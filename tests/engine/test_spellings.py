"""One request that may be recorded under several fingerprints: each is tried, on every store and in every mode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Command, Engine, Policy, Scope
from semel.errors import KeyReusedError, RecordUnreadableError
from tests.bulk.fellows import KINDS, SYNC, mariadb_home, postgres_home, sqlite_home

A, B, C = (sha256(letter).digest() for letter in (b"a", b"b", b"c"))


class Store:
    """An engine on a database of its own."""

    def __init__(self, kind: str, folder: Path) -> None:
        home = (
            sqlite_home(str(folder / "a.db"))
            if kind.startswith("sqlite")
            else postgres_home()
            if "pg" in kind
            else mariadb_home()
        )
        self.runner = None if kind in SYNC else asyncio.Runner()
        made: Any = Engine if self.runner is None else AsyncEngine
        self.engine: Any = made(home.backend(kind))
        self.ran = 0

    def run(self, command: Command) -> Any:
        if self.runner is None:
            return self.engine.run(command, self.handle)

        async def handle(permit: Any) -> Answer:
            return self.handle(permit)

        return self.runner.run(self.engine.run(command, handle))

    def handle(self, permit: Any) -> Answer:
        self.ran += 1
        return Answer(201, (), b"%d" % self.ran)

    def close(self) -> None:
        if self.runner is None:
            self.engine.close()
            return
        self.runner.run(self.engine.close())
        self.runner.close()


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store(request.param, tmp_path)
    yield made
    made.close()


def asking(effects: Any, ref: str | None, fingerprint: bytes, recipe: str, **known: tuple[bytes, ...]) -> Command:
    """A command whose request has these fingerprints, by the recipe's name."""
    return Command(
        scope=Scope("acme", "alice", "pay"),
        key="k",
        fingerprint=fingerprint,
        recipe=recipe,
        policy=Policy(effects=effects, wait_seconds=0),
        under=known.get,
        business_ref=ref,
    )


@pytest.mark.parametrize("ref", [None, "inv-1"], ids=["plain", "kept"])
@pytest.mark.parametrize("effects", ["external", "atomic"])
def test_every_known_fingerprint_is_tried_before_a_mismatch(store: Store, effects: str, ref: str | None) -> None:
    assert not store.run(asking(effects, ref, B, "one")).replayed
    for known in ((B,), (A, B), (C, A, B)):
        assert store.run(asking(effects, ref, known[0], "one", one=known)).replayed
        assert store.run(asking(effects, ref, C, "two", one=known, two=(C, A))).replayed
    for command in (
        asking(effects, ref, A, "one"),
        asking(effects, ref, A, "one", one=(A, C)),
        asking(effects, ref, A, "two", one=(A, C), two=(A,)),
    ):
        with pytest.raises(KeyReusedError):
            store.run(command)
    with pytest.raises(RecordUnreadableError):
        store.run(asking(effects, ref, B, "two", two=(A, B)))
    assert store.ran == 1


def test_a_running_atomic_command_is_found_under_another_spelling(tmp_path: Path) -> None:
    """It is not in the store yet: what it means is decided in this process."""
    store = Store("sqlite", tmp_path)
    met: list[str] = []

    def handle(permit: Any) -> Answer:
        for command in (
            asking("atomic", None, A, "one", one=(A, B)),
            asking("atomic", None, C, "two", one=(A, B)),
            asking("atomic", None, C, "one", one=(C, A)),
            asking("atomic", None, C, "two"),
        ):
            met.append(type(store.engine.claim(command)).__name__)
        return Answer(201, (), b"")

    store.engine.run(asking("atomic", None, B, "one"), handle)
    store.close()
    assert met == ["InProgress", "InProgress", "KeyReused", "Unreadable"]
