"""A store of ten million records, and how long operators wait on it: ``python -m bench.tenmillion [--records N]``.

SQLite in a file, or with ``--postgresql``, ``--mariadb`` or ``--redis`` a server that is started for it. The rows are
made by INSERTs from a query, modelled on records that the engine wrote, with the real schema, its indexes and random
ids; on Redis by a pipeline of the same commands that its scripts write. Then each page of the console and each command
that reads the store is timed.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import secrets
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, urlsplit

import psycopg
import pymysql
import redis

from bench.servers import start_servers
from semel import Answer, Bulk, Command, Engine, Permit, Policy, Scope
from semel.admin.bulks import newest_bulks
from semel.bulk.store import ANY_BULK
from semel.cli.main import main as semel
from semel.console import Console
from semel.core.identity import uuid7_bytes, uuid_text
from semel.core.model import Find, Record, State
from semel.inbox.run import Inbox, Poison
from semel.stores.redis.keys import Keys
from semel.stores.redis.layout import encode
from semel.stores.redis.rows import due_at

RECORDS: Final = 10_000_000
ROUNDS: Final = 5
STEP_US: Final = 8_640  # between two records: ten million a day
UNKNOWN: Final = 3_000
OPEN: Final = 1_000
ITEMS: Final = 20_000
ITEMS_MARIADB: Final = 2_000  # each is a transaction
_OWN: Final = {
    "seq": ":first + n",
    "id": "randomblob(16)",
    "operation_id": "uuid7(:then + n * :step)",
    "created_at": ":then + n * :step",
    "first_started_at": ":then + n * :step",
    "tenant": "'tenant-' || (n % 5)",
    "caller": "CASE WHEN n = 7 THEN 'rare' ELSE 'caller-' || (n % 1000) END",
    "operation": "CASE WHEN n = 7 THEN 'rare.create' ELSE 'orders.create-' || (n % 20) END",
    "key_hash": "randomblob(32)",
    "answer_digest": "randomblob(32)",
}
_OWN_POSTGRES: Final = {
    **{name: text for name, text in _OWN.items() if name not in ("seq", "id", "operation_id")},
    "id": "uuid_send(gen_random_uuid())",
    "lease_until": "CASE WHEN t.state = 2 THEN :then + n * :step ELSE t.lease_until END",
    "operation_id": "substring(int8send((:then + n * :step) / 1000) from 3) "
    "|| substring(uuid_send(gen_random_uuid()) from 7)",
    "key_hash": "uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())",
    "answer_digest": "uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())",
}
_OWN_MARIADB: Final = {
    **{name: text for name, text in _OWN.items() if name not in ("tenant", "caller", "operation")},
    "seq": ":first + n",
    "id": "unhex(md5(concat(:first, '-', n)))",
    "tenant": "concat('tenant-', n % 5)",
    "caller": "IF(n = 7, 'rare', concat('caller-', n % 1000))",
    "operation": "IF(n = 7, 'rare.create', concat('orders.create-', n % 20))",
    "lease_until": "IF(t.state = 2, :then + n * :step, t.lease_until)",
    "operation_id": "unhex(concat(lpad(hex((:then + n * :step) DIV 1000), 12, '0'), left(md5(n), 20)))",
    "key_hash": "unhex(sha2(n, 256))",
    "answer_digest": "unhex(sha2(n, 256))",
}
MARIADB_SETTINGS: Final = ("innodb-buffer-pool-size=6G", "innodb-log-file-size=4G")  # to fill it; then it is made small
MARIADB_POOL_BYTES: Final = 256 * 2**20  # what PostgreSQL has
PIPELINE: Final = 5_000
_POSTGRES_INDEXES: Final = (  # made again behind the rows, as a restore does
    "CREATE UNIQUE INDEX semel_record_seq ON semel_record (seq)",
    "CREATE INDEX semel_record_operation ON semel_record (operation_id)",
    "ALTER TABLE semel_record ADD PRIMARY KEY (id)",
)


def make_models(engine: Engine, items: int) -> None:
    """What the engine writes itself: a success, a record in doubt, a refusal, a bulk, a parked message, an event."""
    engine.run(command("first"), lambda permit: Answer(201, ((b"x-id", b"1"),), b'{"order_id":"018f2b7e"}'))
    with suppress(TimeoutError):
        engine.run(command("lost"), away)
    engine.run(command("refused"), lambda permit: Answer(409, ((b"x-id", b"2"),), b'{"code":"SOLD_OUT"}'))
    if not has_rows(engine):
        return
    Bulk(engine, operation="cases.approve", effects="idempotent").run(
        [{"n": n} for n in range(items)], lambda item: None, key="monday", caller="alice"
    )
    with suppress(Exception):
        Inbox(engine, consumer="billing").handle("order-7", poison)


def build(path: Path, records: int, *, unknown: int = UNKNOWN, items: int = ITEMS) -> None:
    """Make the file."""
    with suppress(FileNotFoundError):
        path.unlink()
    made = Engine.connect(f"sqlite:///{path}")
    made.migrate()
    with made as engine:
        make_models(engine, items)
    now = int(time.time() * 1_000_000)
    with closing(sqlite3.connect(path)) as db:
        db.create_function("uuid7", 1, lambda at: uuid7_bytes(at // 1000, secrets.token_bytes(10)), deterministic=False)
        db.execute("PRAGMA cache_size = -1500000")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA temp_store = MEMORY")
        columns = [row[1] for row in db.execute("PRAGMA table_info(semel_record)")]
        of_state = dict(
            db.execute("SELECT state, min(seq) FROM semel_record WHERE operation = 'orders.create' GROUP BY 1")
        )
        # The oldest ones in doubt first, then all that have succeeded.
        for state, count, then in (
            (State.UNKNOWN, unknown, now - (records + unknown) * STEP_US),
            (State.SUCCEEDED, records, now - records * STEP_US),
        ):
            values = ", ".join(_OWN.get(column, f"t.{column}") for column in columns)
            begin = {"template": of_state[state], "count": count, "step": STEP_US, "then": then}
            begin |= {"first": db.execute("SELECT max(seq) + 1 FROM semel_record").fetchone()[0]}
            db.execute(
                "WITH RECURSIVE counted (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM counted WHERE n + 1 < :count) "
                f"INSERT INTO semel_record ({', '.join(columns)}) "
                f"SELECT {values} FROM counted, semel_record AS t WHERE t.seq = :template",
                begin,
            )
        db.execute(
            "WITH RECURSIVE counted (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM counted WHERE n + 1 < :count) "
            "INSERT INTO semel_inbox (consumer, message_id, handled_at, tries, forget_after) "
            "SELECT 'billing', 'message-' || n, :now, 0, :now + 604800000000 FROM counted",
            {"count": records // 10, "now": now},
        )
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def build_postgres(url: str, records: int, *, unknown: int = UNKNOWN, items: int = ITEMS, open: int = OPEN) -> None:
    """Fill an empty database: beside the records as many messages as a tenth of them, bulks, imports and events."""
    made = Engine.connect(url)
    made.migrate()
    with made as engine, psycopg.connect(url, autocommit=True) as db:

        def look(permit: Permit) -> Answer:
            """Keep the record as it is while its handler runs."""
            db.execute("CREATE TABLE bench_open AS SELECT * FROM semel_record WHERE state = 2")
            return Answer(201, (), b"")

        make_models(engine, items)
        engine.run(command("open"), look)
    now = int(time.time() * 1_000_000)
    with psycopg.connect(url, autocommit=True) as db:

        def run(text: str, **values: int) -> None:
            """Run a statement, whose parameters are whole numbers."""
            for name, value in values.items():
                text = text.replace(f":{name}", f"{value}::bigint")
            db.execute(text)

        run("VACUUM semel_record")  # else statements of older snapshots may leave out the indexes made below
        run("SET synchronous_commit = off")
        run("SET maintenance_work_mem = '1GB'")
        columns = [
            str(name)
            for (name,) in db.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = 'semel_record'::regclass AND attnum > 0 "
                "AND attname <> 'seq' AND NOT attisdropped ORDER BY attnum"
            )
        ]
        db.execute(
            "CREATE TABLE bench_model AS SELECT * FROM semel_record AS r WHERE operation = 'orders.create' "
            "AND NOT EXISTS (SELECT FROM bench_open AS o WHERE o.id = r.id)"
        )
        db.execute("DROP INDEX semel_record_seq")
        db.execute("DROP INDEX semel_record_operation")
        db.execute("ALTER TABLE semel_record DROP CONSTRAINT semel_record_pkey")
        values = ", ".join(_OWN_POSTGRES.get(column, f"t.{column}") for column in columns)
        insert = (
            f"INSERT INTO semel_record ({', '.join(columns)}) SELECT {values} FROM generate_series(0, :count - 1) AS n "
            "JOIN {table} AS t ON {chosen} ORDER BY n"
        )
        old = now - (records + unknown + open) * STEP_US
        run(insert.format(table="bench_model", chosen="t.state = 6"), count=unknown, then=old, step=STEP_US)
        run(insert.format(table="bench_open", chosen="true"), count=open, then=old + unknown * STEP_US, step=STEP_US)
        # One in 32 is a refusal, as in bench.growth.
        chosen = f"t.state = CASE WHEN n % 32 = 31 THEN {State.FAILED_REPLAYABLE} ELSE {State.SUCCEEDED} END"
        run(
            insert.format(table="bench_model", chosen=chosen), count=records, then=now - records * STEP_US, step=STEP_US
        )
        for index in _POSTGRES_INDEXES:
            run(index)
        run(
            "INSERT INTO semel_attention (id) SELECT id FROM semel_record WHERE state IN (1, 2, 6) "
            "AND seq <= :old ON CONFLICT DO NOTHING",
            old=unknown + open + 10,
        )
        run("UPDATE semel_meta SET horizon = (SELECT max(seq) FROM semel_record)")
        run(
            "INSERT INTO semel_inbox (consumer, message_id, handled_at, tries, forget_after) "
            "SELECT 'billing', 'message-' || n, :now, 0, :now + 604800000000 FROM generate_series(1, :count) AS n",
            count=records // 10,
            now=now,
        )
        run(
            "INSERT INTO semel_bulk SELECT uuid_send(gen_random_uuid()), total, done, succeeded, failed, retryable, "
            "unknown, created_at - n, touched_at - n FROM semel_bulk, generate_series(1, :count) AS n",
            count=records // 1000,
        )
        run(
            "INSERT INTO semel_bulk SELECT decode(repeat('ff', 16), 'hex'), :count, :count, :count, 0, 0, 0, "
            "created_at, touched_at FROM semel_bulk LIMIT 1",
            count=records // 10,
        )
        run(
            "INSERT INTO semel_item SELECT decode(repeat('ff', 16), 'hex'), n, 'item-' || n, i.state, NULL, NULL, "
            "NULL, 0, NULL, i.settled_at FROM (SELECT state, settled_at FROM semel_item LIMIT 1) AS i, "
            "generate_series(0, :count - 1) AS n",
            count=records // 10,
        )
        run(
            "INSERT INTO semel_import (id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, "
            "media_type, recipe, state, attempts, next_at, row_count, booked, skipped, failed, unknown, submissions, "
            "keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after) "
            "SELECT uuid_send(gen_random_uuid()), 'tenant-1', 'advices.import', 'S' || n % 97, "
            "'S' || n % 97 || ':' || n, 0, uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), 1000, "
            "'text/csv', 'csv-1', 3, 1, 0, 10, 10, 0, 0, 0, 1, 0, 1000000, :now - n, :now, :now - n, :now, "
            ":now + 1000000000 FROM generate_series(1, :count) AS n",
            count=records // 100,
            now=now,
        )
        run(
            "INSERT INTO semel_event (id, aggregatetype, aggregateid, type, payload, topic, headers, tenant, lane, "
            "created_at, published_at, tries, parked_at, reason) SELECT gen_random_uuid(), 'order', 'order-' || n, "
            "'placed', '\\x7b7d', 'orders.placed', '\\x7b7d', 'tenant-1', n % 32, :now - n, "
            "CASE WHEN n % 50 > 0 THEN :now END, CASE WHEN n % 5000 = 0 THEN 5 ELSE 0 END, "
            "CASE WHEN n % 5000 = 0 THEN :now END, CASE WHEN n % 5000 = 0 THEN 'refused' END "
            "FROM generate_series(1, :count) AS n",
            count=records // 10,
            now=now,
        )
        run("DROP TABLE bench_open, bench_model")
        run("VACUUM ANALYZE")
        run("CHECKPOINT")


def build_mariadb(
    url: str, records: int, *, unknown: int = UNKNOWN, items: int = ITEMS_MARIADB, open: int = OPEN
) -> None:
    """The same in MariaDB, without imports; its table is ordered by id, so that most of the time goes into that."""
    made = Engine.connect(url)
    made.migrate()
    with made as engine, closing(connect_mariadb(url)) as db, db.cursor() as cursor:

        def run(text: str, **values: int) -> list[Any]:
            """Run a statement, whose parameters are whole numbers."""
            for name, value in values.items():
                text = text.replace(f":{name}", str(value))
            cursor.execute(text)
            return list(cursor.fetchall())

        def look(permit: Permit) -> Answer:
            """Keep the record as it is while its handler runs."""
            run("CREATE TABLE bench_open AS SELECT * FROM semel_record WHERE state = 2")
            return Answer(201, (), b"")

        make_models(engine, items)
        engine.run(command("open"), look)
        now = int(time.time() * 1_000_000)
        columns = [row[0] for row in run("SHOW COLUMNS FROM semel_record")]
        run(
            "CREATE TABLE bench_model AS SELECT * FROM semel_record AS r WHERE operation = 'orders.create' "
            "AND NOT EXISTS (SELECT 1 FROM bench_open AS o WHERE o.id = r.id)"
        )
        run("ALTER TABLE semel_record MODIFY seq BIGINT NOT NULL")  # the indexes come back behind the rows
        run("ALTER TABLE semel_record DROP INDEX semel_record_seq, DROP INDEX semel_record_operation")
        values = ", ".join(_OWN_MARIADB.get(column, f"t.{column}") for column in columns)
        insert = f"INSERT INTO semel_record ({', '.join(columns)}) SELECT {values} FROM "
        counted = "(SELECT seq AS n FROM seq_0_to_:last) AS s JOIN {table} AS t ON {chosen}"
        [(first,)] = run("SELECT max(seq) + 1 FROM semel_record")
        old = now - (records + unknown + open) * STEP_US
        refused = f"t.state = IF(n % 32 = 31, {int(State.FAILED_REPLAYABLE)}, {int(State.SUCCEEDED)})"
        for table, chosen, count, then in (
            ("bench_model", "t.state = 6", unknown, old),
            ("bench_open", "true", open, old + unknown * STEP_US),
            ("bench_model", refused, records, now - records * STEP_US),
        ):
            text = insert + counted.format(table=table, chosen=chosen)
            run(text, last=count - 1, then=then, step=STEP_US, first=first)
            first += count
        run("ALTER TABLE semel_record ADD KEY semel_record_seq (seq), ADD KEY semel_record_operation (operation_id)")
        run("ALTER TABLE semel_record MODIFY seq BIGINT NOT NULL AUTO_INCREMENT")
        run(
            "INSERT IGNORE INTO semel_attention (id) SELECT id FROM semel_record "
            "WHERE state IN (1, 2, 6) AND seq < :old",
            old=first - records,
        )
        run("UPDATE semel_meta SET horizon = (SELECT max(seq) FROM semel_record)")
        run(
            "INSERT INTO semel_inbox (consumer, message_id, handled_at, tries, forget_after) "
            "SELECT 'billing', concat('message-', seq), :now, 0, :now + 604800000000 FROM seq_1_to_:count",
            count=records // 10,
            now=now,
        )
        run(
            "INSERT INTO semel_bulk SELECT unhex(md5(seq)), total, done, succeeded, failed, retryable, "
            "unknown, created_at - seq, touched_at - seq FROM semel_bulk, seq_1_to_:count",
            count=records // 1000,
        )
        run(
            "INSERT INTO semel_event (id, aggregatetype, aggregateid, type, payload, topic, headers, tenant, lane, "
            "created_at, published_at, tries, parked_at, reason) SELECT uuid(), 'order', concat('order-', seq), "
            "'placed', '{}', 'orders.placed', '{}', 'tenant-1', seq % 32, :now - seq, "
            "IF(seq % 50 > 0, :now, NULL), IF(seq % 5000 = 0, 5, 0), "
            "IF(seq % 5000 = 0, :now, NULL), IF(seq % 5000 = 0, 'refused', NULL) FROM seq_1_to_:count",
            count=records // 10,
            now=now,
        )
        run("DROP TABLE bench_open, bench_model")
        run("ANALYZE TABLE semel_record, semel_attention, semel_inbox, semel_bulk, semel_event")


def connect_mariadb(url: str) -> pymysql.connections.Connection[Any]:
    """A connection of the bench's own."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        database=parts.path.strip("/"),
        autocommit=True,
    )


