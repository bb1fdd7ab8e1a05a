"""One running command, and the receive and send that its application gets. It translates; the exchange decides.

The application's answer is held until its call has *returned*, because frameworks commit after the last chunk;
then the outcome is settled, and only then does the answer leave. An answer that cannot be held is marked in the
store before its first byte leaves. A client that disconnects changes nothing: the application does not learn of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from enum import Enum
from typing import Any, Final, Protocol

from semel.core.model import Answer, Superseded
from semel.core.outcomes import Outcome, Succeeded
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.errors import SemelError, StoreError
from semel.http.asgi.disconnects import is_disconnect
from semel.http.capture import Capture
from semel.http.exchange import CUT, UNFINISHED, AnswerTooLarge, Exchange, IncompleteAnswer
from semel.http.headers import Headers
from semel.http.routing import Route
from semel.http.spool import Spool

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Mode(Enum):
    HOLD = 1  # the answer is kept here until the outcome is settled
    THROUGH = 2  # the answer is marked as not kept, and flows to the client
    DROP = 3  # the answer may not leave any more; the handler finishes


# Looking up an enumeration's member is a call, which every request would pay for.
_HOLD, _THROUGH = _Mode.HOLD, _Mode.THROUGH
_new: Final[Any] = tuple.__new__  # every command pays for an answer


class HostMiddleware(Protocol):
    """The middleware that an application's calls come through."""

    app: App
    engine: AsyncEngine


