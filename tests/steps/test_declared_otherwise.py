"""A record that was claimed with steps meets a process whose operation declares none, and the other way round."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, Policy
from semel.core.flow import Flow
from semel.core.model import State
from semel.errors import OutcomeUnknownError, RecordUnreadableError
from semel.steps.store import decide_with_steps
from tests.servers.postgres import postgres, schema
from tests.service.served import await_true
from tests.steps.conftest import STEPS, Process, Run, World, step_command
from tests.steps.test_steps import LEASE_US, OK, Downstream, Holder, never

WITHOUT = {
    "external": Policy(effects="external"),
    "idempotent": Policy(effects="idempotent"),
    "atomic": Policy(effects="atomic"),
}


@pytest.fixture
def process(world: World) -> Process:
    return world.process()


@pytest.fixture
def downstream() -> Downstream:
    return Downstream()


def charge_and_mail(downstream: Downstream) -> Any:
    async def story(run: Run) -> Answer:
        await run.step("charge", lambda: downstream.call("charge"))
        await run.step("mail", lambda: downstream.call("mail"), repeat=True)
        return OK

    return story


def charge_locally(world: World) -> Any:
    async def story(run: Run) -> Answer:
        await run.local("write", world.insert())
        return OK

    return story


@pytest.mark.parametrize("effects", WITHOUT)
def test_a_process_without_steps_never_repeats_a_finished_step(
    world: World, process: Process, downstream: Downstream, effects: str
) -> None:
    Holder(world.process()).steps(charge_and_mail(downstream))
    world.clock.advance(LEASE_US + 1)
    before = process.row(step_command())
    for _ in range(2):
        with pytest.raises(RecordUnreadableError, match="steps"):
            process.run(step_command(policy=WITHOUT[effects]), never)
    assert process.row(step_command()) == before
    assert process.run(step_command(), charge_and_mail(downstream)).answer == OK  # a version with steps continues
    assert downstream.calls == ["charge", "mail", "mail"]  # the second one's result had not been recorded
    assert process.run(step_command(policy=WITHOUT[effects]), never).answer == OK


@pytest.mark.parametrize("effects", WITHOUT)
def test_a_process_without_steps_never_repeats_a_committed_local_step(
    world: World, process: Process, effects: str
) -> None:
    Holder(world.process()).steps(charge_locally(world))
    world.clock.advance(LEASE_US + 1)
    with pytest.raises(RecordUnreadableError, match="steps"):
        process.run(step_command(policy=WITHOUT[effects]), never)
    assert process.run(step_command(), charge_locally(world)).answer == OK
    assert world.effects == 1


@pytest.mark.parametrize("effects", WITHOUT)
def test_a_command_released_between_steps_is_not_run_by_a_process_without_steps(
    process: Process, downstream: Downstream, effects: str
) -> None:
    async def fails(run: Run) -> Answer:
        await run.step("charge", lambda: downstream.call("charge"))
        raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        process.run(step_command(), fails)
    assert process.row(step_command()).lease_until == 0
    with pytest.raises(RecordUnreadableError, match="steps"):
        process.run(step_command(policy=WITHOUT[effects]), never)
    assert process.run(step_command(), charge_and_mail(downstream)).answer == OK
    assert downstream.calls == ["charge", "mail"]


@pytest.mark.parametrize("effects", WITHOUT)
def test_a_process_without_steps_runs_a_command_of_which_no_step_began(
    world: World, process: Process, effects: str
) -> None:
    Holder(world.process())
    world.clock.advance(LEASE_US + 1)

    async def plain(run: Run) -> Answer:
        assert run.permit.attempt == 2
        return OK

    assert process.run(step_command(policy=WITHOUT[effects]), plain).answer == OK
    assert process.row(step_command()).state == State.SUCCEEDED


@pytest.mark.parametrize("effects", ["external", "atomic", "steps"])
def test_a_crashed_idempotent_command_is_not_run_by_another_declaration(
    world: World, process: Process, effects: str
) -> None:
    """Its downstream may have done it, and deduplicates by a key that only an IDEMPOTENT handler promises to send."""
    idempotent = step_command(policy=WITHOUT["idempotent"])
    first = world.process()
    first.tell(first.engine.claim(idempotent))
    world.clock.advance(LEASE_US + 1)
    other = STEPS if effects == "steps" else WITHOUT[effects]
    with pytest.raises(OutcomeUnknownError, match="effects-changed"):
        process.run(step_command(policy=other), never)

    async def plain(run: Run) -> Answer:
        return OK

    assert process.run(idempotent, plain).answer == OK
    assert process.run(step_command(policy=other), never).answer == OK


@pytest.mark.parametrize("kind", ["psycopg", "pymysql"])
def test_a_step_that_begins_while_the_list_is_read_is_seen_by_the_grant(
    world: World, process: Process, downstream: Downstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former holder lives on after its lapse, and begins a step between the look at the list and the grant."""
    holder = Holder(world.process())
    world.clock.advance(LEASE_US + 1)
    begins = [charge_and_mail(downstream)]

    def then_begins(*given: Any, **options: Any) -> Flow[Any]:
        seen = yield from decide_with_steps(*given, **options)
        while begins:
            holder.steps(begins.pop())
        return seen

    monkeypatch.setattr("semel.stores.versions.decide_with_steps", then_begins)
    with pytest.raises(RecordUnreadableError, match="steps"):
        process.run(step_command(policy=WITHOUT["external"]), never)
    assert downstream.calls == ["charge", "mail"]


