"""A command that rests between its steps, and whose client has lost the key: an operator ends it, and that is final."""

from __future__ import annotations

import asyncio
import json
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Engine, Permit, Policy, State
from semel.cli.main import main
from semel.core.identity import uuid_text
from semel.core.model import AnswerKind, Find, MovedOn, Resolution, Resolved, Resolving
from semel.errors import InProgressError, NotReplayableError, PolicyError, ResolveRefused, SupersededError
from semel.operations.flow import resolve
from semel.sealing.sealer import Sealer
from semel.steps.rules import unpack_steps
from semel.steps.store import read_listed_steps
from semel.workers import DidNotHappen, RefusedWith, StepSucceeded, SucceededWith
from tests.engine.shells import command
from tests.steps.conftest import Process, Run, World, step_command

REFUNDED = Answer(409, (), b"refunded")
STEPS = Policy(steps=True)


class Shop:
    """Charges, and mails a receipt that may be mailed again; ``dies`` before, in or behind the mail."""

    def __init__(self, dies: str = "in mail") -> None:
        self.dies = dies
        self.calls: list[str] = []

    def call(self, name: str) -> str:
        self.calls.append(name)
        if self.dies == f"in {name}":
            raise ConnectionError("the worker dies")
        return f"{name}-1"

    async def buy(self, run: Run) -> Answer:
        await run.step("charge", partial(self.call, "charge"), repeat=self.dies == "in charge")
        if self.dies == "between":
            raise ConnectionError("the worker dies")
        await run.step("mail", partial(self.call, "mail"), repeat=True)
        return Answer(201, (), b"bought")


def rests(process: Process, shop: Shop) -> None:
    with pytest.raises(ConnectionError):
        process.run(step_command(), shop.buy)
    row = process.row(step_command())
    assert (row.state, row.lease_until) == (State.CLAIMED, 0)


def end(process: Process, word: str = "refused", *steps: tuple[str, bool], **given: Any) -> Resolving:
    """An operator's resolution of the whole command."""
    row = process.row(step_command())
    answer = None if word == "not" else REFUNDED
    said = Resolution(row.id, row.fence, word != "not", answer, "olga", "asked", forced=True, ends=steps)
    said = said._replace(refused=word == "refused")._replace(**given)
    reply: Resolving = process.perform("resolve", lambda: resolve(process.engine.store, said))
    return reply


async def never(run: Run) -> Answer:
    raise AssertionError("it must not run")


def test_a_late_retry_gets_the_operators_answer_and_repeats_no_step(world: World) -> None:
    process, shop = world.process(), Shop()
    rests(process, shop)
    for unsaid in ((), (("charge", True),)):
        with pytest.raises(ResolveRefused, match=r"unanswered: 'mail' \(--step mail=happened"):
            end(process, "refused", *unsaid)
    assert process.row(step_command()).state == State.CLAIMED
    assert end(process, "refused", ("mail", False)) == Resolved(State.FAILED_REPLAYABLE)
    again = world.process().run(step_command(), never)
    assert (again.answer, again.replayed) == (REFUNDED, True)
    assert shop.calls == ["charge", "mail"]
    id = process.row(step_command()).id
    [line] = process.perform("audit", lambda: process.engine.store.audit(id, 9))
    assert (line.actor, line.action) == ("olga", "resolve:refused mail=not")
    assert end(process, "succeeded", ("mail", False)) == MovedOn(State.FAILED_REPLAYABLE)


def test_did_not_happen_frees_the_key_only_where_no_step_has_happened(database: World) -> None:
    process, shop = database.process(), Shop()
    rests(process, shop)
    with pytest.raises(ResolveRefused, match="step 'charge' has happened"):
        end(process, "not", ("mail", False))
    with pytest.raises(ResolveRefused, match="step 'charge' is recorded as finished"):
        end(process, "refused", ("mail", False), ("charge", False))
    with pytest.raises(ResolveRefused, match=r"no step 'post' .* has begun; those that have: 'charge', 'mail'"):
        end(process, "refused", ("mail", False), ("post", False))
    assert process.row(step_command()).state == State.CLAIMED