def build_redis(url: str, records: int, *, unknown: int = UNKNOWN, open: int = OPEN) -> None:
    """The same in Redis: records alone, since it has nothing else; each by the commands that the scripts send."""
    made = Engine.connect(url)
    made.migrate()
    with made as engine, closing(redis.Redis.from_url(url.partition("?")[0])) as server:
        models: dict[int, Record] = {}
        keys = Keys(parse_qs(urlsplit(url).query).get("prefix", ["semel"])[0])

        def look(permit: Permit) -> Answer:
            """Keep the record as it is while its handler runs."""
            models.update({each.state: each for each in found(engine)})
            return Answer(201, (), b"")

        make_models(engine, 0)
        engine.run(command("open"), look)
        now = int(time.time() * 1_000_000)
        models = {state: read(engine, each.id) if state != State.PROCESSING else each for state, each in models.items()}
        old = now - (records + unknown + open) * STEP_US
        for states, count, then in (
            ((State.UNKNOWN,), unknown, old),
            ((State.PROCESSING,), open, old + unknown * STEP_US),
            ((*(State.SUCCEEDED,) * 31, State.FAILED_REPLAYABLE), records, now - records * STEP_US),
        ):
            for begin in range(0, count, PIPELINE):
                with server.pipeline(transaction=False) as sent:
                    for n in range(begin, min(begin + PIPELINE, count)):
                        send(sent, keys, models[states[n % len(states)]], n, then + n * STEP_US)
                    sent.execute()


