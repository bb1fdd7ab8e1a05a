"""A command that outlives its lease is renewed, also when it is the only one of its process (the reverse of I6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from semel import Answer, Permit
from semel.core.model import Settled
from semel.core.outcomes import Succeeded
from semel.stores.clock import system_clock
from tests.crash.processes import pause
from tests.crash.work import LEASE_SECONDS, Folder, command, id_of

DONE = Succeeded(Answer(200, (), b"done"))


def test_the_only_permit_of_a_process_is_renewed(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.create()
    with folder.engine() as engine:
        permit = engine.claim(command("alone", "external"))
        assert isinstance(permit, Permit)
        pause(LEASE_SECONDS * 1.3)
        [row] = engine.perform("read", lambda: engine.store.read([id_of("alone")]))
        assert row is not None
        assert row.lease_until > system_clock()
        assert engine.settle(permit, DONE) == Settled()


def test_the_only_permit_of_a_loop_is_renewed(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.create()

    async def main() -> None:
        async with folder.async_engine() as engine:
            permit = await engine.claim(command("alone", "external"))
            assert isinstance(permit, Permit)
            await asyncio.to_thread(pause, LEASE_SECONDS * 1.3)
            [row] = await engine.perform("read", lambda: engine.store.read([id_of("alone")]))
            assert row is not None
            assert row.lease_until > system_clock()
            assert await engine.settle(permit, DONE) == Settled()

    asyncio.run(main())
