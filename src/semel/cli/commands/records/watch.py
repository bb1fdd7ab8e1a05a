"""`semel watch`: the store as it changes. Redraws a terminal; prints a line for each look anywhere else."""

from __future__ import annotations

import argparse
import time
from typing import Final

from semel.admin.snapshot import Look, change, document, line, look, screen
from semel.cli.arguments import Commands, Parser, add_command, seconds, whole_number
from semel.cli.exits import Exit
from semel.cli.open_store import hide_password, open_store, url_of
from semel.cli.terminal import Output
from semel.errors import ConfigurationError, StoreError

REST_PER_LOOK: Final = 10  # looks take at most a tenth of the time, so a large store is counted less often
EVERY_SECONDS: Final = 2.0


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "watch",
        "watch states, new and settled records, and stuck or unknown ones",
        "semel watch\nsemel watch --every 10\nsemel watch --count 2 --every 60 --json",
        "Ends with Ctrl-C. Reports a store that becomes unavailable, and waits for it. A store does not record "
        "replays; count the `replays` event. After a slow look, the next one waits ten times as long.",
    )
    parser.add_argument(
        "--every", type=seconds(0.1, 3600), default=EVERY_SECONDS, help=f"seconds between looks ({EVERY_SECONDS:.0f})"
    )
    parser.add_argument("--count", type=whole_number(1, 10**9), help="end after this many looks (default: never)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Look until Ctrl-C, or ``--count`` times."""
    try:
        return _watch(options, out)
    except KeyboardInterrupt:
        out.say("")  # the terminal's ^C gets its own line
        return Exit.OK


def _watch(options: argparse.Namespace, out: Output) -> int:
    before: Look | None = None
    lost = False
    looks = 0
    while True:
        begun = time.monotonic()
        try:
            with open_store(options) as engine:  # open the store again for each look: its file may have been replaced
                seen = look(engine, before)
        except (StoreError, ConfigurationError) as error:
            if looks == 0:
                raise  # no look ever found a store: the URL is wrong, nothing was lost
            lost, before = True, None
            _tell_lost(out, str(error))
        else:
            if lost:
                _tell(out, "the store answers again")
            lost = False
            _show(options, out, before, seen)
            before = seen
        looks += 1
        if looks == options.count:
            return Exit.STORE if lost else Exit.OK
        took = time.monotonic() - begun
        rest(max(options.every - took, took * REST_PER_LOOK))


def rest(seconds: float) -> None:
    """Wait; Ctrl-C ends it at once."""
    time.sleep(seconds)


def _show(options: argparse.Namespace, out: Output, before: Look | None, seen: Look) -> None:
    changed = change(before, seen)
    out.document(document(seen, changed))
    if out.on_terminal:
        head = f"semel watch  {hide_password(url_of(options))}  every {options.every:g} s, Ctrl-C ends"
        out.redraw(screen(seen, changed, head))
    else:
        if before is not None and changed is None:
            out.say("this URL now leads to a different store")
        out.say(line(seen, changed))


def _tell_lost(out: Output, message: str) -> None:
    out.document({"error": message})
    _tell(out, f"the store does not answer: {message}")


def _tell(out: Output, text: str) -> None:
    if out.on_terminal:
        out.redraw([text])
    else:
        out.say(text)