# --- over HTTP, with servers that are killed --------------------------------------------------


@contextmanager
def serve_version(
    store: tuple[str, str], log: Path, declared: str, mode: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server of one version of the operation, and its port."""
    command = [sys.executable, "-m", "tests.steps.flagged", *store, str(log), declared, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def pay(port: int) -> tuple[int, dict[str, Any]]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("POST", "/pay", b"", {"Idempotency-Key": "order-number-1"})
        got = connection.getresponse()
        return got.status, json.loads(got.read())


def asks(port: int) -> None:
    """Ask, and be cut off by the server's death."""
    with suppress(OSError, http.client.HTTPException):
        pay(port)


@pytest.fixture(params=["sqlite", "psycopg"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Where a migrated store is: a file, or a server and a schema."""
    made = World(request.param, tmp_path)
    yield (str(tmp_path / "semel.db"), "") if request.param == "sqlite" else (postgres(), schema())
    made.close()


def test_a_server_without_steps_charges_once_after_a_kill(store: tuple[str, str], tmp_path: Path) -> None:
    """kill -9 in the repeatable mail after the charge; then a rollback's versions, and the one with steps again."""
    log = tmp_path / "effects"
    with serve_version(store, log, "steps", "stays") as (server, port):
        client = threading.Thread(target=asks, args=(port,))
        client.start()
        assert server.stdout is not None
        assert server.stdout.readline() == "mailing\n"
        server.send_signal(signal.SIGKILL)
        server.wait()
        client.join()
    for declared in WITHOUT if not store[1] else ["atomic"]:  # all of them on a file; a server takes its time to start
        with serve_version(store, log, declared, "ends") as (_, port):
            told: list[tuple[int, dict[str, Any]]] = []

            def is_over(port: int = port, told: list[tuple[int, dict[str, Any]]] = told) -> bool:
                told.append(pay(port))
                return told[-1][1].get("code") != "IDEMPOTENCY_REQUEST_IN_PROGRESS"

            await_true(is_over, "the lease of a killed server to end")
            status, problem = told[-1]
            assert (status, problem["code"]) == (500, "IDEMPOTENCY_RECORD_UNREADABLE")
            assert (problem["keyAction"], "steps" in problem["detail"]) == ("keep", True)
    assert log.read_text().splitlines() == ["charge", "mail"]
    with serve_version(store, log, "steps", "ends") as (_, port):
        assert pay(port) == (201, {"paid": True})
    assert log.read_text().splitlines() == ["charge", "mail", "mail"]
