"""Taskiq's tasks, through a decorator instead of ``@broker.task``: ``@inbox_task(broker, inbox)``."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from semel.errors import ConfigurationError, is_wrong_for_all
from semel.extras import install_command
from semel.inbox.brokers.delivery import fitting, log_busy, log_failed
from semel.inbox.run import AsyncInbox, Message
from semel.inbox.store import Receipt
from semel.telemetry import field

try:
    from taskiq import AsyncBroker, Context, TaskiqDepends
    from taskiq.acks import AcknowledgeType
    from taskiq.decor import AsyncTaskiqDecoratedTask
    from taskiq.exceptions import NoResultError
except ModuleNotFoundError as missing:
    raise ConfigurationError(f"the inbox's tasks need Taskiq; install it: {install_command('taskiq')}") from missing

P = ParamSpec("P")
R = TypeVar("R")

CONTEXT: Final = "semel_context"  # the argument that Taskiq fills in
_FIXED: Final = {
    "ack_type": "the task is acknowledged after its commit",
    "timeout": "it would end a task without counting it: write `async with asyncio.timeout(...)` in the task",
    "retry_on_error": "the inbox counts tries: use AsyncInbox(..., tries_max=...)",
    "max_retries": "the inbox counts tries: use AsyncInbox(..., tries_max=...)",
}
_LOG: Final = logging.getLogger("semel.consumers")


def inbox_task(
    broker: AsyncBroker,
    inbox: AsyncInbox,
    *,
    id_of: Callable[..., str] | None = None,
    retry_seconds: float = 1.0,
    task_name: str | None = None,
    **labels: Any,
) -> Callable[
    [Callable[Concatenate[Message, P], Coroutine[Any, Any, R]]],
    AsyncTaskiqDecoratedTask[P, Coroutine[Any, Any, R | None]],
]:
    """Declare a task that is handled once: it gets the inbox's Message before its own arguments.

    The task's id is the message's: Taskiq keeps it when a message is redelivered. A failed task is retried here,
    ``retry_seconds`` later, until the inbox parks it; then it fails for Taskiq, too. It also waits here during a store
    outage, or while another worker handles the message. The message is acknowledged after its commit; if its worker
    ends or is cancelled, the broker redelivers it, if it has acknowledgements at all. A duplicate stores no result.

    Parameters: ``id_of`` finds the message's id in the task's own arguments, otherwise it is the task's; ``task_name``
    and ``labels`` are Taskiq's own.

    Raises ConfigurationError, when the task is declared, for a label that would acknowledge or retry it differently,
    and for a plain function.

        @inbox_task(broker, inbox)
        async def bill(message: Message, order: int) -> None:
            await message.connection.execute("INSERT INTO invoice VALUES ($1)", order)

        await bill.kiq(7)
    """
    for name, why in _FIXED.items():
        if name in labels:
            raise ConfigurationError(f"a task with an inbox takes no {name}=: {why}")
    if not isinstance(inbox, AsyncInbox):
        raise ConfigurationError("Taskiq runs on an event loop: give inbox_task an AsyncInbox")

    def declare(
        function: Callable[Concatenate[Message, P], Coroutine[Any, Any, R]],
    ) -> AsyncTaskiqDecoratedTask[P, Coroutine[Any, Any, R | None]]:
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"the task {function.__qualname__} is not a coroutine function; write async def")
        taken: Any = broker.task(task_name, ack_type=AcknowledgeType.MANUAL.value, **labels)(
            _once(function, inbox, id_of, retry_seconds)
        )
        task: AsyncTaskiqDecoratedTask[P, Coroutine[Any, Any, R | None]] = taken
        return task

    return declare


def _once(
    function: Callable[..., Awaitable[Any]],
    inbox: AsyncInbox,
    id_of: Callable[..., str] | None,
    retry_seconds: float,
) -> Callable[..., Awaitable[Any]]:
    first, *own = inspect.signature(function).parameters.values()
    given = inspect.Parameter(CONTEXT, inspect.Parameter.KEYWORD_ONLY, default=TaskiqDepends(), annotation=Context)
    place = next((n for n, each in enumerate(own) if each.kind is inspect.Parameter.VAR_KEYWORD), len(own))

    @wraps(function)
    async def consume(*args: Any, **named: Any) -> Any:
        context: Context | None = named.pop(CONTEXT, None)
        results: list[Any] = []
        failures: list[Exception] = []

        async def handler(message: Message) -> None:
            try:
                if unnamed is not None:
                    raise unnamed
                results[:] = [await function(message, *args, **named)]
            except Exception as error:
                failures[:] = [error]
                raise

        unnamed: Exception | None = None
        try:
            id = _message_id(function, context, id_of, args, named)
        except Exception as error:
            if context is None:
                raise
            id, unnamed = fitting(context.message.task_id), error  # counted, and parked, under the name that it has
        receipt = await _handle(inbox, id, handler, retry_seconds)
        if context is not None and context.is_ackable:
            try:
                await context.ack()
            except Exception as error:  # noqa: BLE001 - it is handled all the same, and is redelivered as a duplicate
                _LOG.warning(
                    "message %s was not acknowledged (%s); it is delivered again", field(id), type(error).__name__
                )
        if receipt is Receipt.HANDLED:
            return results[0]
        if receipt is Receipt.PARKED and failures:
            raise failures[0]
        if context is None:
            return None  # called directly: the caller has more to do, and is no duplicate
        raise NoResultError  # the result of the first delivery stays

    signature = inspect.signature(function)
    consume.__signature__ = signature.replace(parameters=[*own[:place], given, *own[place:]])  # type: ignore[attr-defined]
    consume.__annotations__ = {
        **{name: hint for name, hint in function.__annotations__.items() if name != first.name},
        CONTEXT: Context,
    }
    return consume


async def _handle(
    inbox: AsyncInbox, id: str, handler: Callable[[Message], Awaitable[object]], retry_seconds: float
) -> Receipt:
    while True:
        try:
            receipt = await inbox.handle(id, handler)
        except Exception as error:
            if is_wrong_for_all(error):
                raise
            log_failed(id, error)
        else:
            if receipt is not Receipt.BUSY:
                return receipt
            log_busy(id)
        await asyncio.sleep(retry_seconds)


def _message_id(
    function: Callable[..., Any],
    context: Context | None,
    id_of: Callable[..., str] | None,
    args: tuple[Any, ...],
    named: dict[str, Any],
) -> str:
    if id_of is not None:
        return fitting(str(id_of(*args, **named)))
    if context is None:
        raise ConfigurationError(
            f"the task {function.__qualname__} was called, not sent, and has no id: use kiq(), or declare "
            "inbox_task(..., id_of=...)"
        )
    return fitting(context.message.task_id)
