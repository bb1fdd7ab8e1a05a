"""Check callers: another caller with the same key, and no caller at all."""

from __future__ import annotations

from semel.testing.idempotent.probe import Attempted, Probe
from semel.testing.idempotent.reply import Came, Reply
from semel.testing.idempotent.report import CannotRun, NotGiven

_SCOPE = (
    "let the key mean something for its caller only: caller= must return the authenticated user (and tenant), such as "
    "from_state('user') behind your authentication, never single_caller and never a header that a client writes"
)
_ONCE_FOR_ALL = (
    "If the answer is the other caller's own, and only this payload can be done just once (a unique row), give json= a "
    "payload that both callers may do"
)


async def no_replay_across_callers(probe: Probe) -> None:
    """Two customers may choose the same key, by chance or on purpose. The second one has their own command."""
    check = "no_replay_across_callers"
    await probe.baseline()
    command = await probe.command("shared")
    original = await command.send()
    request = probe.case.as_other(command.request)
    if request is None:
        if not probe.one_caller:
            raise NotGiven(
                "there is one caller only",
                "give the headers of another one: other_caller={'Authorization': ...}; or pass single_caller=True",
            )
        probe.remark("the operation has one caller only, as declared: all clients share all keys")
        return
    reply = await command.send(request)
    _check_allowed(reply)
    if reply.done and not reply.replay and command.last == probe.unit:
        return
    sent, change = "the same request with the same key, by another caller", _SCOPE
    if reply.done and (reply.same_answer(original) or reply.replay):
        means = "one customer gets the other's answer, with all its data, and their own order is never made"
    elif reply.done:
        means, change = "the other caller's command has no effect of its own", f"{_SCOPE}. {_ONCE_FOR_ALL}"
    else:
        means = "one customer's key blocks the other's, and tells them that it is in use"
    probe.find(check, sent, f"{reply.text()}; {probe.times(command.last)}", means, change)


async def stored_answer_never_reaches_the_wrong_caller(probe: Probe) -> None:
    """A stored answer is one caller's data. A guessed key must not reveal it: not before authentication, and
    not, by way of a refusal, to another caller."""
    check = "stored_answer_never_reaches_the_wrong_caller"
    await probe.baseline()
    command = await probe.command("private")
    original = await command.send()
    nobody = probe.case.as_nobody(command.request)
    if nobody is not None:
        reply = await command.send(nobody)
        if reply.done and not command.last:
            outside = probe.operation is not None and probe.operation.way == "middleware"
            probe.find(
                check,
                "the same request with the same key, without the credentials",
                reply.text(),
                "an attacker who guesses or reads a key gets the stored answer without logging in",
                "SemelMiddleware is outside of authentication: put it inside (call add_middleware for it first) or "
                "claim in the endpoint with @semel.command; and let caller= return None for unknown callers"
                if outside
                else "authenticate before the stored answer is looked up",
            )
            return
        if reply.came is Came.KEY_REUSED or (reply.came is Came.IN_PROGRESS and probe.known):
            _leaks(probe, check, "without the credentials", reply)
            return
    elif probe.case.request and not probe.one_caller:
        raise NotGiven(
            "the request has no credentials that could be left out",
            "give the caller's headers: headers={'Authorization': ...}; or pass single_caller=True",
        )
    await _another_payload(probe, check, command, original)


async def _another_payload(probe: Probe, check: str, command: Attempted, original: Reply) -> None:
    changed = probe.case.another(command.number, probe.members)
    other = None if changed is None else probe.case.as_other(changed)
    if other is None:
        if probe.case.other_caller is None and not probe.one_caller:
            raise NotGiven("there is one caller only", "give other_caller={...}, or pass single_caller=True")
        return
    reply = await command.send(other)
    if reply.done and not reply.replay and not (reply.same_answer(original) and not command.last):
        return
    if reply.came is Came.KEY_REUSED and (reply.code or not probe.known):
        _leaks(probe, check, "by another caller, with another payload", reply)
    elif reply.done:
        probe.find(
            check,
            "another payload under the same key, by another caller",
            reply.text(),
            "one customer reads what another one was answered",
            _SCOPE,
        )


def _leaks(probe: Probe, check: str, how: str, reply: Reply) -> None:
    probe.find(
        check,
        f"the key of a stored answer, {how}",
        reply.text(),
        "the refusal tells a stranger that this key exists: keys can be tried out",
        _SCOPE,
    )


def _check_allowed(reply: Reply) -> None:
    if reply.status in (401, 403):
        raise NotGiven(
            f"the other caller is refused ({reply.text()})",
            "give other_caller= the headers of a caller who is allowed to do this",
        )
    if reply.came is Came.FAILED:
        raise CannotRun(f"the handler failed for the other caller: {reply.text()}", "let it succeed in the test")
