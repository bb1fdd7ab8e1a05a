"""Check an operation's events: one set of events with stable ids for each command, over retries and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from semel.core.model import Effects
from semel.engine.permit import Permit
from semel.testing.idempotent.checks.event_log import EventLog, Told, as_told
from semel.testing.idempotent.failing import Place, dying, impatient, overtaken
from semel.testing.idempotent.probe import Attempted, Probe
from semel.testing.idempotent.reply import Came, Reply
from semel.testing.idempotent.report import NotGiven
from semel.testing.idempotent.targets.target import PARALLEL, Fate

_CHECK = "event_identity_stable_over_replay"
_RETRIES = 20
_EMIT = (
    "emit it with permit.emit(...): its id comes from the key, and it is written once, in the commit that stores the "
    "answer; where you publish yourself, take the event's id from permit.key_for('event')"
)
_NAMES = (
    "what an event's id is made of (the name and the ordinal of permit.emit, an id of your own) must be the same at "
    "every run of one command: no random number, no clock, no counter of the process"
)


async def event_identity_stable_over_replay(probe: Probe) -> None:
    """An event is how the rest of the world hears of a command. Sent again under a new id, it is a second order to
    the system that ships on it. So one command has one set of events, under the same ids, whatever fails."""
    await probe.baseline()
    log = EventLog(probe.case, probe.engines)
    if not log.visible:
        raise NotGiven(
            "this test cannot see the published events",
            "give events=: a function that lists them, each with its id; or events=() where there are none",
        )
    usual = await _duplicates(probe, log)
    if not usual:
        return
    if not (await _all_at_once(probe, log, usual) and await _check_lost_answer(probe, log, usual)):
        return  # one finding is enough
    if not probe.known:
        probe.need_engine()
        raise NotGiven("no Semel protects this operation", "declare it; see the other findings")
    if not (await _dead_before(probe, log, usual) and await _dead_after(probe, log, usual)):
        return
    if probe.policy.effects is not Effects.ATOMIC:  # no duplicate overtakes an open transaction: its database waits
        await _takeover(probe, log, usual)


async def _duplicates(probe: Probe, log: EventLog) -> list[Told]:
    """Return one command's events; empty if there are none to check, or a plain retry already publishes others."""
    before = await log.read_all()
    command = await probe.command("events")
    await command.send()
    usual = await log.since(before)
    if not usual:
        if log.given is not None and log.given != ():
            raise NotGiven(
                "events= lists nothing after a command was done",
                "let it list the events that this application publishes, or give events=() if it publishes none",
            )
        probe.remark("it published no events: there were no ids to compare")
        return []
    await command.send()
    await command.send()
    told = await log.since(before)
    if _judge(probe, "the same request three times, with the same key", told, usual, done=True, ran_again=False):
        return usual
    return []


async def _all_at_once(probe: Probe, log: EventLog, usual: list[Told]) -> bool:
    before = await log.read_all()
    command = await probe.command("events at once")
    request = command.request
    await asyncio.gather(*[probe.target.attempt(request, command.key, Fate.ANSWERED) for _ in range(PARALLEL)])
    await command.count()
    sent = f"{PARALLEL} times the same request with the same key, all at once"
    return _judge(probe, sent, await log.since(before), usual, done=True, ran_again=False)


async def _check_lost_answer(probe: Probe, log: EventLog, usual: list[Told]) -> bool:
    before = await log.read_all()
    command = await probe.command("events of a lost answer")
    await command.send(fate=Fate.LEAVES)
    reply = await _patiently(command)
    sent = "the request; the client went away before the answer, and asked again with the same key"
    return _judge(probe, sent, await log.since(before), usual, done=reply.done, ran_again=False)


async def _patiently(command: Attempted) -> Reply:
    for _ in range(_RETRIES):
        reply = await command.send()
        if reply.came not in (Came.IN_PROGRESS, Came.UNAVAILABLE):
            break
    return reply


async def _dead_before(probe: Probe, log: EventLog, usual: list[Told]) -> bool:
    clocks = probe.need_clocks()
    before = await log.read_all()
    command = await probe.command("events before the settlement")
    with dying(probe.engines, Place.BEFORE_THE_SETTLE) as struck:
        await command.send()
    phantom = await log.since(before) if probe.policy.effects is Effects.ATOMIC else []
    if phantom:
        probe.find(
            _CHECK,
            "the request; the process died before the transaction was committed",
            f"{_count_text(len(phantom))}: {_topics(phantom, usual)}, all the same",
            (
                "consumers learn of an effect that was undone: a consumer that ships on this event ships an order "
                "that does not exist"
            ),
            _EMIT,
        )
        return False
    clocks.advance(probe.policy.lease_seconds + 1)
    with impatient(probe.engines):
        reply = await command.send()
    sent = "the request; the process died after the handler, before its answer was stored; a retry after the lease"
    told = await log.since(before)
    return _judge(probe, sent, told, usual, done=reply.done, ran_again=True) and _same_runs(
        probe, sent, struck.permits, told, done=reply.done
    )


