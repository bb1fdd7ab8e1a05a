"""A forked child begins anew before any of its threads can meet what it inherited.

To look at the process id in each call is not enough: threads of one worker that take their first requests at the same
time replaced each other's state. A permit that is lost so is not renewed, and a parent's connection is spoken on
by two.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bulk.fellows import KINDS, Home
from tests.inbox.conftest import make_home
from tests.servers.mariadb import mariadb, url
from tests.servers.postgres import postgres

ROOT = Path(__file__).parents[2]

ENGINE = """
import os, sys
from semel import Answer, Engine
from semel.core.outcomes import Succeeded
from tests.engine.shells import command

engine = Engine.connect(sys.argv[1])
engine.migrate()
permit = engine.claim(command("parent"))
core, upkeep = engine.core, engine._upkeep
core.waiting_by_caller[("acme", "alice")] = core.waiting = 1
child = os.fork()
if child == 0:
    waiting = core.waiting or core.waiting_by_caller
    print(len(core.live), upkeep._thread is None, core.pid == os.getpid(), waiting, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(len(core.live), upkeep._thread is None, core.pid == os.getpid(), core.waiting)
engine.settle(permit, Succeeded(Answer(200, (), b"")))
engine.close()
"""

DRIVER = """
import os, sys
from semel.stores.urls import connect_backend

driver = connect_backend(sys.argv[1]).driver
held = [driver._threads, driver._loops]
child = os.fork()
if child == 0:
    print([now is then for now, then in zip([driver._threads, driver._loops], held)], flush=True)
    os._exit(0)
os.waitpid(child, 0)
print([now is then for now, then in zip([driver._threads, driver._loops], held)])
"""


def run_script(script: str, *given: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script, *given], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def place_of(home: Home, kind: str, folder: Path) -> tuple[str, str]:
    """The URL of a home's server, and its schema."""
    if "pg" in kind:
        return postgres(), home.fetch("SELECT current_schema()")[0][0]
    return url(mariadb()) if "my" in kind else f"sqlite:///{folder}/inbox.db", ""


def test_a_forked_engine_starts_with_fresh_state(tmp_path: Path) -> None:
    assert run_script(ENGINE, f"sqlite:///{tmp_path}/semel.db") == ["0 True True {}", "1 False True 1"]


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/semel", "redis://127.0.0.1:1", "mysql://127.0.0.1:1/semel"])
def test_a_driver_does_not_touch_its_parents_connections(url: str) -> None:
    assert run_script(DRIVER, url) == ["[False, False]", "[True, True]"]


HANDLER = """
import os, signal, sys
from semel import Answer, Engine, NothingHappened, Policy
from semel.core.model import State
from semel.stores.urls import connect_backend
from tests.engine.shells import Shell, command

mode, effects, url = sys.argv[1:]
more = {"external": {"marks_effects": True}, "steps": {"steps": True}}.get(effects, {})
policy = Policy(effects="external" if effects == "steps" else effects, **more)
shell, reader = Shell(mode, connect_backend(url)), Engine.connect(url)
shell.open()
parent = os.getpid()

def work(end):
    if os.fork() == 0:
        signal.alarm(20)  # for one that waits for ever
        if end == "exit":
            sys.exit(3)
        if end == "raise":
            raise NothingHappened
        return "child"
    os.wait()
    return "parent"

def ended(key, handle):
    try:
        print(shell.run(command(key, policy=policy), handle).answer.body, flush=True)
    except BaseException as error:
        print("parent" if os.getpid() == parent else "child", type(error).__name__, flush=True)
    if os.getpid() != parent:
        os._exit(0)

for end in ("exit", "raise", "return"):
    def handle(permit):
        body = work(end)
        if os.getpid() == parent:
            [row] = reader.perform("read", lambda: reader.store.read((permit.claim.id,)))
            print(row and State(row.state).name, flush=True)
            permit.begun = True
        return Answer(200, (), body.encode())
    ended(end, handle)
shell.close()
reader.close()
"""


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("effects", ["external", "idempotent", "atomic", "steps"])
def test_a_forked_child_that_leaves_the_handler_does_not_settle_the_command(
    mode: str, effects: str, tmp_path: Path
) -> None:
    """What it says first would hold: the key is free while the parent is at its effect."""
    meanwhile = {"atomic": "None", "steps": "CLAIMED"}.get(effects, "PROCESSING")
    once = [meanwhile, "b'parent'"]
    left = ["child SystemExit", *once, "child NothingHappened", *once, "child HandlerError", *once]
    assert run_script(HANDLER, mode, effects, f"sqlite:///{tmp_path}/semel.db") == left


UNITS = """
import asyncio, os, signal, sys
from semel import Answer, AsyncEngine, AsyncInbox, Engine, Inbox, NothingHappened, Policy
from semel.stores.postgres.url import postgres_backend
from semel.stores.urls import connect_backend
from tests.bulk.fellows import SYNC, write
from tests.engine.shells import command
from tests.engine.telling import at_once

kind, server, schema = sys.argv[1:]
is_async = kind not in SYNC
if "pg" not in kind:
    backend = connect_backend(server)
else:
    backend = postgres_backend(server, asyncpg=kind == "asyncpg", schema=schema)
engine = (AsyncEngine if is_async else Engine)(backend)
inbox = (AsyncInbox if is_async else Inbox)(engine, consumer="billing")
runner = asyncio.Runner()
run = runner.run if is_async else lambda reply: reply
parent = os.getpid()

async def work(at, n, end):
    await write(at, n)
    if os.fork() == 0:
        signal.alarm(20)  # for one that waits for ever
        if end == "write":
            try:
                await write(at, n + 5)
            except Exception:
                raise KeyError from None
        if end == "exit":
            sys.exit(3)
        if end == "raise":
            raise NothingHappened
        return
    os.wait()
    await write(at, n + 1)

class On:
    def __init__(self, connection):
        self.connection = connection

def ended(act):
    try:
        print(act(), flush=True)
    except BaseException as error:
        print("parent" if os.getpid() == parent else "child", type(error).__name__, flush=True)
    if os.getpid() != parent:
        os._exit(0)

for n, end in enumerate(("exit", "raise", "return", "write")[:3 if "sqlite" in kind else 4]):
    def handle(message):
        begun = work(message, 10 * n, end)
        return begun if is_async else at_once(begun)
    ended(lambda: run(inbox.handle(end, handle)).name)

    def local(connection):
        begun = work(On(connection), 100 + 10 * n, end)
        return begun if is_async else at_once(begun)
    async def stepped(permit):
        await permit.step("before", lambda: None, repeat=True)
        await permit.local_step("write", local)
        return Answer(200, (), b"parent")
    def stepped_at_once(permit):
        permit.step("before", lambda: None, repeat=True)
        permit.local_step("write", local)
        return Answer(200, (), b"parent")
    what = command(end, policy=Policy(steps=True))
    ended(lambda: run(engine.run(what, stepped if is_async else stepped_at_once)).answer.body)
run(engine.close())
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_that_leaves_a_transaction_of_its_parents_does_not_end_it(kind: str, tmp_path: Path) -> None:
    """It would speak on the connection that both have: its ROLLBACK ended the parent's transaction."""
    home = make_home(kind, tmp_path)
    once = ["HANDLED", "b'parent'"]
    ends = [f"child {error}" for error in ("SystemExit", "NothingHappened", "HandlerError", "KeyError")]
    ends = ends[: 3 if "sqlite" in kind else 4]
    assert run_script(UNITS, kind, *place_of(home, kind, tmp_path)) == [
        line for end in ends for each in once for line in (end, each)
    ]
    assert home.effects() == sorted(base + 10 * n + m for base in (0, 100) for n in range(len(ends)) for m in range(2))


LOCKS = """
import gc, os, signal, sys, threading
from contextlib import ExitStack
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider
from prometheus_client import CollectorRegistry

from semel import Engine
from semel.exporters.opentelemetry import OpenTelemetry
from semel.exporters.prometheus import Prometheus, StoreGauges
from semel.functions import command, single_caller
from semel.http.wsgi.threads import Threads

traces = OpenTelemetry(meter_provider=NoOpMeterProvider(), tracer_provider=NoOpTracerProvider())
observers = [Prometheus(registry=CollectorRegistry()), traces]
engines = [Engine.connect(sys.argv[1], observer=each) for each in observers]
engines[0].migrate()
pays = [command(each, "pay", key="key", caller=single_caller)(lambda key: key) for each in engines]
first = pays[0]("first")
threads, gauges = Threads(), StoreGauges(engines[0])
held = ExitStack()
for each in gc.get_objects():
    if type(each).__module__.startswith(("semel.engine", "semel.exporters", "semel.functions", "semel.http")):
        for name in ("_lock", "lock", "_shaping"):
            lock = getattr(each, name, None)
            if isinstance(lock, type(threading.Lock())) and lock.acquire(blocking=False):
                held.callback(lock.release)
                print(type(each).__name__, name)
sys.stdout.flush()
if os.fork() == 0:
    signal.alarm(20)  # for one that waits for ever
    with threads:
        print([pay(str(n)) for n, pay in enumerate(pays)], len(list(gauges.collect())) > 0, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
os._exit(0)
"""


def test_a_child_waits_for_no_lock_that_another_thread_of_its_parent_held(tmp_path: Path) -> None:
    *held, worked, code = run_script(LOCKS, f"sqlite:///{tmp_path}/semel.db")
    assert (worked, code) == ("['0', '1'] True", "0"), held
    of = ("Bounds", "Core", "DeclaredCommand", "FirstLook", "OpenTelemetry", "StoreGauges", "Threads", "TopCallers")
    assert {line.split()[0] for line in held} >= {*of, "_Local", "_Sum", "_Buckets"}


BULKS = """
import os, signal, sys
from semel import NothingHappened
from semel.stores.urls import connect_backend
from tests.bulk.fellows import Fellow, Home, write

kind, effects, server, schema = sys.argv[1:]
if "pg" not in kind:
    home = Home(lambda kind: connect_backend(server), lambda text: [])
else:
    from semel.stores.postgres.url import postgres_backend
    home = Home(lambda kind: postgres_backend(server, asyncpg=kind == "asyncpg", schema=schema), lambda text: [])
fellow = Fellow(kind, home, effects=effects, operation=effects, pipelined=effects == "atomic")
parent, done = os.getpid(), []

async def handle(item):
    end = item.value["end"]
    if effects == "atomic":
        await write(item, item.value["n"])
    if os.fork() == 0:
        signal.alarm(20)  # for one that waits for ever
        if end == "exit":
            sys.exit(3)
        if end == "raise":
            raise NothingHappened
        return "child"
    os.wait()
    done.append(end)
    return end

try:
    result = fellow.run([{"n": n, "end": end} for n, end in enumerate(("exit", "raise", "return"))], handle)
except BaseException as error:
    print("parent" if os.getpid() == parent else "child", type(error).__name__, flush=True)
    if os.getpid() != parent:
        os._exit(0)
print(done, [outcome.result_id for outcome in fellow.outcomes(result)])
"""


@pytest.mark.parametrize("effects", ["atomic", "idempotent"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_that_leaves_a_bulk_item_runs_no_further_item(kind: str, effects: str, tmp_path: Path) -> None:
    home = make_home(kind, tmp_path)
    ends = ["exit", "raise", "return"]
    left = [f"child {error}" for error in ("SystemExit", "NothingHappened", "HandlerError")]
    assert run_script(BULKS, kind, effects, *place_of(home, kind, tmp_path)) == [*left, f"{ends} {ends}"]
    assert home.effects() == ([0, 1, 2] if effects == "atomic" else [])


CLOSED = """
import asyncio, os, sys, uvloop
from semel.stores.loops import socket_number
from semel.stores.process import part_in_children

async def main():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    part_in_children(writer.transport, socket_number)
    number = writer.transport.get_extra_info("socket").fileno()
    writer.close()
    await writer.wait_closed()
    os.dup2(os.open(sys.argv[2], os.O_RDONLY), number)
    if os.fork() == 0:
        print(os.read(number, 5), flush=True)
        os._exit(0)
    os.wait()

{"asyncio": asyncio, "uvloop": uvloop}[sys.argv[1]].run(main())
"""


@pytest.mark.parametrize("library", ["asyncio", "uvloop"])
def test_a_child_keeps_the_files_that_have_the_numbers_of_closed_connections(library: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("still")
    assert run_script(CLOSED, library, f"{tmp_path}/file") == ["b'still'"]


STREAMED = """
import asyncio, os, sys
from semel import Answer, AsyncEngine, Engine
from semel.core.outcomes import Succeeded
from tests.engine.shells import command

is_async = sys.argv[1] == "async"
runner = asyncio.Runner()
run = runner.run if is_async else lambda reply: reply
engine = (AsyncEngine if is_async else Engine).connect(sys.argv[2])
run(engine.migrate())
permit = run(engine.claim(command()))
if os.fork() == 0:
    runner = asyncio.Runner()
    print((runner.run if is_async else lambda reply: reply)(engine.mark_not_kept(permit)), flush=True)
    os._exit(0)
os.wait()
run(engine.settle(permit, Succeeded(Answer(200, (), b"parent"))))
print(run(engine.claim(command())).answer.body)
run(engine.close())
"""


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_forked_child_does_not_mark_its_parents_answer_as_not_stored(mode: str, tmp_path: Path) -> None:
    """As one would whose response is streamed: the parent's retry would get no answer."""
    assert run_script(STREAMED, mode, f"sqlite:///{tmp_path}/semel.db") == ["False", "b'parent'"]
