"""What a MariaDB server may do to a command: lose answers, hang, lock, refuse, restart. Bounded waits, true answers."""

from __future__ import annotations

import os
import select
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from semel.core.flow import Flow
from semel.core.model import Answer, AnswerKind, Proceed, Purged, Settled, State
from semel.engine.state import SCHEMA_VERSION_MAX
from semel.errors import (
    ConfigurationError,
    SchemaError,
    SemelError,
    StatementRefused,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from semel.operations.store import OperationRows
from semel.stores.mariadb import protocol as spoken
from semel.stores.mariadb.protocol import MariadbServer
from semel.stores.mariadb.url import mariadb_backend
from semel.stores.urls import connect_backend
from semel.testing.attempts import OK, attempt, renewal, settlement
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import ATOMIC, PLAIN, WHAT, Fellow, Outside, insert_and_answer, never, plain
from tests.servers.mariadb import MARK, at, connect, resume, start, url
from tests.servers.relay import Loss, Relay
from tests.servers.running import ENVIRONMENT, Running, free_port, stop

pytestmark = MARK
MakeFellow = Callable[..., Fellow]
PATIENCE_SECONDS = 1.0
NOW = 1_800_000_000_000_000
DAY_US = 86_400_000_000
# Not information_schema.innodb_trx: it caches its rows, so that frequent queries see old ones.
WAITING = (
    "SELECT 1 FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() "
    "AND info LIKE '%UPDATE semel_record%' AND time_ms > 200"
)


# --- answers that are lost ---


@pytest.mark.parametrize("loss", ["request", "reply", "both"])
@pytest.mark.parametrize("said", ["INSERT INTO semel_record", "UPDATE semel_record"])
@pytest.mark.parametrize("what", [PLAIN, WHAT], ids=["external", "atomic"])
def test_a_lost_answer_is_never_a_second_effect(
    make_fellow: MakeFellow, outside: Outside, relay: Relay, said: str, loss: Loss, what: Any
) -> None:
    fellow = make_fellow(port=relay.port, patience_seconds=PATIENCE_SECONDS)
    ran: list[int] = []

    async def handler(permit: Any, db: Any) -> Answer:
        ran.append(1)
        return await (insert_and_answer if what is WHAT else plain)(permit, db)

    relay.lose(loss, said)
    begun = time.monotonic()
    try:
        told: Answer | SemelError | None = fellow.run(what, handler).answer
    except SemelError as error:
        told = error
    assert time.monotonic() - begun < 10 * PATIENCE_SECONDS
    assert isinstance(told, StoreError) or told == MADE
    assert fellow.run(what, handler, wait_seconds=10).answer == MADE
    assert len(ran) <= (2 if what is WHAT else 1)  # what was rolled back may run again
    assert outside.rows() == ([1] if what is WHAT else [])
    assert set(outside.states) == {State.SUCCEEDED}


@pytest.mark.parametrize("atomic", [False, True])
def test_a_server_that_hangs_times_out_and_is_used_again(
    make_fellow: MakeFellow, relay: Relay, outside: Outside, atomic: bool
) -> None:
    fellow = make_fellow(port=relay.port, patience_seconds=PATIENCE_SECONDS)
    what, handler = (WHAT, insert_and_answer) if atomic else (PLAIN, plain)
    fellow.run(command("warm", policy=what.policy), plain)
    relay.hanging = True
    begun = time.monotonic()
    with pytest.raises(StoreError):
        fellow.run(what, never)
    assert time.monotonic() - begun < 10 * PATIENCE_SECONDS
    relay.hanging = False
    relay.cut()
    assert fellow.run(what, handler, wait_seconds=5).answer == MADE


def test_semels_statement_beside_a_running_handler_times_out(
    make_fellow: MakeFellow, relay: Relay, outside: Outside
) -> None:
    """The handler may take its time; what Semel asks on its connection then may not."""
    fellow = make_fellow(port=relay.port, patience_seconds=PATIENCE_SECONDS)
    rows = OperationRows(fellow.backend.store)

    async def handler(permit: Any, db: Any) -> Answer:
        relay.lose("both", "semel_operation")
        flow = partial(rows.mirror, (permit.grant.id,))
        if hasattr(permit.unit, "run"):
            permit.unit.run(flow)
        else:
            await permit.unit.run_async(flow)
        return MADE

    begun = time.monotonic()
    with pytest.raises(StoreError):
        fellow.run(WHAT, handler)
    assert time.monotonic() - begun < 10 * PATIENCE_SECONDS
    relay.cut()
    assert fellow.run(WHAT, insert_and_answer, wait_seconds=10).answer == MADE
    assert outside.rows() == [1]


# --- locks ---


@pytest.mark.parametrize("verb", ["settle", "settle many", "renew"])
def test_a_lock_wait_that_times_out_rolls_everything_back_and_holds_nothing(
    make_fellow: MakeFellow, outside: Outside, verb: str
) -> None:
    """InnoDB rolls back the statement alone: the rows that a batch had written before it would stay locked."""
    fellow = make_fellow(patience_seconds=2.0)
    store = fellow.backend.store
    claims = [attempt(key) for key in ("a", "b", "c")]
    verdicts = fellow.performs("claim", lambda: store.claim(claims))
    grants = [verdict.grant for verdict in verdicts]
    assert all(type(verdict) is Proceed for verdict in verdicts)
    last = max(grants, key=lambda grant: grant.id)
    make: dict[str, Any] = {
        "settle": lambda: store.settle([settlement(last)]),
        "settle many": lambda: store.settle([settlement(grant) for grant in grants]),
        "renew": lambda: store.renew([renewal(last)]),
    }
    server = fellow.backend.driver.server
    with closing(connect(server.port, database=server.database)) as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT 1 FROM semel_record WHERE id = x'{last.id.hex()}' FOR UPDATE")
        with pytest.raises(StatementRefused, match="locked by another transaction"):
            fellow.performs(verb, make[verb])
        for grant in grants:
            if grant is not last:  # no process holds it
                assert outside.fetch(f"SELECT 1 FROM semel_record WHERE id = x'{grant.id.hex()}' FOR UPDATE NOWAIT")
        assert set(outside.states) == {State.PROCESSING}
    assert fellow.performs(verb, make[verb]) in ([Settled()], [Settled()] * 3, [True])


def test_a_statement_that_deadlocks_is_retried(make_fellow: MakeFellow, outside: Outside) -> None:
    """Two batches that lock in opposite orders, from a client that does not sort as Semel does."""
    fellow = make_fellow()
    store = fellow.backend.store
    claims = sorted((attempt(key) for key in ("a", "b")), key=lambda claim: claim.id)
    grants = [verdict.grant for verdict in fellow.performs("claim", lambda: store.claim(claims))]
    server = fellow.backend.driver.server
    with closing(connect(server.port, database=server.database)) as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO effect VALUES (1), (2), (3), (4), (5), (6), (7), (8)")  # too heavy for a victim
        cursor.execute(f"SELECT 1 FROM semel_record WHERE id = x'{claims[1].id.hex()}' FOR UPDATE")
        replies: list[Any] = []

        def settle() -> None:
            replies.extend(fellow.performs("settle", lambda: store.settle([settlement(grant) for grant in grants])))

        thread = threading.Thread(target=settle)
        thread.start()
        _until(lambda: outside.fetch(WAITING))
        cursor.execute(f"SELECT 1 FROM semel_record WHERE id = x'{claims[0].id.hex()}' FOR UPDATE")  # one must go
        cursor.execute("ROLLBACK")
        thread.join(20)
    assert replies == [Settled(), Settled()]
    [(_, status)] = outside.fetch("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
    assert int(status) >= 1


def _until(seen: Callable[[], object]) -> None:
    ends = time.monotonic() + 20
    while not seen():
        assert time.monotonic() < ends


def test_an_update_that_changes_nothing_has_found_its_row(fellow: Fellow) -> None:
    """Two renewals in one microsecond write the same row twice: the second must not look like a lost lease."""
    server = replace(fellow.backend.driver.server, clock=lambda: NOW)
    with closing(Fellow(fellow.kind, server)) as still:
        store = still.backend.store
        [verdict] = still.performs("claim", lambda: store.claim([attempt()]))
        for _ in range(3):
            assert still.performs("renew", lambda: store.renew([renewal(verdict.grant)])) == [True]


@pytest.mark.parametrize("later_us", [2 * DAY_US, 31 * DAY_US], ids=["its answer's end", "its end"])
def test_a_purge_takes_nothing_of_a_record_that_is_another_since_its_look(
    make_fellow: MakeFellow, outside: Outside, later_us: int
) -> None:
    """It looks without a lock, and a key may be granted anew then: deleted, it would run once more."""
    before = make_fellow(clock=lambda: NOW)
    store = before.backend.store
    [verdict] = before.performs("claim", lambda: store.claim([attempt()]))
    assert before.performs("settle", lambda: store.settle([settlement(verdict.grant)])) == [Settled()]

    def purge() -> Flow[Purged]:
        flow = store.purge(None, 10)
        window = yield next(flow)
        outside.fetch(
            f"UPDATE semel_record SET fence = fence + {later_us}, settled_at = settled_at + {later_us}, "
            f"answer_until = answer_until + {later_us}, forget_after = forget_after + {later_us}"
        )
        purged: Purged = yield from resume_flow(flow, window)
        return purged

    assert make_fellow(clock=lambda: NOW + later_us).performs("purge", purge) == Purged(1, 0, 0, None)
    assert outside.fetch("SELECT answer_kind, body FROM semel_record") == [(AnswerKind.KEPT, OK.body)]


def resume_flow(flow: Flow[Any], reply: Any) -> Flow[Any]:
    """The rest of a flow, from the reply to its first ask on."""
    try:
        while True:
            reply = yield flow.send(reply)
    except StopIteration as stop:
        return stop.value


# --- servers that refuse ---


def test_the_documented_grants_are_enough_and_a_password_may_hold_anything(
    app_server: MariadbServer, fellow: Fellow
) -> None:
    with closing(Fellow(fellow.kind, app_server)) as app:
        assert app.run(PLAIN, plain).answer == MADE
        assert app.run(PLAIN, never).replayed
        assert app.run(command("unit", policy=ATOMIC), insert_and_answer).answer == MADE
        assert app.performs("lapse", lambda: app.backend.store.lapse(10)) == []
        assert app.performs("purge", lambda: app.backend.store.purge(None, 10)).scanned == 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"password": "not-the-s3cret"}, "refuses this user or password"),
        ({"database": "no_such_database"}, "create it, or check the URL|may not use the database"),
        ({"user": "nobody at all", "password": "s3cret"}, "refuses this user or password"),
    ],
)
def test_a_refused_login_names_the_reason_and_no_password(
    app_server: MariadbServer, fellow: Fellow, changed: dict[str, str], said: str
) -> None:
    with closing(Fellow(fellow.kind, replace(app_server, **changed))) as app:  # type: ignore[arg-type]  # names of texts
        for what in (PLAIN, WHAT):
            with pytest.raises(StoreUnavailable, match=said) as told:
                app.run(what, never)
            shown = "".join([str(told.value), repr(told.value), repr(app.backend.driver.server)])
            assert "s3cret" not in shown
            assert "p@ss" not in shown


