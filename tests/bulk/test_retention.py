"""Items and handled messages are forgotten by the reaper, with their record and in their time."""

from __future__ import annotations

from typing import Any

import pytest

from semel import AsyncEngine, Engine, Inbox
from semel.retention.worker import Reaper
from tests.bulk.fellows import Fellow, Home, counts
from tests.bulk.lists import number_items


@pytest.fixture(params=["sqlite-async", "psycopg-async", "asyncmy"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_reaper_deletes_expired_items(home: Home, kind: str) -> None:
    fellow = Fellow(kind, home, operation="old", tombstone_seconds=60, answer_seconds=60)
    fellow.run(number_items(7), counts)
    kept = Fellow(kind, home, operation="kept")
    done = kept.run(number_items(3, first=100), counts)
    home.fetch("UPDATE semel_record SET answer_until = 1, forget_after = 1 WHERE operation = 'old'")
    with Engine(home.backend(kind.removesuffix("-async"))) as engine:
        short = Inbox(engine, consumer="short", keep_seconds=0.000001)
        for n in range(3):
            short.handle(f"m-{n}", lambda message: None)
        Inbox(engine, consumer="long").handle("m-1", lambda message: None)

    async def reap(engine: AsyncEngine) -> Any:
        return await Reaper(engine).purge(chunk=2)

    assert fellow.runner is not None
    fellow.runner.run(reap(fellow.engine))
    assert list(home.fetch("SELECT count(*) FROM semel_item")) == [(3,)]
    assert list(home.fetch("SELECT count(*) FROM semel_bulk")) == [(1,)]
    assert list(home.fetch("SELECT consumer FROM semel_inbox")) == [("long",)]
    assert len(kept.outcomes(done)) == 3
    fellow.close()
    kept.close()
