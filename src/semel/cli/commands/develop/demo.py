"""`semel demo`: the whole story in the terminal, for real, in under a minute."""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.commands.serve.serve import check_installed
from semel.cli.exits import Exit
from semel.cli.terminal import Output
from semel.reference.demo.stage import open_stage
from semel.reference.demo.story import Teller, tell


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "demo",
        "watch the story: double submits, a changed payload, kills in the middle, a reconciler, bulk, events",
        "semel demo\nsemel demo --json",
        "Starts the real service on a free loopback port with a temporary folder, and removes both. It uses no store "
        "of yours. Exit code 1 where anything was not as promised.",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Tell the story, and report whether everything was as promised."""
    check_installed()
    from semel.reference.demo.effects import tell as tell_effects  # only demo needs engines and workers

    started = time.monotonic()
    teller = Teller(out)
    with tempfile.TemporaryDirectory(prefix="semel-demo-") as folder, open_stage(Path(folder)) as stage:
        out.say(f"The reference service runs on {stage.url}: real processes, a real SQLite file, real HTTP.")
        tell(stage, teller)
        tell_effects(stage, teller)
    seconds = round(time.monotonic() - started, 1)
    failed = teller.list_failed()
    out.document({"held": not failed, "seconds": seconds, "steps": [asdict(step) for step in teller.steps]})
    out.say("")
    if failed:
        out.say_styled("red", f"Not as promised ({seconds} s): {'; '.join(failed)}")
        return Exit.REFUSED
    out.say_styled("green", f"Everything was as promised ({seconds} s).")
    return Exit.OK
