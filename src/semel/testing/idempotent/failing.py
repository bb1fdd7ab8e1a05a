"""The simulated failures: a process that dies between two steps, and a clock that moves on.

A crash is simulated as a store sees it: the holder goes silent. Its lease is not renewed, its transaction is rolled
back, and its reply to the caller is lost. No process is killed, so that a test can inspect what remains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import Any, Final

from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.engine.state import Core
from semel.http.settings import AnyEngine
from semel.stores.clock import system_clock
from semel.testing.clock import SettableClock
from semel.testing.faults import Crash

_SETTLE: Final = "settle"  # an engine's method
_SUCCEED: Final = "succeed_at_once"  # its core's


class Place(Enum):
    """The place where the process dies."""

    BEFORE_THE_HANDLER = "after the claim, before the handler"
    BEFORE_THE_SETTLE = "after the handler, before its answer is stored"
    AFTER_THE_SETTLE = "when its answer is stored, before it is sent"


class Struck:
    """Whether the crash happened, and which permits it hit."""

    def __init__(self) -> None:
        self.permits: list[Permit] = []

    @property
    def times(self) -> int:
        """The number of permits that it hit."""
        return len(self.permits)


@contextmanager
def dying(engines: tuple[AnyEngine, ...], place: Place) -> Iterator[Struck]:
    """Let every grant of these engines die at a place during the block."""
    struck = Struck()
    with ExitStack() as stack:
        for engine in engines:
            stack.enter_context(_dying_one(engine, place, struck))
        yield struck


@contextmanager
def impatient(engines: tuple[AnyEngine, ...]) -> Iterator[None]:
    """Answer duplicates at once while a command runs, instead of waiting for a dead holder."""
    kept = [(engine.core, engine.core.waiters_max) for engine in engines]
    for core, _ in kept:
        core.waiters_max = 0
    try:
        yield
    finally:
        for core, waiters_max in kept:
            core.waiters_max = waiters_max


@contextmanager
def overtaken(engines: tuple[AnyEngine, ...], meanwhile: Callable[[], Awaitable[None]]) -> Iterator[Struck]:
    """Pause the first holder before it stores its answer until ``meanwhile`` has happened, then continue it."""
    struck = Struck()
    with ExitStack() as stack:
        for engine in engines:
            make = _async_delay if isinstance(engine, AsyncEngine) else _sync_delay
            settle = getattr(engine, _SETTLE)
            stack.enter_context(_instead_of(engine, _SETTLE, make(settle, meanwhile, struck)))
        yield struck


@contextmanager
def _dying_one(engine: AnyEngine, place: Place, struck: Struck) -> Iterator[None]:
    claim = "claim" if isinstance(engine, AsyncEngine) else "_claim_into"
    name = claim if place is Place.BEFORE_THE_HANDLER else _SETTLE
    make = _async_death if isinstance(engine, AsyncEngine) else _sync_death
    with _instead_of(engine, name, make(engine, getattr(engine, name), place, struck)):
        yield


@contextmanager
def _instead_of(engine: AnyEngine, name: str, method: Any) -> Iterator[None]:
    setattr(engine, name, method)
    if name == _SETTLE:  # in stores that reply at once, a surface settles most successes without the engine's method
        setattr(engine.core, _SUCCEED, lambda permit, answer: False)
    try:
        yield
    finally:
        delattr(engine, name)  # restores the method of the class
        if name == _SETTLE:
            delattr(engine.core, _SUCCEED)


def _async_death(engine: AnyEngine, method: Any, place: Place, struck: Struck) -> Any:
    async def dies(*args: Any, **kwargs: Any) -> Any:
        if place is Place.BEFORE_THE_SETTLE:
            permit = args[0]
        else:
            given = await method(*args, **kwargs)
            permit = given if place is Place.BEFORE_THE_HANDLER else args[0]
            if not isinstance(permit, Permit):
                return given
        _forget(engine.core, permit, struck)
        if permit.unit is not None and place is not Place.AFTER_THE_SETTLE:
            await permit.unit.rollback_async()
        raise Crash("the process died")

    return dies


def _sync_death(engine: AnyEngine, method: Any, place: Place, struck: Struck) -> Any:
    def dies(*args: Any, **kwargs: Any) -> Any:
        if place is Place.BEFORE_THE_SETTLE:
            permit = args[0]
        else:
            given = method(*args, **kwargs)
            permit = given if place is Place.BEFORE_THE_HANDLER else args[0]
            if not isinstance(permit, Permit):
                return given
        _forget(engine.core, permit, struck)
        if permit.unit is not None and place is not Place.AFTER_THE_SETTLE:
            permit.unit.rollback()
        raise Crash("the process died")

    return dies


def _async_delay(method: Any, meanwhile: Callable[[], Awaitable[None]], struck: Struck) -> Any:
    async def late(permit: Permit, *args: Any, **kwargs: Any) -> Any:
        if not struck.times:
            struck.permits.append(permit)
            await meanwhile()
        return await method(permit, *args, **kwargs)

    return late


def _sync_delay(method: Any, meanwhile: Callable[[], Awaitable[None]], struck: Struck) -> Any:
    loop = asyncio.get_running_loop()

    async def away() -> None:
        await meanwhile()

    def late(permit: Permit, *args: Any, **kwargs: Any) -> Any:
        if not struck.times:
            struck.permits.append(permit)
            asyncio.run_coroutine_threadsafe(away(), loop).result()
        return method(permit, *args, **kwargs)

    return late


def _forget(core: Core, permit: Permit, struck: Struck) -> None:
    struck.permits.append(permit)
    core.conclude(permit)  # a dead process renews nothing


# --- time -----------------------------------------------------------------------------------------


class Clocks:
    """The clocks of a target's stores, which are moved on together."""

    def __init__(self, settable: list[SettableClock], shifted: list[_Shifted]) -> None:
        self._settable = settable
        self._shifted = shifted

    def advance(self, seconds: float) -> None:
        """Move all of them on."""
        for settable in self._settable:
            settable.advance(seconds=seconds)
        for shifted in self._shifted:
            shifted.advance(seconds=seconds)


