"""What is measured without a server: the middleware alone, and how fast SQLite is without Semel around it."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import uvloop
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from bench.subjects import ANSWER_BODY, KEY_TEMPLATE, PATH, REQUEST_BODY
from semel import Answer, AsyncEngine, Command, Engine, Policy, Scope
from semel.core.command_flow import make_settlement
from semel.core.flow import Ask, Flow, perform
from semel.core.model import Proceed
from semel.core.outcomes import Succeeded
from semel.http import Operation, single_caller
from semel.http.asgi import SemelMiddleware
from semel.stores.clock import system_clock
from semel.stores.sql.statements import Argument, Execute, Now, Query
from semel.stores.sqlite.connection import open_connection
from semel.stores.sqlite.driver import COMMITS_PER_CHECKPOINT
from semel.stores.sqlite.store import SqliteStore

BATCH: Final = 500
BATCHES: Final = 20
GROUP: Final = 32
PREPARED_GROUPS: Final = 25  # made outside the clock, executed inside it

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_ANSWER_HEADERS: Final = ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER_BODY)))


# --- the middleware ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MiddlewareCost:
    """Microseconds of CPU per request: the bare pass-through, and what the middleware adds to it."""

    bare_us: float
    fresh_us: float
    replay_us: float


def middleware_cost() -> MiddlewareCost:
    """Measure it once, on a memory store of its own: medians over interleaved batches."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_middleware_cost())


async def _middleware_cost() -> MiddlewareCost:
    async with AsyncEngine.connect("memory://") as engine:
        protected = SemelMiddleware(
            _do_nothing, engine, caller=single_caller, operations=[Operation(PATH, Policy(), name="pay")]
        )
        bare: list[float] = []
        fresh: list[float] = []
        replay: list[float] = []
        for batch in range(BATCHES + 2):
            bare.append(await _batch_us(_do_nothing, batch))
            fresh.append(await _batch_us(protected, batch))
            replay.append(await _batch_us(protected, batch))
        # The first batches are the interpreter's warm-up.
        base, first, again = (statistics.median(found[2:]) for found in (bare, fresh, replay))
        return MiddlewareCost(base, first - base, again - base)


async def _batch_us(app: App, batch: int) -> float:
    cycles = [_Cycle(_scope(KEY_TEMPLATE % (batch, number))) for number in range(BATCH)]
    started = time.process_time()
    for cycle in cycles:
        await asyncio.create_task(cycle.run_asgi(app))  # type: ignore[arg-type]  # uvicorn's messages are typed
    return (time.process_time() - started) / BATCH * 1e6


async def _do_nothing(scope: Message, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": _ANSWER_HEADERS})
    await send({"type": "http.response.body", "body": ANSWER_BODY})


class _Cycle(RequestResponseCycle):
    """One request as uvicorn hands it over, a task of its own, but without a connection."""

    def __init__(self, scope: Message) -> None:
        self.scope = scope  # type: ignore[assignment]
        self.response_started = self.response_complete = self.disconnected = False

    async def receive(self) -> Any:
        return {"type": "http.request", "body": REQUEST_BODY, "more_body": False}

    async def send(self, message: Any) -> None:
        self.response_started = True
        self.response_complete = message["type"] == "http.response.body"


def _scope(key: bytes) -> Message:
    """What uvicorn makes of one request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "root_path": "",
        "state": {},
        "headers": [
            (b"host", b"127.0.0.1:8080"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(REQUEST_BODY)),
            (b"idempotency-key", key),
            (b"accept", b"*/*"),
        ],
    }


# --- SQLite itself ----------------------------------------------------------------------------

Statement = tuple[str, tuple[Argument, ...]]


@dataclass(frozen=True, slots=True)
class StoreLimit:
    """What a plain loop reaches with the store's own statements: pairs of one claim and one settlement."""

    pairs_per_second: float
    pair_cpu_us: float


def sqlite_limit(path: str, seconds: float) -> StoreLimit:
    """The pairs per second of one thread that commits 32 claims, then their 32 settlements, over and over.

    Parameters: ``path`` of a database file, which is migrated; ``seconds`` of the clock.
    """
    pairs = 0
    wall = cpu = 0.0
    engine = Engine.connect(f"sqlite:///{path}")
    engine.migrate()
    with engine:
        prepared = _groups(engine)
        connection = open_connection(path, "FULL")
        try:
            while wall < seconds:
                groups = list(itertools.islice(prepared, PREPARED_GROUPS))
                started, started_cpu = time.perf_counter(), time.process_time()
                for reads, claims, settlements in groups:
                    for text, params in reads:
                        connection.execute(text, params).fetchall()
                    _commit(connection.execute, claims)
                    _commit(connection.execute, settlements)
                pairs += GROUP * len(groups)
                if pairs // GROUP * 2 % COMMITS_PER_CHECKPOINT == 0:
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                wall += time.perf_counter() - started
                cpu += time.process_time() - started_cpu
        finally:
            connection.close()
    return StoreLimit(pairs / wall, cpu / pairs * 1e6)


def _commit(execute: Callable[..., Any], statements: list[Statement]) -> None:
    execute("BEGIN IMMEDIATE")
    for text, params in statements:
        changed = execute(text, params).rowcount
        assert changed == 1
    execute("COMMIT")


def _groups(engine: Engine) -> Iterator[tuple[list[Statement], list[Statement], list[Statement]]]:
    """Statements and parameters as the store's own flows yield them: the reads, the claims, the settlements."""
    store = SqliteStore()
    answer = Answer(201, _ANSWER_HEADERS, ANSWER_BODY)
    policy = Policy()
    for group in itertools.count():
        reads: list[Statement] = []
        claims: list[Statement] = []
        settlements: list[Statement] = []
        for number in range(GROUP):
            key = (KEY_TEMPLATE % (group, number)).decode()
            command = Command(Scope("single", "single", f"POST {PATH}"), key, bytes(32), "bench", policy)
            [verdict] = _record_statements(store.claim((engine.core.attempt(command),)), reads, claims)
            assert isinstance(verdict, Proceed)
            _record_statements(store.settle((make_settlement(verdict.grant, Succeeded(answer)),)), reads, settlements)
        yield reads, claims, settlements


def _record_statements(flow: Flow[list[Any]], reads: list[Statement], writes: list[Statement]) -> list[Any]:
    """Run a flow without a database, as for a new key, and note what it asks for."""

    def reply(needed: Ask[Any]) -> Any:
        if isinstance(needed, Now):
            return system_clock()
        assert isinstance(needed, Query | Execute)
        noted = reads if isinstance(needed, Query) else writes
        noted.append((needed.statement.qmark, needed.statement.values(needed.params)))
        return [] if isinstance(needed, Query) else 1

    return perform(flow, reply)
