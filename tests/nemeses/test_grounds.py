"""The place of a round on a server: made empty, its business table read back, dropped without a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from semel import Answer, Engine, Permit
from tests.servers import mariadb, postgres
from tests.servers import redis as valkey
from verification.soak.command import soak_command
from verification.soak.ground import KINDS, SqliteGround, ground, insert
from verification.soak.ground_servers import server_ground

SERVERS: dict[str, Callable[[], str]] = {
    "postgresql": postgres.postgres,
    "redis": lambda: f"redis://127.0.0.1:{valkey.valkey()}/3",
    "cluster": lambda: f"redis+cluster://127.0.0.1:{valkey.cluster()}?persistence=none",
    "mariadb": lambda: mariadb.url(mariadb.mariadb()),
}


@pytest.mark.parametrize("store", ["postgresql", "redis", "cluster", pytest.param("mariadb", marks=mariadb.MARK)])
def test_a_store_on_a_server_is_prepared(tmp_path: Path, store: str) -> None:
    ours = ground(SERVERS[store](), tmp_path, 0)
    again = ground(SERVERS[store](), tmp_path, 1)
    assert ours.url == again.url  # the folder's own, for a later run
    assert ours.url != ground(SERVERS[store](), tmp_path / "other", 0).url
    assert ours.kinds == (KINDS if store in ("postgresql", "mariadb") else KINDS[:2])
    answer = Answer(201, (), b"done")

    def pays(permit: Permit) -> Answer:
        if effects == "atomic":
            connection = permit.connection
            connection.cursor().execute(insert(permit.grant.id, permit.generation, b"\1\2"))
        return answer

    for effects in ours.kinds:
        ours.prepare()
        with Engine.connect(ours.url) as engine:
            assert not engine.run(soak_command("k", effects), pays).replayed
            assert engine.run(soak_command("k", effects), pays).replayed
        assert [(generation, body) for _, generation, body in ours.read_committed()] == (
            [(0, b"\1\2")] if effects == "atomic" else []
        )
    again.prepare()
    with Engine.connect(ours.url) as engine:
        assert not engine.run(soak_command("k", "external"), lambda permit: answer).replayed
    ours.drop()
    ours.drop()


def test_a_store_in_a_file_is_prepared(tmp_path: Path) -> None:
    assert isinstance(ground(None, tmp_path, 0), SqliteGround)
    ours = SqliteGround(tmp_path, 0)
    ours.prepare()
    assert ours.read_committed() == []
    ours.drop()


def test_options_of_the_url_stay() -> None:
    made = server_ground("redis://u:p@localhost:1/2?wait_replicas=1&patience_seconds=4", "soak_x")
    assert made.url == "redis://u:p@localhost:1/2?patience_seconds=4&wait_replicas=1&prefix=soak_x"
