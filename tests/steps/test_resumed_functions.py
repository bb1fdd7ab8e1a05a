"""Plain functions that end without their caller: what is kept of a call, who continues it, and what is refused."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from semel import AsyncEngine, AsyncPermit, Engine, Permit
from semel.core.model import Find, State
from semel.errors import CommandError, ConfigurationError, PolicyError, RequestTooLarge
from semel.functions import Codec, ResultNotKept, command, completer, single_caller, this_permit
from semel.resuming.worker import Completer

ENDS: dict[str, Any] = {"steps": True, "resumable": True, "caller": single_caller}


@dataclass(frozen=True)
class Parcel:
    number: int
    weight: Decimal


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with closing(Engine.connect(f"sqlite:///{tmp_path}/shop.db")) as made:
        made.migrate()
        yield made


def complete(made: Completer) -> tuple[int, list[Any]]:
    """One round, and the errors reported to the loop meanwhile."""
    told: list[Any] = []

    async def once() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what["exception"]))
        return await made.run_once()

    return asyncio.run(once()), told


def states(engine: Engine) -> list[tuple[State, bytes | None]]:
    page = engine.perform("find", lambda: engine.store.find(Find()))
    rows = engine.perform("read", lambda: engine.store.read(tuple(row.id for row in page.records)))
    return [(State(row.state), row.request) for row in rows if row is not None]


def away(permit: Permit) -> None:
    """The first run has no luck."""
    permit.step("note", lambda: None, repeat=True)
    if permit.attempt == 1:
        raise ConnectionError("away")


def test_an_abandoned_call_is_completed_with_its_arguments(engine: Engine) -> None:
    seen: list[Any] = []

    @command(engine, "ship", key="parcel.number", exclude=("log",), **ENDS)
    def ship(
        parcel: Parcel,
        /,
        *notes: str,
        by: set[bytes],
        log: object = None,
        permit: Permit = this_permit,
        **more: Decimal,
    ) -> Parcel:
        seen.append((parcel, notes, by, log, more))
        away(permit)
        return parcel

    parcel = Parcel(7, Decimal("1.50"))

    def call() -> Parcel:
        return ship(parcel, "a", "b", by={b"\xff"}, log=engine, tax=Decimal("0.1"))

    with pytest.raises(ConnectionError):
        call()
    [(state, request)] = states(engine)
    assert state is State.CLAIMED
    assert json.loads(request or b"")["arguments"].keys() == {"parcel", "notes", "by", "more"}
    assert complete(completer(ship)) == (1, [])
    assert states(engine) == [(State.SUCCEEDED, None)]
    assert call() == parcel
    given = (parcel, ("a", "b"), {b"\xff"}, {"tax": Decimal("0.1")})
    assert seen == [(*given[:3], engine, given[3]), (*given[:3], None, given[3])]


def test_a_function_is_resumed_on_an_event_loop_too(engine: Engine, tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncEngine.connect(f"sqlite:///{tmp_path}/shop.db") as loops:

            @command(loops, "ship", key="number", **ENDS)
            async def ship(number: int, permit: AsyncPermit = this_permit) -> int:
                await permit.step("note", lambda: None, repeat=True)
                if permit.attempt == 1:
                    raise ConnectionError("away")
                return number

            with pytest.raises(ConnectionError):
                await ship(7)
            assert await completer(ship, rest_seconds=0.1).run_once() == 1
            assert await ship(7) == 7

    asyncio.run(story())


class Shop:
    """Whose methods are commands."""

    def __init__(self) -> None:
        self.shipped: list[int] = []


def test_a_method_runs_on_its_bound_object(engine: Engine) -> None:
    class Own(Shop):
        @command(engine, "ship", key="number", **ENDS)
        def ship(self, number: int, permit: Permit = this_permit) -> int:
            away(permit)
            self.shipped.append(number)
            return number

        @command(engine, "count", key="number", **ENDS)
        @classmethod
        def count(cls, number: int, permit: Permit = this_permit) -> str:
            away(permit)
            return f"{cls.__name__} {number}"

    first, second = Own(), Own()
    count: Any = Own.count
    for call in (first.ship, count):
        with pytest.raises(ConnectionError):
            call(7)
    with pytest.raises(ConfigurationError, match=r"'self' is not kept.*completer\(shop\.ship\)"):
        completer(Own.ship)
    assert complete(completer(second.ship, count)) == (2, [])
    assert (first.shipped, second.shipped) == ([], [7])
    assert count(7) == "Own 7"


def test_a_declared_exception_and_an_unstorable_result_settle_the_call(engine: Engine) -> None:
    class Refused(Exception):
        pass

    @command(engine, "refuse", key="number", replays=(Refused,), **ENDS)
    def refuse(number: int, permit: Permit = this_permit) -> int:
        away(permit)
        raise Refused(number)

    @command(engine, "lose", key="number", **ENDS)
    def lose(number: int, permit: Permit = this_permit) -> Any:
        away(permit)
        return engine

    for call in (refuse, lose):
        with pytest.raises(ConnectionError):
            call(7)
    assert complete(completer(refuse, lose)) == (2, [])
    with pytest.raises(Refused):
        refuse(7)
    with pytest.raises(CommandError) as met:
        lose(7)
    assert not isinstance(met.value, ResultNotKept)


def test_long_calls_leave_threads_for_the_loop(engine: Engine) -> None:
    """Three wait for each other, on a loop that has a single thread for all that is asked of the store."""
    together = threading.Barrier(3)

    @command(engine, "ship", key="number", **ENDS)
    def ship(number: int, permit: Permit = this_permit) -> int:
        away(permit)
        together.wait(20)
        return number

    for number in range(3):
        with pytest.raises(ConnectionError):
            ship(number)

    async def story() -> int:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        return await completer(ship).run_once()

    assert asyncio.run(story()) == 3


# --- what is refused -------------------------------------------------------------------------------


def declare(engine: Engine, function: Callable[..., Any], **options: Any) -> Any:
    return command(engine, f"op-{function.__qualname__}", key="key", **{**ENDS, **options})(function)


def test_unstorable_arguments_are_refused_at_the_declaration(engine: Engine) -> None:
    def plain(key: str, by: Fraction, permit: Permit = this_permit) -> None: ...

    with pytest.raises(ConfigurationError, match=r"the parameter 'by' of .*plain, which is kept.*Fraction has no safe"):
        declare(engine, plain)
    codecs = (Codec(Fraction, encode=str, decode=Fraction),)
    assert declare(engine, plain, codecs=codecs).operation
    with pytest.raises(PolicyError, match="steps=True"):
        command(engine, "ship", key="key", caller=single_caller, resumable=True)


def test_an_argument_without_a_form_is_refused_before_anything_runs(engine: Engine) -> None:
    def plain(key: str, by: int, what: Any = None, permit: Permit = this_permit) -> None:
        raise AssertionError("it ran")

    def loose(key: str, by: float, permit: Permit = this_permit) -> None: ...

    ship = declare(engine, plain)
    for arguments in (("k", "7"), ("k", 7, Parcel(1, Decimal(1))), ("k", 7, "\ud800")):
        with pytest.raises(ConfigurationError, match=r"the argument (by|what).*(annotate the parameter|exclude=)"):
            ship(*arguments)
    lists: list[Any] = []
    lists.append(lists)
    with pytest.raises(ConfigurationError, match="nested"):
        ship("k", 7, lists)
    with pytest.raises(RequestTooLarge, match=r"the largest is 'what': keep it elsewhere"):
        ship("k", 7, "x" * (1024 * 1024))
    assert states(engine) == []


def test_arguments_that_no_longer_fit_are_reported_and_not_run(engine: Engine) -> None:
    def version(parameters: str) -> Any:
        names: dict[str, Any] = {"Permit": Permit, "this_permit": this_permit, "away": away}
        exec(f"def ship({parameters}, permit: Permit = this_permit) -> str:\n    away(permit)\n    return key", names)
        return names["ship"]

    first = declare(engine, version("key: str, by: int"))
    with pytest.raises(ConnectionError):
        first("k", 7)
    for parameters, said in (
        ("key: str", "no parameter 'by' any more"),
        ("key: str, by: str", "str was expected"),
        ("key: str, by: int, fast: bool", "'fast' is new, and has no default"),
    ):
        with closing(Engine.connect(engine.backend.url)) as later:
            ended, told = complete(completer(declare(later, version(parameters)), rest_seconds=0.001))
        assert ended == 0
        assert [type(each) for each in told] == [ConfigurationError], parameters
        assert said in str(told[0])
    with closing(Engine.connect(engine.backend.url)) as later:
        newer = declare(later, version("key: str, by: int, fast: bool = False"))
        assert complete(completer(newer)) == (1, [])


def test_a_completer_of_functions_runs_only_functions(engine: Engine, tmp_path: Path) -> None:
    def plain(key: str, permit: Permit = this_permit) -> None: ...

    ship = declare(engine, plain)
    other = command(engine, "other", key="key", caller=single_caller)(plain)
    elsewhere = declare(Engine.connect(f"sqlite:///{tmp_path}/other.db"), plain)
    for commands, said in (
        ((), "needs the functions"),
        ((plain,), "is not a command"),
        ((other,), "not declared resumable"),
        ((ship, ship), "registered already"),
        ((ship, elsewhere), "several engines"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            completer(*commands)
