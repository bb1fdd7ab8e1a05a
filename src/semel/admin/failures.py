"""The failures of an operator's command, for the command line, the console and Django's admin alike."""

from __future__ import annotations


class CommandFailed(Exception):
    """A command failed. The message names the argument and the remedy."""


class UsageFailed(CommandFailed):
    """An argument or a variable is wrong."""


class NotFound(CommandFailed):
    """There is no such record."""