def send(sent: Any, keys: Keys, model: Record, n: int, at: int) -> None:
    """Write one record like the model, with this time of creation."""
    row = model._replace(
        id=secrets.token_bytes(16),
        operation_id=uuid7_bytes(at // 1000, secrets.token_bytes(10)),
        created_at=at,
        first_started_at=at,
        tenant=f"tenant-{n % 5}",
        caller="rare" if n == 7 else f"caller-{n % 1000}",
        operation="rare.create" if n == 7 else f"orders.create-{n % 20}",
        key_hash=secrets.token_bytes(32),
        lease_until=at if model.state == State.PROCESSING else model.lease_until,
    )
    id = row.id
    sent.set(keys.record(id), encode(row))
    sent.set(keys.operation(id, row.operation_id.hex().encode()), id)
    sent.zadd(keys.all(id), {id: at})
    if row.state in (State.PROCESSING, State.UNKNOWN):
        sent.zadd(keys.open(id), {id: at})
    if (due := due_at(row)) is not None:
        sent.zadd(keys.due(id), {id: due})


def found(engine: Engine) -> tuple[Record, ...]:
    """The newest records."""
    return engine.perform("find", lambda: engine.store.find(Find())).records


def read(engine: Engine, id: bytes) -> Record:
    """The whole record."""
    [record] = engine.perform("read", lambda: engine.store.read([id]))
    assert record is not None
    return record


def has_rows(engine: Engine) -> bool:
    """Whether it is a SQL database, which has bulks, imports, messages and events."""
    return hasattr(engine.store, "dialect")


def command(key: str) -> Command:
    return Command(Scope("tenant-1", "caller-1", "orders.create"), key, bytes(32), "v1", Policy())


def away(permit: Permit) -> Answer:
    raise TimeoutError


def poison(message: object) -> None:
    raise Poison("the currency XXX is not known")


def time_it(what: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Milliseconds of the first call, and the median of the next ones."""
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        what()
        times.append((time.perf_counter() - began) * 1000)
    return times[0], statistics.median(times[1:])


def page(console: Console, target: str) -> int:
    """Ask the console for a page; its status."""
    path, _, query = target.partition("?")
    scope = {
        **{"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "root_path": ""},
        **{"headers": [(b"host", b"console")], "scheme": "http", "server": ("console", 80), "client": None},
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(console(scope, receive, send))
    return int(sent[0]["status"])


def pages_of(engine: Engine) -> list[str]:
    """The console's pages over what was built."""
    newest = engine.perform("find", lambda: engine.store.find(Find(operation="orders.create-7", limit=1)))
    lost = engine.perform("find", lambda: engine.store.find(Find(states=(State.UNKNOWN,), limit=1)))
    record, unknown = (uuid_text(each.records[0].operation_id) for each in (newest, lost))
    pages = [
        *("/", "/records", "/records?state=UNKNOWN", "/records?state=SUCCEEDED", "/records?lapsed=1"),
        *("/records?operation=orders.create-7", "/records?caller=caller-7", "/records?before=5000"),
        *("/records?caller=rare", "/records?operation=rare.create&state=UNKNOWN", "/records?state=FAILED_REPLAYABLE"),
        *(f"/records/{record}", f"/settle?id={unknown}", "/settle?doubt=error:TimeoutError"),
        *("/policies", "/doctor"),
    ]
    if not has_rows(engine):
        return pages
    [bulk] = newest_bulks(engine, ANY_BULK, 1)
    return [
        *pages,
        *("/bulks", f"/bulks/{uuid_text(bulk.id)}", f"/bulks/{uuid_text(bulk.id)}?state=FAILED"),
        *("/imports", "/imports?supplier=S1", "/imports?state=FAILED"),
        *("/messages", "/messages?parked=1", "/messages?consumer=nothing"),
        *("/events", "/events?parked=1"),
    ]


def commands_of(engine: Engine) -> list[list[str]]:
    """The commands that look at a store and count nothing."""
    newest = engine.perform("find", lambda: engine.store.find(Find(operation="orders.create-7", limit=1)))
    record = uuid_text(newest.records[0].operation_id)
    return [
        *(["census"], ["top", "--by", "operation"], ["top", "--by", "caller"], ["top", "--by", "doubt"]),
        *(["list"], ["list", "--state", "unknown"], ["list", "--caller", "rare"], ["explain", record]),
        ["metrics", "gauges"],
        *([["bulk"], ["messages"], ["events"], ["events", "--by-topic"]] if has_rows(engine) else []),
    ]


def measure(url: str, rounds: int = ROUNDS) -> None:
    """Print the times."""
    print(f"{'what':50} {'first ms':>9} {'then ms':>9}")
    with Engine.connect(url) as engine:
        commands = commands_of(engine)
        console = Console(engine, lambda request: "olga")
        for target in pages_of(engine):
            first, then = time_it(lambda target=target: page(console, target), rounds)  # type: ignore[misc]
            print(f"{page(console, target)} {target:46} {first:9.1f} {then:9.1f}", flush=True)
    for words in commands:
        with redirect_stdout(io.StringIO()):
            first, then = time_it(lambda words=words: semel([*words, "--url", url]), rounds)  # type: ignore[misc]
        print(f"semel {' '.join(words):44} {first:9.1f} {then:9.1f}", flush=True)


class Builder(Protocol):
    """Fills a server's store."""

    def __call__(self, url: str, records: int, *, unknown: int = UNKNOWN) -> None: ...


BUILDERS: Final[dict[str, Builder]] = {
    "postgresql": build_postgres,
    "mariadb": build_mariadb,
    "redis": build_redis,
}


def main() -> None:
    """Build, measure, forget."""
    parser = argparse.ArgumentParser(prog="python -m bench.tenmillion", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    for name in BUILDERS:
        parser.add_argument(f"--{name}", dest="server", action="store_const", const=name, help="on one started here")
    parser.add_argument("--file", type=Path, help="make the SQLite store there and keep it; use it where it is there")
    parser.add_argument("--url", help="measure a store that was made before")
    parser.add_argument("--unknown", type=int, default=UNKNOWN, help="UNKNOWN records beside them (%(default)s)")
    options = parser.parse_args()
    if options.url:
        measure(options.url)
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if options.server:
            with start_servers({options.server}, Path(folder), {"mariadb": MARIADB_SETTINGS}) as servers:
                url = servers.urls[options.server] + ("?persistence=none" if options.server == "redis" else "")
                BUILDERS[options.server](url, options.records, unknown=options.unknown)
                if options.server == "mariadb":
                    with closing(connect_mariadb(url)) as db, db.cursor() as cursor:
                        cursor.execute(f"SET GLOBAL innodb_buffer_pool_size = {MARIADB_POOL_BYTES}")
                print(f"{options.records} records in {time.monotonic() - began:.0f} s", file=sys.stderr)
                measure(url)
            return
        path = options.file or Path(folder) / "semel.db"
        if not path.exists():
            build(path, options.records, unknown=options.unknown)
            size = path.stat().st_size / 2**30
            print(f"{options.records} records in {time.monotonic() - began:.0f} s: {size:.1f} GiB", file=sys.stderr)
        measure(f"sqlite:///{path}")


if __name__ == "__main__":
    main()
