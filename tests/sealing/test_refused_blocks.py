"""A definite refusal that is stored after the user's rollback keeps its secret as every other answer does."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, Engine, Policy
from semel.sealing.sealer import Sealer
from tests.engine.shells import command

SECRET = b'{"card":"4111-SECRET"}'
REFUSED = Answer(402, ((b"content-type", b"application/json"),), SECRET)


@pytest.mark.parametrize("options", [{"answers": "seal"}, {"answers": "forget"}, {"redact": ("card",)}], ids=str)
def test_a_refusal_after_a_rollback_is_stored_as_declared(options: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "app.db"
    policy = Policy(effects="atomic", **options)
    with closing(Engine.connect(f"sqlite:///{file}", sealer=Sealer({"k1": bytes(32)}))) as engine:
        engine.migrate()
        with closing(sqlite3.connect(file)) as db:
            block = engine.atomic(db, command("k", policy=policy))
            block.__enter__()
            block.__exit__(ValueError)
            db.rollback()
            assert block.refuse(REFUSED) is None
        stored = b"".join(each.read_bytes() for each in tmp_path.iterdir())
        assert b"4111-SECRET" not in stored
