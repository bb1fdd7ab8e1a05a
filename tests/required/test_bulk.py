"""An interrupted list continues where it stopped, and each mistake in that is found and reported."""

from __future__ import annotations

import sqlite3
import uuid
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response

from semel import AsyncBulk, AsyncEngine, Bulk, Engine, Permit, Policy
from semel.bulk.declaration import BulkItem, BulkResult
from semel.functions import command
from semel.http.caller import single_caller
from semel.integrations.fastapi import Semel
from semel.testing.idempotent import CannotRun, Report, check_idempotent, rows
from semel.testing.idempotent.failing import movable
from semel.testing.idempotent.interrupting import Moment, watch
from semel.testing.required import REQUIRED, Case, FunctionTarget, suite

CHECK = "bulk_retry_does_not_rerun_finished_items"
BILLS = [{"clientItemId": f"bill-{number}", "amount": number} for number in range(7)]
BOB = {"caller": "bob"}
sqlite = pytest.mark.semel_store("sqlite")


class Payer:
    """Pays bills, one by one, in one of three ways; ``fault`` is what is wrong with it."""

    def __init__(self, database: Path, effects: Any, fault: str = "") -> None:
        self.effects, self.fault = effects, fault
        self.paid: list[str] = []
        inside = effects == "atomic" and fault != "elsewhere"
        self.count: Any = rows(database, "bills") if inside else self.paid
        connection = sqlite3.connect(database)
        connection.execute("CREATE TABLE IF NOT EXISTS bills (amount INTEGER)")
        connection.close()

    def pay(self, item: BulkItem) -> None:
        if self.effects == "atomic" and self.fault != "elsewhere":
            item.connection.execute("INSERT INTO bills VALUES (?)", (item.value["amount"],))
            return
        key = str(uuid.uuid4()) if self.fault == "own keys" else item.key_for("payment")
        if self.effects != "idempotent" or key not in self.paid:
            self.paid.append(key)

    def key(self, key: str) -> str:
        return f"{key}-{uuid.uuid4()}" if self.fault == "anew" and key else key

    def target(self, engine: Engine) -> FunctionTarget:
        bulk = Bulk(engine, operation="bills.pay", effects=self.effects)

        def pay_all(key: str, bills: list[Any], caller: str = "alice") -> BulkResult:
            return bulk.run(bills, self.pay, key=self.key(key), caller=caller)

        return FunctionTarget(pay_all, bulk=bulk)

    def async_target(self, engine: AsyncEngine) -> FunctionTarget:
        bulk = AsyncBulk(engine, operation="bills.pay", effects=self.effects, at_once=2)

        async def handler(item: BulkItem) -> None:
            self.pay(item)

        async def pay_all(key: str, bills: list[Any], caller: str = "alice") -> BulkResult:
            return await bulk.run(bills, handler, key=self.key(key), caller=caller)

        return FunctionTarget(pay_all, bulk=bulk)

    def run_check(self, target: FunctionTarget, bills: list[Any] = BILLS) -> Report:
        return check_idempotent(target, arguments={"bills": bills}, effects=self.count, other_caller=BOB)


def finding_of(report: Report) -> str:
    [finding] = [each for each in report.findings if each.check == CHECK]
    return finding.text()


@sqlite
@pytest.mark.parametrize("effects", ["external", "idempotent", "atomic"])
def test_a_bulk_passes_every_required_test(effects: Any, semel_engine: Engine, semel_database: Path) -> None:
    payer = Payer(semel_database, effects)
    report = payer.run_check(payer.target(semel_engine))
    assert (report.held, report.not_tried) == (REQUIRED, ()), report.text()
    assert any("become UNKNOWN" in remark for remark in report.remarks) == (effects == "external")
    assert not [remark for remark in report.remarks if "no bulk" in remark]


@sqlite
@pytest.mark.parametrize("effects", ["idempotent", "atomic"])
def test_an_async_bulk_function(effects: Any, semel_async_engine: AsyncEngine, semel_database: Path) -> None:
    payer = Payer(semel_database, effects)
    report = payer.run_check(payer.async_target(semel_async_engine))
    assert (report.held, report.not_tried) == (REQUIRED, ()), report.text()


