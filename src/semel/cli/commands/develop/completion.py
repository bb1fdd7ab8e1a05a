"""`semel completion`: the script that completes this command line in bash, zsh or fish.

shtab makes the scripts from the parser itself, so that they know every option of this version. Making a script
needs shtab; using it needs neither shtab nor Python.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from semel.admin.failures import CommandFailed
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit
from semel.cli.terminal import Output
from semel.core.model import State
from semel.extras import install_command

SHELLS: Final = ("bash", "zsh", "fish")


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "completion",
        "print the script that completes semel's commands and options in a shell",
        "semel completion bash > ~/.local/share/bash-completion/completions/semel\n"
        'eval "$(semel completion bash)"              for this shell only\n'
        "semel completion zsh > ~/.zfunc/_semel          with fpath+=~/.zfunc before compinit\n"
        "semel completion fish > ~/.config/fish/completions/semel.fish",
        "Uses shtab (in the extra `cli`), which is not needed afterwards. Run it again after an upgrade.",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Print the script."""
    text = script(options.shell)
    out.document({"shell": options.shell, "script": text})
    if not out.machine:
        out.raw(text)
        out.flush()
    return Exit.OK


def script(shell: str) -> str:
    """Make the completion script of a shell. Raises CommandFailed where shtab is missing."""
    try:
        import shtab
    except ImportError:
        raise CommandFailed(f"making a completion script needs shtab; install it: {install_command('cli')}") from None
    from semel.cli.main import grammar  # which knows every command, this one too

    parser, commands = grammar()
    for each in (parser, *commands.choices.values()):
        # A menu has room only for the first sentence.
        each.description = (each.description or "").partition(". ")[0].rstrip(".")
        for action in each._actions:
            _teach(action, shtab)
    text: str = shtab.complete(parser, shell=shell)
    return text if text.endswith("\n") else f"{text}\n"


def _teach(action: Any, shtab: Any) -> None:
    """Teach the parser which arguments are files, and the names of the states."""
    if action.metavar == "FILE":
        action.complete = shtab.FILE
    elif action.dest == "state":
        action.choices = [state.name.lower() for state in State]
