"""A server that takes no writes (a replica, too few replicas): what is on record is answered, and nothing runs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from semel import AsyncEngine, Engine, Permit
from semel.errors import KeyReusedError, StoreUnavailable
from semel.http.caller import single_caller
from semel.integrations.starlette import Semel
from tests.engine.shells import MADE, command
from tests.redis.conftest import Opens, backend
from tests.servers import redis as servers
from tests.servers.running import stop


def close_to_writes(server: Redis, how: str) -> None:
    if how == "READONLY":
        server.replicaof("127.0.0.1", 1)
    else:
        server.config_set("min-replicas-to-write", 1)


def open_to_writes(server: Redis) -> None:
    server.replicaof("NO", "ONE")
    server.config_set("min-replicas-to-write", 0)


@pytest.fixture
def own_server(tmp_path: Path) -> Any:
    running = servers.start(tmp_path / "own", "appendonly yes", "repl-diskless-sync-delay 0")
    with Redis(port=running.port) as client:
        yield running.port, client
    stop(running)


@pytest.mark.parametrize("how", ["READONLY", "NOREPLICAS"])
def test_replays_and_mismatches_are_answered_and_nothing_runs(own_server: Any, open_engine: Opens, how: str) -> None:
    port, client = own_server
    shell = open_engine(port)
    shell.run(command("before"), lambda permit: MADE)
    close_to_writes(client, how)
    with pytest.raises(StoreUnavailable, match=how):
        shell.run(command("meanwhile"), lambda permit: MADE)
    assert shell.run(command("before"), lambda permit: MADE).replayed
    with pytest.raises(KeyReusedError):
        shell.run(command("before", request=1), lambda permit: MADE)
    open_to_writes(client)
    assert not shell.run(command("meanwhile"), lambda permit: MADE).replayed


@pytest.mark.parametrize("how", ["READONLY", "NOREPLICAS"])
def test_the_status_of_an_operation_is_answered(own_server: Any, how: str) -> None:
    port, client = own_server
    name = servers.prefix()
    with closing(Engine(backend(port, prefix=name))) as migrating:
        migrating.migrate()
    engine = AsyncEngine(backend(port, prefix=name))
    semel = Semel(engine, caller=single_caller)

    @semel.command("pay")
    async def pay(request: Request, permit: Permit = Semel.permit) -> Response:
        return PlainTextResponse("paid", 201)

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    semel.install(app, reap=False)
    with TestClient(app) as http:
        first = http.post("/pay", headers={"idempotency-key": "k"}, content=b"{}")
        assert first.status_code == 201
        close_to_writes(client, how)
        by_key = http.get("/operations", params={"operation": "pay", "key": "k"})
        assert (by_key.status_code, by_key.json()["state"]) == (200, "SUCCEEDED")
        by_id = http.get(f"/operations/{by_key.json()['operationId']}")
        assert (by_id.status_code, by_id.json()) == (200, by_key.json())
        assert http.post("/pay", headers={"idempotency-key": "k"}, content=b"{}").status_code == 201
        open_to_writes(client)