async def _dead_after(probe: Probe, log: EventLog, usual: list[Told]) -> bool:
    before = await log.read_all()
    command = await probe.command("events after the settlement")
    with dying(probe.engines, Place.AFTER_THE_SETTLE):
        await command.send()
    with impatient(probe.engines):
        reply = await command.send()
    sent = "the request; the process died when its answer was stored, before it was sent; a retry"
    return _judge(probe, sent, await log.since(before), usual, done=reply.done, ran_again=False)


async def _takeover(probe: Probe, log: EventLog, usual: list[Told]) -> None:
    clocks = probe.need_clocks()
    before = await log.read_all()
    command = await probe.command("events of a takeover")

    async def meanwhile() -> None:
        clocks.advance(probe.policy.lease_seconds + 1)
        with impatient(probe.engines):
            await command.send()

    with overtaken(probe.engines, meanwhile) as struck:
        await command.send()
    with impatient(probe.engines):
        reply = await command.send()
    sent = (
        "the request; its process stopped past the lease, a retry came meanwhile, and then the first continued and "
        "stored its answer"
    )
    told = await log.since(before)
    if _judge(probe, sent, told, usual, done=reply.done, ran_again=True):
        _same_runs(probe, sent, struck.permits, told, done=reply.done)


def _judge(
    probe: Probe, sent: str, told: Sequence[Told], usual: Sequence[Told], *, done: bool, ran_again: bool
) -> bool:
    """Judge whether a command published one set of events. ``ran_again``: its handler may have run more than once."""
    due = len({each.id for each in usual})
    ids = {each.id for each in told}
    came = f"{_count_text(len(told))}, where one command tells {_count_text(due)}"
    if len(ids) > due:
        probe.find(
            _CHECK,
            sent,
            f"{came}: {_topics(told, usual)} under another id",
            (
                "to its consumers that is another command: a consumer that ships on this event ships twice, and no "
                "inbox helps"
            ),
            _EMIT,
        )
    elif len(set(told)) > len(ids):
        probe.find(
            _CHECK,
            sent,
            f"{came}: the same id with two payloads",
            "one consumer keeps the first, another one the second: they believe different things about one command",
            "let the payload be the same at every run: no clock and no random number in it, or emit it with "
            "permit.emit(...), of which one alone is ever written",
        )
    elif len(told) > due and not ran_again:
        probe.find(
            _CHECK,
            sent,
            f"{came}: {_topics(told, usual)} again, under the same id",
            "code outside the protected handler publishes it at every retry; consumers without an inbox act each time",
            _EMIT,
        )
    elif done and len(ids) < due:
        probe.find(
            _CHECK,
            sent,
            came,
            "the command is done and the world never hears of it: nothing is shipped, and no retry helps",
            "emit it with permit.emit(...): it is written in the commit that stores the answer, never before or after",
        )
    else:
        return True
    return False


def _same_runs(probe: Probe, sent: str, permits: Sequence[Permit], told: Sequence[Told], *, done: bool) -> bool:
    """Return whether the first run would have published the same events."""
    if not done or not permits or permits[0].emission is None:
        return True
    first = [as_told(event) for event in permits[0].emission.events.values()]
    digests = {each.id: each.digest for each in told}
    lost = [each for each in first if each.id not in digests]
    if lost:
        probe.find(
            _CHECK,
            sent,
            f"{_topics(lost, [])}, whose id in the first run differs from the id that was published",
            "permit.emit returned an id in the first run that no event will ever have: a system that received it, "
            "such as the provider, waits for an event that does not come",
            _NAMES,
        )
        return False
    if any(digests[each.id] != each.digest for each in first):
        probe.remark(
            "an event's payload differs between two runs of one command (a clock, a random number): only one is ever "
            "published, but not always the one from the run whose effect remains"
        )
    return True


def _topics(told: Sequence[Told], usual: Sequence[Told]) -> str:
    topics = {each.topic for each in told if each.topic} or {each.topic for each in usual if each.topic}
    return ", ".join(sorted(topics)) or "they came"


def _count_text(number: int) -> str:
    return "no event" if number == 0 else "one event" if number == 1 else f"{number} events"