def test_an_unreachable_server_is_reported_at_once(fellow: Fellow, server: MariadbServer) -> None:
    with closing(Fellow(fellow.kind, replace(server, port=free_port()))) as app:
        for what in (PLAIN, WHAT):
            with pytest.raises(StoreUnavailable, match="check that it runs"):
                app.run(what, never)


def test_missing_and_foreign_tables_are_reported(fellow: Fellow, server: MariadbServer, outside: Outside) -> None:
    outside.fetch("RENAME TABLE semel_record TO hidden_record")
    try:
        with pytest.raises(SchemaError, match="semel migrate"):
            fellow.run(PLAIN, never)
        outside.fetch("CREATE TABLE semel_record (id int)")
        with pytest.raises(SchemaError, match="another version"):
            fellow.run(PLAIN, never)
        outside.fetch("DROP TABLE semel_record")
    finally:
        outside.fetch("RENAME TABLE hidden_record TO semel_record")
    assert fellow.run(PLAIN, plain).answer == MADE


def test_a_server_that_is_no_mariadb_is_refused(fellow: Fellow, monkeypatch: pytest.MonkeyPatch) -> None:
    """MySQL answers the greeting with a version of its own; so does a MariaDB that is too old."""
    for version in ("8.4.3", "10.5.29-MariaDB", "9.1.0-log"):
        monkeypatch.setattr(spoken, "GREETING", f"SELECT '{version}', 1, 0, 'utf8mb4', NULL, 'here', 1")
        with closing(Fellow(fellow.kind, fellow.backend.driver.server)) as app:
            for what in (PLAIN, WHAT):
                with pytest.raises(ConfigurationError, match=f"{version}; Semel needs MariaDB 10.6"):
                    app.run(what, never)


