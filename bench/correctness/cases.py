"""The cases of the table. Each sends something to a running subject and finds what came of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from bench.correctness.client import Answer, Call, Reply, Silence
from bench.correctness.target import CaseError, Target
from bench.correctness.verdicts import Finding, Verdict, judge, judge_callers, judge_payloads

CROWD: Final = 64
CROWD_SECONDS: Final = 0.5  # for the crowd to be refused, or to be waiting, before the handler may answer
PAST_LEASE: Final = 2.0  # times the lease
LEASE_MARGIN: Final = 1.5  # times the lease: after a kill it has lapsed by then
TOLD_SECONDS: Final = 1.0  # for a duplicate to be answered at once, before it counts as waiting
SETTLED_SECONDS: Final = 2.0  # for a handler that may answer to have its answer stored
LARGE_BYTES: Final = 5_000_000
HUGE_BYTES: Final = 20_000_000

Check = Callable[[Target, str], Awaitable[Finding]]
KeyLines = Callable[[bytes], tuple[bytes, ...]]  # from an ordinary key to the lines that are sent


class Run(Enum):
    """Which server a case needs."""

    USUAL = "default settings, callers told apart where the package has a way"
    ALIKE = "default settings, nothing said about callers"
    LEASED = "as usual, with the shortest lease that the settings allow"


@dataclass(frozen=True, slots=True)
class Case:
    """One row. ``durable`` cases need a store that outlives the process."""

    name: str
    title: str
    run: Run
    check: Check
    durable: bool = False


def _twice(reply: str = "json", body: bytes | None = None) -> Check:
    """Send the same bytes twice, one call after the other."""

    async def check(target: Target, case: str) -> Finding:
        call = replace(target.call(case), reply=reply)
        return await _retry_and_judge(target, call if body is None else replace(call, body=body))

    return check


def _odd_key(first: KeyLines, again: KeyLines | None = None) -> Check:
    """One call after the other, with key lines made from an ordinary key."""

    async def check(target: Target, case: str) -> Finding:
        call = target.call(case)
        usual = call.keys[0]
        call = replace(call, keys=first(usual))
        return await _retry_and_judge(target, call, replace(call, keys=(again or first)(usual)))

    return check


async def _retry_and_judge(target: Target, call: Call, again: Call | None = None) -> Finding:
    first = await target.send(call)
    second = await target.send(again or call)
    return judge(target.book.count(call.mark), [first, second])


async def parallel(target: Target, case: str) -> Finding:
    """A crowd with one key at once; the handler answers when the crowd has been refused or is waiting."""
    call = replace(target.call(case), gate="after")
    crowd = [asyncio.create_task(target.send(call)) for _ in range(CROWD)]
    await target.until(lambda: target.book.count(call.mark) > 0 or all(task.done() for task in crowd))
    await target.until(lambda: sum(task.done() for task in crowd) >= CROWD - 1, CROWD_SECONDS)
    target.book.open_gate(call.mark)
    replies = await asyncio.gather(*crowd)
    retry = await _await_settlement(target, call)
    told = Counter(str(reply.status) if isinstance(reply, Answer) else "no answer" for reply in replies)
    note = f"Of {CROWD} at once: {', '.join(f'{many} × {what}' for what, many in sorted(told.items()))}."
    if any(isinstance(reply, Silence) and reply.hung for reply in replies):
        return Finding(Verdict.HANGS, note)
    given = {reply for reply in replies if isinstance(reply, Answer) and reply.ok}
    effects = target.book.count(call.mark)
    if effects == 1 and len(given) > 1:
        return Finding(Verdict.OTHER_ANSWER, note)
    return judge(effects, [next(iter(given), retry), retry], note)


def _kill_at(place: str, effects: int) -> Check:
    """SIGKILL while the handler is at a place; a restart on the same store; a retry at once, and after the lease."""

    async def check(target: Target, case: str) -> Finding:
        call = replace(target.call(case), gate=place)
        async with target.sending(call) as task:
            await target.kill()
            first = await task
        if target.book.count(call.mark) != effects or target.book.runs(call.mark) != 1 or isinstance(first, Answer):
            raise CaseError(f"the server did not die {place} its effect")
        await target.start()
        replies: list[Reply] = [first, await target.send(call)]
        if target.lease_seconds is not None and target.book.runs(call.mark) == 1:
            await asyncio.sleep(target.lease_seconds * LEASE_MARGIN)
            replies.append(await target.send(call))
        return judge(target.book.count(call.mark), replies, "Killed, restarted, asked at once and after the lease:")

    return check


async def slow(target: Target, case: str) -> Finding:
    """A handler that waits (without blocking its loop) past the lease; the duplicate comes then."""
    call = replace(target.call(case), gate="after")
    async with target.sending(call) as task:
        lease = target.lease_seconds
        await asyncio.sleep(0 if lease is None else lease * PAST_LEASE)
        again = asyncio.create_task(target.send(call))
        # Either it runs as well, or it gets an answer, or it waits for the first.
        await target.until(lambda: target.book.count(call.mark) > 1 or again.done(), TOLD_SECONDS)
        target.book.open_gate(call.mark)
        first, second = await asyncio.gather(task, again)
    note = "It has no lease, so nothing lapses:" if lease is None else f"Asked again after {PAST_LEASE:g} leases:"
    return judge(target.book.count(call.mark), [first, second], note)


async def callers(target: Target, case: str) -> Finding:
    """Two callers, one key, one payload."""
    call = target.call(case)
    first = await target.send(call)
    other = await target.send(replace(call, user="bob"))
    return judge_callers(target.book.count(call.mark), first, other)


async def payloads(target: Target, case: str) -> Finding:
    """One key, two payloads."""
    call = target.call(case)
    first = await target.send(call)
    other = await target.send(replace(call, body=b'{"item":"book","count":2}'))
    return judge_payloads(target.book.count(call.mark), first, other)


async def client_gone(target: Target, case: str) -> Finding:
    """The client hangs up while the handler runs, and asks again when it has ended."""
    call = replace(target.call(case), gate="after")
    sending = asyncio.create_task(target.send(call))
    if not await target.until(lambda: target.book.count(call.mark) > 0):
        raise CaseError("the handler did not begin")
    sending.cancel()
    await asyncio.wait([sending])
    gone = Silence(hung=False)
    # Refused or waiting, this shows that the server has read the end of the first connection.
    early = asyncio.create_task(target.send(call))
    await target.until(lambda: target.book.count(call.mark) > 1 or early.done(), TOLD_SECONDS)
    target.book.open_gate(call.mark)
    replies: list[Reply] = [gone, await early, await _await_settlement(target, call)]
    note = "Asked again while the handler ran, and when it had ended:"
    return judge(target.book.count(call.mark), replies, note)


async def _await_settlement(target: Target, call: Call) -> Reply:
    """The answer to a retry, once it is not refused any more; the last refusal where that does not end."""
    deadline = asyncio.get_running_loop().time() + SETTLED_SECONDS
    reply = await target.send(call)
    while isinstance(reply, Answer) and reply.refuses and asyncio.get_running_loop().time() < deadline:
        reply = await target.send(call)
    return reply


CASES: Final = (
    Case("retry", "retry after the answer", Run.USUAL, _twice()),
    Case("parallel", f"{CROWD} at once with one key", Run.USUAL, parallel),
    Case("killed", "kill -9 after the effect, restart, retry", Run.LEASED, _kill_at("after", 1), durable=True),
    Case("killed-before", "kill -9 before the effect, restart, retry", Run.LEASED, _kill_at("before", 0), durable=True),
    Case("slow", "handler runs past the lease", Run.LEASED, slow),
    Case("gone", "client gone while it runs, then retry", Run.USUAL, client_gone),
    Case("callers", "two callers, same key, nothing declared", Run.ALIKE, callers),
    Case("scoped", "two callers, same key, callers declared", Run.USUAL, callers),
    Case("payload", "same key, another payload", Run.USUAL, payloads),
    Case("binary", "binary answer replayed", Run.USUAL, _twice("bytes")),
    Case("stream", "streamed answer replayed", Run.USUAL, _twice("stream")),
    Case("reply-3mb", "answer of 3 MB replayed", Run.USUAL, _twice("large")),
    Case("error", "answer 500 after the effect, then retry", Run.USUAL, _twice("error")),
    Case("raised", "exception after the effect, then retry", Run.USUAL, _twice("raised")),
    Case("raised-before", "exception before the effect, then retry", Run.USUAL, _twice("raised-before")),
    Case("refusal", "answer 422 after the effect, then retry", Run.USUAL, _twice("refusal")),
    Case("body-5mb", "body of 5 MB", Run.USUAL, _twice(body=b"b" * LARGE_BYTES)),
    Case("body-20mb", "body of 20 MB", Run.USUAL, _twice(body=b"b" * HUGE_BYTES)),
    Case("empty", "empty key", Run.USUAL, _odd_key(lambda key: (b"",))),
    Case("key-10kb", "key of 10 kB", Run.USUAL, _odd_key(lambda key: (key + b"k" * 10_000,))),
    Case("nonascii", "key that is not ASCII", Run.USUAL, _odd_key(lambda key: (key + "-Schlüssel".encode(),))),
    Case(
        "quoted",
        "quoted key, then the same bare",
        Run.USUAL,
        _odd_key(lambda key: (b'"%b"' % key,), lambda key: (key,)),
    ),
    Case("lines", "two key lines that differ", Run.USUAL, _odd_key(lambda key: (key, key + b"-other"))),
    Case("comma", "two keys joined by a comma", Run.USUAL, _odd_key(lambda key: (key + b", " + key + b"-other",))),
)
NAMES: Final = tuple(case.name for case in CASES)