class _Shifted:
    """A clock that is ahead of another one by an offset."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._ahead_us = 0

    def __call__(self) -> int:
        now: int = self._clock()
        return now + self._ahead_us

    def advance(self, *, seconds: float) -> int:
        self._ahead_us += int(seconds * 1_000_000)
        return self()


@contextmanager
def movable(engines: tuple[AnyEngine, ...]) -> Iterator[Clocks | None]:
    """Yield clocks that can be moved during the block; None if a store's clock is out of reach.

    A driver without a settable clock reads its own clock plus an offset, and afterwards its plain clock again. A
    server's store is moved only if its clock is settable: in a shared database, other processes' leases would lapse.
    """
    settable: list[SettableClock] = []
    shifted: list[_Shifted] = []
    with ExitStack() as stack:
        reached = bool(engines)
        for driver in {id(engine.backend.driver): engine.backend.driver for engine in engines}.values():
            inner = getattr(driver, "inner", driver)
            clock = getattr(getattr(inner, "server", None), "clock", None)
            if isinstance(clock, SettableClock):
                settable.append(clock)
                continue
            holders = list(_holders(inner))
            reached = reached and bool(holders)
            for holder, name in holders:
                clock = getattr(holder, name)
                if isinstance(clock, SettableClock):
                    settable.append(clock)
                else:
                    shifted.append(stack.enter_context(_shifting(driver, holder, name, clock)))
        yield Clocks(list({id(clock): clock for clock in settable}.values()), shifted) if reached else None


def _holders(driver: Any) -> Iterator[tuple[Any, str]]:
    """Yield the driver and its parts that read the clock, with the attribute's name."""
    for part in (driver, *getattr(driver, "__dict__", {}).values()):
        if any(kind.__module__.startswith("semel.stores.") for kind in type(part).__mro__):
            for name in ("clock", "_clock"):
                if name in getattr(part, "__dict__", {}):
                    yield part, name


@contextmanager
def _shifting(driver: Any, holder: Any, name: str, clock: Any) -> Iterator[_Shifted]:
    # A server's driver without a clock of its own asks the server; for a test this host's clock is enough.
    moved = _Shifted(system_clock if clock is None else clock)
    setattr(holder, name, moved)
    driver.close()  # connections hold the clock they were opened with
    try:
        yield moved
    finally:
        setattr(holder, name, clock)
        driver.close()
