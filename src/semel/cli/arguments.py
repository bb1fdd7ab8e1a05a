"""The command line's parser. Its errors name the argument, give the remedy and suggest a spelling."""

from __future__ import annotations

import argparse
import difflib
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from semel.admin.failures import UsageFailed


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of exiting, and shows its examples as they were written."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)  # a new option could change the meaning of an abbreviation
        super().__init__(*args, **options)

    def error(self, message: str) -> NoReturn:
        """Raise UsageFailed with the message and where to read on."""
        raise UsageFailed(f"{message} (see {self.prog} --help)")

    def spellings(self) -> list[str]:
        """Return every option that this parser knows."""
        return list(self._option_string_actions)


Commands = argparse._SubParsersAction  # argparse has no public name for it


def add_command(commands: Commands[Parser], name: str, summary: str, examples: str, description: str = "") -> Parser:
    """Add a command with the global options, its help and its examples."""
    lines = "\n".join(f"  {line}" for line in examples.strip().splitlines())
    parser = commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(
            f"{summary[0].upper()}{summary[1:]}.{' ' + description if description else ''}",
            max(40, shutil.get_terminal_size().columns - 2),
            break_on_hyphens=False,
        ),
        epilog=f"examples:\n{lines}\n\nexit codes: see semel --help",
    )
    add_globals(parser)
    return parser


def add_globals(parser: argparse.ArgumentParser) -> None:
    """Declare ``--url`` and ``--json``, which may come before or after the command."""
    parser.add_argument(
        "--url",
        default=argparse.SUPPRESS,
        help="the store, such as postgresql://app@host/shop, mysql://, redis:// or sqlite:///semel.db "
        "(default: $SEMEL_URL, or else sqlite:///semel.db); see docs/stores.md",
    )
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document instead of text"
    )


def parse(parser: Parser, commands: Commands[Parser], arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments. Raises UsageFailed, with the spelling that was probably meant."""
    name = command_word(arguments)
    if name is not None and name not in commands.choices:
        raise UsageFailed(f"unknown command {name!r}{near(name, list(commands.choices))} (see semel --help)")
    own = commands.choices[name] if name is not None else parser
    for word in arguments:
        option, _, value = word.partition("=")
        if value == "--" and option.startswith("--"):  # whether argparse drops it depends on Python's version
            own.error(f"argument {option}: expected one argument, not '--'")
    options, extra = parser.parse_known_args(arguments)
    _check_texts(own, options)
    if extra:
        if extra[0].startswith("-"):
            own.error(f"unknown option {extra[0]!r}{near(extra[0], own.spellings())}")
        own.error(f"one argument too many: {extra[0]!r}")
    return options


_STORES: Final = ("url", "store", "source", "target")  # URLs that may name a file


def _check_texts(own: Parser, options: argparse.Namespace) -> None:
    """Refuse bytes that are not valid in the terminal's encoding: no store takes them. A file's name may have them."""
    for action in own._actions:
        value = getattr(options, action.dest, None)
        if action.dest in _STORES or "FILE" in str(action.metavar):
            continue
        if any(isinstance(text, str) and not _is_text(text) for text in (value if type(value) is list else (value,))):
            name = "/".join(action.option_strings) or action.metavar or action.dest
            own.error(f"argument {name}: must be valid text in the terminal's encoding")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def near(word: str, known: Sequence[str]) -> str:
    """Return `; did you mean …?`, or the list of choices."""
    bare = {name.lstrip("-"): name for name in known}  # without the dashes, which make all options look similar
    found = difflib.get_close_matches(word.split("=", 1)[0].lstrip("-"), bare, n=1)
    if found:
        return f"; did you mean {bare[found[0]]!r}?"
    return "" if word.startswith("-") else f"; known are {', '.join(known)}"


def command_word(arguments: Sequence[str]) -> str | None:
    """Return the command among the arguments; None where there is none, or where `--help` comes before it."""
    words = iter(arguments)
    for word in words:
        if word == "--url":
            next(words, None)
        elif word in ("-h", "--help"):
            return None
        elif not word.startswith("-"):
            return word
    return None


def host_and_port(text: str) -> tuple[str, int]:
    """Parse a port, or HOST:PORT; the host is 127.0.0.1 by default."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port[:6]) > 65_535:
        raise argparse.ArgumentTypeError(f"must be a port or HOST:PORT, such as 9464 or 0.0.0.0:9464, not {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def add_listening(parser: Parser) -> None:
    """Declare the options of a command in front of a service: the service's address, and where to listen."""
    parser.add_argument("--upstream", metavar="URL", help="the service, such as http://127.0.0.1:3000")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default 127.0.0.1)")
    parser.add_argument("--port", type=whole_number(0, 65535), default=8080, help="default 8080; 0: any free port")
    parser.add_argument(
        "--health",
        metavar="[HOST:]PORT",
        type=host_and_port,
        help="answer GET /livez and /readyz there, for a supervisor's probes (HOST: 127.0.0.1)",
    )


def whole_number(low: int, high: int) -> Any:
    """Return an argument type: a whole number within limits."""

    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text[:20]) <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}, not {text!r}")
        return int(text)

    return convert


def seconds(low: float, high: float) -> Any:
    """Return an argument type: a number of seconds within limits."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not low <= value <= high:  # also refuses NaN
            raise argparse.ArgumentTypeError(f"must be a number of seconds from {low:g} to {high:g}, not {text!r}")
        return value

    return convert
