"""One stage for plain and async functions: the same function is declared on either engine and called alike."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from semel import AsyncEngine, Engine
from semel.core.model import Record
from semel.functions import command, single_caller
from semel.stores.backend import Backend
from tests.engine.drivers import memory, sqlite

Mode = Literal["sync", "async"]
Where = Literal["memory", "sqlite"]
EVERYWHERE: Final = [(mode, where) for mode in ("sync", "async") for where in ("memory", "sqlite")]


class Driven:
    """A sync or async command, called from ordinary code."""

    def __init__(self, end: Callable[[Any], Any], once: Any) -> None:
        self._end = end
        self.once = once

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._end(self.once(*args, **kwargs))

    def with_key(self, key: Any) -> Driven:
        return Driven(self._end, self.once.with_key(key))

    def record(self, *args: Any, **kwargs: Any) -> Record:
        row = self._end(self.once.record(*args, **kwargs))
        assert isinstance(row, Record)
        return row

    def unprotected(self, *args: Any, **kwargs: Any) -> Any:
        return self._end(self.once.unprotected(*args, **kwargs))

    def attempt(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; return the result, or the type of the error."""
        try:
            return self(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the test looks at any exception
            return type(error)


class Stage:
    """An engine, and functions on it."""

    def __init__(self, mode: Mode, backend: Backend, **options: Any) -> None:
        self.mode = mode
        self.runner: asyncio.Runner | None = asyncio.Runner() if mode == "async" else None
        self.engine: Any = (AsyncEngine if mode == "async" else Engine)(backend, **options)

    def end(self, reply: Any) -> Any:
        return reply if self.runner is None else self.runner.run(reply)

    def open(self) -> Stage:
        self.end(self.engine.migrate())
        self.end(self.engine.open())
        return self

    def command(self, function: Callable[..., Any], name: str = "pay", **settings: Any) -> Driven:
        """Declare a plain function; on an async engine as an async one."""
        settings.setdefault("caller", single_caller)
        given = function if self.mode == "sync" else as_async(function)
        return Driven(self.end, command(self.engine, name, **settings)(given))

    def close(self) -> None:
        self.end(self.engine.close())
        if self.runner is not None:
            self.runner.close()


def as_async(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run_as_async(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return run_as_async


def backend(where: Where, folder: Path, clock: Any = None) -> Backend:
    return memory(clock) if where == "memory" else sqlite(folder / "semel.db", clock)


@contextmanager
def set_stage(mode: Mode, where: Where, folder: Path, clock: Any = None, **options: Any) -> Iterator[Stage]:
    stage = Stage(mode, backend(where, folder, clock), **options).open()
    try:
        yield stage
    finally:
        stage.close()
