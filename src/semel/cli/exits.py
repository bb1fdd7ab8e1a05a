"""How a command of the command line ends: its exit codes, and the errors that carry them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """The documented exit codes, the same for every command."""

    OK = 0
    REFUSED = 1  # a refusal, a finding of `doctor`, an expectation of `demo` that failed
    USAGE = 2  # an argument or a variable is wrong
    STORE = 3  # the store cannot be used: not reachable, not migrated, another identity
    NOT_FOUND = 4  # no such record
    INTERRUPTED = 130


EXIT_CODES_TEXT: Final = """\
exit codes:
  0  done
  1  refused, or something was found (doctor), or an expectation failed (demo)
  2  an argument or an environment variable is wrong
  3  the store cannot be used: not reachable, not migrated, or another identity
  4  no such record"""


class CommandFailed(Exception):
    """A command cannot do what was asked. The message names the argument and the remedy."""

    code = Exit.REFUSED


class UsageFailed(CommandFailed):
    """An argument or a variable is wrong."""

    code = Exit.USAGE


class NotFound(CommandFailed):
    """There is no such record."""

    code = Exit.NOT_FOUND