# --- a server of this module's own, with a small packet, whose COMMIT begins another transaction ---


@pytest.fixture(scope="module")
def small() -> Iterator[Running]:
    running = _start_server()
    yield running
    stop(running)


def _start_server() -> Running:
    running = start(
        Path(tempfile.mkdtemp(dir=os.environ[ENVIRONMENT])), "max_allowed_packet=64K", "completion-type=CHAIN"
    )
    with connect(running.port) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE `{at(running).database}`")
    backend = mariadb_backend(at(running))
    with closing(backend.driver):
        backend.driver.run(partial(backend.store.migrate, "small", b"none"))
    return running


def test_an_answer_larger_than_a_packet_is_reported_and_the_record_is_not_lost(kind: Any, small: Running) -> None:
    with closing(Fellow(kind, at(small))) as app:
        store = app.backend.store
        claims = [attempt(f"{kind}-{key}") for key in ("large", "small")]
        large, fits = [verdict.grant for verdict in app.performs("claim", lambda: store.claim(claims))]
        body = Answer(200, (), bytes(40_000))
        with pytest.raises(StatementRefused, match="max_allowed_packet"):
            app.performs("settle", lambda: store.settle([settlement(large, answer=body)]))
        assert app.performs("settle", lambda: store.settle([settlement(fits)])) == [Settled()]
        [row] = app.performs("read", lambda: store.read([large.id]))
        assert row.state == State.PROCESSING  # until its lease is over: then it is UNKNOWN, and an operator's
        assert app.performs("settle", lambda: store.settle([settlement(large)])) == [Settled()]


