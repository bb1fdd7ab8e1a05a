"""The checks of requests: without a key, with a bad one, once, repeated, changed, and concurrent."""

from __future__ import annotations

import asyncio
from typing import Final

from semel.testing.idempotent.probe import Attempted, Probe
from semel.testing.idempotent.reply import Came, Reply, shorten_body
from semel.testing.idempotent.report import NotGiven
from semel.testing.idempotent.targets.target import PARALLEL, Fate

_ANSWERED: Final = Fate.ANSWERED
_LEAVES: Final = Fate.LEAVES
_RETRIES: Final = 20
_REFUSALS: Final = (Came.MISSING_KEY, Came.INVALID_KEY, Came.REFUSED, Came.KEY_REUSED)


async def missing_key_refused(probe: Probe) -> None:
    """A client that forgets its key is not protected, and it shows only in a retry: so it must be refused at
    once. Where the key is declared optional, a request without one runs, each time again, and no key is made up for
    it."""
    check = "missing_key_refused"
    await probe.baseline()
    command = await probe.command("missing")
    keyless = await _send_keyless(probe, command)
    if probe.policy.key == "optional":
        await _optional_key(probe, check, keyless, command)
        return
    if _is_refusal(probe, keyless) and command.grown == 0:
        return
    means = (
        "a client that forgets the key is not protected: when its answer is lost and it retries, the money moves twice"
    )
    if not keyless.done:
        means = "the answer says that nothing was done, and the money has moved"
    elif command.grown == 0:
        means = "it was taken for a retry of another request: two people who buy the same thing are one to you"
    if keyless.values("idempotency-key"):
        change = "never make a key on the server: each retry would get a new one. Let the client send it"
    elif probe.known:
        change = "move what has effects below the check of the key: into the handler itself"
    else:
        change = (
            "protect the operation with Semel (the key is required by default); if it is optional on purpose, say so "
            "in the declaration, or with Case(policy=Policy(key='optional'))"
        )
    probe.find(
        check,
        "the request without an Idempotency-Key",
        f"{keyless.text()}; {probe.times(command.grown)}",
        means,
        change,
    )


def _is_refusal(probe: Probe, reply: Reply) -> bool:
    """Return whether a key was refused. A function refuses by raising any exception."""
    raised = not probe.case.request and reply.error is not None
    return reply.came in _REFUSALS or raised


async def _send_keyless(probe: Probe, command: Attempted) -> Reply:
    command.key, key = "", command.key
    reply = await probe.target.attempt(command.request, None, _ANSWERED)
    command.key = key
    await command.count()
    return reply


async def _optional_key(probe: Probe, check: str, first: Reply, command: Attempted) -> None:
    if not first.done or command.grown != probe.unit:
        probe.find(
            check,
            "the request without an Idempotency-Key, which is declared optional",
            f"{first.text()}; {probe.times(command.grown)}",
            "clients without a key cannot use the operation, although they may",
            "let it run without a permit, or declare key='required'",
        )
        return
    command = await probe.command("missing again")
    again = await _send_keyless(probe, command)
    if again.done and command.last == 0:
        probe.find(
            check,
            "the same request twice, both without an Idempotency-Key",
            "the second one was taken for a retry of the first",
            "two people who buy the same thing count as one: the second order is lost, and its client gets a success",
            "do not derive a key from the content or make one up on the server; only the client knows its intent",
        )
    else:
        probe.remark("the key is optional: requests without one run unprotected, each time again")


async def invalid_key_refused(probe: Probe) -> None:
    """A key that is cut off, folded or cleaned up on its way would meet another client's key or miss its own: what is
    no key must be refused before anything runs."""
    check = "invalid_key_refused"
    await probe.baseline()
    bad = {"an empty key": "", "a key of 300 characters": "k" * 300}
    if probe.case.request:
        bad["a key with a space"] = "a key"  # not a valid header value; a function may accept it
    key_format = probe.policy.key_format
    if key_format is not None:
        bad["a key that breaks the declared format"] = "?"
    taken: list[str] = []
    replies: list[Reply] = []
    grown = 0
    for name, key in bad.items():
        command = await probe.command(name)
        command.key = key
        reply = await command.send()
        replies.append(reply)
        if not _is_refusal(probe, reply) or command.grown:
            taken.append(f"{name}: {reply.text()}")
            grown += command.grown
    if taken:
        probe.find(
            check,
            "keys that are none",
            f"{'; '.join(taken)}; {probe.times(grown, 'in all')}",
            "the answer says that the key is invalid, and the money has moved"
            if not any(reply.done for reply in replies)
            else "a key that your storage cuts off or your proxy cleans up becomes another key: a client gets "
            "another client's answer, or pays twice",
            "protect the operation with Semel, or refuse empty, overlong (more than 255) and malformed keys with 400"
            if not probe.known
            else "move what has effects below the check of the key, and let nothing outside of Semel change these "
            "requests",
        )


