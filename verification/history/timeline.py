"""A key's operations as people read them: one line each, in the order they began."""

from __future__ import annotations

from collections.abc import Iterable

from verification.history.check import Violation
from verification.history.reading import NEVER, Effect, Operation


def timeline(operations: Iterable[Operation], effects: Iterable[Effect] = ()) -> list[str]:
    """Lines with times in milliseconds since the first operation began."""
    shown: list[tuple[int, str, str]] = [(op.start_ns, _end(op), _words(op)) for op in operations]
    shown += [(effect.at_ns, "", _effect_words(effect)) for effect in effects]
    if not shown:
        return []
    shown.sort()
    zero = shown[0][0]
    return [f"{(start - zero) / 1e6:>12.3f} ms  {end:>14}  {words}" for start, end, words in shown]


def _end(op: Operation) -> str:
    return "no answer" if op.end_ns == NEVER else f"+{(op.end_ns - op.start_ns) / 1e6:.3f}"


def _words(op: Operation) -> str:
    asked = " ".join(f"{name}={value}" for name, value in op.args.items() if name not in ("lease_us", "attempts_max"))
    if op.result is not None:
        told = " ".join(str(value) if name in _NAMED else f"{name}={value}" for name, value in op.result.items())
    else:
        told = f"gave up: {op.gave_up}" if op.gave_up else "never told"
    return f"{op.process}/{op.by}  {op.kind:<8} {asked}  →  {told}"


_NAMED = frozenset({"verdict", "settling", "resolving"})


def _effect_words(effect: Effect) -> str:
    derived = f" derived={effect.derived}" if effect.derived else ""
    return f"{'':<24}EFFECT   {effect.effects} generation={effect.generation}{derived} answer={effect.answer}"


def violation_lines(violation: Violation) -> list[str]:
    """A violation with the operations that show it."""
    head = f"{violation.kind}: key {violation.key}: {violation.what}"
    return [head, *(f"  {line}" for line in timeline(violation.operations, violation.effects))]
