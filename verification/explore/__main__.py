"""``python -m verification.explore``: explore the protocol whole, and show that unsafe variants of it are refused."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from verification.explore import MODES, VARIANTS, Explored, explore

EXAMPLES = """\
examples:
  python -m verification.explore                    every mode of the real rules
  python -m verification.explore external atomic    two of them
  python -m verification.explore --unsafe           every unsafe variant, each with its shortest counterexample
  python -m verification.explore --list             what there is
  python -m verification.explore --json             for machines

exit codes: 0 everything holds (with --unsafe: every variant was refused), 1 it does not, 2 a wrong argument
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    given = _arguments(arguments)
    if given.list:
        return _list()
    found = _explore_variants(given) if given.unsafe else _explore_modes(given)
    bad = [one for one, good in found if not good]
    if given.json:
        lines = [asdict(one) | {"good": good} for one, good in found]
        sys.stdout.write(json.dumps(lines, indent=2) + "\n")
    else:
        states, transitions = (sum(getattr(one, name) for one, _ in found) for name in ("states", "transitions"))
        sys.stdout.write(f"{len(found)} explored: {states:,} states, {transitions:,} transitions, {len(bad)} bad\n")
    return 1 if bad else 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m verification.explore",
        description="Explore every state of the protocol under crashes, losses, time and operators.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="modes, or with --unsafe variants (default: all)")
    parser.add_argument("--unsafe", action="store_true", help="explore the unsafe variants: each must be refused")
    parser.add_argument("--list", action="store_true", help="list modes and variants")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(arguments)
    known = [variant.name for variant in VARIANTS] if given.unsafe else [mode.name for mode in MODES]
    unknown = sorted(set(given.names) - set(known))
    if unknown:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(known)}")
    return given


def _list() -> int:
    for mode in MODES:
        sys.stdout.write(f"mode     {mode.name:<26}{mode.workers} workers, {mode.left}\n")
    for variant in VARIANTS:
        sys.stdout.write(f"variant  {variant.name:<26}{variant.does} (breaks {variant.breaks})\n")
    return 0


def _explore_modes(given: argparse.Namespace) -> list[tuple[Explored, bool]]:
    found = []
    for mode in MODES:
        if not given.names or mode.name in given.names:
            one = explore(mode)
            found.append((one, one.whole))
            _show(one, "whole" if one.whole else "BROKEN", given)
    return found


def _explore_variants(given: argparse.Namespace) -> list[tuple[Explored, bool]]:
    found = []
    for variant in VARIANTS:
        if not given.names or variant.name in given.names:
            with variant.patch():
                one = explore(variant.make_mode())
            one.mode = f"{variant.name} ({one.mode})"
            refused = one.violation is not None and one.violation.invariant == variant.breaks
            found.append((one, refused))
            _show(one, "refused" if refused else "NOT REFUSED", given)
    return found


def _show(one: Explored, how: str, given: argparse.Namespace) -> None:
    if given.json:
        return
    sys.stdout.write(
        f"{one.mode:<38}{one.states:>9,} states{one.transitions:>11,} transitions"
        f"{one.depth:>5} deep{one.seconds:>8.1f} s  {how}\n"
    )
    if one.violation is not None:
        sys.stdout.write(f"    {one.violation.invariant}: {one.violation.why}\n")
        for number, label in enumerate(one.violation.trace, start=1):
            sys.stdout.write(f"    {number:>3}. {label}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
