"""`semel messages`: list messages that consumers did not handle or that are parked; release one for redelivery."""

from __future__ import annotations

import argparse
from typing import Any, Final

from semel.admin.describe import time_text
from semel.admin.failures import NotFound, UsageFailed
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output
from semel.core.timing import span_text
from semel.inbox.store import InboxRows, Tried

LIMIT_MAX: Final = 1000
_HEADS: Final = ("CONSUMER", "MESSAGE ID", "TRIES", "STATE", "REASON")


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "messages",
        "list the messages that consumers tried but did not handle; release a parked message",
        "semel messages\n"
        "semel messages --parked --json\n"
        "semel messages --consumer billing --limit 10\n"
        "semel messages release order-7-placed --consumer billing",
        "A parked message failed too often, or is poison. Release it after you have fixed the cause: its tries are "
        "reset and the next delivery is handled. Its broker has acknowledged it, so publish it again there.",
    )
    parser.add_argument("action", nargs="?", choices=("list", "release"), default="list")
    parser.add_argument("id", nargs="?", metavar="MESSAGE_ID", help="of release")
    parser.add_argument("--consumer", help="only this consumer's messages; release needs it")
    parser.add_argument("--parked", action="store_true", help="list parked messages alone")
    parser.add_argument(
        "--limit", type=whole_number(1, LIMIT_MAX), default=50, help=f"at most so many (default 50, up to {LIMIT_MAX})"
    )
    parser.add_argument(
        "--after",
        nargs=2,
        metavar=("CONSUMER", "MESSAGE_ID"),
        default=("", ""),
        help="the next page: the last message of the previous one",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """List the messages, or release one."""
    if options.action == "release":
        return _release(options, out)
    if options.id is not None:
        raise UsageFailed("semel messages list takes no MESSAGE_ID")
    with open_store(options) as engine:
        rows = InboxRows(engine.store, options.consumer or "", 1, 0)
        backlog = engine.perform("inbox", rows.backlog)
        page = engine.perform("inbox", lambda: rows.open(tuple(options.after), options.limit, parked=options.parked))
    more = list(page[-1][:2]) if len(page) == options.limit else None
    out.document(
        {
            "tried": backlog.tried,
            "parked": backlog.parked,
            "messages": [message_document(each) for each in page],
            "nextAfter": more,
        }
    )
    oldest = f", the first for {span_text(backlog.parked_us)}" if backlog.parked else ""
    out.say(f"{backlog.tried} tried and not handled yet; {backlog.parked} parked{oldest}")
    if page:
        out.table(_HEADS, [_row(each) for each in page])
    if more is not None:
        out.say(f"there may be more: --after {more[0]!r} {more[1]!r}")
    return Exit.OK


def _release(options: argparse.Namespace, out: Output) -> int:
    if not options.id or not options.consumer:
        raise UsageFailed("semel messages release needs a MESSAGE_ID and its --consumer, as semel messages lists them")
    with open_store(options) as engine:
        rows = InboxRows(engine.store, options.consumer, 1, 0)
        if not engine.perform("inbox", lambda: rows.release(options.id)):
            raise NotFound(
                f"no message {options.id!r} of consumer {options.consumer!r} waits: it was handled, or never tried; "
                "see semel messages"
            )
    out.document({"consumer": options.consumer, "messageId": options.id, "action": "release"})
    out.say(f"{options.id}: released; the next delivery is handled. Its broker has acknowledged it: publish it again")
    return Exit.OK


def message_state(each: Tried) -> str:
    if each.damage is not None:
        return "damaged" if each.parked_at is None else "damaged, parked"
    return "tried" if each.parked_at is None else "parked"


def _row(each: Tried) -> tuple[str, ...]:
    return each.consumer, each.message_id, str(each.tries), message_state(each), each.damage or each.reason or ""


def message_document(each: Tried) -> dict[str, Any]:
    return {
        "consumer": each.consumer,
        "messageId": each.message_id,
        "tries": each.tries,
        "state": message_state(each),
        "parkedAt": time_text(each.parked_at),
        "reason": each.reason,
        "damage": each.damage,
    }
