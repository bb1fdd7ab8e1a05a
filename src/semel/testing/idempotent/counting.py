"""Counters of effects: the user's own, a spied function, or the rows of a table."""

from __future__ import annotations

import functools
import inspect
import re
import sqlite3
from collections.abc import Callable, Sized
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from semel.errors import ConfigurationError
from semel.testing.idempotent.case import Effects
from semel.testing.idempotent.report import CannotRun

_TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?").fullmatch


async def read_count(effects: Effects) -> int:
    """Read the counter. Raises CannotRun if that fails or returns no number."""
    if isinstance(effects, Sized):  # first, because a spy can be called as well
        return len(effects)
    try:
        number = effects()
        if inspect.isawaitable(number):
            number = await number
    except CannotRun:
        raise
    except Exception as error:
        raise CannotRun(
            f"the effect counter failed: {type(error).__name__}: {error}",
            "effects= must be callable at any time, also before the first effect",
        ) from error
    if isinstance(number, bool) or not isinstance(number, int):
        raise CannotRun(
            f"the effect counter returned {number!r}, which is not a count",
            "effects= must return how often the effect has happened, as a whole number",
        )
    return number


class Spy:
    """Counts the calls of a function that it replaces; the function itself still runs.

    >>> spy = Spy(lambda amount: amount * 2)
    >>> spy(21), spy.count, len(spy)
    (42, 1, 1)
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # In a class it replaces a method: bind it to the instance.
        return self if instance is None else functools.partial(self, instance)

    def __len__(self) -> int:
        return len(self.calls)

    def __bool__(self) -> bool:
        return True

    @property
    def count(self) -> int:
        """The number of calls."""
        return len(self.calls)


def rows(database: str | Path, table: str, where: str = "") -> Callable[[], int]:
    """Make a counter of a table's rows in a SQLite file; for other databases write your own function.

    Parameters: ``database`` the file; ``table``; ``where`` an SQL condition of your test.

    Raises ConfigurationError if ``table`` is not a name.

    >>> rows("app.db", "payments; drop table payments")
    Traceback (most recent call last):
        ...
    semel.errors.ConfigurationError: 'payments; drop table payments' is not the name of a table
    """
    if _TABLE(table) is None:
        raise ConfigurationError(f"{table!r} is not the name of a table")
    query = f"SELECT count(*) FROM {table}{' WHERE ' + where if where else ''}"  # noqa: S608 -- checked; the test's own

    def count() -> int:
        try:
            with closing(sqlite3.connect(f"file:{Path(database)}?mode=ro", uri=True)) as connection:
                return int(connection.execute(query).fetchone()[0])
        except sqlite3.Error as error:
            raise CannotRun(
                f"the rows of {table!r} cannot be counted: {error}", "create the table before the test counts its rows"
            ) from error

    return count
