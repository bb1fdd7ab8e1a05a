"""Consumers that handle each message once: the sync and async forms, and their shared part."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, Concatenate, Final, Never, ParamSpec, TypeVar

from semel.articles import name_type
from semel.atomic.own_transaction import in_own_transaction
from semel.core.flow import Flow, ask
from semel.core.identity import derive_key, frame
from semel.core.requests import AnyUnit, Begin, Rollback
from semel.engine.async_engine import AsyncEngine
from semel.engine.sync_engine import Engine
from semel.errors import (
    HandlerError,
    HandlerRefused,
    InProgressError,
    PolicyError,
    SemelError,
    StoreError,
    is_wrong_for_all,
)
from semel.inbox.flow import enter, leave, let_go, note_failure, purge_messages, undo
from semel.inbox.store import CONSUMER_MAX, MESSAGE_ID_MAX, InboxRows, Parked, Receipt
from semel.stores.backend import UNIT_RUNS_MAX, Backend
from semel.stores.process import FORKED, this_process
from semel.stores.shield import Hold, whole

T = TypeVar("T")
P = ParamSpec("P")
SECOND_US: Final = 1_000_000
SPAN_SECONDS_MAX: Final = 10 * 366 * 86_400
_OPTIONS: Final = ("consumer", "tries_max", "keep_seconds")
_OF_ADAPTERS: Final = ("id_of", "retry_seconds", "retry_seconds_max", "lease_seconds", "idle_seconds", "busy_seconds")
_NOBODY: Final = bytes(16)
_NOT_OVER: Final = (
    "the handler returned {kind}: its work has not begun, so that the message is not handled; an Inbox takes a plain "
    "function, and an AsyncInbox on an AsyncEngine a coroutine function"
)
_NOT_AWAITED: Final = "an AsyncInbox takes a coroutine function, async def handler(message): ...; it returned {kind}"
_JOIN: Final = "join your own transaction: with inbox.within(connection, message_id) as message (docs/inbox.md)"


class Poison(Exception):
    """Raise it from a handler to park the message at once: it can never be handled.

    >>> raise Poison("the order's currency is unknown")
    Traceback (most recent call last):
        ...
    semel.inbox.run.Poison: the order's currency is unknown
    """


@dataclass(frozen=True, slots=True)
class Message:
    """A handler's input: the message's id, and the connection that commits with it.

    ``receipt`` is None if the message is to be handled; only :meth:`Inbox.within` returns others.
    """

    consumer: str
    id: str
    connection: Any
    receipt: Receipt | None = None

    def key_for(self, name: str, ordinal: int = 0) -> str:
        """Return a key for one downstream call, the same in each delivery. Raises PolicyError without a name."""
        if not name:
            raise PolicyError("key_for needs a name, such as message.key_for('charge')")
        return derive_key(_NOBODY, 0, frame("message", self.consumer, self.id, name).decode(), ordinal)


def _where(name: str) -> str:
    """Return a hint for an option that an inbox does not have: it belongs to an adapter, or is misspelled.

    >>> _where("retry_second"), _where("tries")
    ("it belongs to the broker's adapter, such as inbox_task(inbox, retry_seconds=...)", "did you mean 'tries_max'?")
    """
    of_adapters = get_close_matches(name, _OF_ADAPTERS, n=1, cutoff=0.8)
    if of_adapters:
        return f"it belongs to the broker's adapter, such as inbox_task(inbox, {of_adapters[0]}=...)"
    near = get_close_matches(name, _OPTIONS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(_OPTIONS)}"


class _Inbox:
    """The shared part of both forms."""

    def __init__(
        self, backend: Backend, consumer: str, tries_max: int, keep_seconds: float, unknown: Mapping[str, object]
    ) -> None:
        for name in unknown:
            raise PolicyError(f"unknown option {name!r}; {_where(name)}")
        _check_text("consumer", consumer, CONSUMER_MAX)
        if type(tries_max) is not int or not 1 <= tries_max <= 1000:
            raise PolicyError(f"tries_max must be a whole number from 1 to 1000; it is {tries_max!r}")
        if type(keep_seconds) not in (int, float) or not 0 < keep_seconds <= SPAN_SECONDS_MAX:
            raise PolicyError(f"keep_seconds must be seconds, at most ten years; it is {keep_seconds!r}")
        backend.check_atomic()
        self.consumer = consumer
        self.tries_max = tries_max
        self._backend = backend
        self._rows = InboxRows(backend.store, consumer, tries_max, int(keep_seconds * SECOND_US))

    def _enter(self, message_id: str, deliveries: int, begin: Begin) -> Flow[tuple[Receipt | None, AnyUnit | None]]:
        _check_text("a message's id", message_id, MESSAGE_ID_MAX)
        return enter(self._rows, message_id, deliveries, self.tries_max, begin)

    def _leave(self, message_id: str, unit: AnyUnit, deliveries: int) -> Flow[Receipt]:
        """Commit. HandlerRefused counts as the handler's failure, and is raised unless that parks the message."""
        try:
            yield from leave(self._backend.store, self._rows, unit, message_id)
        except HandlerRefused as error:
            parked = yield from self._record_failure(message_id, unit, error, deliveries)
            if parked is None:
                raise
            return parked
        return Receipt.HANDLED

    def _record_failure(
        self, message_id: str, unit: AnyUnit, error: Exception, deliveries: int
    ) -> Flow[Receipt | None]:
        """Roll back, and count the failure if the message caused it."""
        parked = yield from undo(self._rows, unit, message_id)
        if parked is not None:
            return parked
        of_the_store = isinstance(error, StoreError) and not isinstance(error, HandlerRefused)
        if (of_the_store and not _locks_out(unit, error)) or is_wrong_for_all(error):
            if deliveries > self.tries_max:
                yield from self._take_back(message_id, error)
            return None  # the next delivery may succeed, or no message would
        tries = self.tries_max if isinstance(error, Poison) else 1
        text = _text_of(error)
        reason = f"{type(error).__name__}: {text}" if not isinstance(error, Poison) else text
        step = 0 if deliveries > self.tries_max else 1  # it was counted when it began
        return (yield from note_failure(self._rows, message_id, reason, tries, step=step))

    def _take_back(self, message_id: str, error: Exception) -> Flow[None]:
        """Uncount a try that was counted before it began: its worker lives, and the message is not at fault.

        During a store outage the try stays counted.
        """
        with suppress(SemelError):
            yield from note_failure(self._rows, message_id, f"{type(error).__name__}: {_text_of(error)}", 0, step=-1)

    def _record_failure_or_retry(
        self, message_id: str, unit: AnyUnit, error: Exception, deliveries: int, run: int
    ) -> Flow[Receipt | None]:
        """Return the receipt after a handler's exception; None: raise the exception. BUSY: run it again at once."""
        if run < UNIT_RUNS_MAX and self._backend.conflicts(error):
            return (yield from undo(self._rows, unit, message_id)) or Receipt.BUSY
        return (yield from self._record_failure(message_id, unit, error, deliveries))


