"""The second act of `semel demo`: a reconciler asks, a bulk is killed midway, an event is published twice."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

from semel.admin.words import Json
from semel.core.model import Answer, Scope
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.engine.sync_engine import Engine
from semel.policy import Command, Policy
from semel.reconciliation.worker import (
    Case,
    DidNotHappen,
    Finding,
    Reconciling,
    Round,
    SucceededWith,
    reconciler,
)
from semel.reference.demo.dying import ITEMS, TABLE
from semel.reference.demo.stage import OPERATOR_SECONDS, Stage
from semel.reference.demo.story import Teller
from semel.reference.provider import Provider

DIE_AT_ITEM: Final = 35
EVENTS: Final = 3


def tell(stage: Stage, teller: Teller) -> None:
    """Play the scenes."""
    _show_reconciling(stage, teller)
    _bulk(stage, teller)
    _events(stage, teller)


def _show_reconciling(stage: Stage, teller: Teller) -> None:
    teller.scene("The provider charges, and its answer is lost; this time code asks it, not an operator")
    key = str(uuid4())
    body: dict[str, Json] = {
        "customerId": "c-1",
        "amount": "50.00",
        "currency": "EUR",
        "simulate": {"fail": "timeout"},
    }
    lost, again = (stage.client.post("/payments", key, body) for _ in range(2))
    teller.saw(f"the provider did not answer: {lost.text()}")
    teller.saw(f"the client asks again: {again.text()}")
    teller.expect("the outcome is unknown, so nothing runs", lost.status == 504 and again.status == 409)
    done = asyncio.run(_ask(stage.store, stage.provider))
    teller.saw(f"the reconciler asks the provider by the derived key: {done.asked} asked, {done.settled} settled")
    final = stage.client.post("/payments", key, body)
    teller.saw(f"the client retries: {final.text()}")
    teller.expect("the client that kept its key gets the real answer", final.status == 201 and final.replayed)
    charged = [charge for charge in stage.charges() if str(charge.amount) == "50.00"]
    teller.expect("the provider charged once", len(charged) == 1)


async def _ask(url: str, provider: Provider) -> Round:
    @reconciler("payments.create", quiet_for=60)
    def ask_provider(case: Case) -> Finding:
        for charge in provider.charges():
            if charge.key == case.key_for("charge"):
                answer = json.dumps({"paymentId": charge.id, "status": "succeeded"}).encode()
                headers = ((b"content-type", b"application/json"),)
                return SucceededWith(Answer(201, headers, answer), ("payment", charge.id))
        return DidNotHappen("the provider never saw this key")

    async with AsyncEngine.connect(url) as engine:
        return await Reconciling(engine, [ask_provider]).run_once()


def _bulk(stage: Stage, teller: Teller) -> None:
    teller.scene(f"{ITEMS} approvals with one command, killed at the {DIE_AT_ITEM}th")
    with Engine.connect(stage.store) as engine:
        _write(engine, "demo.table", lambda permit: permit.connection.execute(TABLE))
    teller.saw(f"the first run ended with {_run(stage, 'bulk', DIE_AT_ITEM)}")
    approved = _approve(stage)
    teller.saw(f"approved: {len(approved)}")
    teller.expect("whole transactions of ten are there, or nothing of them", len(approved) == 30)
    teller.saw(f"the same command again ended with {_run(stage, 'bulk', 0)}")
    approved = _approve(stage)
    teller.saw(f"approved: {len(approved)}")
    teller.expect("it went on where it had stopped: each is approved once", sorted(approved) == list(range(ITEMS)))


def _approve(stage: Stage) -> list[int]:
    found: list[int] = []
    with Engine.connect(stage.store) as engine:
        _write(
            engine,
            "demo.look",
            lambda permit: found.extend(
                number for (number,) in permit.connection.execute("SELECT number FROM demo_approvals")
            ),
        )
    return found


def _events(stage: Stage, teller: Teller) -> None:
    teller.scene(f"{EVENTS} events, each in its command's transaction; the relay is killed after the first")
    with Engine.connect(stage.store) as engine:
        for _ in range(EVENTS):
            _write(engine, "demo.emit", lambda permit: permit.emit("demo.approved", {"by": "alice"}))
    ledger = stage.folder / "told.txt"
    teller.saw(f"the first relay ended with {_run(stage, 'relay', 1)}")
    teller.saw(f"the second relay ended with {_run(stage, 'relay', 0)}")
    told = Counter(ledger.read_text().split())
    for id, times in told.items():
        teller.saw(f"event {id}: told {times} ×")
    teller.expect("each event was published under one id", len(told) == EVENTS)
    teller.expect("only the event in doubt was published twice", sorted(told.values()) == [1, 1, 2])


def _write(engine: Engine, operation: str, write: Any) -> None:
    def handler(permit: Permit) -> Answer:
        write(permit)
        return Answer(204, (), b"")

    scope = Scope(tenant="demo", caller="alice", operation=operation)
    fingerprint = sha256(operation.encode()).digest()
    engine.run(Command(scope, str(uuid4()), fingerprint, "demo", Policy(effects="atomic")), handler)


def _run(stage: Stage, what: str, die_at: int) -> str:
    """Start a process that dies, and return how it ended."""
    done = subprocess.run(  # noqa: S603  # our own interpreter and module
        [
            sys.executable,
            "-m",
            "semel.reference.demo.dying",
            what,
            stage.store,
            str(stage.folder / "told.txt"),
            str(die_at),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=OPERATOR_SECONDS,
        check=False,
    )
    return "SIGKILL" if done.returncode < 0 else f"exit code {done.returncode}"