async def first_request_runs(probe: Probe) -> None:
    """Protection that refuses or swallows new commands is none: a new key is a new intent, also where the payload
    equals another command's."""
    check = "first_request_runs"
    await probe.baseline()
    command = await probe.command("another new key")
    reply = await command.send()
    if reply.done and command.grown == probe.unit:
        return
    merged = reply.done and command.grown == 0
    probe.find(
        check,
        "the same payload again, under a new key",
        f"{reply.text()}; {probe.times(command.grown)}",
        "two intents are taken for one: a client that orders the same thing twice gets one, and two confirmations"
        if merged
        else "the second command of this kind does not do what the first one did",
        "do not recognise retries by their content; the key says which request is a retry"
        if merged
        else "if no two commands may have the same payload, give a function of their number: json=lambda n: {...}",
    )


async def same_key_and_payload_replays(probe: Probe) -> None:
    """The promise itself: a retry with the same key gets the first answer, and nothing happens again."""
    first = await probe.baseline()
    command = await probe.command("retries")
    original = await command.send()
    for attempt in ("second", "third"):
        reply = await command.send()
        if not _is_replay(probe, attempt, command, original, reply):
            return
    _look_at_cookies(probe, first, original, reply)


def _is_replay(probe: Probe, attempt: str, command: Attempted, original: Reply, reply: Reply) -> bool:
    check, sent = "same_key_and_payload_replays", f"the same request a {attempt} time, with the same key"
    came = f"{reply.text()}; {probe.times(command.last, 'again')}" if command.last else reply.text()
    if command.last and reply.replay:
        means = "the answer is a replay, and yet something was done again: every retry costs money that no answer shows"
        change = "move the effect into the handler, below the claim"
    elif command.last:
        means = "the retry ran the handler again: a client whose answer was lost is charged twice"
        change = "reserve the key before the handler runs, in one atomic statement, and store the answer with it"
    elif reply.came is Came.KEY_REUSED:
        means = "the same request is taken for another one: no client can ever retry"
        change = "send the same bytes for the same intent"
    elif not reply.done:
        means = "the command was done, and its retry is not told so: the client does not know what it bought"
        change = "let the first answer be stored: a 2xx, smaller than answer_bytes_max"
    elif not reply.same_answer(original):
        came = f"{_difference(original, reply)}; {probe.times(0, 'again')}"
        means = "client and retry believe different things about one payment"
        change = "store the first answer and give it again, instead of making a new one"
    elif probe.known and reply.replay is False and probe.case.request:
        means = "the retry has the right answer, but is not marked as a replay: a client cannot tell them apart"
        change = "see which layer outside of Semel removes the header Idempotency-Replayed"
    else:
        return True
    probe.find(check, sent, came, means, change)
    return False


def _difference(original: Reply, reply: Reply) -> str:
    if original.status != reply.status:
        return f"status {reply.status} where the first answer had {original.status}"
    pairs = zip(original.body, reply.body, strict=False)
    at = next((place for place, (one, two) in enumerate(pairs) if one != two), min(len(original.body), len(reply.body)))
    start = max(0, at - 20)
    return (
        f"another body from byte {at} on: …{shorten_body(original.body[start : at + 40])} became "
        f"…{shorten_body(reply.body[start : at + 40])}"
    )


def _look_at_cookies(probe: Probe, other: Reply, original: Reply, reply: Reply) -> None:
    constant = set(other.values("set-cookie"))
    own = [cookie for cookie in original.values("set-cookie") if cookie not in constant]
    names = ", ".join(sorted({cookie.partition("=")[0] for cookie in original.values("set-cookie")}))
    if any(cookie in own for cookie in reply.values("set-cookie")):
        probe.find(
            "same_key_and_payload_replays",
            "the same request again, with the same key",
            f"the first answer's cookie ({names}) was given again",
            "a session was stored with the answer: every client that gets the replay gets that session",
            "never store Set-Cookie with an answer (Semel does not); set cookies where people log in",
        )
    elif original.values("set-cookie") and not reply.values("set-cookie"):
        probe.find(
            "same_key_and_payload_replays",
            "the same request again, with the same key",
            f"the answer without its cookie ({names}): a cookie belongs to one session and is never replayed",
            "a client whose first answer was lost never gets the cookie; it has paid and is not logged in",
            "set the cookie in a separate request, or in a middleware outside Semel, which sees every answer",
        )