def test_a_batch_larger_than_a_packet_goes_in_parts(kind: Any, small: Running) -> None:
    with closing(Fellow(kind, at(small))) as app:
        store = app.backend.store
        claims = [attempt(f"{kind}-{key}") for key in range(100)]
        verdicts = app.performs("claim", lambda: store.claim(claims))
        settlements = [settlement(verdict.grant, answer=Answer(200, (), bytes(2_000))) for verdict in verdicts]
        assert app.performs("settle", lambda: store.settle(settlements)) == [Settled()] * 100


def test_a_transaction_ends_with_any_reply_to_the_commit(kind: Any, small: Running) -> None:
    """Chained, the next claim would be granted inside a transaction that never ends, and be lost with it."""
    with closing(Fellow(kind, at(small))) as app, closing(Fellow(kind, at(small))) as other:
        for batch in ("ab", "c"):
            claims = [attempt(f"{kind}-chained-{key}") for key in batch]
            app.performs("claim", partial(app.backend.store.claim, claims))
            seen = other.performs("read", partial(other.backend.store.read, [claim.id for claim in claims]))
            assert [row and row.state for row in seen] == [State.PROCESSING] * len(batch)
        assert app.run(command("unit", policy=ATOMIC, caller=kind), plain).answer == MADE
        assert other.run(command("unit", policy=ATOMIC, caller=kind), never).replayed


def test_a_killed_server_returns_with_all_acknowledged_writes() -> None:
    """SIGKILL, and the same engines go on."""
    running = _start_server()
    server = at(running, patience_seconds=2.0)
    with closing(Fellow("pymysql", server)) as threads, closing(Fellow("asyncmy", server)) as loop:
        both = (threads, loop)
        for app in both:
            assert app.run(command(f"{app.kind}-before"), plain).answer == MADE
            assert app.run(command(f"{app.kind}-unit", policy=ATOMIC), plain).answer == MADE
        _kill(running)
        for app in both:
            with pytest.raises((StoreUnavailable, StoreTimeout)):
                app.run(command(f"{app.kind}-down"), never)
        resumed = resume(Path(running.folder), running.port)
        for app in both:
            assert app.run(command(f"{app.kind}-before"), never).replayed
            assert app.run(command(f"{app.kind}-unit", policy=ATOMIC), never).replayed
            assert app.run(command(f"{app.kind}-after"), plain).answer == MADE
            assert app.run(command(f"{app.kind}-unit-after", policy=ATOMIC), plain).answer == MADE
    stop(resumed)


def _kill(server: Running) -> None:
    process = os.pidfd_open(int((Path(server.folder) / "pid").read_text()))
    signal.pidfd_send_signal(process, signal.SIGKILL)
    select.select([process], [], [], 20)
    os.close(process)


def test_the_url_reaches_the_server(app_server: MariadbServer) -> None:
    quoted = replace(app_server, user=quote(app_server.user), password=quote(app_server.password, safe=""))
    for scheme in ("mysql", "mariadb", "mysql+pymysql", "mariadb+asyncmy"):
        backend = connect_backend(url(quoted, "?charset=utf8mb4&patience_seconds=3").replace("mysql", scheme, 1))
        with closing(backend.driver) as driver:
            assert driver.run(backend.store.identity).schema_version == SCHEMA_VERSION_MAX
