"""Single operations of a history, written by hand, and what the checker finds in them."""

from __future__ import annotations

from tests.history.stories import NOBODY_DIED
from verification.history.check import select_operations
from verification.history.linear import Finding, linearize
from verification.history.reading import Operation
from verification.history.standing import Terms


def op(
    number: int, start: int, end: int | None, kind: str, process: str = "p", gave_up: str | None = None, **words: object
) -> Operation:
    """An operation between two times in milliseconds; ``to_*`` is its result."""
    told = {name.removeprefix("to_"): value for name, value in words.items() if name.startswith("to_")}
    asked = {name: value for name, value in words.items() if not name.startswith("to_")}
    made = Operation(process, number, kind, "ab", 1, start * 1_000_000, asked)
    made.gave_up = gave_up
    if end is not None:
        made.end_ns, made.result = end * 1_000_000, told
    return made


def ask(
    number: int, start: int, end: int | None, verdict: str = "", effects: str = "external", **words: object
) -> Operation:
    terms = {"request": "aa", "effects": effects, "lease_us": 1_000_000, "attempts_max": 3}
    told = {"to_verdict": verdict} if end is not None else {}
    return op(number, start, end, "attempt", **{**terms, **told, **words})  # type: ignore[arg-type]


def say(number: int, start: int, end: int | None, fence: int, state: str = "succeeded", **words: object) -> Operation:
    asked = {"fence": fence, "effects": "external", "state": state, "kept": True, "answer": "a1"}
    told = {"to_settling": "settled"} if end is not None else {}
    return op(number, start, end, "settle", **{**asked, **told, **words})  # type: ignore[arg-type]


def judge(*operations: Operation, terms: Terms = NOBODY_DIED) -> type[Finding]:
    return type(linearize(select_operations(list(operations)), terms))
