"""`semel worker --complete`, and the completers that applications run for themselves. 8 s."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from semel import Command, Engine, Permit, Policy
from semel.admin.doctor.records import look_at_records
from semel.cli.main import main
from semel.core.model import Find, State
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.turns import SUFFIX
from semel.stores.sqlite.url import sqlite_backend
from semel.testing.clock import SettableClock
from semel.workers.rules import REAPER
from semel.workers.turns import kind_of
from tests.engine.shells import SCOPE
from tests.servers.redis import eventually
from tests.steps.completed import deliver, make_middleware, make_starlette
from tests.web.driving import Response, asgi_call, asgi_scope

HERE = "tests.steps.completed"
KEYED = [("Idempotency-Key", "order-number-1"), ("Content-Type", "text/plain")]
Run = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    made = f"sqlite:///{tmp_path}/shop.db"
    with closing(Engine.connect(made)) as engine:
        engine.migrate()
    monkeypatch.setenv("SHOP_URL", made)
    monkeypatch.delenv("SEMEL_URL", raising=False)
    return made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
        capsys.readouterr()
        code = main(["worker", "--json", *arguments])
        said = capsys.readouterr()
        return code, [json.loads(line) for line in said.out.splitlines()], said.err

    return run


def post(app: Any, path: str = "/ship") -> Response:
    return asyncio.run(asgi_call(app, asgi_scope("POST", path, "", KEYED, None), [b"parcel"]))


def abandon(app: Any, path: str = "/ship") -> None:
    """Run it once with a failure; its client does not come back."""
    with pytest.raises(ConnectionError):
        post(app, path)


def rows(url: str) -> list[tuple[str, State, bytes | None]]:
    with closing(Engine.connect(url)) as engine:
        page = engine.perform("find", lambda: engine.store.find(Find()))
        found = engine.perform("read", lambda: engine.store.read(tuple(row.id for row in page.records)))
    return sorted((row.operation, State(row.state), row.body) for row in found if row is not None)


# --- the command ------------------------------------------------------------------------------------


def test_endpoints_are_completed_inside_the_applications_lifespan(url: str, run: Run) -> None:
    for path in ("/ship", "/v1/ship"):
        abandon(make_starlette(), path)
    code, [said], errors = run("--complete", f"{HERE}:make_starlette()", "--once")
    assert (code, said["completed"], said["failed"], said["lapsed"]) == (0, 2, 0, 0)
    assert errors.splitlines() == ["the application has begun", "the application has ended"]
    assert rows(url) == [
        ("mounted", State.SUCCEEDED, b"hall 7 /v1/ship"),
        ("ship", State.SUCCEEDED, b"hall 7 /ship"),
    ]


@pytest.mark.parametrize("place", ["", "/v1"])
def test_a_mounted_application_inside_a_middleware_is_completed(place: str, url: str, run: Run) -> None:
    app = make_middleware()
    abandon(Starlette(routes=[Mount(place, app)]) if place else app, f"{place}/ship")
    code, [said], _ = run("--complete", f"{HERE}:make_middleware()", "--once", "--no-reaper")
    assert (code, said) == (0, {"completed": 1, "failed": 0})
    assert rows(url) == [("ship", State.SUCCEEDED, f"parcel {place} {place}/ship".encode())]


def test_functions_are_completed_and_failures_are_reported_without_their_text(url: str, run: Run) -> None:
    with pytest.raises(ConnectionError):
        deliver(7)
    code, [said], errors = run("--complete", HERE, "--once", "--no-reaper")
    assert (code, said) == (1, {"completed": 0, "failed": 1})
    assert "a resumed execution of 'deliver' failed: ConnectionError (" in errors
    assert "parcel 7" not in errors
    code, [said], _ = run("--complete", f"{HERE}:deliver", "--once", "--no-reaper")
    assert (code, said) == (0, {"completed": 1, "failed": 0})


def test_an_answer_from_outside_of_the_endpoint_does_not_count(url: str, run: Run) -> None:
    abandon(make_starlette())
    code, [said], errors = run("--complete", f"{HERE}:make_guarded()", "--once")
    assert (code, said["completed"], said["failed"]) == (1, 0, 1)
    assert "answered with 404 before the endpoint of the operation 'ship' was reached" in errors
    assert [(name, state) for name, state, _ in rows(url)] == [("ship", State.CLAIMED)]
    with closing(Engine.connect(url)) as engine:
        [row] = engine.perform("find", lambda: engine.store.find(Find())).records
    assert row.attempt == 1  # it has lost none: its client may still go on
    assert run("--complete", f"{HERE}:make_starlette()", "--once")[1][0]["completed"] == 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("tests.steps.compleated", "--complete: there is no module"),
        (f"{HERE}:make_wsgy()", "has no 'make_wsgy'; did you mean 'make_wsgi'?"),
        ("tests.steps.dying", "declares no resumable operation"),
        (f"{HERE}:__name__", f"--complete {HERE}:__name__ is of the type str, no ASGI or WSGI application"),
        (f"{HERE}:make_broken()", "the application's lifespan failed: RuntimeError: no such hall"),
    ],
)
def test_what_cannot_be_completed_is_reported(spec: str, said: str, url: str, run: Run) -> None:
    code, [document], _ = run("--complete", spec, "--once")
    assert code == 2
    assert said in document["error"]


@pytest.mark.parametrize("spec", [f"{HERE}:make_starlette()", f"{HERE}:make_wsgi()", HERE])
def test_a_store_that_is_not_migrated_is_reported(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("SHOP_URL", f"sqlite:///{tmp_path}/empty.db")
    code, [document], _ = run("--complete", spec, "--once")
    assert (code, "semel migrate" in document["error"]) == (3, True)


def test_a_worker_finishes_commands_that_a_killed_wsgi_server_accepted(url: str) -> None:
    """The server has answered 202 and dies; a worker starts, finishes it, and is stopped."""
    environment = {**os.environ, "SHOP_URL": url}
    serves = [sys.executable, "-m", HERE, "--stays"]
    with subprocess.Popen(serves, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as server:
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
                headers = {**dict(KEYED), "Prefer": "respond-async"}
                connection.request("POST", "/ship", b"parcel", headers)
                accepted = connection.getresponse()
                link = accepted.getheader("location")
                accepted.read()
                assert (accepted.status, server.stdout.readline()) == (202, b"shipping\n")
                assert link is not None
                connection.request("GET", link)
                told = connection.getresponse()
                assert (told.status, json.loads(told.read())["running"]) == (200, True)
        finally:
            server.send_signal(signal.SIGKILL)
    works = [sys.executable, "-m", "semel.cli", "worker", "--json", "--complete", f"{HERE}:make_wsgi()"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(works, text=True, env=environment, **pipes) as worker:  # type: ignore[call-overload]
        try:
            assert json.loads(worker.stdout.readline()) == {"working": ["reaper", "completer"], "completes": ["ship"]}
            assert worker.stderr.readline() == "shipped\n"
            worker.send_signal(signal.SIGTERM)  # in the middle of it, perhaps: it comes to its end
            out, _ = worker.communicate(timeout=20)
        finally:
            worker.kill()
    assert [json.loads(line) for line in out.splitlines()] == [{"completed": 1, "failed": 0}, {"ended": True}]
    assert worker.returncode == 0
    assert rows(url) == [("ship", State.SUCCEEDED, b"shipped parcel")]


@pytest.mark.parametrize(
    ("spec", "completes"), [("make_wsgi()", ["ship"]), ("make_starlette()", ["mounted", "ship"])], ids=["sync", "async"]
)
def test_a_worker_looks_at_the_store_of_its_application_once_for_all_its_workers(
    spec: str, completes: list[str], url: str
) -> None:
    """Its reaper is on an engine of its own, and the completer on the application's: their turns are the same."""
    turns = Path(f"{url.removeprefix('sqlite:///')}{SUFFIX}")
    both = kind_of("all", {REAPER, kind_of("completer", completes)})
    works = [sys.executable, "-m", "semel.cli", "worker", "--complete", f"{HERE}:{spec}"]
    environment = {**os.environ, "SHOP_URL": url}
    with subprocess.Popen(works, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as worker:
        try:
            eventually(lambda: turns.exists() and both in turns.read_text(), 60.0)
        finally:
            worker.terminate()


# --- what an application runs for itself ------------------------------------------------------------


def beside(app: Any) -> Iterator[set[str]]:
    """The names of the tasks in an application's lifespan, and then after it."""

    async def story() -> list[set[str]]:
        told: asyncio.Queue[Any] = asyncio.Queue()
        said: asyncio.Queue[Any] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        task = asyncio.create_task(app(scope, told.get, said.put))
        names = []
        for word in ("startup", "shutdown"):
            await told.put({"type": f"lifespan.{word}"})
            assert (await said.get())["type"] == f"lifespan.{word}.complete"
            names.append({each.get_name() for each in asyncio.all_tasks()})
        await task
        return names

    yield from asyncio.run(story())


@pytest.mark.parametrize("make", [make_starlette, lambda: make_middleware(manage_engine=True)])
def test_an_application_runs_a_completer_from_its_start_to_its_end(make: Callable[[], Any], url: str) -> None:
    before, after = beside(make())
    assert {"semel-completer", "semel-reaper"} <= before
    assert not {"semel-completer", "semel-reaper"} & after


def test_an_application_may_leave_completing_to_the_worker(url: str) -> None:
    before, _ = beside(make_starlette(complete=False))
    assert "semel-completer" not in before
    assert "semel-reaper" in before


@pytest.mark.parametrize(("seconds", "level"), [(1, "ok"), (31, "ok"), (90, "warning")])
def test_doctor_finds_executions_without_a_completer(seconds: int, level: str, tmp_path: Path) -> None:
    """Not what has its holder, nor what a completer may be about to find."""
    clock = SettableClock()
    with closing(Engine(sqlite_backend(SqliteDriver(str(tmp_path / "shop.db"), clock=clock), 5.0))) as engine:
        engine.migrate()
        policy = Policy(steps=True, resumable=True)
        held = engine.claim(Command(SCOPE, "k", bytes(32), "1.tests", policy, request=b""))
        assert isinstance(held, Permit)
        clock.advance(seconds=seconds)
        [found] = [each for each in look_at_records(engine) if each.check == "abandoned"]
    assert found.level == level
    if level == "warning":
        assert f"1 resumable, held by no process, the oldest for 60 s: {SCOPE.operation}" in found.detail
        assert "semel worker --complete" in (found.remedy or "")
