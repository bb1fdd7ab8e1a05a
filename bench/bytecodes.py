"""What a request costs in Python bytecodes: deterministic where times are not, so that tests hold budgets against it.

``python -m bench.bytecodes`` prints a table: for each surface and store, what Semel executes for a command that is
fresh, replayed, refused (its key belongs to another request) or failed (the handler raises NothingHappened), and for a
request that is not protected; on the memory store also for a fresh one whose body comes later than its head, holds
letters beyond ASCII, or decimals; on Redis and PostgreSQL, where they are installed, for one that is fresh or replayed,
and on PostgreSQL for an ATOMIC one, by each driver: a request that comes alone pays for whole round trips. Counted is
the code of Semel and what it calls of the standard library and redis-py; the framework, the application and what is
written in C are not. Requests come in tasks that end with the application, as uvicorn's do.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, Final

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import semel
from bench import servers
from bench.stores import for_semel
from semel import AsyncEngine, NothingHappened, Policy
from semel.http import Operation, single_caller
from semel.http.asgi import SemelMiddleware
from semel.integrations import fastapi as semel_fastapi
from semel.integrations import starlette as semel_starlette

PACKAGE: Final = str(Path(semel.__file__).parent)
KINDS: Final = ("fresh", "replay", "refused", "failed", "unprotected")
BODIES: Final = ("late", "letters", "decimals")  # of fresh commands
SURFACES: Final = ("asgi", "starlette", "fastapi")
SERVER_KINDS: Final = ("fresh", "replay", "atomic", "atomic-replay")
DRIVERS: Final = {"psycopg": "postgresql://", "asyncpg": "postgresql+asyncpg://"}
WARM_UPS: Final = 5
_GROWN: Final = 10
_BODIES: Final = {
    "failed": b'{"sku": "fail"}',
    "refused": b'{"sku": "other"}',
    "letters": '{"sku": "sm\u00f6r", "note": "\\u00e5 \\"1\\""}'.encode(),
    "decimals": b'{"sku": "book-1", "price": 12.50}',
}
_EXPECTED: Final = {"refused": 422, "failed": 500}
_NOT_OURS: Final = (
    "site-packages",
    "/bench/uvicorn",
    str(Path(__file__).parent),
    "/asyncio/base_events.py",
    "/asyncio/events.py",
)

App = Callable[[Any, Any, Any], Awaitable[None]]


class Counted(Counter[str]):
    """Bytecodes by room: ``semel.http``, ``semel.engine``, …, ``python``."""

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what this thread executes meanwhile."""

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            room = _room(frame.f_code.co_filename)
            frame.f_trace_opcodes, frame.f_trace_lines = room is not None, False
            if event == "opcode":
                assert room is not None
                self[room] += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)


def _room(file: str) -> str | None:
    """Whose code it is; None where it is not counted."""
    if "/site-packages/redis/" in file:
        return "redis"
    if file.startswith(PACKAGE):
        return ".".join(["semel", *Path(file).relative_to(PACKAGE).parts[:-1][:1]])
    return None if any(part in file for part in _NOT_OURS) else "python"


async def _shop(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    if b"fail" in message["body"]:
        raise NothingHappened
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"ordered"})


def _asgi(engine: AsyncEngine) -> App:
    operations = [Operation("/orders", Policy(), name="orders.create")]
    if engine.store.capabilities.settles_by_proof:
        operations.append(Operation("/atomic", Policy(effects="atomic"), name="orders.atomic"))
    return SemelMiddleware(_shop, engine, caller=single_caller, operations=operations)


