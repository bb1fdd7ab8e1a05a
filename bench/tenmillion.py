"""A store of ten million records, and how long operators wait on it: ``python -m bench.tenmillion [--records N]``.

The file is made by one INSERT from a recursive query, modelled on records that the engine wrote, with the real schema,
its indexes and random ids. Then each page of the console and each command that reads the store is timed.
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
from typing import Any, Final

from semel import Answer, Bulk, Command, Engine, Permit, Policy, Scope
from semel.cli.main import main as semel
from semel.console import Console
from semel.core.identity import uuid7_bytes, uuid_text
from semel.inbox.run import Inbox, Poison

RECORDS: Final = 10_000_000
ROUNDS: Final = 5
STEP_US: Final = 8_640  # between two records: ten million a day
UNKNOWN: Final = 3_000
ITEMS: Final = 20_000
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


def build(path: Path, records: int, *, unknown: int = UNKNOWN, items: int = ITEMS) -> None:
    """Make the file."""
    with suppress(FileNotFoundError):
        path.unlink()
    made = Engine.connect(f"sqlite:///{path}")
    made.migrate()
    with made as engine:
        engine.run(command("first"), lambda permit: Answer(201, ((b"x-id", b"1"),), b'{"order_id":"018f2b7e"}'))
        with suppress(TimeoutError):
            engine.run(command("lost"), away)
        Bulk(engine, operation="cases.approve", effects="idempotent").run(
            [{"n": n} for n in range(items)], lambda item: None, key="monday", caller="alice"
        )
        with suppress(Exception):
            Inbox(engine, consumer="billing").handle("order-7", poison)
    now = int(time.time() * 1_000_000)
    with closing(sqlite3.connect(path)) as db:
        db.create_function("uuid7", 1, lambda at: uuid7_bytes(at // 1000, secrets.token_bytes(10)), deterministic=False)
        db.execute("PRAGMA cache_size = -1500000")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA temp_store = MEMORY")
        columns = [row[1] for row in db.execute("PRAGMA table_info(semel_record)")]
        [first, lost] = [row[0] for row in db.execute("SELECT seq FROM semel_record WHERE operation = 'orders.create'")]
        # The oldest ones in doubt first, then all that have succeeded.
        for template, count, then in ((lost, unknown, now - (records + unknown) * STEP_US), (first, records, None)):
            values = ", ".join(_OWN.get(column, f"t.{column}") for column in columns)
            begin = {"template": template, "count": count, "step": STEP_US}
            begin |= {"then": now - records * STEP_US if then is None else then}
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


def measure(path: Path, rounds: int = ROUNDS) -> None:
    """Print the times."""
    url = f"sqlite:///{path}"
    with closing(sqlite3.connect(path)) as db:
        ids = [
            uuid_text(db.execute(f"SELECT operation_id FROM {table} LIMIT 1").fetchone()[0])
            for table in ("semel_record WHERE operation = 'orders.create'", "semel_bulk")
        ]
    record, bulk = ids
    pages = [
        *("/", "/records", "/records?state=UNKNOWN", "/records?state=SUCCEEDED", "/records?lapsed=1"),
        *("/records?operation=orders.create-7", "/records?caller=caller-7", "/records?before=5000"),
        *("/records?caller=rare", "/records?operation=rare.create&state=UNKNOWN"),
        *(f"/records/{record}", f"/settle?id={record}", "/settle?doubt=error:TimeoutError"),
        *("/bulks", f"/bulks/{bulk}", f"/bulks/{bulk}?state=FAILED", "/imports", "/messages", "/messages?parked=1"),
        *("/events", "/policies", "/doctor"),
    ]
    commands = [
        *(["census"], ["top", "--by", "operation"], ["top", "--by", "caller"], ["top", "--by", "doubt"]),
        *(["list"], ["list", "--state", "unknown"], ["list", "--caller", "rare"], ["explain", record], ["bulk"]),
        *(["messages"], ["metrics", "gauges"]),
    ]
    print(f"{'what':50} {'first ms':>9} {'then ms':>9}")
    with Engine.connect(url) as engine:
        console = Console(engine, lambda request: "olga")
        for target in pages:
            first, then = time_it(lambda target=target: page(console, target), rounds)  # type: ignore[misc]
            print(f"{page(console, target)} {target:46} {first:9.1f} {then:9.1f}", flush=True)
    for words in commands:
        with redirect_stdout(io.StringIO()):
            first, then = time_it(lambda words=words: semel([*words, "--url", url]), rounds)  # type: ignore[misc]
        print(f"semel {' '.join(words):44} {first:9.1f} {then:9.1f}", flush=True)


def main() -> None:
    """Build, measure, forget."""
    parser = argparse.ArgumentParser(prog="python -m bench.tenmillion", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--file", type=Path, help="make the store there and keep it; use it where it is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "semel.db"
        if not path.exists():
            began = time.monotonic()
            build(path, options.records)
            size = path.stat().st_size / 2**30
            print(f"{options.records} records in {time.monotonic() - began:.0f} s: {size:.1f} GiB", file=sys.stderr)
        measure(path)


if __name__ == "__main__":
    main()
