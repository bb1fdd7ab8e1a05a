"""The status resource of a bulk shows its progress, while it runs and afterwards, to its own caller only."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from semel import AsyncBulk, AsyncEngine
from semel.bulk.declaration import BulkItem
from semel.core.identity import uuid_text
from semel.http.caller import Caller
from semel.http.settings import HttpSettings
from semel.operations.http import Operations
from tests.bulk.fellows import sqlite_home
from tests.bulk.lists import number_items


def test_progress_over_http(tmp_path: Path) -> None:
    home = sqlite_home(str(tmp_path / "bulk.db"))
    seen: list[dict[str, Any]] = []

    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            surface = HttpSettings(engine=engine, caller=lambda request: Caller("acme", request["user"]))
            operations = Operations(surface, engine, lambda: ["count"])
            bulk = AsyncBulk(engine, operation="count", effects="external", at_once=2)

            async def look(user: str) -> int | None:
                [(id,)] = home.fetch("SELECT operation_id FROM semel_record")
                answer = await operations.by_id(uuid_text(id), {"user": user})
                seen.append(json.loads(answer.body))
                return answer.status

            async def handler(item: BulkItem) -> None:
                if item.place == 4:
                    assert await look("alice") == 200

            await bulk.run(number_items(6), handler, key="k", caller="alice", tenant="acme")
            assert await look("alice") == 200
            assert await look("mallory") == 404

    asyncio.run(story())
    running, ended, _ = seen
    assert (running["state"], running["running"]) == ("CLAIMED", True)
    assert running["progress"] == {
        **{"total": 6, "done": 6, "succeeded": 4, "failed": 0},
        **{"retryable": 0, "unknown": 0},
    }
    assert (ended["state"], ended["progress"]["succeeded"]) == ("SUCCEEDED", 6)
    assert "progress" not in seen[2]