class AsgiCall(Capture):
    """The receive and send that the application gets, which collect its answer once a permit is granted.

    The application's scope offers no way to answer that bypasses the capture.

    :meth:`_begin` starts a protected call; :meth:`_conclude` settles it when the application has returned.
    """

    # Defaults that most requests keep are attributes of the class.
    _request_message: Message | None = None
    _request_spool: Spool | None = None
    _spool_read_at = 0
    _permit: Permit | None = None
    _answer_mode = _HOLD
    _start_message: Message | None = None
    _end_event: asyncio.Event | None = None
    _task_to_cancel: asyncio.Task[Any] | None = None
    _unclaimed_deadline: float | None = None  # of a call without a permit: the time from which its answer is too late
    _client_gone = False
    _cancelled_as_lost = False
    _endpoint_error: BaseException | None = None  # what the endpoint itself raised, if known
    _endpoint_error_status: int | None = None
    _answered_202 = False  # the client got a 202; the answer is for later retries

    _exchange: Exchange

    def __init__(self, middleware: HostMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
        self._middleware = middleware
        self._scope = scope
        self._receive = receive
        self._send = send

    def _begin(self, exchange: Exchange, permit: Permit) -> None:
        """Hold the answer from here on, for this permit."""
        self._exchange = exchange
        self._permit = permit
        self._keeping = exchange.route.keeping
        scope = self._scope
        state = scope.get("state")
        if state is None:
            scope["state"] = {"semel_permit": permit}
        else:
            state["semel_permit"] = permit
        scope["semel.permit"] = permit

    def _heed_loss(self, route: Route, permit: Permit) -> None:
        """Cancel an IDEMPOTENT handler when another attempt is granted its record."""
        if route.idempotent:
            self._task_to_cancel = asyncio.current_task()
            permit.when_lost(self._cancel)

    @property
    def _deadline(self) -> float:
        """The time, in monotonic seconds, until which to wait for the handler."""
        if self._unclaimed_deadline is not None:
            return self._unclaimed_deadline
        assert self._permit is not None
        return self._permit.deadline_monotonic

    async def _accept(self, permit: Permit) -> None:
        """Tell a client that does not wait where to look; the handler goes on."""
        self._answered_202 = True
        try:
            starts = permit.asked.policy.terms.starts
            await send_answer(self._send, self._exchange.answer_accepted(permit.execution_id, starts))
        except Exception as refused:
            if not is_disconnect(refused):
                raise

    def _cancel(self) -> None:
        if self._task_to_cancel is not None:
            self._cancelled_as_lost = True
            self._task_to_cancel.cancel()

    async def _conclude(self, permit: Permit, error: BaseException | None) -> None:
        """Settle after the application returned or raised ``error``, send what may leave, and raise the error again."""
        if self._task_to_cancel is not None:
            self._stop_cancelling(permit)
        exchange, engine, head = self._exchange, self._middleware.engine, self._answer_head
        success: Answer | None = None  # the stored form of an answer that alone proves success
        if (
            error is None
            and head.succeeds
            and self.ended
            and self._answer_bytes >= head.announced
            and self._endpoint_error is None
        ):
            body = self._first_piece if self._later_pieces is None else self.body
            success = _new(Answer, (head.status, head.kept, body))
            if engine.core.succeed_at_once(permit, success):  # the usual end
                headers = exchange.route.honoured.after(head.headers, permit.claim.operation_id)
                try:
                    await self._send({"type": "http.response.start", "status": head.status, "headers": headers})
                    await self._send({"type": "http.response.body", "body": body, "more_body": False})
                except Exception as refused:
                    if not is_disconnect(refused):
                        raise
                return
        if not permit.kept:
            success = None
        if error is None and not self.complete and (self._answer_mode is _HOLD or self.ended or not self.started):
            error = IncompleteAnswer(CUT if self.ended else UNFINISHED)
        try:
            outcome: Outcome
            if success is not None:
                outcome = Succeeded(success)
            else:
                outcome = exchange.outcome(permit, self, error, self._endpoint_error, self._endpoint_error_status)
            answer: Answer | None
            try:
                reply = await engine.settle(permit, outcome)
                if type(reply) is not Superseded and success is not None and permit.steps is None:
                    answer = self.first(exchange.route.honoured.headers(permit.execution_id))
                else:
                    verdict = await engine.reread(permit) if type(reply) is Superseded else None
                    answer = exchange.last_answer(permit, self, outcome, error, verdict, failure=self._endpoint_error)
            except SemelError as unconfirmed:
                answer = exchange.last_answer(permit, self, outcome, error, None, unconfirmed, self._endpoint_error)
            if answer is None:
                self._point(exchange.honours(permit, permit.outcome(outcome)))
            elif self._answer_mode is not _THROUGH and not self._answered_202:
                try:
                    await send_answer(self._send, answer)
                except Exception as refused:
                    if not is_disconnect(refused):
                        raise
                    # The client has disconnected; its retry will get this answer.
            if error is not None and not (self._cancelled_as_lost and isinstance(error, asyncio.CancelledError)):
                raise error
        finally:
            error = None  # it holds this frame

    def _stop_cancelling(self, permit: Permit) -> None:
        """Note that the handler has ended: losing the permit from here on cancels nothing."""
        assert self._task_to_cancel is not None
        permit.when_lost(_nothing)
        if self._cancelled_as_lost:
            self._task_to_cancel.uncancel()
        self._task_to_cancel = None  # breaks a cycle through the application's exception

    def _point(self, headers: Headers) -> None:
        """Add ``headers``, which link the operation's status, to the server's answer to the application's exception."""

    # --- what the application gets ------------------------------------------------------------

    async def receive(self) -> Message:
        """Receive the body again, and what follows it."""
        message = self._request_message
        if message is not None:
            self._request_message = None
            return message
        piece = await self._next_piece()
        return piece if piece is not None else await self._after_body()

    async def _after_body(self) -> Message:
        """Receive nothing until the answer is complete: a handler does not learn that its client has disconnected."""
        await self._until_it_may_know()
        return {"type": "http.disconnect"} if self.ended else await self._receive()

    async def _until_it_may_know(self) -> None:
        if not self.ended and not self.endless:
            if self._end_event is None:
                self._end_event = asyncio.Event()
            try:
                async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                    await self._end_event.wait()
            except TimeoutError:
                pass  # past the deadline nothing waits for the handler: it may learn of the disconnect

    async def send(self, message: Message) -> None:
        """Take one message of the answer."""
        kind = message["type"]
        if kind == "http.response.start":
            if self._start_message is not None:
                raise RuntimeError("the application started its response twice")
            fits = self.start(message["status"], message.get("headers", ()))
            self._start_message = message
        elif kind == "http.response.body":
            if self._start_message is None:
                raise RuntimeError("the application sent a body before it started its response")
            if self.ended:
                return
            if self._answer_mode is not _HOLD:
                await self._continue(message)
                return
            fits = self.add(message.get("body", b""))
            if not message.get("more_body"):
                self.ended = True
                if self._answer_bytes > self._answer_head.sent_max:
                    self.cut_surplus()
                if self._end_event is not None:
                    self._end_event.set()
        else:
            if kind == "http.response.debug" or self._answer_mode is _Mode.THROUGH:
                await self._send(message)
            return
        if not fits:
            await self._let_go(more=not self.ended)

    def end(self) -> None:
        """Note that the application has sent the end of the body."""
        self.ended = True
        if self._end_event is not None:
            self._end_event.set()

    async def _let_go(self, *, more: bool) -> None:
        """Let an answer flow that cannot be held, after marking it as not kept; never for an ATOMIC command."""
        permit = self._permit
        assert permit is not None
        if self._exchange.route.atomic:
            permit.kept = False
            self._answer_mode = _Mode.DROP
            raise AnswerTooLarge("the answer of an ATOMIC command is longer than answer_bytes_max; it is rolled back")
        if self.endless and self._end_event is not None:
            self._end_event.set()
        try:
            marked_so = await self._middleware.engine.mark_not_kept(permit)
        except StoreError:
            marked_so = False
        chunks = self.release()
        if not marked_so or self._answered_202:
            self._answer_mode = _Mode.DROP
            return
        self._answer_mode = _Mode.THROUGH
        assert self._start_message is not None
        headers = [*self.headers, *self._exchange.honours(permit)]
        await self._forward({**self._start_message, "headers": headers})
        if chunks or not more:
            await self._forward({"type": "http.response.body", "body": b"".join(chunks), "more_body": more})

    async def _continue(self, message: Message) -> None:
        self.count(message.get("body", b""))
        if not message.get("more_body", False):
            self.end()
        if self._answer_mode is _Mode.THROUGH:
            await self._forward(message)

    async def _forward(self, message: Message) -> None:
        if self._client_gone and time.monotonic() < self._deadline:
            return
        try:
            await self._send(message)
        except Exception as refused:
            # A stream without an end would never learn that its client has gone.
            if not is_disconnect(refused) or self.endless or time.monotonic() >= self._deadline:
                raise
            self._client_gone = True

    # --- the body -----------------------------------------------------------------------------

    async def _next_piece(self) -> Message | None:
        spool = self._request_spool
        if spool is None or self._spool_read_at < 0:
            return None
        chunk = (
            (await asyncio.to_thread(spool.read, self._spool_read_at))
            if spool.on_disk
            else spool.read(self._spool_read_at)
        )
        self._spool_read_at += len(chunk)
        more = self._spool_read_at < spool.size
        if not more:
            self._spool_read_at = -1
        return {"type": "http.request", "body": chunk, "more_body": more}

    def _close_spool(self) -> None:
        if self._request_spool is not None:
            self._request_spool.close()
            self._request_spool = None


async def send_answer(send: Send, answer: Answer) -> None:
    """Send an answer in two messages."""
    status, headers, body = answer
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def with_mark(send: Send, mark: tuple[bytes, bytes]) -> Send:
    """A send that adds one header to the answer."""

    async def send_marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), mark]}
        await send(message)

    return send_marked


def _nothing() -> None:
    """Do nothing: the handler of a lost permit has already ended."""
