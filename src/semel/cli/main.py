"""The entry of the `semel` command: parse, run one command, and turn every failure into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from semel import __version__
from semel.cli.arguments import Commands, Parser, add_globals, command_word, parse
from semel.cli.commands import (
    bulk,
    completion,
    console,
    doctor,
    gate,
    gateway,
    metrics,
    openapi,
    purge,
    records,
    reseal,
    size,
    top,
)
from semel.cli.commands import check as checking
from semel.cli.commands import config as configuring
from semel.cli.commands import conform as conforming
from semel.cli.commands import events as eventing
from semel.cli.commands import explain as explaining
from semel.cli.commands import export as exporting
from semel.cli.commands import imports as importing
from semel.cli.commands import messages as messaging
from semel.cli.commands import migrate as schema
from semel.cli.commands import move as moving
from semel.cli.commands import operation as operating
from semel.cli.commands import proxy as proxying
from semel.cli.commands import send as sending
from semel.cli.commands import settle as settling
from semel.cli.commands import watch as watching
from semel.cli.commands import worker as working
from semel.cli.exits import EXIT_CODES_TEXT, CommandFailed, Exit
from semel.cli.terminal import Output
from semel.errors import ConfigurationError, IdentityMismatch, SchemaError, SemelError, StoreError
from semel.reference import demo, serving

_EXAMPLES: Final = """\
examples:
  semel demo                               all of Semel in action, in under a minute
  semel serve                              the reference service on 127.0.0.1:8080
  semel list --state unknown               the commands that wait for an operator
  semel explain KEY                        the state of a key, the reason, and what helps
  semel doctor --url sqlite:///semel.db    check the store, find stuck commands

"""
# One line a command, in the order of `--help`.
_GROUPS: Final = (
    schema,
    serving,
    proxying,
    demo,
    configuring,
    records,
    explaining,
    operating,
    settling,
    sending,
    watching,
    console,
    top,
    metrics,
    size,
    bulk,
    importing,
    purge,
    reseal,
    working,
    eventing,
    messaging,
    doctor,
    checking,
    gate,
    gateway,
    openapi,
    conforming,
    exporting,
    moving,
    completion,
)


_ASKED_OFTEN: Final = {"census": top, "top": top}  # by scripts: parsed without the other commands, in half the time


def grammar(name: str | None = None) -> tuple[Parser, Commands[Parser]]:
    """The parser and its commands.

    Parameters: ``name`` the command that is asked for: some are parsed without the others.
    """
    parser = Parser(
        prog="semel",
        description="Semel runs a side-effecting command once, however often it is sent.",
        epilog=_EXAMPLES + EXIT_CODES_TEXT,
    )
    parser.add_argument("--version", action="version", version=f"semel {__version__}")
    add_globals(parser)
    commands: Commands[Parser] = parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=Parser)
    groups = (_ASKED_OFTEN[name],) if name in _ASKED_OFTEN else _GROUPS
    for group in groups:
        group.add(commands)
    return parser, commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code.

    >>> main(["--url", "sqlit:///x.db", "list"])
    2
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return int(_run(arguments, Output(machine="--json" in arguments)))
    except BrokenPipeError:
        # Whoever read us has gone (`semel list | head`): end quietly, and keep the interpreter from flushing again.
        for stream in (sys.stdout, sys.stderr):
            _let_go(stream)
        return Exit.OK


def _run(arguments: Sequence[str], out: Output) -> int:
    try:
        parser, commands = grammar(command_word(arguments))
        options = parse(parser, commands, arguments)
        if "run" not in options:
            parser.error("a command is missing")
        code: int = options.run(options, out)
        return code
    except SystemExit as end:  # --help and --version
        return int(end.code or 0)
    except (CommandFailed, SemelError) as error:
        return _fail(out, str(error), _code(error))
    except KeyboardInterrupt:
        return _fail(out, "interrupted", Exit.INTERRUPTED)
    except BrokenPipeError:
        raise
    except OSError as error:
        # What every command may meet: a full disk behind stdout, a folder that is gone.
        where = "the output" if error.filename is None else repr(error.filename)
        return _fail(out, f"{where} cannot be used: {error.strerror or error}", Exit.REFUSED)


def _let_go(stream: TextIO | None) -> None:
    """Point a stream's file at nothing, where it has one."""
    try:
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):  # a stream of a test, or closed already: there is nothing to flush into
        return


def _code(error: CommandFailed | SemelError) -> Exit:
    if isinstance(error, CommandFailed):
        return error.code
    if isinstance(error, (StoreError, SchemaError, IdentityMismatch)):
        return Exit.STORE
    return Exit.REFUSED if not isinstance(error, (ConfigurationError, ValueError)) else Exit.USAGE


def _fail(out: Output, message: str, code: Exit) -> int:
    out.document({"error": message, "exitCode": int(code)})
    out.note(f"semel: {message}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
