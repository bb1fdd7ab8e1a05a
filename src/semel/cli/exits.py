"""The exit codes of the command line, and the code of each failure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from semel.admin.failures import CommandFailed, NotFound, UsageFailed


class Exit(IntEnum):
    """The documented exit codes, the same for every command."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    STORE = 3
    NOT_FOUND = 4
    INTERRUPTED = 130


# The only table: `--help` prints it, and a test compares the documentation with it.
EXIT_CODES: Final[Mapping[Exit, str]] = {
    Exit.OK: "done; also where the reader closed the output early",
    Exit.REFUSED: "refused; or doctor or check found something; or an expectation of demo failed",
    Exit.USAGE: "an argument or an environment variable is wrong",
    Exit.STORE: "the store cannot be used: not reachable, not migrated, or another identity; "
    "conform: the API cannot be tested",
    Exit.NOT_FOUND: "no such record",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; "
    "what only ends so (watch, serve, worker, console, gate, proxy) ends with 0",
}
EXIT_CODES_TEXT: Final = "exit codes:\n" + "\n".join(f"  {int(code):<3}  {text}" for code, text in EXIT_CODES.items())


class SubjectUnusable(CommandFailed):
    """The subject of a command cannot be used as it is."""


def exit_of(failed: CommandFailed) -> Exit:
    """Return the exit code of a failed command.

    >>> exit_of(UsageFailed("--limit must be 1 or more")).name
    'USAGE'
    """
    for kind, code in ((UsageFailed, Exit.USAGE), (NotFound, Exit.NOT_FOUND), (SubjectUnusable, Exit.STORE)):
        if isinstance(failed, kind):
            return code
    return Exit.REFUSED