def _starlette(engine: AsyncEngine) -> App:
    guard = semel_starlette.Semel(engine=engine, caller=single_caller)

    @guard.command("orders.create")
    async def order(request: Request) -> PlainTextResponse:
        if b"fail" in await request.body():
            raise NothingHappened
        return PlainTextResponse("ordered", 201)

    async def other(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ordered", 201)

    made = Starlette(routes=[Route("/orders", order, methods=["POST"]), Route("/other", other, methods=["POST"])])
    guard.install(made)
    return made


def _fastapi(engine: AsyncEngine) -> App:
    guard = semel_fastapi.Semel(engine=engine, caller=single_caller)
    made = FastAPI()

    @made.post("/orders", status_code=201)
    @guard.command("orders.create")
    async def order(request: Request) -> PlainTextResponse:
        if b"fail" in await request.body():
            raise NothingHappened
        return PlainTextResponse("ordered", 201)

    @made.post("/other", status_code=201)
    async def other() -> PlainTextResponse:
        return PlainTextResponse("ordered", 201)

    guard.install(made)
    return made


# A task of uvicorn's, which a disconnect does not cancel: Semel knows it by its code's name and file.
_UVICORN: Final = """
class RequestResponseCycle:
    async def run_asgi(counting, app, scope, receive, send):
        with counting:
            await app(scope, receive, send)
"""
_NAMES: Final[dict[str, Any]] = {}
exec(compile(_UVICORN, "/bench/uvicorn", "exec"), _NAMES)
_CYCLE: Final[Any] = _NAMES["RequestResponseCycle"]

_MAKERS: Final = {"asgi": _asgi, "starlette": _starlette, "fastapi": _fastapi}


async def _ask(app: App, kind: str, key: str, counted: Counted | None = None) -> int:
    body = _BODIES.get(kind, b'{"sku": "book-1", "count": 2}')
    path = "/other" if kind == "unprotected" else "/atomic" if kind.startswith("atomic") else "/orders"
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if kind != "unprotected":
        headers.append((b"idempotency-key", key.encode()))
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "headers": headers,
    }
    scope |= {"query_string": b"", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""}
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        if kind == "late":
            await asyncio.sleep(0)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    counting = nullcontext() if counted is None else counted.counting()
    try:
        await asyncio.create_task(_CYCLE.run_asgi(counting, app, scope, receive, send))
    except NothingHappened:
        statuses.append(500)
    return statuses[0]


async def count(surface: str, url: str, kind: str) -> Counted:
    """The bytecodes of one request, warmed up: the least of a few. Raises RuntimeError: its answer was another."""
    engine = AsyncEngine.connect(url)
    await engine.migrate()
    async with engine:
        app = _MAKERS[surface](engine)
        found: list[Counted] = []
        seed = time.time_ns()  # a server may have seen others
        first = "atomic" if kind.startswith("atomic") else "fresh"
        for number in range(_GROWN if first == "atomic" else 1):  # until the units' own text changes no more
            await _ask(app, first, f"one-{seed}" if number == 0 else f"grown-{seed}-{number}")
        for number in range(2 * WARM_UPS):
            key = f"one-{seed}" if kind.endswith(("replay", "refused")) else f"key-{seed}-{number}"
            counted = None if number < WARM_UPS else Counted()
            status = await _ask(app, kind, key, counted)
            if status != _EXPECTED.get(kind, 201):
                raise RuntimeError(f"a {kind} request was answered with {status}")
            if counted is not None:
                found.append(counted)
    return min(found, key=lambda each: each.total())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.bytecodes", description=__doc__)
    parser.parse_args(arguments)
    rows: list[tuple[str, Counted]] = []
    with tempfile.TemporaryDirectory() as folder:
        for surface in SURFACES:
            for kind in KINDS:
                rows.append(
                    (f"{surface}, memory, {kind}", asyncio.run(count(surface, "memory://?persistence=none", kind)))
                )
        rows += [
            (f"asgi, memory, {kind}", asyncio.run(count("asgi", "memory://?persistence=none", kind))) for kind in BODIES
        ]
        url = f"sqlite:///{folder}/semel.db"
        rows += [(f"asgi, SQLite, {kind}", asyncio.run(count("asgi", url, kind))) for kind in ("replay", "refused")]
    if servers.missing("redis") is None:
        with tempfile.TemporaryDirectory() as folder, servers.start_servers({"redis"}, Path(folder)) as started:
            url = for_semel(started.urls["redis"])
            rows += [(f"asgi, Redis, {kind}", asyncio.run(count("asgi", url, kind))) for kind in ("fresh", "replay")]
    if servers.missing("postgresql") is None:
        with tempfile.TemporaryDirectory() as folder, servers.start_servers({"postgresql"}, Path(folder)) as started:
            place = started.urls["postgresql"].removeprefix("postgresql://")
            for driver, scheme in DRIVERS.items():
                rows += [
                    (f"asgi, PostgreSQL, {driver}, {kind}", asyncio.run(count("asgi", f"{scheme}{place}", kind)))
                    for kind in SERVER_KINDS
                ]
    rooms = sorted(set().union(*(counted for _, counted in rows)))
    print(f"| bytecodes | all | {' | '.join(rooms)} |\n| --- |{' ---: |' * (len(rooms) + 1)}")
    for name, counted in rows:
        print(f"| {name} | {counted.total():,} | {' | '.join(f'{counted[room]:,}' for room in rooms)} |")


if __name__ == "__main__":
    main()
