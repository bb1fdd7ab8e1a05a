"""The relay: publishes committed events to the broker, each at least once, in order, and always under its id.

Order does not depend on leases. A relay sends an event once the previous one of its aggregate was acknowledged (or was
marked as published before this relay read), so first arrivals are in order, however many relays read the same events.
Partitions only keep two relays from doing the same work. There is no cursor: a relay reads all unmarked events, so a
transaction that commits late is not missed.

If a relay dies between the broker's acknowledgement and the mark, the events are sent again: consumers recognize them
by their ids.

A relay that finds nothing for a while releases its partitions and is *idle*: the idle relays of all processes take
turns to look (``workers/turns.py``), so that together they query as rarely as one. The one that finds events takes
partitions again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal, Self

from semel.core.flow import Flow
from semel.core.identity import uuid7_bytes, uuid_text
from semel.core.timing import check_count, check_seconds
from semel.engine.async_engine import AsyncEngine
from semel.errors import SchemaError, StoreError
from semel.outbox.event import Event, Waiting
from semel.outbox.flow import OUTAGE_SECONDS_MAX, TRIES_MAX, Away, Batch, event_wait_seconds, outage_wait_seconds
from semel.outbox.partitions import OutboxLook, Partitions, mark_of, registration, rivals_of
from semel.outbox.rules import DISABLED, PARTITIONS, RECEIVER, receiver_of
from semel.outbox.run import listening
from semel.outbox.sinks.base import Refused, Reply, Sink, Unreached, is_gone, reply_to
from semel.outbox.store import Depth, Events
from semel.policy import LEASE_SECONDS_MIN, SPAN_SECONDS_MAX
from semel.stores.sql.dialect import dialect_of
from semel.stores.sql.statements import Params
from semel.workers.rules import Turn
from semel.workers.trouble import Trouble
from semel.workers.turns import Turns, is_due, seconds_to_turn

BATCH: Final = 500
BATCH_BYTES: Final = 8 * 1024 * 1024
LEASE_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.05  # if the database sends no notifications
LISTENING_POLL_SECONDS: Final = 1.0
GAUGE_SECONDS: Final = 15.0
SWEEP_SECONDS: Final = 60.0
SWEEP_CHUNK: Final = 1000
STORE_REST_SECONDS: Final = 0.5
WALK_REST: Final = 3.0  # the relay rests this many times as long as it took to skip unavailable topics
ELSEWHERE_SECONDS: Final = 0.25
LINGER_SECONDS: Final = 2.0  # a relay is idle after this long without an event
LOOK_SECONDS: Final = 1.1  # between two looks of all idle relays: with a sweep a minute, below one statement a second
# A relay that finds nothing asks for free partitions this often: it takes over a dead relay's within lease + 1 s.
WITHOUT_PARTITIONS_SECONDS: Final = 0.75
APART_SECONDS: Final = 0.02  # between two idle relays that hear the same notification
DEAF_SECONDS: Final = 1.0  # how long a relay ignores notifications after one for which others were enough
RIVALS_SECONDS: Final = 60.0  # between two looks for relays with another sink
DISABLED_SECONDS: Final = 1.0  # between two looks at which endpoints are disabled
ALL_PARTITIONS: Final = (1 << PARTITIONS) - 1


class Relay:
    """Publishes an engine's events to a sink. ``async with Relay(engine, sink):`` runs it meanwhile.

    Parameters: ``batch`` how many events it reads at once, ``batch_bytes`` their total size at most; ``tries_max``
    tries of a refused event before it is parked; ``hold`` whether a parked event blocks later events of its aggregate
    until an operator retries or drops it; ``keep_seconds`` how long published events are kept; ``lease_seconds`` after
    which other relays take over a dead relay's partitions; ``poll_seconds`` between two looks without a notification:
    by this relay while it has work (1 second with PostgreSQL's notifications, else 0.05), and by all idle relays
    together (1.1 seconds).

    >>> import asyncio, tempfile
    >>> from semel import AsyncEngine
    >>> from semel.workers import FunctionSink
    >>> async def main(folder: str) -> int:
    ...     async with AsyncEngine.connect(f"sqlite:///{folder}/app.db") as engine:
    ...         return await Relay(engine, FunctionSink(print)).run_once()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = asyncio.run(AsyncEngine.connect(f"sqlite:///{folder}/app.db").migrate())
    ...     asyncio.run(main(folder))
    0

    Raises ConfigurationError if the store is not a SQL database, PolicyError for an invalid option.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        sink: Sink,
        *,
        batch: int = BATCH,
        batch_bytes: int = BATCH_BYTES,
        tries_max: int = TRIES_MAX,
        hold: bool = True,
        keep_seconds: float = 86_400,
        lease_seconds: float = LEASE_SECONDS,
        poll_seconds: float | None = None,
    ) -> None:
        for name, count in (("batch", batch), ("batch_bytes", batch_bytes), ("tries_max", tries_max)):
            check_count(name, count)
        check_seconds("lease_seconds", lease_seconds, least=LEASE_SECONDS_MIN, most=3600)
        check_seconds("keep_seconds", keep_seconds, least=0, most=SPAN_SECONDS_MAX)
        if poll_seconds is not None:
            check_seconds("poll_seconds", poll_seconds, most=3600)
        dialect = dialect_of(engine.store, "events")
        name = f"{engine.core.holder}:{uuid_text(uuid7_bytes(time.time_ns() // 1_000_000, os.urandom(10)))[-12:]}"
        self._identity: str = getattr(sink, "identity", sink.name)
        self.name = registration(name, sink.name, self._identity)
        self.sink = sink
        self.rivals: tuple[str, ...] = ()  # other sinks, to which other relays publish some of the same events
        self._rivals_at = float("-inf")
        self._refused_waits: Sequence[float] = getattr(sink, "refused_waits", ())
        self._outage_seconds_max: float = getattr(sink, "outage_seconds_max", OUTAGE_SECONDS_MAX)
        self._delivers_copies = bool(getattr(sink, "delivers_copies", False))
        self._disables: Literal["topic", "sink"] | None = getattr(sink, "disables", None)
        self._disabled: frozenset[str] = frozenset()  # the topics whose endpoint was disabled at the last look
        self._disabled_at = float("-inf")
        self.published = 0
        self.parked = 0
        self.outage: str | None = None  # why the broker cannot be reached; None while it can
        self.held_elsewhere = False  # whether run_once left events in other relays' partitions
        self._engine = engine
        self._events = Events(dialect)
        self._partitions = Partitions(dialect)
        self._batch, self._batch_bytes, self._tries_max, self._hold = batch, batch_bytes, tries_max, hold
        self._keep_us = int(keep_seconds * 1_000_000)
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._random = random.SystemRandom()
        self._mask = 0
        self._attended = float("-inf")
        self._busy = False
        self._met = 0  # events of the last turn
        self._full = False
        self._outages = 0
        self._away = Away()
        self._struck = False  # whether the last turn met an outage after which the relay pauses
        self._put_away = False  # whether it met unavailable topics that are skipped from now on
        self._walk_seconds = 0.0  # how long the last skip of unavailable topics took
        self._woken = asyncio.Event()
        every = LOOK_SECONDS if poll_seconds is None else poll_seconds
        self._turns = Turns(
            engine.store,
            "relay" if hold else "relay:skip",
            every,
            engine.perform,
            earliest_of=lambda turn: turn.now if turn.due else None,
            with_events=self._flow_of_turn,
        )
        self._listens = False
        self._idle = False  # whether it is idle: it has released its partitions, and waits for its turn
        self._fleet = 1.0  # the number of relays that take turns, estimated
        self._worked = self._time()  # when it last had something to do
        self._turn_at = 0.0
        self._called = False  # whether events were committed in this process, or another relay has too many
        self._heard_at: float | None = None  # when it acts on a notification that needs only one relay
        self._deaf_until = float("-inf")
        self._gauge_at = float("-inf")
        self._look: OutboxLook | None = None  # the look that came with the current turn
        self._sweep_at = self._time() + SWEEP_SECONDS * self._random.random()
        self._stopping = False
        self._trouble = Trouble("the relay")
        self._house_trouble = Trouble("the relay's gauge and sweep")
        self._task: asyncio.Task[None] | None = None

    # --- one batch --------------------------------------------------------------------------

    async def run_once(self, *, wait_seconds: float = 0.0) -> int:
        """Publish all pending events and return the count. Rejected or blocked events stay in the outbox.

        Parameters: ``wait_seconds`` how long to wait for events in the partitions of other relays, which publish them
        or are dead; ``held_elsewhere`` then says whether some are left.

        Raises StoreError.
        """
        before = self.published
        ends = time.monotonic() + wait_seconds
        self._away = Away()
        await self._attend(listens=False)
        try:
            while True:
                while (await self._turn(self._away.topics) or self._met) and not self._struck:
                    await self._attend_in_time()
                self.held_elsewhere = self.outage is None and await self._due_elsewhere()
                if not self.held_elsewhere or time.monotonic() >= ends:
                    return self.published - before
                await asyncio.sleep(min(ELSEWHERE_SECONDS, wait_seconds))
                await self._attend(listens=False)
        finally:
            await self._leave()

    async def _due_elsewhere(self) -> bool:
        """Return whether an event is due in a partition that this relay does not hold."""
        read, theirs, hold = self._events.due, ALL_PARTITIONS & ~self._mask, self._hold
        return bool(theirs and await self._engine.perform("events_due", lambda: read(theirs, 1, 1, hold=hold)))

    async def _turn(self, away: Collection[str]) -> int:
        """Read a batch without the unavailable topics, publish and mark it; returns the number published."""
        self._met, self._full, self._struck, self._put_away, self._walk_seconds = 0, False, False, False, 0.0
        mask, limit, size, hold = self._mask, self._batch, self._batch_bytes, self._hold
        if not mask:
            self._away, self.outage = Away(), None
            return 0
        read, began = self._events.due, time.monotonic()
        due = await self._engine.perform("events_due", lambda: read(mask, limit, size, hold=hold, away=away))
        if away:
            self._walk_seconds = time.monotonic() - began
        self._met, self._full = len(due), len(due) >= limit
        if not self._full:
            self._away.keep({*away, *(each.event.topic for each in due)})
        if not self._away:
            self.outage = None
        if not due:
            return 0
        arrived: list[Waiting] = []
        try:
            await self._publish(Batch(due), arrived)
        finally:  # even if a refusal could not be recorded: these events have arrived
            if arrived:
                await self._mark(arrived)
        return len(arrived)

    async def _publish(self, batch: Batch, arrived: list[Waiting]) -> None:
        outage: str | None = None
        unreached_topics: set[str] = set()
        slow: set[str] = set()
        asked: dict[str, float] = {}
        while wave := batch.wave():
            replies = await self._deliver_readable(wave)
            for each, reply in zip(wave, replies, strict=True):
                if reply is None:
                    batch.mark_arrived(each)
                    arrived.append(each)
                else:
                    batch.mark_stopped(each)
                if isinstance(reply, Unreached):
                    outage = outage or reply.reason
                    unreached_topics.add(each.event.topic)
                    if reply.others_go_on:
                        slow.add(each.event.topic)
                    if reply.wait_seconds > 0:
                        asked[each.event.topic] = max(reply.wait_seconds, asked.get(each.event.topic, 0.0))
            await self._note_refused(wave, replies)
            if None not in replies and any(isinstance(reply, Unreached) for reply in replies):
                break  # the rest of the batch is spared
            await self._attend_in_time()
        topics = {each.event.topic for each in arrived}
        passed = self._away.note_outcome(
            unreached_topics,
            topics,
            time.monotonic(),
            self._random.random(),
            slow=slow,
            asked=asked,
            most=self._outage_seconds_max,
        )
        self._put_away, self._struck = bool(unreached_topics) and passed, not passed
        # If some have arrived, only one partition or queue is unavailable: its topic's other events do not wait.
        self._outages = 0 if not self._struck else 1 if arrived else self._outages + 1
        if outage is not None or not self._away:
            self.outage = outage

    async def _deliver_readable(self, wave: Sequence[Waiting]) -> list[Reply]:
        """Deliver a wave. Events that must not be sent are parked first, and do not stop the others."""
        await self._look_at_disabled(wave)
        refused = [self._refusal(each) for each in wave]
        taken = [each.event for each, reply in zip(wave, refused, strict=True) if reply is None]
        replies = iter(await self._deliver(taken))
        return [next(replies) if reply is None else reply for reply in refused]

    async def _look_at_disabled(self, wave: Sequence[Waiting]) -> None:
        """Refresh the topics with a disabled endpoint: every second, and just before an event is parked for it."""
        if self._disables is None:
            return
        lapsed = self._time() - self._disabled_at >= DISABLED_SECONDS
        if lapsed or any(self._is_disabled(each.event.topic) for each in wave):
            self._disabled = await self._engine.perform("events_disabled", self._events.find_disabled)
            self._disabled_at = self._time()

    def _is_disabled(self, topic: str) -> bool:
        if self._disables == "topic":
            return topic in self._disabled
        return self._disables == "sink" and any(receiver_of(each) is None for each in self._disabled)

    def _refusal(self, each: Waiting) -> Refused | None:
        """Return why an event must not reach the sink: damaged, endpoint disabled, or a copy for an unknown receiver.

        The sink would publish such a copy as an event of its own, under its own id, and its receiver would never get
        it.
        """
        if each.damage is not None:
            return Refused(each.damage, for_good=True)
        if self._is_disabled(each.event.topic):
            where = f" --topic {each.event.topic}" if self._disables == "topic" else ""
            return Refused(
                f"{DISABLED}, since it has answered 410 Gone: if it is wanted again, semel events enable{where}",
                for_good=True,
            )
        name = None if self._delivers_copies else dict(each.event.headers).get(RECEIVER)
        if name is None:
            return None
        topic = each.event.topic
        return Refused(
            f"it is a copy for the receiver {name!r}, and this relay has no receivers: run semel worker --receivers "
            f"and semel events retry --topic {topic}, or semel events drop --topic {topic}",
            for_good=True,
        )

    async def _deliver(self, events: Sequence[Event]) -> list[Reply]:
        if not events:
            return []
        try:
            return await self.sink.publish(events)
        except Exception as error:  # noqa: BLE001 - a sink that breaks its promise must not stop the others' events
            if len(events) == 1:
                return [reply_to(error)]
        replies: list[Reply] = []
        for event in events:
            replies += await self._deliver([event])
        return replies

    async def _note_refused(self, wave: Sequence[Waiting], replies: Sequence[Reply]) -> None:
        perform, events = self._engine.perform, self._events
        for each, reply in zip(wave, replies, strict=True):
            if not isinstance(reply, Refused):
                continue
            seq, reason = each.seq, reply.reason
            detail = {"event": each.event.id, "reason": reason}
            self._tell("events_refused", each.event.topic, detail=detail)
            if is_gone(reply):
                self._disabled_at = float("-inf")
            if reply.for_good or each.tries + 1 >= self._tries_max:
                if await perform("events_park", lambda seq=seq, reason=reason: events.park(seq, reason)):  # type: ignore[misc]
                    self.parked += 1
                    self._tell("events_parked", each.event.topic, detail=detail)
            else:
                seconds = event_wait_seconds(each.tries, self._random.random(), self._refused_waits)
                wait = int(max(seconds, reply.wait_seconds) * 1_000_000)
                make = lambda seq=seq, wait=wait, reason=reason: events.postpone(seq, wait, reason)  # noqa: E731
                await perform("events_postpone", make)

    async def _mark(self, arrived: Sequence[Waiting]) -> None:
        seqs = [each.seq for each in arrived]
        await self._engine.perform("events_published", lambda: self._events.mark_published(seqs))
        self.published += len(seqs)
        counts: dict[str, int] = {}
        for each in arrived:
            counts[each.event.topic] = counts.get(each.event.topic, 0) + 1
        for topic, count in counts.items():
            self._tell("events_published", topic, count)

    def _tell(self, name: str, topic: str, value: float = 1, detail: Mapping[str, str] | None = None) -> None:
        self._engine.core.observer.event(name, value, {"topic": topic}, detail or {})

    # --- partitions ------------------------------------------------------------------------------

    async def _attend_in_time(self) -> None:
        every = self._lease_seconds / 3 if self._met else min(self._lease_seconds / 3, WITHOUT_PARTITIONS_SECONDS)
        if self._time() - self._attended >= every:
            await self._attend(listens=not self._busy)

    async def _attend(self, *, listens: bool) -> None:
        lease = int(self._lease_seconds * 1_000_000)
        self._mask = await self._engine.perform(
            "events_attend", lambda: self._partitions.attend(self.name, lease, listens=listens)
        )
        self._attended = self._time()
        if self._time() - self._rivals_at >= RIVALS_SECONDS:
            self._rivals_at = self._time()
            await self._look_for_rivals()

    async def _look_for_rivals(self) -> None:
        """Report relays with another sink: an event that they publish never reaches this sink."""
        self._note_sinks(await self._engine.perform("events_sinks", self._partitions.sinks))

    def _note_sinks(self, sinks: dict[str, str]) -> None:
        before, self.rivals = self.rivals, tuple(rivals_of(sinks, self._identity))
        if set(self.rivals) - set(before):
            logging.getLogger("semel").warning(
                "relays with another sink publish the events of this store: %s beside %s; each event goes to only one "
                "of them. Run all of the store's relays with one sink: to send events to several places use "
                "semel worker --receivers, or a function that sends each event to all of them",
                ", ".join(self.rivals),
                self.sink.name,
            )

    async def _leave(self) -> None:
        self._turns.leave()
        lease = int(self._lease_seconds * 1_000_000)
        await self._engine.perform("events_leave", lambda: self._partitions.leave(self.name, lease))
        self._mask, self._attended = 0, float("-inf")

    # --- idle -------------------------------------------------------------------------------

    def _time(self) -> float:
        return time.monotonic()

    def _flow_of_turn(
        self, kind: str, mine: int | None, every_us: int, records: Callable[[], Flow[Params]]
    ) -> Flow[Turn]:
        turn, self._look = yield from self._partitions.turn(
            kind,
            mine,
            every_us,
            (yield from records()),
            self.name,
            hold=self._hold,
            listens=self._listens,
            gauge=self._time() >= self._gauge_at,
        )
        return turn

    async def _take_turn(self) -> bool:
        """Take a turn of the idle relays; return whether events are due, or turns are unavailable.

        A due event in any partition counts: a relay whose turn comes joins the others if they have too much.
        """
        turn = await self._turns.take()
        look, self._look = self._look, None
        if look is not None:
            self._tell_depth(look.depth)
            self._note_sinks(look.sinks)
        if turn is None:
            return True
        rest = seconds_to_turn(turn)
        self._turn_at = self._time() + rest
        self._fleet = max(1.0, rest * 1_000_000 / self._turns.slot_us)
        if is_due(turn):
            return True
        if look is not None and self._idle and mark_of(self._identity) not in look.shown:
            await self._engine.perform("events_show", lambda: self._partitions.show(self.name))
        return False

    async def _may_go_on(self) -> bool:
        """Return whether an idle relay is needed: by a notification, unattended events, or events it finds."""
        now = self._time()
        needed, self._called = self._called, False
        if not needed and self._heard_at is not None and self._heard_at <= now:
            self._heard_at = None
            needed = await self._engine.perform("events_lanes", self._partitions.free) > 0
            if not needed:  # the holder of the partitions hears it, too
                self._deaf_until = now + DEAF_SECONDS
        if not needed and now >= self._turn_at:
            needed = await self._take_turn()
        if needed:
            self._turns.leave()  # a working relay polls by itself
            self._idle, self._fleet, self._worked = False, 1.0, now
            self._heard_at = None
        return needed

    async def _may_rest(self) -> bool:
        """Go idle after a while without events, unless some are due elsewhere; return whether it is idle now."""
        if self._away or self._time() - self._worked < LINGER_SECONDS:
            return False
        self._called, self._heard_at = False, None
        if await self._take_turn():
            self._turns.leave()
            self._worked = self._time()
            return False
        await self._engine.perform("events_retire", lambda: self._partitions.retire(self.name))
        self._mask, self._attended, self._idle = 0, float("-inf"), True
        return True

    def _idle_seconds(self) -> float:
        """Return the pause of an idle relay without notifications."""
        ends = self._turn_at if self._heard_at is None else min(self._turn_at, self._heard_at)
        return 0.0 if self._called else max(0.0, ends - self._time())

    def _hear(self, everybody: bool) -> None:
        """Wake up for committed events: at once if ``everybody`` is needed, else only if this relay's turn is next."""
        if everybody:
            self._called = True
        elif self._heard_at is None:
            now = self._time()
            ahead_us = max(0.0, self._turn_at - now) * 1_000_000
            before = int(ahead_us / self._turns.slot_us)  # this many relays have an earlier turn
            self._heard_at = max(now + APART_SECONDS * before, self._deaf_until)
        self._woken.set()

    async def _rest_idle(self) -> None:
        while not self._stopping and (left := self._idle_seconds()) > 0:
            self._woken.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), left)

    # --- for as long as wanted --------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run(), name="semel-relay")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._task is not None:
            await self._task
            self._task = None

    def stop(self) -> None:
        """End :meth:`run` after the current batch. Call it in the loop's own thread."""
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Relay until :meth:`stop`. Waits for an unavailable store or broker, and loses no event meanwhile."""
        loop = asyncio.get_running_loop()
        listens = self._engine.backend.listens
        listener = None if listens is None else listens(self._hear)
        if listener is not None:
            await listener.open()
        keeper = asyncio.create_task(self._keep_house(), name="semel-relay-house")
        try:
            with listening(lambda: loop.call_soon_threadsafe(self._hear, True)):
                while not self._stopping:
                    rest = await self._round(notified=listener is not None and listener.is_listening)
                    if self._idle and not self._struck:
                        await self._rest_idle()
                    elif rest > 0 or self._walk_seconds > 0:
                        await self._rest(rest)
        finally:
            keeper.cancel()
            await asyncio.wait({keeper})
            if listener is not None:
                await listener.close()
            with suppress(StoreError, SchemaError):  # other relays take over the partitions when the lease expires
                await self._leave()
            await self.sink.close()

    async def _round(self, *, notified: bool) -> float:
        """Take one turn, and return how long to rest after it."""
        self._woken.clear()
        self._listens = notified
        self._struck = False
        try:
            if self._idle and not await self._may_go_on():
                self._trouble.over()
                return self._idle_seconds()
            await self._attend_in_time()
            sent = await self._turn(self._away.find_passed_over(time.monotonic()))
            self._trouble.over()
            if self._met:
                self._worked = self._time()
            if self._struck:
                return outage_wait_seconds(self._outages, self._random.random())
            if self._full != self._busy:  # a relay that looks again at once needs no notification
                self._busy = self._full
                await self._attend(listens=notified and not self._busy)
                if notified and self._busy:
                    await self._engine.perform("events_call", self._partitions.call)
                return 0
            if sent or self._put_away:
                return 0
            if not self._met and await self._may_rest():
                return self._idle_seconds()
        except (StoreError, SchemaError):  # the observer was notified; the relay survives the store's outage
            self._turn_at = max(self._turn_at, self._time() + STORE_REST_SECONDS)  # an idle relay's turn has not moved
            return STORE_REST_SECONDS
        except Exception as error:  # noqa: BLE001 - a relay that dies unseen leaves every event behind it unsent
            self._struck = True  # no notification may shorten the rest
            return self._trouble.note_error(error)
        poll = self._poll_seconds
        if poll is None:
            poll = LISTENING_POLL_SECONDS if notified else POLL_SECONDS
        until_idle = max(POLL_SECONDS, self._worked + LINGER_SECONDS - self._time())
        return min(poll, until_idle, self._away.wait_seconds(time.monotonic()))

    async def _rest(self, seconds: float) -> None:
        # A notification does not bring a broker back; skipping millions of events at each would fill all the time.
        walked = min(WALK_REST * self._walk_seconds, self._lease_seconds / 4)
        deaf = seconds if self._struck else walked
        ends, notified = time.monotonic() + deaf, False
        while not self._stopping and (left := ends - time.monotonic()) > 0:
            self._woken.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), left)
                notified = True
        if not notified and not self._stopping and seconds > deaf:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), seconds - deaf)

    async def _keep_house(self) -> None:
        while True:
            try:
                await self._look_after_all()
                self._house_trouble.over()
            except (StoreError, SchemaError):  # reported to the observer; the next sweep does it
                pass
            except Exception as error:  # noqa: BLE001 - as in _round
                self._house_trouble.note_error(error)
            await asyncio.sleep(GAUGE_SECONDS * (1 - self._random.random() / 4))

    async def _look_after_all(self) -> None:
        if not self._idle:  # an idle one looks at its turns
            await self.gauge()
        if self._time() >= self._sweep_at:
            self._sweep_at = self._time() + SWEEP_SECONDS * self._fleet
            await self.sweep()

    async def gauge(self) -> Depth:
        """Read the outbox's depth, and report it to the observer. Raises StoreError."""
        depth = await self._engine.perform("events_depth", self._events.depth)
        self._tell_depth(depth)
        return depth

    def _tell_depth(self, depth: Depth) -> None:
        self._gauge_at = self._time() + GAUGE_SECONDS * 3 / 4
        observer = self._engine.core.observer
        observer.event("events_waiting", depth.waiting, {"kind": "waiting"}, {})
        observer.event("events_waiting", depth.parked, {"kind": "parked"}, {})
        observer.event("events_oldest_seconds", depth.oldest_us / 1_000_000, {}, {})

    async def sweep(self) -> int:
        """Delete events published longer ago than ``keep_seconds``; returns their number. Raises StoreError."""
        gone = 0
        while True:
            began = time.monotonic()
            done = await self._engine.perform("events_sweep", lambda: self._events.sweep(self._keep_us, SWEEP_CHUNK))
            gone += done
            if done < SWEEP_CHUNK:
                return gone
            await asyncio.sleep(min(1.0, time.monotonic() - began))  # as in the purge: other processes write, too
