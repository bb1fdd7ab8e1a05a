"""Several webhook receivers behind one relay: each with its topics, its secret and its own progress.

The outbox keeps a copy of an event for each receiver that takes it. The copy has its own topic and aggregate, so tries,
order and parking are per receiver, and an unavailable receiver is skipped like any topic. The copy's id is derived, so
copying twice writes nothing. A receiver gets the original event, under its original id.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from semel.addresses import split_http_url
from semel.core.identity import frame
from semel.core.timing import check_seconds
from semel.engine.async_engine import AsyncEngine
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, SchemaError, StoreError
from semel.outbox.event import Event
from semel.outbox.flow import AWAY_MAX, WEBHOOK_OUTAGE_SECONDS_MAX, WEBHOOK_WAITS
from semel.outbox.rules import NAME_LETTERS_MAX, RECEIVER, receiver_topic
from semel.outbox.sinks.base import Refused, Reply, Sink, Unreached, is_gone
from semel.outbox.store import Events, Place
from semel.stores.sql.dialect import dialect_of

RECEIVERS_MAX: Final = AWAY_MAX  # receivers of a relay: as many as the topics it can skip
AT_ONCE: Final = 20  # concurrent deliveries to one receiver
SLICE_SECONDS: Final = 0.25  # how long a call waits for receivers; a later call collects slower answers
COPY_BYTES: Final = 4 * 1024 * 1024  # of payloads in one statement
PAGE: Final = 1000
PAGE_OF_PAYLOADS: Final = 20
_WAS: Final = ("semel-of-id", "semel-of-topic", "semel-of-aggregate-type", "semel-of-aggregate-id")
_SLOW: Final = Unreached("the receiver takes its time", others_go_on=True)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PATTERN: Final = re.compile(r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """A receiver of webhooks, and its topics.

    Parameters: ``name`` 1 to 64 letters, digits, ``-`` and ``_``: its undelivered events are stored under this name;
    ``url`` https://, or http:// if ``private``; ``secret`` at least 24 bytes, or two during a rotation; ``topics`` such
    as ``"orders.placed"``, ``"orders.*"`` (all with this prefix) or ``"*"`` (all); ``private`` allows an address in a
    private network; ``seconds`` that an answer may take, 0.1 to 60.

    Raises ConfigurationError, naming the member.

    >>> Receiver(name="shop", url="https://shop.example/hooks", secret=bytes(24), topics=("orders.*",)).takes(
    ...     "orders.paid"
    ... )
    True
    """

    name: str
    url: str = field(repr=False)  # its path may be a secret
    secret: bytes | Sequence[bytes] = field(repr=False)
    topics: tuple[str, ...] = ("*",)
    private: bool = False
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigurationError(f"a receiver's name is 1 to 64 letters, digits, '-' and '_'; it is {self.name!r}")
        if not isinstance(self.topics, tuple) or not self.topics:
            raise ConfigurationError(f"{self.name}: topics is a tuple, such as ('orders.*',); it is {self.topics!r}")
        for topic in self.topics:
            if not isinstance(topic, str) or not _PATTERN.fullmatch(topic):
                raise ConfigurationError(f"{self.name}: a topic is 'orders.placed', 'orders.*' or '*'; it is {topic!r}")
        try:
            parts = split_http_url(self.url if isinstance(self.url, str) else "")
        except ValueError as error:
            raise ConfigurationError(f"{self.name}: url is https://HOST/PATH: {error}") from None
        if parts.scheme == "http" and not self.private:
            raise ConfigurationError(
                f"{self.name}: url must be https://; http:// needs private = true and is for your own network"
            )
        check_seconds(f"{self.name}: seconds", self.seconds, least=0.1, most=60)

    def takes(self, topic: str) -> bool:
        """Return whether this receiver takes events of this topic."""
        return any(
            each == "*" or topic == each or (each.endswith(".*") and topic.startswith(each[:-1]))
            for each in self.topics
        )


class Receivers:
    """A sink for :class:`~semel.workers.Relay` that sends each event to every receiver of its topic.

    Parameters: ``engine`` whose outbox it is; ``receivers`` at most 200; ``connect`` makes a receiver's sink (a
    webhook's by default); ``wait_seconds`` that one call waits for receivers: a later call collects slower answers,
    which delay no other receiver.

    >>> shop = Receiver(name="shop", url="https://shop.example/hooks", secret=bytes(24))
    >>> Receivers(AsyncEngine.connect("sqlite:///shop.db"), [shop]).name
    '1 receiver'

    Raises ConfigurationError where two have one name, or the store is not a SQL database.
    """

    delivers_copies: Final = True
    disables: Final = "topic"
    refused_waits: Final = WEBHOOK_WAITS
    outage_seconds_max: Final = WEBHOOK_OUTAGE_SECONDS_MAX

    def __init__(
        self,
        engine: AsyncEngine,
        receivers: Iterable[Receiver],
        *,
        connect: Callable[[Receiver], Sink] | None = None,
        wait_seconds: float = SLICE_SECONDS,
    ) -> None:
        given = list(receivers)
        self.receivers = {receiver.name: receiver for receiver in given}
        if not given or len(given) > RECEIVERS_MAX or len(self.receivers) < len(given):
            twice = len(self.receivers) < len(given)
            told = "two receivers have one name" if twice else f"give 1 to {RECEIVERS_MAX} receivers, not {len(given)}"
            raise ConfigurationError(told)
        self.name = f"{len(given)} receiver{'s' if len(given) > 1 else ''}"
        self.identity = f"receivers {' '.join(sorted(self.receivers))}"
        self._wait_seconds = wait_seconds
        self._engine = engine
        self._events = Events(dialect_of(engine.store, "events"))
        self._lines = {name: _Line((connect or webhook_of)(each)) for name, each in self.receivers.items()}

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        """Copy new events, and deliver the copies of all receivers concurrently."""
        ends = asyncio.get_running_loop().time() + self._wait_seconds
        replies: dict[str, Reply] = {}
        new: list[Event] = []
        copies: dict[str, list[Event]] = {}
        for event in events:
            name = dict(event.headers).get(RECEIVER)
            if name is None:
                new.append(event)
            elif name in self._lines:
                copies.setdefault(name, []).append(event)
            else:
                replies[event.id] = Refused(
                    f"no receiver {name!r} is declared: declare it again and retry, or drop its events "
                    f"(semel events drop --topic {event.topic})",
                    for_good=True,
                )
        delivering = [self._lines[name].deliver(each, ends) for name, each in copies.items()]
        for found in await asyncio.gather(self._copy(new), *delivering):
            replies.update(found)
        return [replies[event.id] for event in events]

    async def _copy(self, events: Sequence[Event]) -> dict[str, Reply]:
        """Write a copy of each event for each receiver that takes it. An event without receivers is done."""
        replies: dict[str, Reply] = dict.fromkeys(event.id for event in events)
        copies = [
            (event.id, copy_for(receiver.name, event))
            for event in events
            for receiver in self.receivers.values()
            if receiver.takes(event.topic)
        ]
        while copies:
            chunk, size = 0, 0
            while chunk < len(copies) and (chunk == 0 or size + len(copies[chunk][1].payload) <= COPY_BYTES):
                size += len(copies[chunk][1].payload)
                chunk += 1
            now, copies = copies[:chunk], copies[chunk:]
            written = [copy for _, copy in now]
            try:
                await self._engine.perform("events_copy", lambda written=written: self._events.write(written))  # type: ignore[misc]
            except (StoreError, SchemaError) as error:
                replies.update({id: Unreached(f"the outbox: {error}") for id, _ in (*now, *copies)})
                return replies
        return replies

    async def close(self) -> None:
        """Close all receivers. A delivery in flight is abandoned, and repeated later under the same id."""
        await asyncio.gather(*[line.close() for line in self._lines.values()])


class _Line:
    """The deliveries of one receiver. A delivery that outlasts a call continues, and a later call collects it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._flights: dict[str, asyncio.Task[Reply]] = {}  # by the copy's id

    async def deliver(self, copies: Sequence[Event], ends: float) -> dict[str, Reply]:
        """Deliver until ``ends`` (loop time); return each outcome. After an unreachable call, skip the rest."""
        time = asyncio.get_running_loop().time
        replies: dict[str, Reply] = {}
        away: Unreached | None = None
        wanted = {copy.id for copy in copies}
        waiting = [copy for copy in copies if copy.id not in self._flights]
        for id in [id for id, task in self._flights.items() if id not in wanted and task.done()]:
            del self._flights[id]  # no longer wanted: another relay has its partition, or an operator dropped it
        while True:
            while waiting and away is None and len(self._flights) < AT_ONCE and time() < ends:
                copy = waiting.pop(0)
                self._flights[copy.id] = asyncio.create_task(self._one(copy), name="semel-receiver")
            flying = {id: self._flights[id] for id in wanted & self._flights.keys()}
            over = [id for id, task in flying.items() if task.done()]
            if not over:
                left = ends - time()
                if not flying or left <= 0:
                    break
                await asyncio.wait(flying.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for id in over:
                reply = replies[id] = self._flights.pop(id).result()
                if away is None and isinstance(reply, Unreached):
                    away = reply
                elif away is None and is_gone(reply):
                    away = _SLOW  # send nothing more: the next look finds the receiver disabled
        return {copy.id: replies.get(copy.id, away or _SLOW) for copy in copies}

    async def _one(self, copy: Event) -> Reply:
        try:
            event = as_it_was(copy)
        except KeyError as error:
            return Refused(f"the copy is damaged: its header {error} is missing", for_good=True)
        try:
            [reply] = await self._sink.publish([event])
        except Exception as error:  # noqa: BLE001 - a sink that breaks its promise must not stop the others' events
            return Refused(f"{type(error).__name__}: {error}")
        return reply

    async def close(self) -> None:
        for task in self._flights.values():
            task.cancel()
        await asyncio.gather(*self._flights.values(), return_exceptions=True)
        self._flights.clear()
        await self._sink.close()


def copy_for(name: str, event: Event) -> Event:
    """Return an event's copy for one receiver, with its own id, topic and aggregate.

    >>> event = Event("0", "orders", "orders", "order", "7", b"{}", (), "", None)
    >>> copy_for("shop", event).topic, copy_for("shop", event).aggregate_id, as_it_was(copy_for("shop", event)) == event
    ('receiver.shop', 'order/7', True)
    """
    was = (event.id, event.topic, event.aggregate_type, event.aggregate_id)
    about = f"{event.aggregate_type}/{event.aggregate_id}"
    if len(about) > NAME_LETTERS_MAX:
        about = hashlib.sha256(frame(event.aggregate_type, event.aggregate_id)).hexdigest()
    return event._replace(
        id=copy_id(event.id, name),
        topic=receiver_topic(name),
        aggregate_type=receiver_topic(name),
        aggregate_id=about,
        headers=tuple(sorted((*event.headers, (RECEIVER, name), *zip(_WAS, was, strict=True)))),
    )


def copy_id(id: str, name: str) -> str:
    """Return the id of a receiver's copy of an event."""
    h = hashlib.sha256(frame(b"semel.receiver.1", id, name)).hexdigest()[:32]
    return f"{h[:8]}-{h[8:12]}-8{h[13:16]}-{'89ab'[int(h[16], 16) % 4]}{h[17:20]}-{h[20:]}"


def as_it_was(copy: Event) -> Event:
    """Return the original event of a copy."""
    headers = dict(copy.headers)
    id, topic, kind, about = [headers.pop(name) for name in _WAS]
    del headers[RECEIVER]
    return copy._replace(
        id=id, topic=topic, aggregate_type=kind, aggregate_id=about, headers=tuple(sorted(headers.items()))
    )


def webhook_of(receiver: Receiver) -> Sink:
    """Return a receiver's webhook sink. Raises ConfigurationError if its client is not installed."""
    from semel.outbox.sinks.webhook import SECRET_BYTES_MIN, SECRETS_MAX, WebhookSink  # needs an extra

    secrets = (receiver.secret,) if isinstance(receiver.secret, bytes) else tuple(receiver.secret)
    if not 1 <= len(secrets) <= SECRETS_MAX or any(
        not isinstance(each, bytes) or len(each) < SECRET_BYTES_MIN for each in secrets
    ):
        raise ConfigurationError(
            f"{receiver.name}: secret is at least {SECRET_BYTES_MIN} bytes; two while it is rotated"
        )
    return WebhookSink(receiver.url, secrets, private=receiver.private, seconds=receiver.seconds)


# --- what a receiver has missed ---------------------------------------------------------------


class Replayed(NamedTuple):
    """The result of :func:`replay_to`: how many events were copied now, copied before, or too late for their order.

    ``oldest_us``: when the outbox's oldest event was written, in µs since 1970; None: the outbox is empty.
    """

    copied: int
    there: int
    late: int
    oldest_us: int | None


def replay_to(engine: Engine, receiver: Receiver, *, since_us: int = 0, late: bool = False) -> Replayed:
    """Copy to a receiver, in order, the published events that it has never had, as if it had always been declared.

    Parameters: ``engine`` of the outbox; ``receiver`` whose topics count; ``since_us`` only events written since then,
    in µs since 1970; ``late`` also events of an aggregate of which the receiver already had a later event: by default
    they are left out, since they would arrive out of order.

    A second replay copies nothing twice. Only events still in the outbox are replayed (``Relay(keep_seconds=...)``).

    Raises ConfigurationError if the store is not a SQL database, and StoreError.
    """
    events = Events(dialect_of(engine.store, "events"))
    topic = receiver_topic(receiver.name)

    def pages() -> Iterator[Place]:
        after = 0
        while page := engine.perform("events", lambda after=after: events.places(after, PAGE)):  # type: ignore[misc]
            yield from page
            after = page[-1].seq

    had = {each.id for each in pages() if each.topic == topic}
    last: dict[tuple[str, str], int] = {}
    oldest: int | None = None
    for each in pages():
        if isinstance(each.created_at, int):  # it may be damaged
            oldest = each.created_at if oldest is None else min(oldest, each.created_at)
        if receiver.takes(each.topic) and copy_id(each.id, receiver.name) in had:
            last[each.aggregate_type, each.aggregate_id] = each.seq
    copied = there = too_late = after = 0
    while page := engine.perform("events", lambda after=after: events.past(after, PAGE_OF_PAYLOADS)):  # type: ignore[misc]
        after = page[-1].seq
        wanted: list[Event] = []
        for waiting in page:
            event = waiting.event
            is_copy = waiting.damage is None and RECEIVER in dict(event.headers)
            if waiting.damage is not None or is_copy:
                continue
            if waiting.created_at < since_us or not receiver.takes(event.topic):
                continue
            if copy_id(event.id, receiver.name) in had:
                there += 1
            elif not late and waiting.seq < last.get((event.aggregate_type, event.aggregate_id), 0):
                too_late += 1
            else:
                wanted.append(copy_for(receiver.name, event))
        if wanted:
            copied += engine.perform("events_copy", lambda wanted=wanted: events.write(wanted))  # type: ignore[misc]
    return Replayed(copied, there, too_late, oldest)


# --- as a file --------------------------------------------------------------------------------

_MEMBERS: Final = ("name", "url", "secret_env", "secret_file", "topics", "private", "seconds")


def read_receivers(
    path: str | Path, environ: Mapping[str, str] = os.environ, *, secrets: bool = True
) -> list[Receiver]:
    """Read receivers from a TOML file, one ``[[receiver]]`` table each; ``secrets`` False leaves their secrets empty.

    Raises ConfigurationError, which names the file, the receiver, the member and the remedy.
    """
    secrets_of = _no_secret
    if secrets:
        from semel.outbox.sinks.webhook import secrets_of  # needs an extra

    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"--receivers {str(path)!r} cannot be read: {error}; name a TOML file") from error
    tables = document.get("receiver", [])
    if set(document) - {"receiver"} or not isinstance(tables, list) or not tables:
        raise ConfigurationError(f"{path}: write one [[receiver]] table for each receiver, and nothing else at the top")
    found = []
    for number, table in enumerate(tables, 1):
        where = f"{path}: [[receiver]] {number}"
        if not isinstance(table, dict):
            raise ConfigurationError(f"{where}: write [[receiver]], with two brackets")
        for member in table:
            if member not in _MEMBERS:
                near = difflib.get_close_matches(member, _MEMBERS, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_MEMBERS)}"
                raise ConfigurationError(f"{where}: unknown member {member}; {hint}")
        try:
            found.append(_receiver(dict(table), environ, secrets_of))
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None
    if len({each.name for each in found}) < len(found):
        raise ConfigurationError(
            f"{path}: two receivers have the same name; each one's undelivered events are stored under its name"
        )
    return found


