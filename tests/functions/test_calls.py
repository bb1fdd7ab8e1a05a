"""One call of a command: what runs, what is kept, what a duplicate gets; on both engines and on both stores."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest

from semel import Engine, NothingHappened, Permit, State
from semel.core.model import Answer, AnswerKind, Resolution
from semel.errors import (
    ConfigurationError,
    KeyReusedError,
    NotReplayableError,
    OutcomeUnknownError,
    PolicyError,
    RecordUnreadableError,
    SchemaError,
    StoreError,
)
from semel.functions import Caller, ResultNotKept, command, single_caller, this_permit
from semel.telemetry import Counting
from tests.functions.stage import EVERYWHERE, Mode, Stage, Where, set_stage


@pytest.fixture(params=EVERYWHERE, ids="-".join)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    mode, where = request.param
    with set_stage(mode, where, tmp_path) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def file_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """On a file, for ATOMIC commands, with a table of their effects."""
    with set_stage(request.param, "sqlite", tmp_path) as made:
        with sqlite3.connect(tmp_path / "semel.db") as db:
            db.execute("CREATE TABLE effect (n TEXT)")
        db.close()
        yield made


@dataclass(frozen=True)
class Receipt:
    id: str
    amount: Decimal


class Declined(Exception):
    def __init__(self, code: str, text: str = "declined") -> None:
        super().__init__(text)
        self.code = code


class Unreachable(Declined):
    pass


class Plain:
    pass


# --- results ---


def test_a_duplicate_gets_the_first_result(stage: Stage) -> None:
    ran: list[str] = []

    def charge(order: str, amount: Decimal) -> Receipt:
        ran.append(order)
        return Receipt(f"ch_{len(ran)}", amount)

    once = stage.command(charge, key="order")
    first = once("A", Decimal("1.10"))
    again = once(order="A", amount=Decimal("1.10"))
    assert (first, type(again), again, ran) == (Receipt("ch_1", Decimal("1.10")), Receipt, first, ["A"])
    with pytest.raises(KeyReusedError):
        once("A", Decimal(2))
    row = once.record("A", Decimal("1.10"))
    assert (row.state, row.operation, row.body) == (State.SUCCEEDED, "pay", b'{"id":"ch_1","amount":"1.10"}')


def test_the_first_caller_gets_the_stored_form_of_the_result(stage: Stage) -> None:
    shared: dict[str, Any] = {"lines": [1]}
    once = stage.command(lambda order: shared, key="order")
    first = once("A")
    shared["lines"].append(2)
    assert first == once("A") == {"lines": [1]}
    assert first is not shared


def test_a_result_that_cannot_be_kept_is_reported_at_once_and_nothing_runs_again(stage: Stage) -> None:
    ran: list[Any] = []

    def charge(order: str) -> Any:
        ran.append(Plain())
        return {"card": ran[-1]}

    once = stage.command(charge, key="order")
    with pytest.raises(
        ResultNotKept, match=r"was done and is never run again, .*the result\['card'\] is a .*Plain"
    ) as met:
        once("A")
    assert met.value.result == {"card": ran[0]}
    assert met.value.operation_id
    with pytest.raises(NotReplayableError, match="was done, but its answer was not kept"):
        once("A")
    assert (once.record("A").state, len(ran)) == (State.SUCCEEDED, 1)


def test_a_large_result_is_returned_and_not_stored(stage: Stage) -> None:
    once = stage.command(lambda order: "x" * 100, key="order", answer_bytes_max=50)
    assert once("A") == "x" * 100
    with pytest.raises(NotReplayableError):
        once("A")
    assert once.record("A").answer_kind == AnswerKind.NOT_KEPT


def test_a_function_that_returns_a_coroutine_is_refused(stage: Stage) -> None:
    async def later() -> int:
        return 1

    def numbers() -> Any:
        yield 1

    for name, promise in (("a", later), ("b", numbers)):
        once = stage.command(lambda order, promise=promise: promise(), name, key="order", exclude=("promise",))
        with pytest.raises(ConfigurationError, match=r"returned a (coroutine|generator): its work continues after it"):
            once("A")
        assert once.attempt("A") is OutcomeUnknownError


def test_a_stored_result_of_a_former_type_is_refused(stage: Stage) -> None:
    def charge(order: str) -> Any:
        return "ch_1"

    once = stage.command(charge, key="order")
    assert once("A") == "ch_1"
    charge.__annotations__["return"] = "int"
    with pytest.raises(
        RecordUnreadableError, match=r"the stored end of 'pay' does not fit .*charge declares now \(int was"
    ):
        stage.command(charge, key="order")("A")


def test_an_answer_given_by_an_operator_is_the_result(stage: Stage) -> None:
    def charge(order: str) -> dict[str, int]:
        raise TimeoutError

    once = stage.command(charge, key="order")
    assert [once.attempt("A"), once.attempt("A")] == [TimeoutError, OutcomeUnknownError]
    row = once.record("A")
    resolution = Resolution(row.id, row.fence, True, Answer(200, (), b'{"n":7}'), "olga", "found it", True)
    stage.end(stage.engine.perform("resolve", lambda: stage.engine.store.resolve(resolution)))
    assert once("A") == {"n": 7}


# --- exceptions ---


def test_a_declared_exception_is_replayed(stage: Stage) -> None:
    ran: list[str] = []

    def charge(order: str) -> str:
        ran.append(order)
        raise Declined("stolen", f"call {len(ran)}")

    once = stage.command(charge, key="order", replays=(Declined,))
    met = []
    for _ in range(2):
        with pytest.raises(Declined) as caught:
            once("A")
        met.append((type(caught.value), caught.value.args, caught.value.code))
    assert met == [(Declined, ("call 1",), "stolen")] * 2
    assert (once.record("A").state, ran) == (State.FAILED_REPLAYABLE, ["A"])


def test_the_nearest_declared_type_decides(stage: Stage) -> None:
    def charge(kind: str) -> str:
        raise {"d": Declined, "u": Unreachable}[kind]("x")

    once = stage.command(charge, key="kind", replays=(Declined,), nothing_happened=(Unreachable,))
    assert [once.attempt("d"), once.attempt("u")] == [Declined, Unreachable]
    assert [once.record("d").state, once.record("u").state] == [State.FAILED_REPLAYABLE, State.FAILED_NOT_REPLAYABLE]
    once = stage.command(charge, "other", key="kind", replays=(Unreachable,), nothing_happened=(Declined,))
    assert [once.attempt("d"), once.attempt("u")] == [Declined, Unreachable]
    assert [once.record("d").state, once.record("u").state] == [State.FAILED_NOT_REPLAYABLE, State.FAILED_REPLAYABLE]


def test_a_proof_that_nothing_happened_frees_the_key(stage: Stage) -> None:
    fails: list[Exception] = [ConnectionRefusedError(), NothingHappened("closed")]

    def charge(order: str) -> str:
        if fails:
            raise fails.pop(0)
        return "paid"

    once = stage.command(charge, key="order", nothing_happened=(ConnectionRefusedError,))
    assert [once.attempt("A") for _ in range(4)] == [ConnectionRefusedError, NothingHappened, "paid", "paid"]


def test_any_other_exception_leaves_the_outcome_unknown(stage: Stage) -> None:
    error = TimeoutError("no answer")

    def charge(order: str) -> str:
        raise error

    once = stage.command(charge, key="order", replays=(Declined,))
    with pytest.raises(TimeoutError) as caught:
        once("A")
    assert caught.value is error
    with pytest.raises(OutcomeUnknownError, match="the command's outcome cannot be proven"):
        once("A")


def test_an_exception_that_cannot_be_kept_is_reported_at_once(stage: Stage) -> None:
    def charge(order: str) -> str:
        error = Declined("x")
        error.response = Plain()  # type: ignore[attr-defined]
        raise error

    once = stage.command(charge, key="order", replays=(Declined,))
    with pytest.raises(ResultNotKept, match=r"Declined.response is a .*Plain") as caught:
        once("A")
    assert isinstance(caught.value.__cause__, Declined)
    assert once.attempt("A") is NotReplayableError
    assert once.record("A").state == State.FAILED_REPLAYABLE


def test_a_point_of_no_return_is_marked(stage: Stage) -> None:
    def charge(order: str, fail: str, permit: Permit = this_permit) -> str:
        if fail == "before":
            raise TimeoutError
        with permit.effect():
            if fail == "inside":
                raise TimeoutError
        return "paid"

    once = stage.command(charge, key="order", marks_effects=True, exclude=("fail",))
    assert [once.attempt("A", "before"), once.attempt("A", ""), once.attempt("A", "")] == [
        TimeoutError,
        "paid",
        "paid",
    ]
    assert [once.attempt("B", "inside"), once.attempt("B", "")] == [TimeoutError, OutcomeUnknownError]


# --- permits and effects ---


def test_an_idempotent_function_runs_again_with_the_same_derived_key(stage: Stage) -> None:
    keys: list[str] = []

    def charge(order: str, *, permit: Permit) -> str:
        keys.append(permit.key_for("charge"))
        if permit.attempt == 1:
            raise TimeoutError
        return "paid"

    once = stage.command(charge, key="order", effects="idempotent")
    assert [once.attempt("A"), once.attempt("A"), once.attempt("A")] == [TimeoutError, "paid", "paid"]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def count(folder: Path) -> int:
    with sqlite3.connect(folder / "semel.db") as db:
        [(n,)] = db.execute("SELECT count(*) FROM effect")
    db.close()
    return int(n)


def test_an_atomic_function_writes_with_its_record(file_stage: Stage, tmp_path: Path) -> None:
    def order(sku: str, fail: str = "", permit: Permit = this_permit) -> Any:
        permit.connection.execute("INSERT INTO effect VALUES (?)", (sku,))
        if fail == "declined":
            raise Declined("x")
        if fail == "unkept error":
            error = Declined("x")
            error.response = Plain()  # type: ignore[attr-defined]
            raise error
        if fail:
            raise TimeoutError
        return Plain() if sku == "odd" else "x" * 100 if sku == "large" else sku

    once = file_stage.command(
        order, key="sku", effects="atomic", replays=(Declined,), exclude=("fail",), answer_bytes_max=90
    )
    assert [once.attempt("A", "timeout"), count(tmp_path)] == [TimeoutError, 0]
    assert [once.attempt("A"), once.attempt("A"), count(tmp_path)] == ["A", "A", 1]
    assert [once.attempt("B", "declined"), once.attempt("B"), count(tmp_path)] == [Declined, Declined, 1]
    for sku, fail, says in (
        ("odd", "", "the result is a .*Plain"),
        ("large", "", "the result is larger than 90 bytes"),
        ("C", "unkept error", "Declined.response"),
    ):
        with pytest.raises(ResultNotKept, match=f"was rolled back, because its end cannot be kept: {says}"):
            once(sku, fail)
    assert count(tmp_path) == 1
    assert once("C") == "C"


def test_a_permit_of_an_external_function_has_no_connection(stage: Stage) -> None:
    once = stage.command(lambda order, permit=this_permit: permit.connection, key="order")
    with pytest.raises(PolicyError, match="only for operations with effects='atomic'"):
        once("A")


def test_an_unprotected_call_is_counted(tmp_path: Path) -> None:
    counting = Counting()
    with set_stage("sync", "memory", tmp_path, observer=counting) as made:
        ran: list[Any] = []
        once = made.command(lambda order, permit=this_permit: ran.append(permit), key="order")
        once.unprotected("A")
        once.unprotected("A")
        assert ran == [None, None]
        assert counting.counts["unprotected", ("pay", "asked-for")] == 2
        assert made.engine.perform("counts", made.engine.store.counts) == {}


def test_an_unmigrated_store_is_reported_before_anything_runs(tmp_path: Path) -> None:
    ran: list[int] = []
    engine = Engine.connect(f"sqlite:///{tmp_path}/none.db")

    @command(engine, "pay", key="order", caller=single_caller)
    def charge(order: str) -> None:
        ran.append(1)

    with pytest.raises((StoreError, SchemaError)):
        charge("A")
    engine.close()
    assert ran == []


# --- methods ---


class Service:
    engine: Engine

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.ran: list[str] = []

    @command(lambda: Service.engine, "service.pay", key="order", caller=("self.tenant", "self.tenant"))
    def pay(self, order: str) -> str:
        self.ran.append(order)
        return f"{self.tenant} {order}"

    @command(lambda: Service.engine, "service.by-key", caller=single_caller)
    def by_key(self, order: str) -> str:
        return order

    @command(lambda: Service.engine, "service.class", key="order", caller=Caller("acme", "class"))
    @classmethod
    def of_class(cls, order: str) -> str:
        return f"{cls.__name__} {order}"

    @classmethod
    @command(lambda: Service.engine, "service.inner", key="order", caller=Caller("acme", "class"))
    def inner(cls, order: str) -> str:
        return f"{cls.__name__} {order}"

    @staticmethod
    @command(lambda: Service.engine, "service.static", key="order", caller=Caller("acme", "class"))
    def static(order: str) -> str:
        return order

    @command(lambda: Service.engine, "service.static-inside", key="order", caller=Caller("acme", "class"))
    @staticmethod
    def static_inside(order: str) -> str:
        return order


def test_methods_are_commands(tmp_path: Path) -> None:
    with set_stage("sync", "memory", tmp_path) as made:
        Service.engine = made.engine
        one, same, other = Service("a"), Service("a"), Service("b")
        assert [one.pay("1"), same.pay("1"), Service.pay(same, "1"), other.pay("1")] == ["a 1", "a 1", "a 1", "b 1"]
        assert [one.ran, same.ran, other.ran] == [["1"], [], ["1"]]
        assert one.pay.record("1") is not None
        assert [one.by_key.with_key("k")("x"), same.by_key.with_key("k")("x")] == ["x", "x"]
        for receiver in (cast("Any", Service), cast("Any", one)):  # mypy binds only those of instances
            assert [receiver.of_class("1"), receiver.inner("1")] == ["Service 1"] * 2
            assert [receiver.static("1"), receiver.static_inside("1")] == ["1", "1"]
        assert one.pay.unprotected("1") == "a 1"


class LaterService:
    def __init__(self, engine: Any) -> None:
        self.engine = engine

    async def plain(self, order: str) -> str:
        return order


def test_async_methods_are_commands(tmp_path: Path) -> None:
    with set_stage("async", "sqlite", tmp_path) as made:
        kind = type(
            "Kind", (LaterService,), {"pay": command(made.engine, "pay", key="order", caller=single_caller)(plain)}
        )
        service: Any = kind(made.engine)
        assert [made.end(service.pay("1")), made.end(service.pay("1"))] == ["1", "1"]
        assert asyncio.iscoroutinefunction(service.pay)
        assert inspect.iscoroutinefunction(service.pay)


async def plain(self: LaterService, order: str) -> str:
    return order


@pytest.mark.parametrize(("mode", "where"), EVERYWHERE)
def test_an_engine_may_be_given_as_a_function(mode: Mode, where: Where, tmp_path: Path) -> None:
    engines: list[Any] = []

    def charge(order: str) -> str:
        return order

    async def charge_later(order: str) -> str:
        return order

    late: Any = command(lambda: engines[-1], "pay", key="order", caller=single_caller)
    once = late(charge if mode == "sync" else charge_later)
    with set_stage(mode, where, tmp_path) as made:
        engines.append(made.engine)
        assert [made.end(once("A")), made.end(once("A"))] == ["A", "A"]
