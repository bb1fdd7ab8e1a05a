"""The story of `semel demo`: each step, the view of each client, and the expected result."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any, Final
from uuid import uuid4

from semel.admin.describe import state_label
from semel.admin.words import Json
from semel.cli.terminal import Output
from semel.reference.demo.stage import LOOK_SECONDS, SeenAnswer, Stage

DUPLICATES: Final = 10
UNKNOWN_SECONDS_MAX: Final = 20.0
OPERATION: Final = "payments.create"
UNKNOWN_CODE: Final = "IDEMPOTENCY_OUTCOME_UNKNOWN"
IN_PROGRESS_CODE: Final = "IDEMPOTENCY_REQUEST_IN_PROGRESS"
REUSED_CODE: Final = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"


@dataclass(frozen=True)
class Expectation:
    """One promise, and whether it held."""

    text: str
    held: bool


@dataclass(frozen=True)
class Scene:
    """One scene."""

    title: str
    saw: list[str] = field(default_factory=list)
    expectations: list[Expectation] = field(default_factory=list)


class Teller:
    """Prints the story while it happens, and records it."""

    def __init__(self, out: Output) -> None:
        self.steps: list[Scene] = []
        self._out = out

    def scene(self, title: str) -> None:
        """Begin the next scene."""
        self.steps.append(Scene(title))
        self._out.say("")
        self._out.say_styled("bold", f"{len(self.steps)}. {title}")

    def saw(self, line: str) -> None:
        """Print a client's view."""
        self.steps[-1].saw.append(line)
        self._out.say(f"   {line}")

    def expect(self, text: str, held: bool) -> None:
        """Print an expectation, and whether it holds."""
        self.steps[-1].expectations.append(Expectation(text, held))
        self._out.say_styled("green" if held else "red", f"   {'✓' if held else '✗ FAILED:'} {text}")

    def list_failed(self) -> list[str]:
        """List the promises that did not hold."""
        return [kept.text for step in self.steps for kept in step.expectations if not kept.held]


@dataclass(slots=True)
class _Lost:
    """A payment whose worker was killed."""

    key: str
    body: dict[str, Json]
    at: float
    operation_id: str = ""


def tell(stage: Stage, teller: Teller) -> None:
    """Play all scenes, in their order."""
    _double_submit(stage, teller)
    _parallel(stage, teller)
    lost = _kill_workers(stage, teller)
    _show_unknown(stage, teller, lost)
    answer = _settle(stage, teller, lost)
    _retry_settled(stage, teller, lost, answer)
    _order(stage, teller)
    _ledger(stage, teller)


def _payment(amount: str, **simulate: Json) -> dict[str, Json]:
    body: dict[str, Json] = {"customerId": "c-1", "amount": amount, "currency": "EUR"}
    return {**body, "simulate": simulate} if simulate else body


def _double_submit(stage: Stage, teller: Teller) -> None:
    teller.scene("Alice double-clicks: one payment, submitted twice under one key")
    key, before = str(uuid4()), len(stage.charges())
    first, second = (stage.client.post("/payments", key, _payment("10.00")) for _ in range(2))
    teller.saw(f"first click:  {first.text()}")
    teller.saw(f"second click: {second.text()}")
    teller.expect("the first click paid", first.status == 201 and not first.replayed)
    teller.expect("the second got the same answer, marked as replayed", second == SeenAnswer(201, True, first.body))
    teller.expect("the provider charged once", len(stage.charges()) == before + 1)

    teller.scene("The same key again, but for another amount")
    changed = stage.client.post("/payments", key, _payment("99.00"))
    teller.saw(f"changed payload: {changed.text()}")
    teller.expect("it is refused, loudly", changed.status == 422 and changed.document.get("code") == REUSED_CODE)
    teller.expect("nothing was charged for it", len(stage.charges()) == before + 1)


def _parallel(stage: Stage, teller: Teller) -> None:
    teller.scene(f"{DUPLICATES} impatient clients send one payment at the same moment, to several processes")
    key, before, gate = str(uuid4()), len(stage.charges()), Barrier(DUPLICATES)

    def click(_: int) -> SeenAnswer:
        gate.wait()
        return stage.client.post("/payments", key, _payment("20.00", delayMs=400))

    with ThreadPoolExecutor(DUPLICATES) as pool:
        seen = list(pool.map(click, range(DUPLICATES)))
    for text, count in Counter(answer.text() for answer in seen).most_common():
        teller.saw(f"{count} × {text}")
    same = {answer.body for answer in seen}
    teller.expect("all got the same answer", len(same) == 1 and all(answer.status == 201 for answer in seen))
    teller.expect("exactly one of them was the first", sum(not answer.replayed for answer in seen) == 1)
    teller.expect("the provider charged once", len(stage.charges()) == before + 1)


def _kill_workers(stage: Stage, teller: Teller) -> dict[str, _Lost]:
    teller.scene("Workers are killed in the middle of a payment: SIGKILL, after the charge and before it")
    lost = {}
    before = len(stage.charges())
    for moment, amount in (("after", "30.00"), ("before", "40.00")):
        paid = _Lost(str(uuid4()), _payment(amount, crash=moment), time.monotonic())
        cut = stage.client.post("/payments", paid.key, paid.body)
        lost[moment] = paid
        teller.saw(f"killed {moment} the charge: {cut.text()}")
        teller.expect("the client cannot know what happened", cut.status == 0)
    again = stage.client.post("/payments", lost["after"].key, lost["after"].body)
    teller.saw(f"the client asks again at once: {again.text()}")
    progress = again.status == 409 and again.document.get("code") in (IN_PROGRESS_CODE, UNKNOWN_CODE)
    teller.expect("it does not run a second time: the worker's death is not known yet", progress)
    teller.expect("the provider charged one of the two", len(stage.charges()) == before + 1)
    return lost