def test_a_retry_of_what_did_not_happen_makes_each_step_once(database: World) -> None:
    process, shop = database.process(), Shop("in charge")
    rests(process, shop)
    with pytest.raises(ResolveRefused, match="step 'charge' has happened"):
        end(process, "not", ("charge", True))
    assert end(process, "not", ("charge", False)) == Resolved(State.FAILED_NOT_REPLAYABLE)
    row = process.row(step_command())
    [charge] = unpack_steps(
        process.perform("look", lambda: read_listed_steps(process.engine.store, row.id)), row.generation
    )
    assert charge.disproved  # under the same derived key: a late first call is one with the next
    shop.dies = ""
    assert database.process().run(step_command(), shop.buy).answer.body == b"bought"
    assert shop.calls == ["charge", "charge", "mail"]


def test_a_success_without_an_answer_is_final(process: Process) -> None:
    shop = Shop("between")
    rests(process, shop)
    assert end(process, "succeeded", answer=None) == Resolved(State.SUCCEEDED)
    with pytest.raises(NotReplayableError):
        process.run(step_command(), never)
    assert shop.calls == ["charge"]


def test_a_step_begun_after_the_operators_look_refuses_the_settlement(database: World) -> None:
    """A holder that lost its lease and lives begins another step: the resolution answers for what is recorded now."""
    process = database.process()
    replies: list[Any] = []

    async def slow(run: Run) -> Answer:
        await run.step("charge", lambda: "ch_1")
        database.clock.advance(seconds=40)  # its lease is over, and an operator looks
        seen = process.row(step_command())
        await run.step("mail", lambda: replies.append(_refusal(process, seen.fence)), repeat=True)
        replies.append(end(process, "refused", ("mail", True), fence=seen.fence))
        await run.step("post", lambda: replies.append("posted"), repeat=True)
        return Answer(201, (), b"bought")

    with pytest.raises(SupersededError):
        process.run(step_command(), slow)
    assert "unanswered: 'mail'" in replies[0]
    assert replies[1:] == [Resolved(State.FAILED_REPLAYABLE)]  # and the superseded holder has begun no step
    assert process.run(step_command(), never).answer == REFUNDED


def _refusal(process: Process, fence: int) -> str:
    with pytest.raises(ResolveRefused) as refused:
        end(process, "refused", fence=fence)
    return str(refused.value)


def test_a_holder_that_takes_over_meanwhile_is_not_ended(database: World) -> None:
    process, shop = database.process(), Shop("between")
    rests(process, shop)
    seen = process.row(step_command())
    shop.dies = ""

    async def take_over(run: Run) -> Answer:
        assert end(process, fence=seen.fence) == MovedOn(State.CLAIMED)
        assert end(process) == MovedOn(State.CLAIMED)  # it lives
        return await shop.buy(run)

    assert process.run(step_command(), take_over).answer.body == b"bought"
    assert shop.calls == ["charge", "mail"]


def test_a_refusal_is_sealed_as_the_operation_says_and_frees_the_reference(database: World) -> None:
    sealed = Policy(steps=True, answers="seal", operation_seconds=366 * 86_400)
    sealer, shop = Sealer({"2026": bytes(32)}), Shop()
    process = database.process(sealer=sealer)
    paying = replace(step_command("k", sealed), business_ref="inv-1")
    with pytest.raises(ConnectionError):
        process.run(paying, shop.buy)
    row = process.row(paying)
    other = replace(step_command("other", sealed), business_ref="inv-1")
    with pytest.raises(InProgressError):
        process.run(other, never)  # what rests holds its reference
    word, id = RefusedWith(REFUNDED), uuid_text(row.operation_id)
    assert process.engine.settle_by(id, word, "refunded", steps={"mail": False}) is State.FAILED_REPLAYABLE
    row = process.row(paying)
    assert (row.answer_kind, row.error_code) == (AnswerKind.SEALED, None)
    assert process.run(paying, never).answer == REFUNDED
    shop.dies = ""
    assert process.run(other, shop.buy).answer.body == b"bought"


