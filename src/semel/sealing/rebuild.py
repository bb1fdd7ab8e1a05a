"""Rebuild answers: call an operation's builder within its time limit, and handle its failures.

The handler never runs for a replay: if a builder raises or takes too long, the client learns that the command was done,
and where its resource is.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from semel.core.identity import uuid_text
from semel.core.model import Answer, NotReplayable, Rebuild, Replay, Unreadable, Unseal, Verdict
from semel.errors import ConfigurationError
from semel.http.headers import BODYLESS_STATUSES, replayable
from semel.policy import Command
from semel.sealing.rules import reveal, sealed_text

if TYPE_CHECKING:
    from semel.engine.state import Core

_JSON: Final = (b"content-type", b"application/json")


class Rebuilding(NamedTuple):
    """A builder's input: the finished command, and its result.

    ``status`` is the original answer's, which the rebuilt one keeps (None where it is not HTTP's); ``resource_type``
    and ``resource_id`` are what the handler named with ``permit.result(type, id)``.

    >>> def read_payment(done: Rebuilding) -> dict[str, str | None]:
    ...     return {"id": done.resource_id, "state": "settled"}
    """

    operation_id: str
    tenant: str
    caller: str
    operation: str
    business_ref: str | None
    resource_type: str | None
    resource_id: str | None
    status: int | None


WITHHELD: Final = (Unseal, Rebuild)
"""Verdicts whose answer is not in clear in the store; here each becomes a Replay or the reason why there is none."""


def give(core: Core, command: Command, verdict: Verdict) -> Verdict:
    """Return the verdict as it leaves the engine: open a sealed answer, rebuild one that is not stored."""
    if isinstance(verdict, Unseal):
        return _reveal(core, command, verdict)
    return rebuild(core, command, verdict) if isinstance(verdict, Rebuild) else verdict


async def give_async(core: Core, command: Command, verdict: Verdict) -> Verdict:
    """As :func:`give`, on an event loop."""
    if isinstance(verdict, Unseal):
        return _reveal(core, command, verdict)
    return await rebuild_async(core, command, verdict) if isinstance(verdict, Rebuild) else verdict


def _reveal(core: Core, command: Command, verdict: Unseal) -> Replay | Unreadable:
    seen = reveal(verdict, core.sealer)
    if isinstance(seen, Unreadable):
        core.note_unanswered(command.scope.operation, seen.reason, sealed_text(seen))
    return seen


def rebuild(core: Core, command: Command, verdict: Rebuild) -> Replay | NotReplayable:
    """Rebuild an answer in a separate thread; a result after the time limit is ignored."""
    build = command.policy.rebuild
    if build is None:
        return _report_failure(core, command, verdict, "NoBuilder")
    ended: list[Any] = []
    failed: list[str] = []

    def run() -> None:
        try:
            value = build(_request(command, verdict))
            if inspect.isawaitable(value):
                if inspect.iscoroutine(value):
                    value.close()
                raise ConfigurationError("an Engine needs a plain function as rebuild=")
            ended.append(_answer(value, verdict))
        except BaseException as error:  # noqa: BLE001 - the command was done in any case
            failed.append(type(error).__name__)

    thread = threading.Thread(target=copy_context().run, args=(run,), name="semel-rebuild", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # this process may have no more threads
        return _report_failure(core, command, verdict, type(error).__name__)
    thread.join(command.policy.rebuild_seconds)
    if ended:
        return _replay(core, command, verdict, ended[0])
    return _report_failure(core, command, verdict, failed[0] if failed else "TimeoutError")


async def rebuild_async(core: Core, command: Command, verdict: Rebuild) -> Replay | NotReplayable:
    """As :func:`rebuild`, on an event loop: a coroutine function there, any other in a thread."""
    build = command.policy.rebuild
    if build is None:
        return _report_failure(core, command, verdict, "NoBuilder")
    try:
        async with asyncio.timeout(command.policy.rebuild_seconds):
            value = await _call(build, _request(command, verdict))
        answer = _answer(value, verdict)
    except Exception as error:  # noqa: BLE001 - the command was done in any case
        return _report_failure(core, command, verdict, type(error).__name__)
    return _replay(core, command, verdict, answer)


async def _call(build: Callable[..., Any], request: Rebuilding) -> Any:
    if inspect.iscoroutinefunction(build) or inspect.iscoroutinefunction(getattr(build, "__call__", None)):  # noqa: B004
        return await build(request)
    value = await asyncio.to_thread(build, request)
    return await value if inspect.isawaitable(value) else value


def _request(command: Command, verdict: Rebuild) -> Rebuilding:
    tenant, caller, operation = command.scope
    resource = (verdict.business_ref, verdict.resource_type, verdict.resource_id)
    return Rebuilding(uuid_text(verdict.operation_id), tenant, caller, operation, *resource, verdict.status)


def _answer(value: Any, verdict: Rebuild) -> Answer:
    """Make the answer of a builder's result, with the original status and the headers that may be stored.

    Raises TypeError where an answer is not made of bytes.
    """
    body: Any = getattr(value, "body", None)
    headers: Any = getattr(value, "raw_headers", None)
    if isinstance(value, Answer):
        headers = value.headers
    elif not isinstance(body, bytes) or not isinstance(headers, list):  # else a Starlette response
        from semel.codec.annotations import Shapes  # with the forms of results, which only this path needs
        from semel.codec.results import keep_result

        headers = (_JSON,)
        body = keep_result(value, Shapes().of(Any, "the rebuilt answer")).answer.body
    is_bodyless = verdict.status in BODYLESS_STATUSES
    return Answer(verdict.status, replayable(headers), b"" if is_bodyless else bytes(memoryview(body)))


def _replay(core: Core, command: Command, verdict: Rebuild, answer: Answer) -> Replay:
    core.tell("rebuilds", command.scope.operation, outcome="rebuilt")
    return Replay(answer, verdict.operation_id, verdict.state)


def _report_failure(core: Core, command: Command, verdict: Rebuild, why: str) -> NotReplayable:
    """Report the type of the error, never its text, which may contain secrets of the answer."""
    core.tell("rebuilds", command.scope.operation, outcome=why)
    text = "an answer could not be rebuilt; the client gets a link to the resource"
    core.note_unanswered(command.scope.operation, why, text)
    return NotReplayable(verdict.operation_id, verdict.resource_type, verdict.resource_id)