class Inbox(_Inbox):
    """Handles each message of one consumer once, on an :class:`~semel.Engine`.

    Parameters: ``consumer`` the consumer's name (other consumers handle the same messages independently); ``tries_max``
    failures after which a message is parked; ``keep_seconds`` how long a handled message is remembered: longer than its
    broker may redeliver it. The broker's adapter decides how soon a failed message is redelivered.

    Raises PolicyError for an invalid value or unknown option, and ConfigurationError if the store is no SQL database.

    >>> import tempfile
    >>> from semel import Engine, Inbox
    >>> folder = tempfile.TemporaryDirectory()
    >>> engine = Engine.connect(f"sqlite:///{folder.name}/app.db")
    >>> _ = engine.migrate()
    >>> with engine:
    ...     inbox = Inbox(engine, consumer="billing")
    ...     for _ in range(2):
    ...         print(inbox.handle("message-1", lambda message: print("handling", message.id)))
    handling message-1
    Receipt.HANDLED
    Receipt.DUPLICATE
    >>> folder.cleanup()
    """

    def __init__(
        self,
        engine: Engine,
        *,
        consumer: str,
        tries_max: int = 5,
        keep_seconds: float = 7 * 86_400,
        **unknown: Never,
    ) -> None:
        super().__init__(engine.backend, consumer, tries_max, keep_seconds, unknown)
        self._engine = engine

    def handle(self, message_id: str, handler: Callable[[Message], object], *, deliveries: int = 1) -> Receipt:
        """Handle a message once: the handler's writes on ``message.connection`` commit with the inbox's record of it.

        Parameters: ``deliveries`` how often the broker has delivered it, if known: above ``tries_max`` each try is
        counted before it begins, so that a message that kills its worker every time is parked.

        Raises the handler's own exception (redeliver the message); HandlerRefused: the database refused to commit the
        handler's writes, which counts as its failure; HandlerError: the handler is no plain function; EarlyCommit,
        StoreError.
        """
        run = 0
        while True:
            run += 1
            hold: Hold[AnyUnit] = Hold(lambda unit, _: self._drive(let_go(self._rows, unit, message_id)))
            try:
                receipt = self._handle_once(hold, message_id, handler, deliveries, run)
                hold.end()
            except BaseException as error:
                hold.let_go(error)
                raise
            if receipt is not None:
                return receipt

    def _handle_once(
        self, hold: Hold[AnyUnit], message_id: str, handler: Callable[[Message], object], deliveries: int, run: int
    ) -> Receipt | None:
        """Handle one delivery from its claim to its end; None: it met a conflict, and the caller retries at once."""
        met, unit = self._drive(_into(hold, self._enter(message_id, deliveries if run == 1 else 1, Begin())))
        if unit is None:
            return _require_receipt(met)
        process = this_process()
        try:
            with in_own_transaction(self._backend, self.consumer, unit, _JOIN):
                check_over(handler(Message(self.consumer, message_id, unit.connection)))
            if process is not this_process():
                raise HandlerError(FORKED)
        except Exception as error:
            if process is not this_process():
                raise  # the transaction is the parent's
            met = self._drive(self._record_failure_or_retry(message_id, unit, error, deliveries, run))
            if met is None:
                raise
            return None if met is Receipt.BUSY else met
        return self._drive(self._leave(message_id, unit, deliveries))

    @contextmanager
    def within(self, connection: Any, message_id: str) -> Iterator[Message]:
        """Join your own transaction: ``with inbox.within(session, id) as message: if message.receipt is None: ...``.

        You commit or roll back; after the rollback :meth:`note_failure` counts a failure. Raises JoinRefused,
        StoreError.
        """
        joined = Begin(lambda: self._backend.join(connection))
        met, unit = self._engine._performer.drive_here(self._enter(message_id, 1, joined))
        yield Message(self.consumer, message_id, connection, None if unit is not None else _require_receipt(met))

    def note_failure(self, message_id: str, reason: str, *, deliveries: int = 1) -> bool:
        """Count a failure of your own transaction, after its rollback; return whether the message is parked now."""
        return self._drive(note_failure(self._rows, message_id, reason, deliveries)) is Receipt.PARKED

    def once(
        self, id_of: Callable[..., str]
    ) -> Callable[[Callable[Concatenate[Message, P], object]], Callable[P, Receipt]]:
        """Decorate a consumer of any library: the handler gets the :class:`Message` before its own arguments.

        Parameters: ``id_of`` finds the message's id in those arguments.

        The decorated function raises the errors of :meth:`handle`, and InProgressError instead of the receipt BUSY: a
        library acknowledges a message when its function returns.
        """

        def decorate(handler: Callable[Concatenate[Message, P], object]) -> Callable[P, Receipt]:
            @wraps(handler)
            def consume(*args: P.args, **named: P.kwargs) -> Receipt:
                id = id_of(*args, **named)
                return _require_end(id, self.handle(id, lambda message: handler(message, *args, **named)))

            del consume.__wrapped__  # hide the message from readers of its signature
            return consume

        return decorate

    def find_parked(self, *, after: str = "", limit: int = 100) -> list[Parked]:
        """Find messages that wait for an operator, by name."""
        return self._engine.perform("inbox", lambda: self._rows.find_parked(after, limit))

    def release(self, message_id: str) -> bool:
        """Forget a parked message's tries, so that it may be redelivered; False if it was handled."""
        return self._engine.perform("inbox", lambda: self._rows.release(message_id))

    def purge(self, *, chunk: int = 500) -> int:
        """Delete expired messages of every consumer, a chunk at a time; returns their number."""
        return self._drive(purge_messages(self._engine.store, chunk)).forgotten

    def _drive(self, flow: Flow[T]) -> T:
        return self._engine._performer.drive(flow)