@sqlite
def test_a_bulk_over_http(semel_async_engine: AsyncEngine, semel_database: Path) -> None:
    payer = Payer(semel_database, "idempotent")
    app, semel = FastAPI(title="bills"), Semel(semel_async_engine, caller=single_caller)

    async def handler(item: BulkItem) -> None:
        payer.pay(item)

    bills = semel.bulk(AsyncBulk(semel_async_engine, operation="bills.pay", effects="idempotent"), handler)

    @app.post("/bills")
    async def pay_all(request: Request) -> Response:
        return await bills.answer(request)

    semel.install(app)
    report = check_idempotent(app, "POST /bills", json=BILLS, effects=payer.paid)
    assert (report.held, report.not_tried) == (REQUIRED, ()), report.text()
    payer.fault = "own keys"
    wrong = check_idempotent(app, "POST /bills", json=BILLS, effects=payer.paid)
    assert "the counter grew by 8 in all" in finding_of(wrong)


@sqlite
@pytest.mark.parametrize(("effects", "finished"), [("atomic", {0, 1}), ("idempotent", {0}), ("external", {0})])
def test_an_interrupted_bulk_continues(
    effects: Any, finished: set[int], semel_engine: Engine, semel_database: Path
) -> None:
    """The lease is not released, finished items stay, and nothing of the others does."""
    payer = Payer(semel_database, effects)
    bulk = Bulk(semel_engine, operation="bills.pay", effects=effects)
    with movable((semel_engine,)) as clocks, watch((semel_engine,), Moment.BETWEEN_CHUNKS) as witness:
        with pytest.raises(BaseException, match="the process died"):
            bulk.run(BILLS, payer.pay, key="k", caller="alice")
        assert (witness.finished, witness.handed, witness.total) == (finished, finished, 7)
        tally = bulk.progress(key="k", caller="alice")
        assert tally is not None
        assert tally.succeeded == len(finished)
        with pytest.raises(Exception, match="running"):
            bulk.run(BILLS, payer.pay, key="k", caller="alice", wait_seconds=0)
        assert clocks is not None
        clocks.advance(31)
        done = bulk.run(BILLS, payer.pay, key="k", caller="alice")
        assert (done.tally.succeeded, done.tally.unknown) == ((6, 1) if effects == "external" else (7, 0))


# --- what is wrong on purpose ---


@sqlite
@pytest.mark.parametrize(
    ("effects", "came"),
    [
        ("atomic", "2 items had been finished, and items 1, 2 of the list ran again; the counter grew by 16 in all"),
        ("idempotent", "one item had been finished, and item 1 of the list ran again; the counter grew by 16 in all"),
    ],
)
def test_a_bulk_that_starts_over_fails(effects: Any, came: str, semel_engine: Engine, semel_database: Path) -> None:
    """Each attempt has its own key: nothing of the first one is known to the second."""
    payer = Payer(semel_database, effects, "anew")
    target = payer.target(semel_engine)
    assert " ".join(came.split()) in " ".join(finding_of(payer.run_check(target)).split())
    case = Case(arguments={"bills": BILLS}, effects=payer.count, other_caller=BOB)
    alone = suite(app=target, operations=[case]).make_test(CHECK, case)
    with pytest.raises(AssertionError, match="it starts again: payees are paid twice"):
        alone.run()


@sqlite
def test_items_under_keys_that_change(semel_engine: Engine, semel_database: Path) -> None:
    payer = Payer(semel_database, "idempotent", "own keys")
    report = payer.run_check(payer.target(semel_engine))
    assert len(report.held) == 13
    assert finding_of(report) == (
        "   sent:   the list; the process died between two chunks; the list again when the lease had lapsed, died "
        "after some\n"
        "           handlers; the list again\n"
        '   came:   {"total":7,"done":7,"succeeded":7,"failed":0,"retryable":0,"unknown":0}; the counter grew by 8 in '
        "all; a\n"
        "           normal request grows it by 7\n"
        "   means:  an item that was under way when the process died was done twice\n"
        "   change: hand the other side item.key_for('charge') as its key, the same at every attempt; if it has no "
        "such key,\n"
        "           declare effects='external'"
    )