def _no_secret(text: str, where: str) -> tuple[bytes, ...]:
    return ()


def _receiver(
    table: dict[str, Any], environ: Mapping[str, str], secrets_of: Callable[[str, str], tuple[bytes, ...]]
) -> Receiver:
    variable, file = table.pop("secret_env", None), table.pop("secret_file", None)
    if (variable is None) == (file is None):
        raise ConfigurationError("give secret_env (a variable's name) or secret_file; a secret is never in this file")
    if secrets_of is _no_secret:
        text, where = "", ""
    elif variable is not None:
        text, where = environ.get(str(variable), ""), f"secret_env: ${variable}"
        if not text:
            raise ConfigurationError(f"secret_env: ${variable} is not set; give it 'whsec_' and base64")
    else:
        try:
            text, where = Path(str(file)).read_text(encoding="ascii"), f"secret_file: {str(file)!r}"
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"secret_file cannot be read: {error}") from None
    for member in ("name", "url"):
        if not isinstance(table.get(member), str):
            raise ConfigurationError(f'{member} must be a text, such as {member} = "shop"')
    if not isinstance(table.get("private", False), bool):
        raise ConfigurationError(f"private is true or false; it is {table['private']!r}")
    topics = table.pop("topics", ["*"])
    if not isinstance(topics, list):
        raise ConfigurationError(f'topics is a list, such as topics = ["orders.*"]; it is {topics!r}')
    return Receiver(secret=secrets_of(text, where), topics=tuple(topics), **table)
