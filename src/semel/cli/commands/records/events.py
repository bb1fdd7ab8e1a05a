"""`semel events`: list waiting and parked events; retry, park or drop them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from semel.admin.failures import NotFound, UsageFailed
from semel.admin.receivers import Behind, enable_endpoints, receivers_behind
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output
from semel.core.flow import Flow
from semel.core.identity import uuid_bytes, uuid_text
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine
from semel.outbox.event import Waiting
from semel.outbox.store import Events
from semel.stores.sql.dialect import dialect_of

LIMIT_MAX: Final = 1000
PLACE_MAX: Final = 2**63 - 1
_HEADS: Final = ("PLACE", "ID", "TOPIC", "AGGREGATE", "TRIES", "STATE", "REASON")
_RECEIVER_HEADS: Final = ("RECEIVER", "WAITING", "OLDEST", "PARKED", "REASON")
_DONE: Final = {"park": "parked", "retry": "will be retried", "drop": "no more attempts"}


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "events",
        "list the events that wait in the outbox; park, retry or drop an event",
        "semel events\n"
        "semel events --parked --json\n"
        "semel events retry 0b1f0f2e-6c59-8d1e-9a34-5f1d7c1c2f10\n"
        "semel events park 0b1f0f2e-6c59-8d1e-9a34-5f1d7c1c2f10 --reason 'the schema is wrong'\n"
        "semel events drop 0b1f0f2e-6c59-8d1e-9a34-5f1d7c1c2f10\n"
        "semel events drop 17\n"
        "semel events --by-topic\n"
        "semel events retry --topic receiver.shop\n"
        "semel events enable --topic receiver.shop\n"
        "semel events replay --to shop --receivers receivers.toml --since 2026-11-20",
        "Payloads are not shown. A parked event blocks the later events of its aggregate, unless the workers run with "
        "--parked skip. A dropped event is never published. The id of a damaged event may be unreadable: name it by "
        "its PLACE.",
    )
    parser.add_argument(
        "action", nargs="?", choices=("list", "park", "retry", "drop", "enable", "replay"), default="list"
    )
    parser.add_argument("id", nargs="?", metavar="EVENT_ID", help="for park, retry and drop: the event's id or place")
    parser.add_argument("--parked", action="store_true", help="list parked events alone")
    parser.add_argument("--reason", help="why it is parked")
    parser.add_argument(
        "--topic",
        help="list only this topic; for retry, drop and enable without an EVENT_ID: all parked events of this topic",
    )
    parser.add_argument(
        "--to",
        metavar="RECEIVER",
        help=(
            "for replay: the receiver to send to; it gets the published events that it never received, as far as the "
            "outbox still has them"
        ),
    )
    parser.add_argument("--receivers", metavar="FILE", help="for replay: the file that declares the receiver")
    parser.add_argument(
        "--since",
        type=_moment,
        metavar="WHEN",
        help="for replay: events from this time on, such as 2026-11-20T08:00Z (UTC)",
    )
    parser.add_argument(
        "--late",
        action="store_true",
        help="for replay: also send events that would arrive out of order within their aggregate",
    )
    parser.add_argument(
        "--by-topic", action="store_true", help="how many events of each topic wait, the slowest topic first"
    )
    parser.add_argument(
        "--limit", type=whole_number(1, LIMIT_MAX), default=50, help=f"at most so many (default 50, up to {LIMIT_MAX})"
    )
    parser.add_argument(
        "--after", type=whole_number(0, PLACE_MAX), default=0, help="the next page: start where the previous one ended"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """List the events, or run an action on them."""
    if options.action == "list":
        if options.id is not None:
            raise UsageFailed("semel events list takes no EVENT_ID")
        return _by_topic(options, out) if options.by_topic else _list(options, out)
    if options.action == "replay":
        return _replay(options, out)
    if options.action == "enable":
        return _enable(options, out)
    if options.topic is not None and options.id is None and options.action in ("retry", "drop"):
        return _all_of(options, out)
    if options.action == "park" and not options.reason:
        raise UsageFailed("semel events park needs a --reason: an operator who finds it parked must know why")
    event = _parse_name(options.action, options.id)
    with open_store(options) as engine:
        events = Events(dialect_of(engine.store, "events"))
        flows: dict[str, Callable[[], Flow[bool]]] = {
            "park": lambda: events.park(event, options.reason),
            "retry": lambda: events.retry(event),
            "drop": lambda: events.drop(event),
        }
        if not engine.perform("events", flows[options.action]):
            wanted = "waits" if options.action == "park" else "is parked"
            named = f"event {event}" if isinstance(event, str) else f"event at place {event}"
            raise NotFound(f"no {named} {wanted}; see semel events")
    out.document({"id" if isinstance(event, str) else "place": event, "action": options.action})
    out.say(f"{event}: {_DONE[options.action]}")
    return Exit.OK


def _by_topic(options: argparse.Namespace, out: Output) -> int:
    with open_store(options) as engine:
        events = Events(dialect_of(engine.store, "events"))
        found = engine.perform("events", lambda: events.topics(options.limit))
    out.document(
        {
            "topics": [
                {"topic": topic, "waiting": of.waiting, "parked": of.parked, "oldestSeconds": of.oldest_us / 1_000_000}
                for topic, of in found
            ]
        }
    )
    if not found:
        out.say("nothing waits, and nothing is parked")
    else:
        rows = [
            (topic, str(of.waiting), span_text(of.oldest_us) if of.waiting else "", str(of.parked))
            for topic, of in found
        ]
        out.table(("TOPIC", "WAITING", "OLDEST", "PARKED"), rows)
    return Exit.OK


def _all_of(options: argparse.Namespace, out: Output) -> int:
    """Retry or drop every parked event of one topic, a page at a time."""
    count, after = 0, 0
    with open_store(options) as engine:
        events = Events(dialect_of(engine.store, "events"))
        change = events.retry if options.action == "retry" else events.drop
        while page := engine.perform("events", partial(events.find, after, 500, parked=True, topic=options.topic)):
            for each in page:
                count += engine.perform("events", partial(change, each.seq))
            after = page[-1].seq
    if not count:
        raise NotFound(f"no event of the topic {options.topic!r} is parked; see semel events --by-topic")
    out.document({"topic": options.topic, "action": options.action, "events": count})
    out.say(f"{options.topic}: {count} {_DONE[options.action]}")
    return Exit.OK


def _enable(options: argparse.Namespace, out: Output) -> int:
    """Enable webhook endpoints that have answered 410 Gone."""
    if options.id is not None:
        raise UsageFailed("semel events enable takes no EVENT_ID: --topic receiver.NAME, or nothing for every endpoint")
    with open_store(options) as engine:
        count = enable_endpoints(engine, options.topic)
    if not count:
        of = "" if options.topic is None else f" of the topic {options.topic!r}"
        raise NotFound(f"no endpoint{of} is disabled; see semel events")
    out.document({"topic": options.topic, "action": "enable", "events": count})
    out.say(f"enabled: {count} {_DONE['retry']}")
    return Exit.OK


def _moment(text: str) -> int:
    """Convert a time in ISO 8601 (UTC if it names no zone) to µs since 1970."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; write it as 2026-11-20 or 2026-11-20T08:00Z"
        ) from None
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def _replay(options: argparse.Namespace, out: Output) -> int:
    """Send a receiver the events that it missed."""
    from semel.outbox.receivers import read_receivers, replay_to

    if options.to is None or options.receivers is None or options.id is not None:
        raise UsageFailed("semel events replay needs --to RECEIVER and --receivers FILE, and takes no EVENT_ID")
    declared = {each.name: each for each in read_receivers(options.receivers, secrets=False)}
    if options.to not in declared:
        raise UsageFailed(f"{options.receivers} declares no receiver {options.to!r}; it has {', '.join(declared)}")
    with open_store(options) as engine:
        found = replay_to(engine, declared[options.to], since_us=options.since or 0, late=options.late)
    oldest = None if found.oldest_us is None else datetime.fromtimestamp(found.oldest_us / 1_000_000, UTC)
    out.document(
        {
            "receiver": options.to,
            "copied": found.copied,
            "there": found.there,
            "late": found.late,
            "oldest": None if oldest is None else oldest.isoformat(),
        }
    )
    out.say(
        f"{options.to}: {found.copied} events will be delivered; {found.there} have been received, or wait, already"
    )
    if found.late:
        out.say(
            f"{found.late} would arrive after later events of their aggregates and are skipped; --late sends them, too"
        )
    if oldest is not None and (options.since is None or options.since < (found.oldest_us or 0)):
        out.say(f"the outbox keeps events from {oldest:%Y-%m-%d %H:%M:%S} UTC on; older ones are forgotten")
    return Exit.OK