@sqlite
def test_effects_outside_of_the_transaction(semel_engine: Engine, semel_database: Path) -> None:
    payer = Payer(semel_database, "atomic", "elsewhere")
    report = payer.run_check(payer.target(semel_engine))
    assert "the counter grew by 9 in all" in finding_of(report)
    assert "write on item.connection and nowhere else" in finding_of(report)


@sqlite
def test_an_answer_that_is_made_again_fails(semel_engine: Engine, semel_database: Path) -> None:
    payer, numbers = Payer(semel_database, "atomic"), iter(range(1000))
    bulk = Bulk(semel_engine, operation="bills.pay", effects="atomic")

    def pay_all(key: str, bills: list[Any], caller: str = "alice") -> str:
        return f"{bulk.run(bills, payer.pay, key=key, caller=caller).tally} {next(numbers)}"

    text = finding_of(payer.run_check(FunctionTarget(pay_all, bulk=bulk)))
    assert "two answers about one list" in text


@sqlite
def test_another_list_under_the_key(semel_engine: Engine, semel_database: Path) -> None:
    """The list that Bulk is given says nothing of the amounts: another list is taken for the same."""
    payer = Payer(semel_database, "idempotent")
    bulk = Bulk(semel_engine, operation="bills.pay", effects="idempotent")

    def pay_all(key: str, bills: list[Any], caller: str = "alice") -> BulkResult:
        return bulk.run([each["clientItemId"] for each in bills], payer.pay, key=key, caller=caller)

    assert "two lists are mixed under one key" in finding_of(payer.run_check(FunctionTarget(pay_all, bulk=bulk)))


# --- what cannot be tried, and what is not a bulk ---


@sqlite
@pytest.mark.parametrize(
    ("number", "message"), [(2, "the list has no middle: it has 2 items"), (1, "the list has no middle: it has one")]
)
def test_a_list_that_is_too_short(number: int, message: str, semel_engine: Engine, semel_database: Path) -> None:
    payer = Payer(semel_database, "idempotent")
    case = Case(arguments={"bills": BILLS[:number]}, effects=payer.count, other_caller=BOB)
    with pytest.raises(CannotRun, match=message):
        suite(app=payer.target(semel_engine), operations=[case]).make_test(CHECK, case).run()


@sqlite
def test_a_list_of_which_one_item_can_be_handled(semel_engine: Engine, semel_database: Path) -> None:
    payer = Payer(semel_database, "idempotent")
    bulk = Bulk(semel_engine, operation="bills.pay", effects="idempotent", bad_item="fail")
    target = FunctionTarget(lambda key, bills: bulk.run(bills, payer.pay, key=key, caller="alice"), bulk=bulk)
    case = Case(arguments={"bills": [b"{", b"[", {}]}, effects=payer.count, single_caller=True)
    with pytest.raises(CannotRun, match="all of its items that can be handled went to their handlers together"):
        suite(app=target, operations=[case]).make_test(CHECK, case).run()


@sqlite
@pytest.mark.parametrize("repeat", [True, False])
def test_steps_that_are_recorded_go_on_after_a_crash(repeat: bool, semel_engine: Engine, semel_database: Path) -> None:
    """No bulk, and neither ATOMIC: what a crash leaves is what was recorded, and the rest is done."""
    sent: list[str] = []

    def charge(key: str) -> str:
        if not repeat or key not in sent:
            sent.append(key)
        return key

    @command(semel_engine, "orders.place", caller=single_caller, policy=Policy(steps=True))
    def place(n: int, permit: Permit) -> int:
        permit.step("charge", lambda: charge(permit.key_for("charge")), repeat=repeat)
        return n

    report = check_idempotent(place, arguments={"n": 1}, effects=sent, single_caller=True)
    assert (report.held, report.not_tried) == (REQUIRED, ()), report.text()
    assert "it is not a bulk: there was no list to interrupt" in report.remarks
