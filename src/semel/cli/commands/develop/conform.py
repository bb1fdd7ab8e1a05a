"""`semel conform`: test any HTTP API's handling of ``Idempotency-Key``. The checks are in ``semel.conform``."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from semel.admin.failures import CommandFailed, UsageFailed
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit, SubjectUnusable
from semel.cli.progress import ProgressLine, add_progress
from semel.cli.terminal import Output

PROFILES: Final = ("draft-07", "stripe", "semel")
AT_ONCE: Final = 8  # as semel.conform.order has it


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "conform",
        "test how any HTTP API, in any language, handles its Idempotency-Key",
        "semel conform http://127.0.0.1:8000 --case payments.toml\n"
        "semel conform http://127.0.0.1:8000 --case payments.toml --profile stripe --level must\n"
        "semel conform http://127.0.0.1:8000 --case payments.toml --only race --junit out.xml --html out.html",
        "The case file describes how to send a valid request and how to count its effects (docs/conformance.md). The "
        "checks send many requests, some of them invalid; an address that is neither loopback nor private therefore "
        "needs --i-own-this-api. Exit code 1 where a must or should failed, 3 where the API cannot be tested.",
    )
    parser.add_argument("target", metavar="URL", help="the API's base, such as http://127.0.0.1:8000")
    parser.add_argument("--case", required=True, metavar="FILE", help="the case file (TOML)")
    parser.add_argument(
        "--profile", choices=PROFILES, default="draft-07", help="the expected behaviour (default: draft-07)"
    )
    parser.add_argument(
        "--level", default="must,should,best", metavar="LEVELS", help="which levels are run (default: must,should,best)"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="CHECK", help="a check, or a group such as race; may be repeated"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=AT_ONCE,
        metavar="N",
        help=f"how many checks run at the same time where they do not disturb each other (default: {AT_ONCE})",
    )
    parser.add_argument("--junit", metavar="FILE", help="write a JUnit file")
    parser.add_argument("--markdown", metavar="FILE", help="write a page in Markdown")
    parser.add_argument("--html", metavar="FILE", help="write a page in HTML")
    parser.add_argument("--all", action="store_true", help="also print a line for each passed check")
    parser.add_argument(
        "--i-own-this-api", dest="own_api", action="store_true", help="test an address that is not private, too"
    )
    add_progress(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Run the checks and write the reports."""
    from semel.conform import CannotRun, CaseError, Report, Selection, conform, load_case

    forms: dict[str, Callable[[Report], str]] = {
        "junit": Report.junit,
        "markdown": Report.markdown,
        "html": Report.html,
    }
    files = {name: Path(path) for name in forms if (path := getattr(options, name)) is not None}
    for name, file in files.items():  # before the requests: the report would be lost after minutes
        if file.is_dir() or not file.parent.is_dir():
            raise UsageFailed(f"--{name} {file} must be a file in a folder that exists")
    selection = Selection(options.profile, _words(options.level), options.only)
    try:
        total = len(selection.checks())
        case = load_case(options.case)
    except (CaseError, ValueError) as error:
        raise UsageFailed(str(error)) from None
    progress = ProgressLine("conform", asked=options.progress, total=total)
    try:
        report = asyncio.run(
            conform(
                options.target,
                case,
                selection,
                own_api=options.own_api,
                at_once=options.at_once,
                tell=lambda done, _, name: progress.tell(done, name),
            )
        )
    except CannotRun as error:
        raise SubjectUnusable(str(error)) from None
    except ValueError as error:
        raise UsageFailed(str(error)) from None
    finally:
        progress.end()
    for style, line in report.lines(every=options.all):
        out.say_styled(style, line) if style else out.say(line)
    for name, file in files.items():
        try:
            file.write_text(forms[name](report), "utf-8")
        except OSError as error:
            raise CommandFailed(f"--{name} {file} cannot be written: {error.strerror}") from None
    out.document(report.document())
    return Exit.OK if report.ok else Exit.REFUSED


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
