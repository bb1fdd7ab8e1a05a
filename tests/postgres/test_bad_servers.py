"""A server that is away, hangs, is read-only or of another version: 503 in time, nothing runs, and it recovers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from semel import AsyncEngine, Engine, Permit, Policy, State
from semel.errors import KeyReusedError, SchemaError, StoreError, StoreReadOnly, StoreUnavailable, UrlError
from semel.http.caller import single_caller
from semel.integrations.starlette import Semel
from semel.stores.postgres.url import postgres_backend
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, Fellow, Outside, never
from tests.servers import postgres as primary
from tests.servers import standby
from tests.servers.postgres import schema
from tests.servers.relay import Relay
from tests.servers.running import free_port, stop

MakeFellow = Callable[..., Fellow]
PATIENCE_SECONDS = 1.0
SECRET = "hunter2/x"


def url(kind: str, place: str) -> str:
    scheme = "postgresql+asyncpg" if kind == "asyncpg" else "postgresql"
    return f"{scheme}://{place}/postgres?schema={schema()}&patience_seconds={PATIENCE_SECONDS}"


class Service:
    """An ASGI application with one command, whose store is behind the relay."""

    def __init__(self, kind: str, relay: Relay) -> None:
        self.ran = 0
        self.engine = AsyncEngine.connect(url(kind, f"postgres@127.0.0.1:{relay.port}"))
        semel = Semel(self.engine, caller=single_caller)

        @semel.command("pay")
        async def pay(request: Request, permit: Permit = Semel.permit) -> Response:
            self.ran += 1
            return PlainTextResponse("paid", 201)

        app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
        semel.install(app, reap=False)
        self.client = TestClient(app)

    def post(self, key: str = "k") -> Any:
        return self.client.post("/pay", headers={"idempotency-key": key}, content=b"{}")


@pytest.fixture(params=["psycopg", "asyncpg"])
def service(request: pytest.FixtureRequest, relay: Relay) -> Iterator[Service]:
    made = Service(request.param, relay)
    with made.client:
        yield made
        relay.hanging = False


def unavailable(answer: Any) -> None:
    assert answer.status_code == 503
    assert answer.json()["code"] == "IDEMPOTENCY_STORE_UNAVAILABLE"
    assert int(answer.headers["retry-after"]) > 0
    assert "127.0.0.1" not in answer.text


@pytest.mark.parametrize("warm", [False, True])
def test_a_server_that_hangs_is_503_in_time_and_serves_again_without_a_restart(
    service: Service, relay: Relay, warm: bool
) -> None:
    if warm:
        assert service.post("before").status_code == 201
    relay.hanging = True
    begun = time.monotonic()
    unavailable(service.post())
    assert time.monotonic() - begun < 10 * PATIENCE_SECONDS
    assert service.ran == int(warm)
    relay.hanging = False
    relay.cut()
    assert service.post().status_code == 201
    assert service.ran == 1 + int(warm)


def test_an_unreachable_server_is_503_and_serves_again_without_a_restart(
    service: Service, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.post("before").status_code == 201
    monkeypatch.setattr(relay, "_server", ("127.0.0.1", free_port()))
    relay.cut()
    unavailable(service.post())
    assert service.ran == 1
    monkeypatch.undo()
    assert service.post().status_code == 201
    assert service.ran == 2


def test_a_column_that_is_missing_is_503_and_no_traceback(service: Service, outside: Outside) -> None:
    """Until the schema is repaired; no restart is needed."""
    outside.connection.execute("ALTER TABLE semel_record RENAME COLUMN doubt TO no_doubt")
    unavailable(service.post())
    outside.connection.execute("ALTER TABLE semel_record RENAME COLUMN no_doubt TO doubt")
    assert service.post().status_code == 201
    assert service.ran == 1


def test_an_unreachable_server_is_reported_with_the_remedy_and_without_the_password() -> None:
    place = f"app:{SECRET.replace('/', '%2F')}@127.0.0.1:{free_port()}"
    engine: Any = Engine.connect(url("psycopg", place))
    with closing(engine), pytest.raises(StoreUnavailable, match="check that the server runs") as refused:
        engine.open()
    assert "hunter2" not in f"{refused.value}{refused.value.__cause__}"


@pytest.mark.parametrize(
    "broken", ["[::1/db", "127.0.0.1:port/db", "127.0.0.1/db?nonsense=1", "127.0.0.1/db?sslmode=sideways"]
)
def test_a_url_that_libpq_refuses_is_reported_without_the_password(broken: str) -> None:
    with pytest.raises((StoreUnavailable, UrlError)) as refused:
        Engine.connect(f"postgresql://app:hunter2@{broken}").open()
    assert "hunter2" not in str(refused.value)


def test_a_wrong_user_and_a_missing_database_are_reported_with_the_remedy(conninfo: str) -> None:
    for wrong, remedy in (
        (conninfo.replace("postgres@", "nobody_here@"), "check the URL's user"),
        (conninfo.removesuffix("postgres") + "nowhere", "create it, or check the URL"),
    ):
        with closing(Engine(postgres_backend(wrong))) as engine, pytest.raises(StoreUnavailable, match=remedy):
            engine.open()


@pytest.mark.parametrize("policy", [Policy(), ATOMIC], ids=["external", "atomic"])
def test_a_read_only_server_replays_and_runs_nothing(
    make_fellow: MakeFellow, conninfo: str, outside: Outside, reading_role: str, policy: Policy
) -> None:
    before = command("before", policy=policy)
    assert make_fellow().run(before, _nothing).answer is not None
    reader = make_fellow(conninfo=conninfo.replace("postgres@", f"{reading_role}@"))
    for _ in range(2):
        with pytest.raises(StoreReadOnly, match=r"read-only.*point the URL at the primary"):
            reader.run(command("k", policy=policy), never)
        again = reader.run(before, never)
        assert again.replayed
        assert again.answer == MADE
        with pytest.raises(KeyReusedError):
            reader.run(command("before", request=1, policy=policy), never)
    assert outside.states == [State.SUCCEEDED]
    outside.connection.execute(f"ALTER ROLE {reading_role} RESET default_transaction_read_only")
    reader.tell(_close_connections(reader))
    assert reader.run(command("k", policy=policy), _nothing).answer is not None


@pytest.mark.parametrize("kind", ["psycopg-async", "asyncpg"])
def test_a_batch_of_claims_on_a_read_only_server_is_answered_one_by_one(
    make_fellow: MakeFellow, conninfo: str, reading_role: str
) -> None:
    make_fellow().run(command("before"), _nothing)
    reader = make_fellow(conninfo=conninfo.replace("postgres@", f"{reading_role}@"))

    async def all_at_once() -> list[Any]:
        keys = ("before", "k", "before", "l")
        return await asyncio.gather(*(reader.running(command(key), never) for key in keys), return_exceptions=True)

    first, second, third, fourth = reader.tell(all_at_once())
    assert first.replayed
    assert third.replayed
    assert type(second) is type(fourth) is StoreReadOnly
    reader.tell(_close_connections(reader))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's own user may enter, unlike pytest's folders."""
    with TemporaryDirectory(prefix="semel-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.parametrize("effects", ["external", "atomic"])
def test_a_read_only_server_replays_commands_with_references_and_kept_requests(
    make_fellow: MakeFellow, conninfo: str, outside: Outside, reading_role: str, effects: Any
) -> None:
    kinds = [replace(command("ref", policy=Policy(effects=effects)), business_ref="INV-1")]
    if effects == "external":
        kinds.append(replace(command("steps"), policy=Policy(steps=True, resumable=True), request=b"{}"))
    for what in kinds:
        make_fellow().run(what, _nothing)
    reader = make_fellow(conninfo=conninfo.replace("postgres@", f"{reading_role}@"))
    for what in kinds:
        assert reader.run(what, never).replayed
        with pytest.raises(StoreReadOnly):
            reader.run(replace(what, key="new", business_ref=what.business_ref and "INV-2"), never)
    reader.tell(_close_connections(reader))
    assert outside.states == [State.SUCCEEDED] * len(kinds)


def test_a_hot_standby_replays(make_fellow: MakeFellow, folder: Path) -> None:
    (folder / "one").mkdir()
    one = primary.start(folder / "one")
    try:
        with closing(Engine(postgres_backend(primary.conninfo(one)))) as engine:
            engine.migrate()
        writer = make_fellow(conninfo=primary.conninfo(one), own_schema=False)
        for policy in (Policy(), ATOMIC):
            writer.run(command(policy.terms.effects.name, policy=policy), _nothing)
        two = standby.start(folder / "two", one)
        try:
            reader = make_fellow(conninfo=primary.conninfo(two), own_schema=False)
            for policy in (Policy(), ATOMIC):
                assert reader.run(command(policy.terms.effects.name, policy=policy), never).replayed
                with pytest.raises(StoreReadOnly):
                    reader.run(command("new", policy=policy), never)
            reader.tell(_close_connections(reader))
        finally:
            stop(two)
    finally:
        stop(one)


async def _close_connections(fellow: Fellow) -> None:
    """Close its connections: the next command makes new ones."""
    done = fellow.engine.close()
    if done is not None:
        await done


async def _nothing(permit: Any, db: Any) -> Any:
    return MADE


MISMIGRATED = [
    ("DROP TABLE semel_record, semel_meta", "no Semel tables.*semel migrate"),
    ("DROP TABLE semel_record", "no Semel tables.*semel migrate"),
    ("ALTER TABLE semel_record DROP COLUMN doubt", "another version.*semel migrate"),
    ("UPDATE semel_meta SET schema_version = 99", "version 99.*upgrade Semel"),
]


@pytest.mark.parametrize(("change", "words"), MISMIGRATED)
def test_another_schema_is_reported_with_the_remedy(
    make_fellow: MakeFellow, outside: Outside, change: str, words: str
) -> None:
    outside.connection.execute(change)
    fellow = make_fellow()

    async def start() -> None:
        opened = fellow.engine.open()
        if opened is not None:
            await opened

    def starts_and_runs() -> None:
        fellow.tell(start())
        fellow.run(command("k"), never)

    with pytest.raises(SchemaError, match=words):
        starts_and_runs()


def test_a_user_without_rights_is_reported(make_fellow: MakeFellow, conninfo: str, outside: Outside) -> None:
    role = f"semel_guest_{schema()}"
    outside.connection.execute(f"DROP ROLE IF EXISTS {role}")
    outside.connection.execute(f"CREATE ROLE {role} LOGIN")
    outside.connection.execute(f"GRANT USAGE ON SCHEMA {schema()} TO {role}")
    guest = make_fellow(conninfo=conninfo.replace("postgres@", f"{role}@"))
    with pytest.raises(StoreError, match="grant it SELECT, INSERT, UPDATE and DELETE"):
        guest.run(command("k"), never)
    outside.connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema()} TO {role}")
    assert guest.run(command("k"), _nothing).answer is not None
    guest.tell(_close_connections(guest))
    outside.connection.execute(f"DROP OWNED BY {role}")
    outside.connection.execute(f"DROP ROLE {role}")