def _parse_name(action: str, given: str | None) -> str | int:
    """Parse an event's id or place. Raises UsageFailed."""
    raw = None if given is None else uuid_bytes(given)
    if raw is not None:
        return uuid_text(raw)
    if given is not None and given.isascii() and given.isdecimal() and len(given) < 20 and 0 < int(given) <= PLACE_MAX:
        return int(given)
    raise UsageFailed(
        f"semel events {action} needs an EVENT_ID, a UUID as semel events lists it, or the event's PLACE in that list, "
        "a whole number"
    )


def _list(options: argparse.Namespace, out: Output) -> int:
    with open_store(options) as engine:
        events = Events(dialect_of(engine.store, "events"))
        depth = engine.perform("events", events.depth)
        page = _page(engine, events, options)
        behind = receivers_behind(engine)[0] if depth.waiting or depth.parked else []
    more = page[-1].seq if len(page) == options.limit else None
    out.document(
        {
            "waiting": depth.waiting,
            "parked": depth.parked,
            "oldestSeconds": depth.oldest_us / 1_000_000,
            "receivers": [each.document() for each in behind],
            "events": [_document(each) for each in page],
            "nextAfter": more,
        }
    )
    oldest = f", the oldest for {span_text(depth.oldest_us)}" if depth.waiting else ""
    out.say(f"{depth.waiting} waiting{oldest}; {depth.parked} parked")
    if behind:
        out.say("")
        out.table(_RECEIVER_HEADS, [_receiver_row(each) for each in behind])
        out.say("")
    if page:
        out.table(_HEADS, [_row(each) for each in page])
    if more is not None:
        out.say(f"there may be more: --after {more}")
    return Exit.OK