def _show_unknown(stage: Stage, teller: Teller, lost: dict[str, _Lost]) -> None:
    teller.scene("Semel cannot prove what happened, so it does not pretend: UNKNOWN, visible to the operator")
    unknown: list[dict[str, Any]] = []
    ends = time.monotonic() + UNKNOWN_SECONDS_MAX
    while len(unknown) < len(lost) and time.monotonic() < ends:
        time.sleep(LOOK_SECONDS)
        unknown = stage.operator.run("list", "--state", "unknown")[1].get("records", [])
    waited = time.monotonic() - lost["before"].at
    for record in unknown:
        teller.saw(f"semel list: {state_label(record['state'])} {record['operation']} {record['operationId']}")
    teller.expect(f"both are UNKNOWN, {waited:.1f} s after the last kill (the lease is 5 s)", len(unknown) == len(lost))
    for moment, paid in lost.items():
        answer = stage.client.post("/payments", paid.key, paid.body)
        paid.operation_id = str(answer.document.get("operationId", ""))
        if moment == "after":
            teller.saw(f"the client asks again: {answer.text()}")
            told = answer.status == 409 and answer.document.get("code") == UNKNOWN_CODE
            teller.expect("the retry is refused, and nothing runs", told)


def _settle(stage: Stage, teller: Teller, lost: dict[str, _Lost]) -> str:
    teller.scene("An operator asks the provider, by the key that Semel had derived for the charge, and settles both")
    answer = ""
    for moment, paid in lost.items():
        _, shown = stage.operator.run("show", paid.operation_id, "--derived", "charge")
        key = shown.get("derivedKeys", {}).get("charge")
        found = [charge for charge in stage.charges() if charge.key == key]
        told = f"the provider knows {key}: charged as {found[0].id}" if found else f"the provider never saw {key}"
        teller.saw(told)
        teller.expect(f"killed {moment} the charge: the ledger agrees", bool(found) == (moment == "after"))
        arguments = ["settle", paid.operation_id, "--reason", told]
        if found:
            answer = f'{{"paymentId":"{found[0].id}","status":"succeeded"}}'
            arguments += ["--succeeded", "--status", "201", "--header", "Content-Type: application/json"]
            arguments += ["--body-file", _file(stage, answer)]
        else:
            arguments += ["--did-not-happen"]
        refused, why = stage.operator.run(*arguments)
        if moment == "after":
            teller.saw(f"semel settle: {why.get('error')}")
            teller.expect("the command line does not settle a command that may still be running", refused == 1)
        code, settled = stage.operator.run(*arguments, "--force")
        state = state_label(str(settled.get("state")))
        teller.saw(f"semel settle --force (the worker is known to be dead): {state}")
        teller.expect("it is settled, with its reason in the audit trail", code == 0)
    return answer


def _file(stage: Stage, text: str) -> str:
    path = stage.folder / "answer.json"
    path.write_text(text)
    return str(path)


def _retry_settled(stage: Stage, teller: Teller, lost: dict[str, _Lost], answer: str) -> None:
    teller.scene("The clients retry with the same keys")
    happened = stage.client.post("/payments", lost["after"].key, lost["after"].body)
    teller.saw(f"charged before the kill: {happened.text()}")
    teller.expect("it gets the settled answer, and nothing runs", happened == SeenAnswer(201, True, answer))
    anew = stage.client.post("/payments", lost["before"].key, lost["before"].body)
    teller.saw(f"not charged before the kill: {anew.text()}")
    teller.expect("it runs now, once", anew.status == 201 and not anew.replayed)


def _order(stage: Stage, teller: Teller) -> None:
    teller.scene("An order is ATOMIC, one transaction with its record: killed after its row was written")
    key = str(uuid4())
    body: dict[str, Json] = {"sku": "book-1", "quantity": 1, "simulate": {"crash": "after"}}
    cut = stage.client.post("/orders", key, body)
    teller.saw(f"killed: {cut.text()}")
    again = stage.client.post("/orders", key, body)
    teller.saw(f"the client asks again at once: {again.text()}")
    teller.expect("nothing had happened, so it simply runs: no lease to wait for, no operator", again.status == 201)
    listed = stage.client.get("/orders")
    teller.expect("there is one order", listed.status == 200 and listed.body.count("orderId") == 1)


def _ledger(stage: Stage, teller: Teller) -> None:
    teller.scene("The proof: the provider's own ledger, which deduplicates nothing")
    charges = stage.charges()
    for charge in charges:
        teller.saw(f"{charge.amount:>6} {charge.currency}  {charge.id}  {charge.key}")
    counts = Counter(charge.key for charge in charges)
    amounts = sorted(str(charge.amount) for charge in charges)
    wanted = amounts == ["10.00", "20.00", "30.00", "40.00"]
    teller.expect("four payments were wanted, and each was charged once", wanted and set(counts.values()) == {1})
