"""Putting something else in the place of a function of Semel's, wherever it was imported to, and back again.

A patch that hits nothing would prove nothing: a name that is gone, a table without the line, a text without the
passage are refused, so that a refactoring cannot silently take the teeth out of a mutant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any, Final

Patch = Callable[[], AbstractContextManager[Any]]
_ABSENT: Final = object()


class NothingToReplace(LookupError):
    """What a patch was to change is not there (any more): the patch must follow the code."""


def found(place: str) -> tuple[Any, str, Any]:
    """Owner, name and value of a place: ``semel.core.settle:holds``, ``semel.engine.sync_engine:Engine.settle``."""
    module, _, path = place.partition(":")
    try:
        owner: Any = import_module(module)
        *classes, name = path.split(".")
        for part in classes:
            owner = getattr(owner, part)
        return owner, name, vars(owner)[name]
    except (ImportError, AttributeError, KeyError) as error:
        raise NothingToReplace(f"{place} is not there any more; point the patch to where it is now") from error


@contextmanager
def replace_everywhere(place: str, make: Callable[[Any], Any], *, only_there: bool = False) -> Iterator[None]:
    """While inside, ``make(original)`` replaces the original at its place and at every name of Semel's for it.

    Parameters: ``only_there`` leaves the other names alone.
    """
    owner, name, original = found(place)
    other = make(original)
    if isinstance(owner, type) or only_there:
        setattr(owner, name, other)
        try:
            yield
        finally:
            setattr(owner, name, original)
        return
    hit = [
        (module, key)
        for module in [module for key, module in sys.modules.items() if key.split(".")[0] in ("semel", "verification")]
        for key, value in list(vars(module).items())
        if value is original
    ]
    if (owner, name) not in hit:
        raise NothingToReplace(f"{place} is not imported as what it is")
    for module, key in hit:
        setattr(module, key, other)
    try:
        yield
    finally:
        for module, key in hit:
            setattr(module, key, original)


@contextmanager
def lines_replaced(place: str, lines: Mapping[Any, Any]) -> Iterator[None]:
    """While inside, these keys of a table lead to other values."""
    table = found(place)[2]
    before = {key: table.get(key, _ABSENT) for key in lines}
    missing = [key for key, value in before.items() if value is _ABSENT]
    if missing:
        raise NothingToReplace(f"{place} has no line {missing[0]!r}")
    table.update(lines)
    try:
        yield
    finally:
        table.update(before)


@contextmanager
def text_replaced(statement: Any, passage: str, other: str) -> Iterator[None]:
    """While inside, a passage of a SQL statement reads otherwise. Its parameters must stay the same."""
    if passage not in statement.qmark:
        raise NothingToReplace(f"the statement {statement.name} does not say {passage!r}")
    qmark, text = statement.qmark, statement.text
    object.__setattr__(statement, "qmark", qmark.replace(passage, other, 1))
    try:
        yield
    finally:
        object.__setattr__(statement, "qmark", qmark)
        object.__setattr__(statement, "text", text)