def test_an_unreadable_list_is_ended_with_an_answer_only(process: Process, tmp_path: Path) -> None:
    rests(process, Shop())
    with closing(sqlite3.connect(tmp_path / "semel.db")) as other, other:
        other.execute("UPDATE semel_record SET steps = x'00'")
    with pytest.raises(ResolveRefused, match="it is not known which steps have finished"):
        end(process, "not")
    assert end(process) == Resolved(State.FAILED_REPLAYABLE)
    assert process.run(step_command(), never).answer == REFUNDED


# --- the engine's face and the command line -----------------------------------------------------


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path}/semel.db"
    assert main(["migrate", "--url", made]) == 0
    return made


def left(url: str) -> str:
    """A command that has charged, and may have mailed; its operation id."""

    def handler(permit: Permit) -> Answer:
        permit.step("charge", lambda: "ch_1")
        permit.step("mail", _dies, repeat=True)
        raise AssertionError

    with Engine.connect(url) as engine:
        with pytest.raises(ConnectionError):
            engine.run(command("k", policy=STEPS), handler)
        [record] = engine.perform("find", lambda: engine.store.find(Find())).records
    return uuid_text(record.operation_id)


def _dies() -> str:
    raise ConnectionError("the worker dies")


def test_settle_by_ends_a_command_between_its_steps(url: str) -> None:
    id = left(url)
    with Engine.connect(url) as engine:
        ended: list[tuple[Any, Any, type[Exception], str]] = [
            (RefusedWith(REFUNDED), None, ResolveRefused, "is between two of its steps"),
            (RefusedWith(REFUNDED), {}, ResolveRefused, "unanswered: 'mail'"),
            (RefusedWith(REFUNDED), {"mail": "yes"}, PolicyError, "steps must map each step"),
            (RefusedWith(REFUNDED), ["mail"], PolicyError, "steps must map each step"),
            (StepSucceeded("m"), {"mail": True}, PolicyError, "give one of the two"),
            (DidNotHappen(), {"mail": False}, ResolveRefused, "may still be running"),
        ]
        for outcome, steps, error, said in ended:
            with pytest.raises(error, match=said):
                engine.settle_by(id, outcome, "asked", steps=steps)
        assert engine.settle_by(id, RefusedWith(REFUNDED), "asked", steps={"mail": True}) is State.FAILED_REPLAYABLE
        assert engine.settle_by(id, RefusedWith(REFUNDED), "asked", steps={"mail": True}) is State.FAILED_REPLAYABLE
        with pytest.raises(ResolveRefused, match="settled as FAILED_REPLAYABLE"):
            engine.settle_by(id, SucceededWith(None), "asked")
        assert engine.run(command("k", policy=STEPS), lambda permit: Answer(500, (), b"")).answer == REFUNDED


def test_the_async_engine_ends_a_command_between_its_steps(url: str) -> None:
    id = left(url)

    async def story() -> State:
        async with AsyncEngine.connect(url) as engine:
            return await engine.settle_by(id, SucceededWith(REFUNDED), "asked", steps={"mail": False})

    assert asyncio.run(story()) is State.SUCCEEDED


