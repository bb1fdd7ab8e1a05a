"""The status of an execution, by each name: over HTTP for its own caller, from Python, from the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.requests import Request

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy, Scope
from semel.cli.main import main
from semel.core.identity import uuid_text
from semel.core.model import Find, State
from semel.errors import PolicyError
from semel.integrations.fastapi import Semel
from semel.operations.run import Reference, find_execution, find_execution_async
from semel.reconciliation.worker import Case, Finding, Reconciling, StillUnknown, reconciler
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend
from semel.testing.clock import SettableClock
from tests.integrations.driving import Web, Webs, caller_of
from tests.web.driving import KEY

NEVER = "0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55"
SHORT: dict[str, Any] = {"answer_seconds": 60, "tombstone_seconds": 60}


class Bank:
    """Two operations with business references, on a store whose clock can be set."""

    def __init__(self, path: Path, clock: SettableClock) -> None:
        self.engine = AsyncEngine(sqlite_backend(SqliteDriver(str(path), clock=clock)))
        self.begun, self.ends = asyncio.Event(), asyncio.Event()
        self.semel = semel = Semel(self.engine, caller=caller_of)
        self.app = app = FastAPI()

        @app.post("/payments", status_code=201)
        @semel.command("payments", reference_from="body:/ref", **SHORT)
        async def pay(request: Request, permit: Permit = semel.permit) -> dict[str, str]:
            permit.result("payment", "p-1")
            if (await request.json()).get("lose"):
                raise TimeoutError
            if (await request.json()).get("wait"):
                self.begun.set()
                await self.ends.wait()
            return {"paid": "yes"}

        @app.post("/refunds", status_code=201)
        @semel.command("refunds", reference_from="body:/ref", **SHORT)
        async def refund(request: Request, permit: Permit = semel.permit) -> dict[str, str]:
            return {"paid": "back"}

        @app.post("/orders", status_code=201)
        @semel.command("orders", reference_from="body:/ref", reference_scope="caller", **SHORT)
        async def order(request: Request, permit: Permit = semel.permit) -> dict[str, str]:
            return {"ordered": "yes"}

        semel.install(app, reap=False)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def bank(tmp_path: Path, clock: SettableClock) -> Iterator[tuple[Web, Bank]]:
    with_schema(tmp_path / "bank.db")
    webs, made = Webs(), Bank(tmp_path / "bank.db", clock)
    yield webs.serve(made.app, made.engine), made
    webs.close()


def with_schema(path: Path) -> str:
    engine = Engine.connect(f"sqlite:///{path}")
    engine.migrate()
    engine.close()
    return f"sqlite:///{path}"


def status(web: Web, path: str = "", query: str = "", **how: Any) -> tuple[int, dict[str, Any]]:
    reply = web.call(f"/operations{path}", method="GET", query=query, key=None, **how)
    return reply.status, json.loads(reply.body)


def test_an_operation_is_found_by_its_reference_and_its_id_when_its_key_is_forgotten(
    bank: tuple[Web, Bank], clock: SettableClock
) -> None:
    web, made = bank
    web.call("/payments", {"ref": "INV-1"})
    code, before = status(web, query="reference=INV-1&operation=payments")
    assert (code, before["state"], before["businessReference"]) == (200, "SUCCEEDED", "INV-1")
    clock.advance(seconds=1000)
    web.runner.run(made.engine.perform("purge", lambda: made.engine.store.purge(None, 10)))
    for path, query in (
        (f"/{before['operationId']}", ""),
        ("", "reference=INV-1"),
        ("", f"key={KEY}&operation=payments"),
    ):
        code, after = status(web, path, query)
        assert code == 200, (path, query)
        assert after["operationId"] == before["operationId"]
        assert after["resource"] == {"type": "payment", "id": "p-1"}
        assert (after["state"], after["answerKept"], after["running"]) == ("SUCCEEDED", False, False)


def test_another_callers_operation_is_not_there(bank: tuple[Web, Bank]) -> None:
    web, _ = bank
    web.call("/payments", {"ref": "INV-1"})
    _, mine = status(web, query="reference=INV-1")
    for path, query in ((f"/{mine['operationId']}", ""), ("", "reference=INV-1"), (f"/{NEVER}", "")):
        code, told = status(web, path, query, caller="bob")
        assert (code, told["code"]) == (404, "OPERATION_NOT_FOUND")
    assert status(web, query="reference=INV-1", caller=None)[0] == 401


def test_a_reference_of_the_callers_own_is_found_by_each_caller(bank: tuple[Web, Bank]) -> None:
    web, _ = bank
    found = []
    for caller in ("alice", "bob"):
        assert web.call("/orders", {"ref": "PO-1"}, caller=caller).status == 201
        assert web.call("/orders", {"ref": "PO-1"}, caller=caller, key="another-key-4711").status == 409
        code, told = status(web, query="reference=PO-1", caller=caller)
        assert (code, told["operation"]) == (200, "orders")
        found.append(told["operationId"])
    assert len(set(found)) == 2
    assert status(web, query="reference=PO-1", caller="carol")[0] == 404


def test_a_reference_of_several_operations_needs_the_name(bank: tuple[Web, Bank]) -> None:
    web, _ = bank
    web.call("/payments", {"ref": "INV-1"}, key="a")
    web.call("/refunds", {"ref": "INV-1"}, key="b")
    code, told = status(web, query="reference=INV-1")
    assert (code, told["detail"]) == (
        400,
        "This reference was used with several operations; add &operation= one of payments, refunds.",
    )
    assert status(web, query="reference=INV-1&operation=refunds")[1]["operation"] == "refunds"
    assert status(web)[0] == 400


def test_a_running_execution_has_retry_after(bank: tuple[Web, Bank]) -> None:
    web, made = bank

    async def story() -> tuple[Any, Any]:
        running = asyncio.ensure_future(web.ask("/payments", {"ref": "INV-1", "wait": True}, key="a"))
        await made.begun.wait()
        told = await web.ask("/operations", method="GET", query="reference=INV-1", key=None)
        refused = await web.ask("/payments", {"ref": "INV-1"}, key="b", headers=[("Prefer", "wait=0")])
        made.ends.set()
        assert (await running).status == 201
        return told, refused

    told, refused = web.runner.run(story())
    # The store's clock does not move here; output for people uses this process's clock.
    assert json.loads(told.body)["state"] == "PROCESSING"
    assert (refused.status, refused.code) == (409, "IDEMPOTENCY_REQUEST_IN_PROGRESS")
    assert refused.header("Retry-After") == "1"


def test_an_execution_is_found_from_python(tmp_path: Path) -> None:
    url = with_schema(tmp_path / "app.db")
    with Engine.connect(url) as engine:
        what = Command(Scope("acme", "alice", "pay"), "k", bytes(32), "test", Policy(), business_ref="INV-1")
        result = engine.run(what, lambda permit: Answer(201, (), b"paid"))
        found = find_execution(engine, Reference("acme", "pay", "INV-1"))
        assert found is not None
        assert found == find_execution(engine, result.operation_id)
        assert (found.state, found.business_ref, found.remembered) == (State.SUCCEEDED, "INV-1", False)
        assert find_execution(engine, NEVER) is None
        with pytest.raises(PolicyError, match="an operation id is a UUID"):
            find_execution(engine, "INV-1")

    async def asynchronously() -> None:
        async with AsyncEngine.connect(url) as other:
            assert await find_execution_async(other, result.operation_id) == found

    asyncio.run(asynchronously())


# --- the command line -----------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_command_line_finds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = with_schema(tmp_path / "app.db")
    with Engine.connect(url) as engine:
        what = Command(Scope("acme", "alice", "pay"), "k", bytes(32), "test", Policy(), business_ref="INV-1")
        result = engine.run(what, lambda permit: Answer(201, (), b"paid"))
    code, found = run(capsys, "--url", url, "operation", "--ref", "INV-1", "--operation", "pay", "--tenant", "acme")
    assert (code, found["operationId"], found["state"]) == (0, result.operation_id, "SUCCEEDED")
    assert run(capsys, "--url", url, "operation", result.operation_id) == (0, found)
    assert main(["--url", url, "operation", result.operation_id]) == 0
    assert "businessReference  INV-1" in capsys.readouterr().out
    assert run(capsys, "--url", url, "operation", NEVER)[0] == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give an OPERATION_ID, or --ref"),
        (("INV-1",), "must be a UUID"),
        (("--ref", "x", "--tenant", "acme"), "--operation is missing"),
        (("--ref", "x", "--operation", "pay"), "--tenant is missing"),
        ((NEVER, "--ref", "x"), "not both"),
    ],
)
def test_the_command_line_names_missing_arguments(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = run(capsys, "operation", *arguments)
    assert code == 2
    assert said in document["error"]


def test_abandoned_doubts_appear_in_list_explain_and_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = with_schema(tmp_path / "app.db")
    what = Command(Scope("acme", "alice", "pay"), "k", bytes(32), "test", Policy())

    def lose(permit: Permit) -> Answer:
        raise TimeoutError

    with Engine.connect(url) as engine, pytest.raises(TimeoutError):
        engine.run(what, lose)

    @reconciler("pay", quiet_for=0, asks_max=1)
    def down(case: Case) -> Finding:
        return StillUnknown("the provider is down")

    async def ask() -> str:
        async with AsyncEngine.connect(url) as engine:
            assert (await Reconciling(engine, [down]).run_once()).gave_up == 1
            [row] = (await engine.perform("find", lambda: engine.store.find(Find(states=(State.UNKNOWN,))))).records
            return uuid_text(row.operation_id)

    id = asyncio.run(ask())
    _, listed = run(capsys, "--url", url, "list")
    assert [(row["state"], row["needsOperator"]) for row in listed["records"]] == [("UNKNOWN", True)]
    assert main(["--url", url, "list"]) == 0
    assert "UNKNOWN, needs operator" in capsys.readouterr().out
    _, explained = run(capsys, "--url", url, "explain", id)
    assert explained["reconciliation"]["needsOperator"] is True
    assert main(["--url", url, "explain", id]) == 0
    assert "an operator must find out. The last reason: the provider is down." in " ".join(
        capsys.readouterr().out.split()
    )
    code, found = run(capsys, "--url", url, "doctor")
    assert code == 1
    assert [each["level"] for each in found["findings"] if each["check"] == "reconciliation"] == ["warning"]
