"""Dramatiq actors, through a middleware: ``@dramatiq.actor(inbox=inbox)``."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Final

from semel.errors import ConfigurationError
from semel.extras import install_command
from semel.inbox.brokers.delivery import fitting, log_busy
from semel.inbox.run import Inbox, Message, check_over
from semel.inbox.store import Receipt

try:
    from dramatiq import Actor, Broker, Middleware
    from dramatiq.errors import Retry
    from dramatiq.middleware import MiddlewareError, Retries, SkipMessage, TimeLimitExceeded
except ModuleNotFoundError as missing:
    raise ConfigurationError(f"an inbox's actors need Dramatiq; install it: {install_command('dramatiq')}") from missing

_OWN: Final = ("max_retries", "retry_when", "throws", "on_retry_exhausted")  # what would end a message before its inbox
_at: ContextVar[tuple[str, str] | None] = ContextVar("semel-dramatiq-message", default=None)  # its actor and its id


class ActorRefused(ConfigurationError, MiddlewareError):
    """An actor's declaration does not allow handling once. A Dramatiq error, because Dramatiq swallows all others."""


class InboxMiddleware(Middleware):
    """A middleware: actors with ``inbox=`` handle each message once, and get its Message before their own arguments.

    The id is Dramatiq's: a message keeps it over retries, and when its worker dies. An actor may declare ``id_of=``,
    which finds another id in its arguments. Dramatiq retries a failed message (``min_backoff``, ``max_backoff``) until
    the inbox parks it; during a store outage it retries without end. A duplicate is skipped: no callback is called, and
    no pipeline continues from it. Add the middleware before the actors are declared.

    Parameters: ``busy_seconds`` before a message is retried that another worker handles.

        broker.add_middleware(InboxMiddleware())

        @dramatiq.actor(inbox=inbox)
        def bill(message, order):
            message.connection.execute("INSERT INTO invoice VALUES (?)", (order,))

        bill.send(7)
    """

    def __init__(self, *, busy_seconds: float = 1.0) -> None:
        self._busy_ms = round(busy_seconds * 1000)

    @property
    def actor_options(self) -> set[str]:
        """The options that an actor may declare (Dramatiq's hook)."""
        return {"inbox", "id_of"}

    def before_declare_actor(self, broker: Broker, actor: Actor[Any, Any]) -> None:
        """Wrap the actor's function, so that it is handled once (Dramatiq's hook). Raises ActorRefused."""
        inbox = actor.options.get("inbox")
        if inbox is None:
            return
        if not isinstance(inbox, Inbox) or iscoroutinefunction(getattr(actor.fn, "__wrapped__", None)):
            raise ActorRefused(
                f"the actor {actor.actor_name!r} needs an Inbox and a plain function: Dramatiq calls it in a thread"
            )
        given = [name for name in _OWN if name in actor.options]
        if given:
            raise ActorRefused(
                f"the actor {actor.actor_name!r} says {given[0]}=, but its inbox decides when a message has failed too "
                "often: leave it out, and use Inbox(..., tries_max=...)"
            )
        if not any(isinstance(each, Retries) for each in broker.middleware):
            raise ActorRefused("without Dramatiq's Retries a message that fails is lost: add Retries() again")
        actor.options["retry_when"] = _always
        actor.fn = self._once(inbox, actor)

    def before_process_message(self, broker: Broker, message: Any) -> None:
        """Note this thread's message (Dramatiq's hook)."""
        _at.set((message.actor_name, message.message_id))

    def after_process_message(self, broker: Broker, message: Any, *, result: Any = None, exception: Any = None) -> None:
        """Dramatiq's own hook: at none."""
        _at.set(None)

    def after_skip_message(self, broker: Broker, message: Any) -> None:
        """Dramatiq's own hook: at none."""
        _at.set(None)

    def _once(self, inbox: Inbox, actor: Actor[Any, Any]) -> Callable[..., Any]:
        function, name = actor.fn, actor.actor_name
        id_of: Callable[..., str] | None = actor.options.get("id_of")

        @wraps(function)
        def consume(*args: Any, **named: Any) -> Any:
            results: list[Any] = []

            def handler(message: Message) -> None:
                if unnamed is not None:
                    raise unnamed
                try:
                    results[:] = [check_over(function(message, *args, **named))]
                except TimeLimitExceeded as error:  # not an Exception by its class, yet caused by this message
                    raise TimeoutError("it took longer than its time limit") from error

            # Only its own actor takes it, once: otherwise a nested actor call would pass as the same message.
            at, _ = _at.get(), _at.set(None)
            sent = at[1] if at is not None and at[0] == name else None
            unnamed: Exception | None = None
            try:
                id = sent if id_of is None else id_of(*args, **named)
            except Exception as error:
                if sent is None:
                    raise
                id, unnamed = sent, error  # counted, and parked, under the name that it has
            if id is None:
                raise ConfigurationError(
                    f"the actor {name!r} was called, not sent, and has no id: use send(), or declare @actor(id_of=...)"
                )
            receipt = inbox.handle(fitting(str(id)), handler)
            if receipt is Receipt.HANDLED:
                return results[0]
            if receipt is Receipt.BUSY:
                log_busy(str(id))
                raise Retry("another worker is handling it", delay=self._busy_ms)
            if sent is None:
                return None  # called directly: the caller has more to do, and is no duplicate
            raise SkipMessage(f"the message is {receipt.value}")

        return consume


def _always(retries: int, error: BaseException) -> bool:
    return True
