"""Servers that stop under their calls, methods of several steps, and sealed answers, on both servers of gRPC."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from google.rpc.error_details_pb2 import RequestInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode as Code

from semel import Engine, Policy, Sealer
from semel.core.model import Find, State
from semel.errors import ConfigurationError
from semel.integrations.grpc import permit_of
from tests.grpc.conftest import METHOD, OTHER, Service, trailing
from tests.grpc.test_server import reason
from tests.service.served import await_true

Serve = Callable[..., Service]
KEYS = {"2026": bytes(32)}


def states(url: str) -> list[State]:
    with closing(Engine.connect(url)) as engine:
        page = engine.perform("find", lambda: engine.store.find(Find()))
    return [State(record.state) for record in page.records]


class Gate:
    """A method that says when it runs, and ends when it may."""

    def __init__(self, colour: str) -> None:
        self.colour = colour
        self.runs, self.may_end = threading.Event(), threading.Event()
        self.effects: list[str] = []

    def __call__(self, request: RequestInfo, context: Any) -> Any:
        self.runs.set()
        if self.colour == "sync":
            assert self.may_end.wait(20)
            return self._end()

        async def wait() -> Status:
            import asyncio

            assert await asyncio.to_thread(self.may_end.wait, 20)
            return self._end()

        return wait()

    def _end(self) -> Status:
        self.effects.append("paid")
        return Status(message="paid")


@pytest.mark.parametrize("grace", [None, 20.0])
def test_a_call_that_runs_when_its_server_stops_is_settled(
    serve: Serve, colour: str, tmp_path: Path, grace: float | None
) -> None:
    url, gate = f"sqlite:///{tmp_path}/pay.db", Gate(colour)
    service = serve(gate, url)
    service.methods[OTHER] = lambda request, context: Status()  # which is not declared, and answers at once
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(service.send)
        assert gate.runs.wait(20)
        service.stop(grace)
        await_true(lambda: service.send(method=OTHER).code() in (Code.UNAVAILABLE, Code.CANCELLED), "no new calls")
        if grace is None:
            assert first.result(20).code() in (Code.UNAVAILABLE, Code.CANCELLED)
        gate.may_end.set()
        ended = first.result(20)
    if grace is not None:
        assert ended.result().message == "paid"
    await_true(lambda: states(url) == [State.SUCCEEDED], "the call to be settled")
    service.__exit__()
    again = Service(colour, url)
    again.methods = {METHOD: gate}
    with again:
        retry = again.send()
        assert (retry.result().message, trailing(retry)["idempotency-replayed"]) == ("paid", "true")
    assert gate.effects == ["paid"]


def make_stepped(colour: str, effects: list[str], fails: list[Exception]) -> Callable[[RequestInfo, Any], Any]:
    """A method of two steps; the second fails as often as ``fails`` has errors."""

    def ship() -> str:
        if fails:
            raise fails.pop()
        effects.append("ship")
        return "shipped"

    def plain(request: RequestInfo, context: Any) -> Status:
        permit = permit_of(context)
        permit.step("charge", lambda: effects.append("charge"))
        return Status(message=permit.step("ship", ship, repeat=True))

    async def coroutine(request: RequestInfo, context: Any) -> Status:
        permit: Any = permit_of(context)  # an AsyncPermit
        await permit.step("charge", lambda: effects.append("charge"))
        return Status(message=await permit.step("ship", ship, repeat=True))

    return plain if colour == "sync" else coroutine


def test_a_retry_repeats_no_finished_step(serve: Serve, colour: str, tmp_path: Path) -> None:
    effects: list[str] = []
    method = make_stepped(colour, effects, [ConnectionError("away")])
    policy = Policy(effects="external", steps=True, wait_seconds=0)
    service = serve(method, f"sqlite:///{tmp_path}/pay.db", operations={METHOD: policy})
    assert service.send().code() is Code.UNKNOWN  # as gRPC has an exception of a method
    retry = service.send()
    assert (retry.code(), retry.result().message) == (Code.OK, "shipped")
    assert trailing(service.send())["idempotency-replayed"] == "true"
    assert effects == ["charge", "ship"]


def test_a_step_in_doubt_is_reported_until_it_is_settled(serve: Serve, colour: str, tmp_path: Path) -> None:
    url, effects = f"sqlite:///{tmp_path}/pay.db", []  # type: tuple[str, list[str]]

    def charge() -> None:
        effects.append("charge")
        raise ConnectionError("away")

    def plain(request: RequestInfo, context: Any) -> Status:
        permit_of(context).step("charge", charge)
        return Status()

    async def coroutine(request: RequestInfo, context: Any) -> Status:
        permit: Any = permit_of(context)  # an AsyncPermit
        await permit.step("charge", charge)
        return Status()

    policy = Policy(effects="external", steps=True, wait_seconds=0)
    service = serve(plain if colour == "sync" else coroutine, url, operations={METHOD: policy})
    assert service.send().code() is Code.UNKNOWN
    for _ in range(2):
        told = service.send()
        assert (told.code(), reason(told)[0]) == (Code.FAILED_PRECONDITION, "IDEMPOTENCY_OUTCOME_UNKNOWN")
    assert (effects, states(url)) == (["charge"], [State.UNKNOWN])


CANARY = "kanarienvogel"


@pytest.mark.parametrize("ends", ["answer", "abort"])
def test_a_sealed_answer_is_replayed_and_in_no_file(serve: Serve, colour: str, tmp_path: Path, ends: str) -> None:
    url = f"sqlite:///{tmp_path}/pay.db"

    def method(request: RequestInfo, context: Any) -> Any:
        context.set_trailing_metadata((("receipt", CANARY), ("grpc-status-details-bin", CANARY.encode())))
        if ends == "abort":
            return context.abort(Code.NOT_FOUND, f"no {CANARY}")
        return Status(message=CANARY)

    policy = Policy(answers="seal", replay_headers=frozenset({"receipt"}))
    sealed = {"operations": {METHOD: policy}, "connected": {"sealer": Sealer(KEYS)}}
    service = serve(method, url, **sealed)
    first, again = service.send(), service.send()
    for each in (first, again):
        assert each.code() is (Code.OK if ends == "answer" else Code.NOT_FOUND)
        assert CANARY in (each.result().message if ends == "answer" else each.details())
        assert trailing(each)["receipt"] == CANARY
    assert trailing(again)["idempotency-replayed"] == "true"
    service.__exit__()
    held = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert CANARY.encode() not in held
    stranger = Service(
        colour, url, operations={METHOD: policy}, connected={"sealer": Sealer({"2027": bytes(range(32))})}
    )
    stranger.methods = {METHOD: method}
    with stranger:
        told = stranger.send()
        assert (told.code(), reason(told)[0]) == (Code.INTERNAL, "IDEMPOTENCY_RECORD_UNREADABLE")
        assert CANARY not in f"{told.details()} {told.trailing_metadata()}"
    assert (len(service.seen), len(stranger.seen)) == (1, 0)


def test_an_operation_that_seals_needs_a_sealer(colour: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/pay.db"
    with (
        pytest.raises(ConfigurationError, match="sealer"),
        Service(colour, url, operations={METHOD: Policy(answers="seal")}),
    ):
        pass