class AsyncInbox(_Inbox):
    """As :class:`Inbox`, on an :class:`~semel.AsyncEngine`, with handlers that are awaited."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        consumer: str,
        tries_max: int = 5,
        keep_seconds: float = 7 * 86_400,
        **unknown: Never,
    ) -> None:
        super().__init__(engine.backend, consumer, tries_max, keep_seconds, unknown)
        self._engine = engine

    async def handle(
        self, message_id: str, handler: Callable[[Message], Awaitable[object]], *, deliveries: int = 1
    ) -> Receipt:
        """As :meth:`Inbox.handle`. A cancelled handler's writes are rolled back, and no failure is counted."""
        run = 0
        while True:
            run += 1
            met, unit = await self._drive(self._enter(message_id, deliveries if run == 1 else 1, Begin()))
            if unit is None:
                return _require_receipt(met)
            process = this_process()
            try:
                with in_own_transaction(self._backend, self.consumer, unit, _JOIN):
                    await await_over(handler(Message(self.consumer, message_id, unit.connection)))
                if process is not this_process():
                    raise HandlerError(FORKED)
            except Exception as error:
                if process is not this_process():
                    raise  # as there
                met = await self._drive(self._record_failure_or_retry(message_id, unit, error, deliveries, run))
                if met is Receipt.BUSY:
                    continue
                if met is None:
                    raise
                return met
            except BaseException:
                if process is this_process():
                    await self._drive(let_go(self._rows, unit, message_id))
                raise
            return await self._drive(self._leave(message_id, unit, deliveries))

    @asynccontextmanager
    async def within(self, connection: Any, message_id: str) -> AsyncIterator[Message]:
        """As :meth:`Inbox.within`, for AsyncSession, psycopg's AsyncConnection and asyncpg's connections."""
        joined = Begin(lambda: self._backend.join_async(connection))
        met, unit = await self._drive(self._enter(message_id, 1, joined))
        yield Message(self.consumer, message_id, connection, None if unit is not None else _require_receipt(met))

    async def note_failure(self, message_id: str, reason: str, *, deliveries: int = 1) -> bool:
        """As :meth:`Inbox.note_failure`."""
        return await self._drive(note_failure(self._rows, message_id, reason, deliveries)) is Receipt.PARKED

    def once(
        self, id_of: Callable[..., str]
    ) -> Callable[[Callable[Concatenate[Message, P], Awaitable[object]]], Callable[P, Coroutine[Any, Any, Receipt]]]:
        """As :meth:`Inbox.once`, for coroutines."""

        def decorate(
            handler: Callable[Concatenate[Message, P], Awaitable[object]],
        ) -> Callable[P, Coroutine[Any, Any, Receipt]]:
            @wraps(handler)
            async def consume(*args: P.args, **named: P.kwargs) -> Receipt:
                id = id_of(*args, **named)
                return _require_end(id, await self.handle(id, lambda message: handler(message, *args, **named)))

            del consume.__wrapped__  # as there
            return consume

        return decorate

    async def find_parked(self, *, after: str = "", limit: int = 100) -> list[Parked]:
        """Find messages that wait for an operator, by name."""
        return await self._engine.perform("inbox", lambda: self._rows.find_parked(after, limit))

    async def release(self, message_id: str) -> bool:
        """Forget a parked message's tries, so that it may be redelivered; False if it was handled."""
        return await self._engine.perform("inbox", lambda: self._rows.release(message_id))

    async def purge(self, *, chunk: int = 500) -> int:
        """Delete expired messages of every consumer, a chunk at a time; returns their number."""
        return (await self._drive(purge_messages(self._engine.store, chunk))).forgotten

    async def _drive(self, flow: Flow[T]) -> T:
        """Run to completion even if the caller is cancelled: a commit is never cut in half."""
        reply, cancelled = await whole(self._engine._performer.drive(flow))
        if cancelled is None:
            return reply
        if isinstance(reply, tuple) and reply[1] is not None:  # begun for a cancelled caller: nothing was written
            await whole(self._engine._performer.drive(ask(Rollback(reply[1]))))
        raise cancelled


