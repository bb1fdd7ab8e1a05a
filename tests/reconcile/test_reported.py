"""`engine.settle_by`: an outcome that a webhook reports later is settled once, by compare-and-set, and never twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy, Scope, State
from semel.core.model import AnswerKind
from semel.errors import PolicyError, ResolveRefused
from semel.stores.backend import Backend
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore
from semel.workers import DidNotHappen, StepSucceeded, StillUnknown, SucceededWith

PAID = SucceededWith(Answer(201, (), b"paid"), resource=("payment", "pay_1"))
PROOF = "webhook evt_17: charge.succeeded"


def command(**options: Any) -> Command:
    return Command(Scope("demo", "alice", "pay"), "key-1", bytes(32), "test", Policy.of(**options))


def lose_outcome(engine: Engine, **options: Any) -> str:
    """An execution whose handler says itself that it does not know the outcome."""
    seen: list[str] = []

    def handler(permit: Permit) -> Answer:
        seen.append(permit.operation_id)
        raise TimeoutError("the provider does not answer")

    with pytest.raises(TimeoutError):
        engine.run(command(**options), handler)
    return seen[0]


def never(permit: Permit) -> Answer:
    raise AssertionError("it must not run")


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        made = Engine.connect("memory://")
    else:
        made = Engine.connect(f"sqlite:///{tmp_path}/semel.db")
        made.migrate()
    with made:
        yield made


def test_a_reported_success_is_replayed_and_audited(engine: Engine) -> None:
    id = lose_outcome(engine)
    assert engine.settle_by(id, PAID, PROOF, actor="stripe") is State.SUCCEEDED
    again = engine.run(command(), never)
    assert (again.replayed, again.answer.body, again.operation_id) == (True, b"paid", id)
    [record] = engine.perform("find", lambda: engine.store.read_operations((bytes.fromhex(id.replace("-", "")),)))
    assert record is not None
    assert (record.resource_type, record.resource_id, record.answer_kind) == ("payment", "pay_1", AnswerKind.KEPT)
    [line] = engine.perform("audit", lambda: engine.store.audit(record.id, 10))
    assert (line.actor, line.reason) == ("stripe", PROOF)


def test_a_repeated_report_changes_nothing(engine: Engine) -> None:
    id = lose_outcome(engine)
    assert engine.settle_by(id, PAID, PROOF) is State.SUCCEEDED
    other = SucceededWith(Answer(201, (), b"another body"))
    assert engine.settle_by(id, other, PROOF) is State.SUCCEEDED
    assert engine.run(command(), never).answer.body == b"paid"


def test_a_report_after_the_handlers_answer_agrees_or_is_refused(engine: Engine) -> None:
    done = engine.run(command(), lambda permit: Answer(201, (), b"own"))
    assert engine.settle_by(done.operation_id, PAID, PROOF) is State.SUCCEEDED
    with pytest.raises(ResolveRefused, match="settled as SUCCEEDED, but the report is DidNotHappen") as met:
        engine.settle_by(done.operation_id, DidNotHappen(), PROOF)
    assert met.value.retry_after_seconds is None
    assert engine.run(command(), never).answer.body == b"own"


def test_a_report_before_a_running_handlers_deadline_is_refused_with_a_pause() -> None:
    now = [1_800_000_000_000_000]
    with Engine(Backend("memory", MemoryStore(), LocalDriver(clock=lambda: now[0]))) as engine:
        permit = engine.claim(command(lease_seconds=5, deadline_seconds=60))
        assert isinstance(permit, Permit)
        for outcome in (PAID, DidNotHappen()):
            with pytest.raises(ResolveRefused, match="may still be running") as met:
                engine.settle_by(permit.operation_id, outcome, PROOF)
            assert met.value.retry_after_seconds == 60
        engine.core.live.clear()  # it is never heard of again
        now[0] += 60_000_000
        assert engine.settle_by(permit.operation_id, PAID, PROOF) is State.SUCCEEDED
        assert engine.run(command(), never).answer.body == b"paid"


def test_a_reported_did_not_happen_runs_again_after_the_deadline() -> None:
    now = [1_800_000_000_000_000]
    with Engine(Backend("memory", MemoryStore(), LocalDriver(clock=lambda: now[0]))) as engine:
        id = lose_outcome(engine, lease_seconds=5, deadline_seconds=60)
        with pytest.raises(ResolveRefused) as met:
            engine.settle_by(id, DidNotHappen(), PROOF)
        assert met.value.retry_after_seconds is not None
        now[0] += 60_000_000
        assert engine.settle_by(id, DidNotHappen(), PROOF) is State.FAILED_NOT_REPLAYABLE
        assert engine.settle_by(id, DidNotHappen(), PROOF) is State.FAILED_NOT_REPLAYABLE
        with pytest.raises(ResolveRefused, match="settled as FAILED_NOT_REPLAYABLE"):
            engine.settle_by(id, PAID, PROOF)
        assert engine.run(command(), lambda permit: Answer(201, (), b"now")).answer.body == b"now"


def test_a_reported_step_does_not_run_again(tmp_path: Path) -> None:
    engine = Engine.connect(f"sqlite:///{tmp_path}/semel.db")
    engine.migrate()
    with engine:
        seen: list[str] = []

        def hangs_up() -> str:
            raise TimeoutError("the provider does not answer")

        def handler(permit: Permit) -> Answer:
            seen.append(permit.operation_id)
            charge = permit.step("charge", hangs_up)
            return Answer(201, (), str(charge).encode())

        with pytest.raises(TimeoutError):
            engine.run(command(steps=True), handler)
        assert engine.settle_by(seen[0], StepSucceeded("ch_81"), PROOF) is State.CLAIMED
        assert engine.run(command(steps=True), handler).answer.body == b"ch_81"


def test_async(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncEngine.connect("memory://") as engine:
            seen: list[str] = []

            async def handler(permit: Permit) -> Answer:
                seen.append(permit.operation_id)
                raise TimeoutError("the provider does not answer")

            with pytest.raises(TimeoutError):
                await engine.run(command(), handler)
            assert await engine.settle_by(seen[0], PAID, PROOF) is State.SUCCEEDED
            assert (await engine.run(command(), handler)).answer.body == b"paid"

    asyncio.run(story())


MISTAKES: dict[str, tuple[Callable[[Engine], object], type[Exception], str]] = {
    "no id": (lambda engine: engine.settle_by("17", PAID, PROOF), PolicyError, "operation_id is a UUID"),
    "no such id": (
        lambda engine: engine.settle_by("0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55", PAID, PROOF),
        ResolveRefused,
        "no record of operation",
    ),
    "no outcome": (
        lambda engine: engine.settle_by(lose_outcome(engine), StillUnknown("?"), PROOF),  # type: ignore[arg-type]
        PolicyError,
        "outcome must be SucceededWith",
    ),
    "no proof": (lambda engine: engine.settle_by(lose_outcome(engine), PAID, " "), PolicyError, "proof must be a text"),
    "long proof": (
        lambda engine: engine.settle_by(lose_outcome(engine), PAID, "x" * 501),
        PolicyError,
        "proof must be",
    ),
    "no actor": (
        lambda engine: engine.settle_by(lose_outcome(engine), PAID, PROOF, actor=""),
        PolicyError,
        "actor must be",
    ),
    "no step": (
        lambda engine: engine.settle_by(lose_outcome(engine), StepSucceeded(1), PROOF),
        ResolveRefused,
        "no step of operation",
    ),
}


@pytest.mark.parametrize(("call", "error", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(
    call: Callable[[Engine], object], error: type[Exception], words: str, engine: Engine
) -> None:
    with pytest.raises(error, match=words):
        call(engine)