async def other_payload_refused(probe: Probe) -> None:
    """One key is one request. A client that uses a key again for something else has a bug, and must hear of it before
    it believes that the second thing was done."""
    check = "other_payload_refused"
    await probe.baseline()
    command = await probe.command("changed")
    original = await command.send()
    other = probe.case.another(command.number, probe.members)
    if other is None or other == command.request:
        raise NotGiven("there is no payload to change", "give another payload of the same kind: changed={...}")
    reply = await command.send(other)
    # A 422 without Semel's code is the application's own validation.
    own = reply.came is Came.KEY_REUSED and (reply.status is None or bool(reply.code))
    refused = own if probe.known else reply.came in (*_REFUSALS, Came.IN_PROGRESS)
    if refused and not command.last:
        return
    if reply.came in (Came.REFUSED, Came.KEY_REUSED) and not command.last:
        raise NotGiven(
            f"the payload that was made up is refused by the application itself ({reply.text()})",
            "give another payload that it accepts: changed={...}",
        )
    if command.last and not reply.done:
        means = "the answer says that nothing was done, and the money has moved"
    elif command.last:
        means = "two requests ran under one key: whichever answer is replayed later is wrong for one of them"
    elif reply.same_answer(original):
        means = (
            "the client takes its second request for done, because it gets the answer of its first: it ships what "
            "was never paid"
        )
    else:
        means = "the client cannot tell that it has used one key for two things"
    probe.find(
        check,
        "another payload under the same key",
        f"{reply.text()}; {probe.times(command.last)}",
        means,
        "compare a fingerprint of the request before the answer is looked at, and refuse with 422"
        if not probe.known
        else "let the changed part count: fingerprint=Recipe() counts the whole body",
    )


async def concurrent_same_key_runs_once(probe: Probe) -> None:
    """Impatient clients and load balancers send duplicates while the first still runs. Looking first and writing later
    lets several through; one atomic claim lets one."""
    check = "concurrent_same_key_runs_once"
    await probe.baseline()
    command = await probe.command("parallel")
    request = command.request
    sending = [probe.target.attempt(request, command.key, _ANSWERED) for _ in range(PARALLEL)]
    results = await asyncio.gather(*sending, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    replies = [result for result in results if isinstance(result, Reply)]
    await command.count()
    sent = f"{PARALLEL} times the same request with the same key, all at once"
    done = [reply for reply in replies if reply.done]
    if command.grown != probe.unit:
        probe.find(
            check,
            sent,
            f"{len(done)} got a success; {probe.times(command.grown)}",
            "a double click or a proxy's retry is charged more than once"
            if command.grown
            else "nothing was done, although it was a good request",
            "claim the key by one atomic insert before the effect; `if key in seen` is too early to know"
            if not probe.known
            else "see whether all workers share one store (memory:// is one process's own), and one caller",
        )
        return
    final = await command.send()
    odd = [reply for reply in replies if reply.came not in (Came.DONE, Came.IN_PROGRESS, Came.UNAVAILABLE)]
    if odd or any(not reply.same_answer(done[0]) for reply in done) or not final.done or command.last:
        strange = odd[0].text() if odd else f"{len(done)} answers that differ, then {final.text()}"
        probe.find(
            check,
            sent,
            strange,
            "it was done once, but its callers get different answers about it",
            "answer duplicates with the first answer, or with 409 while it runs",
        )


async def timeout_then_retry_gives_the_final_result(probe: Probe) -> None:
    """The case for which keys exist: the client waits too long, goes away and asks again. It must learn what became of
    its first attempt, and nothing may happen twice."""
    check = "timeout_then_retry_gives_the_final_result"
    await probe.baseline()
    command = await probe.command("lost")
    await command.send(fate=_LEAVES)
    for _ in range(_RETRIES):
        reply = await command.send()
        if reply.came not in (Came.IN_PROGRESS, Came.UNAVAILABLE):
            break
    if reply.done and command.grown == probe.unit:
        return
    sent = "the request; the client went away before the answer, and asked again with the same key"
    came = f"{reply.text()}; {probe.times(command.grown, 'in all')}"
    if command.grown > probe.unit:
        means, change = "a lost answer is paid twice", "store the answer before it is sent, and replay it"
    else:
        means = "the client never learns whether it has paid; support will have to find out"
        change = "let the handler finish when its client goes away (Semel does), and answer the retry with its result"
    probe.find(check, sent, came, means, change)
