"""Celery tasks, through a base class: ``@app.task(base=inbox_task(inbox))``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from semel.errors import ConfigurationError, StoreError, is_wrong_for_all
from semel.extras import install_command
from semel.inbox.brokers.delivery import fitting, log_busy, log_failed
from semel.inbox.run import Inbox, Message, check_over
from semel.inbox.store import Receipt

try:
    from celery import Task
    from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry, SoftTimeLimitExceeded
except ModuleNotFoundError as error:
    raise ConfigurationError(f"the inbox's tasks need Celery; install it: {install_command('celery')}") from error

_LATE: Final = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_FIXED: Final = ("acks_late", "acks_on_timeout", "reject_on_worker_lost", "max_retries")


def inbox_task(inbox: Inbox, *, id_of: Callable[..., str] | None = None, retry_seconds: float = 1.0) -> type[Task]:
    """Make the base class of tasks that are handled once: each gets the inbox's Message before its own arguments.

    The task's id is the message's: Celery keeps it when a worker is lost, and when a task is retried. A failed task is
    retried ``retry_seconds`` later, until the inbox parks it; a failure of the store is retried for ever. A duplicate
    ends as ignored: it stores no result and calls no ``link``. One app may have tasks of several inboxes.

    Parameters: ``id_of`` finds the message's id in the task's own arguments, otherwise it is the task's.

    Raises ConfigurationError, when the app is finalized, if a task sets its own acknowledgement or is no plain
    function.

        @app.task(base=inbox_task(inbox))
        def bill(message, order):
            message.connection.execute("INSERT INTO invoice VALUES (?)", (order,))

        bill.delay(7)
    """
    members = {"_inbox": inbox, "_id_of": staticmethod(id_of) if id_of is not None else None, "abstract": True}
    return type("InboxTask", (_InboxTask,), {**members, "_retry_seconds": retry_seconds})


class _InboxTask(Task):  # type: ignore[misc]  # Celery ships no types
    acks_late = True
    acks_on_timeout = False
    reject_on_worker_lost = True
    max_retries = None  # the inbox counts tries
    typing = False  # Celery's own check would require the message from the sender
    _inbox: Inbox
    _id_of: Callable[..., str] | None
    _retry_seconds: float

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the task before its first use (Celery's hook)."""
        for name in _FIXED:
            if getattr(cls, name) != getattr(_InboxTask, name):
                raise ConfigurationError(
                    f"the task {cls.name!r} has {name}={getattr(cls, name)!r}, and an inbox needs "
                    f"{getattr(_InboxTask, name)!r}: leave it out"
                )
        if any(has_yet_to_run(cls.run) for has_yet_to_run in _LATE):
            raise ConfigurationError(f"the task {cls.name!r} must be a plain function: Celery awaits no task")

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """Send the task. Raises TypeError if the arguments do not fit, as Celery does; a retry sends the same again."""
        if self.app.strict_typing and self.request.called_directly:
            declared: Any = getattr(self, "__header__", self.run)  # the function as declared, without Celery's retries
            signature = inspect.signature(declared, follow_wrapped=False)  # a decorator may add arguments
            try:
                signature.bind(None, *(args or ()), **(kwargs or {}))
            except TypeError as error:
                raise TypeError(f"{self.name}: {error}") from None
        return super().apply_async(args, kwargs, *more, **options)

    def __call__(self, *args: Any, **named: Any) -> Any:
        results: list[Any] = []
        failures: list[Exception] = []

        def handler(message: Message) -> None:
            try:
                if unnamed is not None:
                    raise unnamed
                results[:] = [check_over(self.run(message, *args, **named))]
            except Exception as error:
                failures[:] = [error]
                raise

        unnamed: Exception | None = None
        try:
            id = self._message_id(*args, **named)
        except Exception as error:
            if self.request.id is None:
                raise
            id, unnamed = fitting(str(self.request.id)), error  # counted, and parked, under the name that it has
        # Celery reports a redelivery, not how many: the task may have ended its worker each time.
        again = (self.request.delivery_info or {}).get("redelivered")
        try:
            receipt = self._inbox.handle(id, handler, deliveries=self._inbox.tries_max + 1 if again else 1)
        except (Ignore, Reject, Retry):  # the task asked for it: its writes are undone, and its retry is sent by now
            raise
        except Exception as error:  # noqa: BLE001 - it is delivered again, under the same id
            return self._again(id, error)
        if receipt is Receipt.HANDLED:
            return results[0]
        if receipt is Receipt.BUSY:
            return self._again(id, StoreError(f"another worker is handling message {id}"), busy=True)
        if receipt is Receipt.PARKED and failures:
            raise _failure_of(failures[0], id)  # Celery learns that it failed, and acknowledges it
        if self.request.called_directly:
            return None  # called directly: the caller has more to do, and is no duplicate
        raise Ignore(f"message {id} is {receipt.value}")

    def _message_id(self, *args: Any, **named: Any) -> str:
        id = self.request.id if self._id_of is None else self._id_of(*args, **named)
        if id is None:
            raise ConfigurationError(
                f"the task {self.name!r} was called, not sent, and has no id: use delay() or apply_async(), or declare "
                "inbox_task(..., id_of=...)"
            )
        return fitting(str(id))

    def _again(self, id: str, error: Exception, *, busy: bool = False) -> Any:
        if self.request.called_directly or (self.request.is_eager and is_wrong_for_all(error)):
            raise error  # no retry can fix it
        if self.request.is_eager and self.app.conf.task_eager_propagates:
            raise error  # the sender gets this error; Celery would propagate a Retry, which does not show it
        try:
            if busy:
                log_busy(id)
            else:
                log_failed(id, error)
            return self.retry(exc=error, countdown=self._retry_seconds)
        except Reject as rejected:  # the broker did not take the retry, but still has the first message
            raise Reject(rejected.reason, requeue=True) from error
        except SoftTimeLimitExceeded as late:  # as a failure Celery would acknowledge it, and never redeliver it
            raise Reject(late, requeue=True) from error


def _failure_of(error: Exception, id: str) -> Exception:
    """Return the error of a parked message. If its task asked for a retry, that retry will be ignored."""
    if not isinstance(error, Retry):
        return error
    return error.exc if isinstance(error.exc, Exception) else MaxRetriesExceededError(f"message {id} is parked")
