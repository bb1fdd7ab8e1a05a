"""The entry of the `semel` command: parse, run one command, and turn every failure into one line and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, TextIO

from semel import __version__
from semel.admin.failures import CommandFailed
from semel.cli.arguments import Commands, Parser, add_globals, command_word, parse
from semel.cli.exits import EXIT_CODES_TEXT, Exit, exit_of
from semel.cli.terminal import Output
from semel.errors import ConfigurationError, IdentityMismatch, SchemaError, SemelError, StoreError

_EXAMPLES: Final = """\
examples:
  semel demo                               all of Semel in action, in under a minute
  semel serve                              the reference service on 127.0.0.1:8080
  semel list --state unknown               the commands that wait for an operator
  semel explain KEY                        the state of a key, the reason, and what helps
  semel doctor --url sqlite:///semel.db    check the store, find stuck commands

"""
# Each command and the module that declares it, in the order of `--help`. A process imports only the module of its
# command: all of them together take half a second of CPU.
MODULES: Final = {
    "migrate": "semel.cli.commands.stores.migrate",
    "serve": "semel.cli.commands.serve.serve",
    "proxy": "semel.cli.commands.serve.proxy",
    "demo": "semel.cli.commands.develop.demo",
    "config": "semel.cli.commands.stores.config",
    "list": "semel.cli.commands.records.list",
    "show": "semel.cli.commands.records.show",
    "explain": "semel.cli.commands.records.explain",
    "operation": "semel.cli.commands.records.operation",
    "settle": "semel.cli.commands.records.settle",
    "send": "semel.cli.commands.develop.send",
    "watch": "semel.cli.commands.records.watch",
    "console": "semel.cli.commands.serve.console",
    "census": "semel.cli.commands.records.census",
    "top": "semel.cli.commands.records.top",
    "metrics": "semel.cli.commands.serve.metrics",
    "size": "semel.cli.commands.stores.size",
    "bulk": "semel.cli.commands.records.bulk",
    "imports": "semel.cli.commands.records.imports",
    "purge": "semel.cli.commands.stores.purge",
    "reseal": "semel.cli.commands.stores.reseal",
    "worker": "semel.cli.commands.serve.worker",
    "events": "semel.cli.commands.records.events",
    "messages": "semel.cli.commands.records.messages",
    "doctor": "semel.cli.commands.stores.doctor",
    "check": "semel.cli.commands.develop.check",
    "gate": "semel.cli.commands.serve.gate",
    "gateway": "semel.cli.commands.serve.gateway",
    "openapi": "semel.cli.commands.develop.openapi",
    "conform": "semel.cli.commands.develop.conform",
    "export": "semel.cli.commands.stores.export",
    "move": "semel.cli.commands.stores.move",
    "completion": "semel.cli.commands.develop.completion",
}


_NAMES: Final = "|".join(sorted(MODULES, key=len, reverse=True))
_MIGRATE: Final = re.compile(r"(?<![\w.-])semel migrate(?: --url [^\s;,)\"\\]+)?(?! --)\b")


@dataclass(frozen=True, slots=True)
class Project:
    """The application whose own command line runs a command, such as ``manage.py semel list``.

    Parameters: ``source`` of the store's URL, for people; ``prefix`` of a command there; ``migrate`` the command that
    makes the tables there, None for Semel's own; ``application`` the default for commands that need one.
    """

    source: str
    prefix: str
    migrate: str | None = None
    application: str | None = None

    def reword(self, text: str) -> str:
        """Rewrite Semel's commands in a text as users type them in this project.

        >>> Project("its settings", "manage.py semel", "manage.py migrate").reword("run: semel migrate; semel list")
        'run: manage.py migrate; manage.py semel list'
        >>> Project("its settings", "manage.py semel").reword("run `semel worker --url ...`")  # its store is known
        'run `manage.py semel worker`'
        """
        if self.migrate is not None:
            text = _MIGRATE.sub(self.migrate, text)
        done = re.escape(self.prefix.removesuffix("semel"))  # the text was reworded before
        text = text.replace(" --url ...", "")
        return re.sub(rf"(?<![\w.-])(?<!{done})semel (?=(?:{_NAMES})\b)", f"{self.prefix} ", text)


def grammar(name: str | None = None) -> tuple[Parser, Commands[Parser]]:
    """Make the parser and its commands.

    Parameters: ``name`` the only command to make; None, or an unknown name, makes all of them.
    """
    parser = Parser(
        prog="semel",
        description="Semel runs a side-effecting command once, however often it is sent.",
        epilog=_EXAMPLES + EXIT_CODES_TEXT,
    )
    parser.add_argument("--version", action="version", version=f"semel {__version__}")
    add_globals(parser)
    commands: Commands[Parser] = parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=Parser)
    modules = (MODULES[name],) if name in MODULES else dict.fromkeys(MODULES.values())
    for module in modules:
        import_module(module).add(commands)
    return parser, commands


def main(argv: Sequence[str] | None = None, project: Project | None = None) -> int:
    """Run one command and return its exit code.

    Parameters: ``project`` the application that this process is part of, whose store the command uses.

    >>> main(["--url", "sqlit:///x.db", "list"])
    2
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    elsewhere = any(word == "--url" or word.startswith("--url=") for word in arguments)
    reword = None if project is None or elsewhere else project.reword  # --url: Semel's own commands
    try:
        return int(_run(arguments, Output(machine="--json" in arguments, reword=reword), project))
    except BrokenPipeError:
        # The reader of our output has closed it (`semel list | head`): end quietly, and prevent a second flush.
        for stream in (sys.stdout, sys.stderr):
            _let_go(stream)
        return Exit.OK


def _run(arguments: Sequence[str], out: Output, project: Project | None) -> int:
    try:
        parser, commands = grammar(command_word(arguments))
        options = parse(parser, commands, arguments)
        if "run" not in options:
            parser.error("a command is missing")
        options.project = project
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
        # Every command may meet a full disk behind stdout, or a folder that is gone.
        where = "the output" if error.filename is None else repr(error.filename)
        return _fail(out, f"{where} cannot be used: {error.strerror or error}", Exit.REFUSED)


def _let_go(stream: TextIO | None) -> None:
    """Redirect a stream's file, if it has one, to the null device."""
    try:
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):  # a test's stream, or a closed one: it has no file to flush into
        return


def _code(error: CommandFailed | SemelError) -> Exit:
    if isinstance(error, CommandFailed):
        return exit_of(error)
    if isinstance(error, (StoreError, SchemaError, IdentityMismatch)):
        return Exit.STORE
    return Exit.REFUSED if not isinstance(error, (ConfigurationError, ValueError)) else Exit.USAGE


def _fail(out: Output, message: str, code: Exit) -> int:
    out.document({"error": message, "exitCode": int(code)})
    out.note(f"semel: {message}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
