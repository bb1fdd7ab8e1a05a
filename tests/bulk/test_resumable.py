"""A bulk inside a resumable operation: the request is kept, and a completer finishes the bulk."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path

import pytest

from semel import Answer, AsyncBulk, AsyncEngine, Command, Permit, Policy, Scope
from semel.bulk.declaration import BulkItem
from semel.resuming.worker import Completer
from tests.bulk.fellows import Home, counts, sqlite_home
from tests.bulk.lists import number_items
from tests.engine.shells import until

POLICY = Policy(steps=True, resumable=True)
REQUEST = json.dumps(number_items(30)).encode()


class Shop:
    """One process, which may be cancelled at an item."""

    def __init__(self, home: Home, *, dies_at: int | None = None) -> None:
        self.engine = AsyncEngine(home.backend("sqlite-async"))
        self.bulk = AsyncBulk(self.engine, operation="count", effects="atomic", chunk_items=10)
        self.dies_at = dies_at
        self.handled: list[int] = []

    async def count_all(self, permit: Permit, request: bytes) -> Answer:
        """The operation's handler: the bulk is its one step."""

        async def whole() -> list[int]:
            scope, key = permit.command.scope, permit.key_for("bulk")
            items = json.loads(request)
            done = await self.bulk.run(items, self.count, key=key, caller=scope.caller, wait_seconds=60)
            return list(done.tally)

        return Answer(200, (), json.dumps(await permit.step("bulk", whole, repeat=True)).encode())

    async def count(self, item: BulkItem) -> None:
        if item.place == self.dies_at:
            raise asyncio.CancelledError  # the process is going down
        self.handled.append(item.place)
        await counts(item)


def test_a_completer_ends_a_bulk_whose_client_is_gone(tmp_path: Path) -> None:
    home = sqlite_home(str(tmp_path / "bulk.db"))
    command = Command(
        scope=Scope("acme", "alice", "count-all"),
        key="k",
        fingerprint=sha256(REQUEST).digest(),
        recipe="v1",
        policy=POLICY,
        request=REQUEST,
    )

    async def die_in_the_middle() -> None:
        shop = Shop(home, dies_at=17)
        async with shop.engine as engine:
            with pytest.raises(asyncio.CancelledError):
                await engine.run(command, lambda permit: shop.count_all(permit, REQUEST))

    async def complete() -> None:
        shop = Shop(home)
        async with shop.engine as engine:
            completer = Completer(engine)
            completer.register("count-all", POLICY, shop.count_all)
            async with completer:
                await until(lambda: home.fetch("SELECT state FROM semel_record ORDER BY seq") == [(3,), (3,)])
            answer = await engine.run(command, lambda permit: shop.count_all(permit, REQUEST))
            assert answer.replayed
            assert json.loads(answer.answer.body) == [30, 30, 30, 0, 0, 0]
        assert shop.handled == list(range(10, 30))

    asyncio.run(die_in_the_middle())
    assert home.effects() == list(range(10))
    asyncio.run(asyncio.wait_for(complete(), 60))
    assert home.effects() == list(range(30))