def _into(
    hold: Hold[AnyUnit], entered: Flow[tuple[Receipt | None, AnyUnit | None]]
) -> Flow[tuple[Receipt | None, AnyUnit | None]]:
    """Enter a message, and give its unit to the hold."""
    met, unit = yield from entered
    if unit is not None:
        hold.give(unit)
    return met, unit


def check_over(returned: object) -> object:
    """Check a handler's result; HandlerError if it is work that has not begun."""
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # otherwise Python warns that it was never awaited
        raise HandlerError(_NOT_OVER.format(kind=name_type(returned)))
    return returned


async def await_over(begun: object) -> object:
    """Await a coroutine handler's result; HandlerError if the handler is no coroutine function."""
    if not inspect.isawaitable(begun):
        raise HandlerError(_NOT_AWAITED.format(kind=name_type(begun)))
    return check_over(await begun)


def _text_of(error: Exception) -> str:
    """Return an exception's text, also if its ``__str__`` fails."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - the code of any library
        return f"its text cannot be read ({type(broken).__name__})"


def _locks_out(unit: AnyUnit, error: Exception) -> bool:
    """Return whether a handler has waited for its own transaction (SQLite has one write lock): so will each retry."""
    asked: Callable[[Exception], bool] | None = getattr(unit, "locks_out", None)
    return asked is not None and asked(error)


def _require_receipt(met: Receipt | None) -> Receipt:
    assert met is not None
    return met


def _require_end(message_id: str, receipt: Receipt) -> Receipt:
    if receipt is Receipt.BUSY:
        raise InProgressError(f"another worker is handling message {message_id}; deliver it again later")
    return receipt


def _check_text(name: str, text: object, length_max: int) -> None:
    if not isinstance(text, str) or not text:
        raise PolicyError(f"{name} must be a non-empty text; it is {text!r}")
    if len(text) > length_max or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise PolicyError(f"{name} must have at most {length_max} characters, and no lone surrogates")
