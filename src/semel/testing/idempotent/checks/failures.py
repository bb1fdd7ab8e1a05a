"""The checks of failures: a process that dies around the effect, and a retry after the answer has expired.

The expected result is derived from the declared effects; no check is skipped because of them.
"""

from __future__ import annotations

from semel.core.model import Effects, State
from semel.policy import Policy
from semel.testing.idempotent.failing import Place, dying, impatient
from semel.testing.idempotent.probe import Attempted, Probe
from semel.testing.idempotent.reply import Came, Reply
from semel.testing.idempotent.report import NotGiven

_SETTLE_IT = (
    "declare what is true: effects='idempotent' where the provider deduplicates by permit.key_for(...), "
    "effects='atomic' where all effects are rows beside the record"
)


async def failure_before_the_effect(probe: Probe) -> None:
    """A worker dies after it has reserved the key and before it has done anything. The key must not stay blocked, and
    the retry must not answer that it was done."""
    check = "failure_before_the_effect"
    command = await _try_with_crash(probe, check, Place.BEFORE_THE_HANDLER)
    if command.grown:
        probe.find(
            check,
            "the request; the process died after the claim, before the handler",
            f"{probe.times(command.grown, 'all the same')}",
            "something is done before the key is reserved: it is done again at every retry",
            "move the effect into the handler, below the claim; a dependency or a middleware runs before it",
        )
        return
    await _retries(probe, check, command, "after the claim, before the handler", still_due=True)


async def failure_after_the_effect(probe: Probe) -> None:
    """A worker dies when the money has moved and the answer is not stored yet: the hardest moment. What the retry may
    do is what the declared effects allow, and never a second effect."""
    check = "failure_after_the_effect"
    command = await _try_with_crash(probe, check, Place.BEFORE_THE_SETTLE)
    atomic = probe.policy.effects is Effects.ATOMIC
    if atomic and command.grown:
        probe.find(
            check,
            "the request; the process died before the transaction was committed",
            f"{probe.times(command.grown, 'all the same')}",
            "the effect is not in the record's transaction: after a crash it remains, and the retry repeats it",
            "write on permit.connection and never commit it yourself; calls of other systems are not atomic: declare "
            "them 'external' or 'idempotent'",
        )
        return
    await _retries(probe, check, command, "after the handler, before its answer was stored", still_due=atomic)


async def _try_with_crash(probe: Probe, check: str, place: Place) -> Attempted:
    await probe.baseline()
    probe.need_engine()
    if not probe.known:
        raise NotGiven("no Semel protects this operation", "declare it; see the other findings")
    probe.need_clocks()
    command = await probe.command(check)
    with dying(probe.engines, place) as struck:
        await command.send()
    if struck.times == 0:
        raise NotGiven(
            "the operation was not claimed on an engine that is known here",
            "give the engine that it runs on: FunctionTarget(function, engine=..., policy=...)",
        )
    return command


async def _retries(probe: Probe, check: str, command: Attempted, when: str, *, still_due: bool) -> None:
    """Retry during the lease, and after its lapse. ``still_due``: the effect has not happened yet."""
    policy = probe.policy
    with impatient(probe.engines):
        live = await command.send()
        early = command.last
        probe.need_clocks().advance(policy.lease_seconds + 1)
        late = None if policy.resumable else await command.send()
    if late is None:
        late = await command.send()  # wait: the application's own completer may have taken it over
    sent = f"the request; the process died {when}; a retry at once, and one when the lease had lapsed"
    came = f"{live.text()}, then {late.text()}; {probe.times(command.grown, 'in all')}"
    atomic = policy.effects is Effects.ATOMIC
    if not atomic and (live.came is not Came.IN_PROGRESS or early):
        probe.find(
            check,
            sent,
            came,
            "the retry is asked to wait, and the effect happens again all the same"
            if live.came is Came.IN_PROGRESS
            else "while the first may still be running, its retry was not told to wait: both would pay",
            "answer 409 with Retry-After while the lease lives",
        )
    elif command.grown > probe.unit:
        probe.find(
            check,
            sent,
            came,
            "the retry did it again: the customer is charged twice by a crash",
            _why_twice(policy),
        )
    else:
        _judge_late(probe, check, (sent, came), late, command, still_due=still_due)


def _why_twice(policy: Policy) -> str:
    if policy.effects is Effects.IDEMPOTENT:
        return (
            "effects='idempotent' promises that the other side deduplicates: hand it permit.key_for('charge') as its "
            "key, the same at every attempt; if it has no such key, declare 'external'"
        )
    return _SETTLE_IT


def _judge_late(
    probe: Probe, check: str, said: tuple[str, str], late: Reply, command: Attempted, *, still_due: bool
) -> None:
    policy = probe.policy
    if policy.terms.starts is State.CLAIMED and late.done and command.grown == probe.unit:
        return  # steps and items are recorded one by one: finished ones stay, and the retry does the rest
    forgotten = policy.effects is Effects.IDEMPOTENT and policy.lease_seconds + 1 >= policy.dedup_for_seconds
    if policy.effects is Effects.EXTERNAL or forgotten:
        if late.came is Came.UNKNOWN:
            probe.remark(
                f"after a crash {probe.case.name} stays UNKNOWN until an operator settles it: {_SETTLE_IT}, or have a "
                "runbook (semel list --state unknown)"
            )
            return
        means = "whether the money has moved is unknown, and yet the client got another answer"
        probe.find(check, *said, means, "answer 409 OUTCOME_UNKNOWN and let an operator settle it")
        return
    due = probe.unit if still_due or policy.effects is Effects.IDEMPOTENT else 0
    if late.done and command.grown == (due or probe.unit):
        return
    probe.find(
        check,
        *said,
        "the command is lost: the client keeps its key, asks again and is never served",
        "see why the second attempt fails; it runs with the same derived keys as the first"
        if policy.effects is Effects.IDEMPOTENT
        else "see why the second attempt fails; nothing of the first one is left",
    )


async def expired_key(probe: Probe) -> None:
    """Answers are not kept for ever. A retry that comes after that must not be taken for a new command by accident:
    the fact outlives the answer."""
    check = "expired_key"
    await probe.baseline()
    if not probe.known:
        probe.need_engine()
        raise NotGiven("no Semel protects this operation", "declare it; see the other findings")
    clocks = probe.need_clocks()
    command = await probe.command("expired")
    await command.send()
    clocks.advance(probe.policy.answer_seconds + 1)
    reply = await command.send()
    anew = probe.policy.after_expiry == "new"
    if anew and reply.done and command.last == probe.unit:
        probe.remark("after_expiry='new': a retry that comes after answer_seconds is done again, as declared")
        return
    if not anew and reply.came is Came.EXPIRED and not command.last:
        return
    probe.find(
        check,
        f"the same request with the same key, {probe.policy.answer_seconds:g} seconds after its answer",
        f"{reply.text()}; {probe.times(command.last, 'again')}",
        "a queue that was stuck over the weekend pays everything again"
        if command.last
        else "the client is not told that its answer has expired, and cannot know what to do",
        "keep the fact longer than the answer: tombstone_seconds, and after_expiry='refuse'",
    )
