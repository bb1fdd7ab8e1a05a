"""``python -m verification.history``: check the histories of real processes, or show one key of them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from semel.admin.words import Json
from semel.cli.terminal import Output
from verification.history.check import OPERATIONS_PER_KEY_MAX, REPORTED_MAX, Report, check
from verification.history.events import HistoryError
from verification.history.reading import read_history
from verification.history.timeline import timeline, violation_lines

OK, BROKEN, USAGE, UNDECIDED = 0, 1, 2, 3

EPILOG: Final = """\
examples:
  python -m verification.history check run/                 every *.history.jsonl of a folder
  python -m verification.history check run/ --json          one JSON document for machines
  python -m verification.history show run/ --key 5f0c9a     one key's operations, by the start of its hash

exit codes:
  0  every key was judged, and each behaved like one record
  1  a promise was broken; what shows it is printed
  2  a file or an argument cannot be used
  3  nothing was found broken, but some keys were too large to be judged"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    options = _parser().parse_args(arguments)
    out = Output(machine=getattr(options, "json", False))
    try:
        return int(options.run(options, out))
    except HistoryError as error:
        out.document({"error": str(error)})
        out.note(f"error: {error}")
        return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m verification.history",
        description="Judge what real processes recorded: every key must behave like one record.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    checking = commands.add_parser("check", help="judge every key, the effects and the answers")
    checking.add_argument("files", nargs="+", metavar="FILE", help="history files, or folders of them, of one run")
    checking.add_argument("--json", action="store_true", help="one JSON document instead of text")
    checking.add_argument(
        "--operations-per-key",
        type=_count,
        default=OPERATIONS_PER_KEY_MAX,
        metavar="N",
        help="do not search keys with more operations: they are undecided (default: %(default)s)",
    )
    checking.set_defaults(run=_check)
    showing = commands.add_parser("show", help="print the operations and effects of one key")
    showing.add_argument("files", nargs="+", metavar="FILE", help="history files, or folders of them, of one run")
    showing.add_argument("--key", required=True, metavar="HASH", help="the record's id in hex, or its beginning")
    showing.set_defaults(run=_show)
    return parser


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"it must be a whole number from 1; it is {text!r}")
    return value


def _check(options: argparse.Namespace, out: Output) -> int:
    history = read_history(options.files)
    started = time.monotonic()
    report = check(history, operations_per_key_max=options.operations_per_key, progress=_progress())
    seconds = time.monotonic() - started
    out.document(document(report, seconds))
    for note in report.notes:
        out.say(f"note: {note}")
    for violation in report.violations[:REPORTED_MAX]:
        out.say("", *violation_lines(violation))
    if len(report.violations) > REPORTED_MAX:
        out.say(f"... and {len(report.violations) - REPORTED_MAX} more")
    for line in report.undecided:
        out.say(f"undecided: {line}")
    out.say(summary(report, seconds))
    return BROKEN if report.violations else UNDECIDED if report.undecided else OK


def summary(report: Report, seconds: float) -> str:
    """The last line of a check."""
    found = "each behaved like one record" if report.ok else f"{len(report.violations)} violations"
    undecided = f", {len(report.undecided)} keys undecided" if report.undecided else ""
    return (
        f"{report.operations} operations ({report.unanswered} unanswered) of {report.processes} processes on "
        f"{report.keys} keys, {report.effects} effects, in {seconds:.1f} s: {found}{undecided}"
    )


def document(report: Report, seconds: float) -> dict[str, Json]:
    """A check's result for machines."""
    return {
        "ok": report.ok,
        "keys": report.keys,
        "operations": report.operations,
        "unanswered": report.unanswered,
        "effects": report.effects,
        "processes": report.processes,
        "operations_of_one_key_most": report.most_operations,
        "seconds": round(seconds, 3),
        "violations": [
            {"kind": one.kind, "key": one.key, "what": one.what, "shown": violation_lines(one)[1:]}
            for one in report.violations
        ],
        "undecided": list(report.undecided),
        "notes": list(report.notes),
    }


def _progress() -> Callable[[int, int], None] | None:
    """A counter on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        return None
    last = [time.monotonic()]

    def progress(done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] > 0.5 or done == total:
            last[0] = now
            end = "\n" if done == total else ""
            sys.stderr.write(f"\r{done} of {total} operations judged ({100 * done // max(total, 1)} %){end}")
            sys.stderr.flush()

    return progress


def _show(options: argparse.Namespace, out: Output) -> int:
    history = read_history(options.files)
    wanted = options.key.lower()
    keys = sorted(key for key in history.keys if key.startswith(wanted))
    if len(keys) != 1:
        shown = f": {', '.join(keys[:5])}" if keys else ""
        raise HistoryError(f"--key {options.key}: {len(keys)} keys begin so{shown}; name one by more of its hash")
    out.say(f"key {keys[0]}")
    out.say(*timeline(history.keys[keys[0]], [effect for effect in history.effects if effect.key == keys[0]]))
    return OK


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(OK)