def test_settle_works_as_explain_describes(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    id = left(url)

    def semel(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main([*arguments, "--url", url])
        said = capsys.readouterr()
        return code, said.out + said.err

    assert "1 between their steps or items, held by no process" in " ".join(semel("doctor")[1].split())
    operator = json.loads(semel("explain", id, "--json")[1])["story"]["operator"]
    assert "Step 'charge': finished." in operator
    assert "Step 'mail': had begun, and may be repeated." in operator
    [way] = [line for line in operator if "--refused" in line]
    words = shlex.split(way.replace(" --body-file FILE", "").removeprefix("semel "))
    for wrong, why in (
        (("--step", "mail=perhaps"), "NAME=happened or NAME=not"),
        (("--step", "mail"), "NAME=happened or NAME=not"),
        (("--step", "mail=not"), "given twice"),
        (("--no-answer",), "give either --status or --no-answer"),
    ):
        code, said = semel(*words, *wrong)
        assert code == 2
        assert why in " ".join(said.split())
    assert semel("settle", id, "--refused", "--reason", "x")[0] == 2  # clients get an answer
    assert semel("settle", id, "--refused", "--status", "201", "--reason", "x")[0] == 2
    assert semel("settle", id, "--step-succeeded", "1", "--step", "mail=not", "--reason", "x")[0] == 2
    code, said = semel(*words)
    assert (code, "deadline" in said) == (1, True)
    code, said = semel("settle", id, "--did-not-happen", "--step", "mail=not", "--force", "--dry-run", "--reason", "x")
    assert (code, "step 'charge' has happened" in " ".join(said.split())) == (1, True)
    code, said = semel(*words, "--force", "--dry-run", "--json")
    assert (code, json.loads(said)["state"], json.loads(said)["dryRun"]) == (0, "FAILED_REPLAYABLE", True)
    assert json.loads(semel("show", id, "--json")[1])["state"] == "CLAIMED"
    code, said = semel(*words, "--force")
    assert (code, said) == (0, "settled: it was refused; a retry gets that refusal, and nothing runs\n")
    with Engine.connect(url) as engine:
        assert engine.run(command("k", policy=STEPS), lambda permit: Answer(201, (), b"")).answer.status == 409


def test_a_resolution_of_a_doubt_may_end_the_whole_command(url: str) -> None:
    """UNKNOWN in a step: the command ends with an answer for each step, those that may be repeated among them."""
    calls: Callable[[], str] = _dies

    def handler(permit: Permit) -> Answer:
        permit.step("charge", calls)
        raise AssertionError

    with Engine.connect(url) as engine:
        with pytest.raises(ConnectionError):
            engine.run(command("k", policy=STEPS), handler)
        [record] = engine.perform("find", lambda: engine.store.find(Find())).records
        assert (record.state, record.doubt) == (State.UNKNOWN, "step:charge")
        id = uuid_text(record.operation_id)
        with pytest.raises(ResolveRefused, match="unanswered: 'charge'"):
            engine.settle_by(id, RefusedWith(REFUNDED), "asked", steps={})
        assert engine.settle_by(id, RefusedWith(REFUNDED), "asked", steps={"charge": False}) is State.FAILED_REPLAYABLE
        assert engine.run(command("k", policy=STEPS), lambda permit: Answer(201, (), b"")).answer == REFUNDED


def test_a_command_before_its_first_step_did_not_happen(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Engine.connect(url) as engine:
        permit = engine.claim(command("k", policy=Policy.of(steps=True, lease_seconds=1, deadline_seconds=1)))
        assert isinstance(permit, Permit)
        engine.core.live.clear()  # it is never heard of again
        with sqlite3.connect(url.removeprefix("sqlite:///")) as other:
            other.execute("UPDATE semel_record SET lease_until = 1, deadline_at = 1")
        other.close()
        assert main(["settle", permit.operation_id, "--did-not-happen", "--reason", "nobody asks", "--url", url]) == 0
        assert "a retry runs it" in capsys.readouterr().out
        assert engine.run(command("k", policy=STEPS), lambda permit: REFUNDED).answer == REFUNDED


def test_a_bulk_is_not_ended_by_a_resolution_of_steps(url: str) -> None:
    id = left(url)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as other:
        other.execute("UPDATE semel_record SET recipe = 'bulk-2', deadline_at = 1")
    other.close()
    with Engine.connect(url) as engine, pytest.raises(ResolveRefused, match="this is a bulk"):
        engine.settle_by(id, RefusedWith(REFUNDED), "asked", steps={"mail": True})