def _page(engine: Engine, events: Events, options: argparse.Namespace) -> list[Waiting]:
    return engine.perform(
        "events", lambda: events.find(options.after, options.limit, parked=options.parked, topic=options.topic)
    )


def _state(each: Waiting) -> str:
    if each.damage is not None:
        return "damaged" if each.parked_at is None else "damaged, parked"
    return "parked" if each.parked_at is not None else "postponed" if each.tries else "waiting"


def _row(each: Waiting) -> tuple[str, ...]:
    event = each.event
    about = f"{event.aggregate_type}/{event.aggregate_id}"
    return str(each.seq), event.id, event.topic, about, str(each.tries), _state(each), each.damage or each.reason or ""


def _receiver_row(each: Behind) -> tuple[str, ...]:
    waiting, parked, oldest_us = each.depth
    name = f"{each.receiver} (disabled)" if each.disabled else each.receiver
    return name, str(waiting), span_text(oldest_us) if waiting else "", str(parked), each.reason or ""


def _document(each: Waiting) -> dict[str, Any]:
    event = each.event
    return {
        "place": each.seq,
        "id": event.id,
        "topic": event.topic,
        "type": event.type,
        "aggregateType": event.aggregate_type,
        "aggregateId": event.aggregate_id,
        "tenant": event.tenant,
        "operationId": None if event.operation_id is None else uuid_text(event.operation_id),
        "bytes": len(event.payload),
        "createdAt": each.created_at,
        "tries": each.tries,
        "state": _state(each),
        "reason": each.reason,
        "damage": each.damage,
    }
