"""Transports that add retries to an existing httpx client: the same plan, one key per call, no journal.

They retry only requests that have a key or only read. A POST or PATCH without a key gets a new one, which all attempts
of this call share and which ends with the process: a command that must survive a crash needs a
:class:`~semel.client.sync_client.Client` and its journal.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias

import anyio
import httpx

from semel.client.answers import Answered
from semel.client.deadline import DeadlineOver, left_seconds, within
from semel.client.intents import KEY_HEADER, LOG, Sleep, Transmit, no_answer, quote_key, to_answered
from semel.client.limits import Breaker, Budget
from semel.client.origins import Origins
from semel.client.plan import AskStatus, Event, Finish, NoAnswer, NotYet, Plan, Send, Wait, Waited
from semel.errors import ConfigurationError

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_GETS_A_KEY: Final = frozenset({"POST", "PATCH"})
# The result of one attempt: the event for the plan, and what the caller gets if this attempt is the last.
_Came: TypeAlias = "tuple[Answered | NoAnswer, httpx.Response | httpx.RequestError]"
_Steps: TypeAlias = "Generator[Transmit | Sleep, Any, httpx.Response]"


class NotSent(httpx.TransportError):
    """The origin's retry budget is used up, its breaker is open, or the deadline is over: nothing was sent."""


class _Retrying:
    """The shared part of both transports."""

    def __init__(self, budget: Budget | None, breaker: Breaker | None, add_key: bool, bare: bool) -> None:
        self._budget = budget or Budget()
        self._origins = Origins(self._budget, breaker)
        self._add_key = add_key
        self._bare = bare
        # Tests replace these with a clock that does not move.
        self.now: Callable[[], float] = time.monotonic
        self.jitter: Callable[[], float] = random.random

    def _is_retried(self, request: httpx.Request) -> bool:
        """Return whether the request may be retried, and give it a key if it needs one.

        Raises ConfigurationError if its body can be sent only once.
        """
        has_key = KEY_HEADER in request.headers
        if not has_key and not (self._add_key and request.method in _GETS_A_KEY):
            return request.method in _READS and isinstance(request.stream, httpx.ByteStream)
        if not isinstance(request.stream, httpx.ByteStream):
            raise ConfigurationError(
                "a body from a generator or a file can be sent only once, and a retry needs the same bytes: give "
                "content= bytes or json=, or exempt such requests with add_key=False"
            )
        if not has_key:
            key = str(uuid.uuid4())
            request.headers[KEY_HEADER] = key if self._bare else quote_key(key)
        return True

    def _steps(self, request: httpx.Request) -> _Steps:
        url = str(request.url)
        left = left_seconds(self._budget.seconds)
        plan = Plan(url, self._budget, gate=self._origins.of(url), jitter=self.jitter)
        started = self.now()
        action = plan.start(started)
        last: httpx.Response | httpx.RequestError | None = None
        event: Event
        while not isinstance(action, Finish):
            over = started + left - self.now()
            match action:
                case _ if over <= 0:
                    break
                case Wait(seconds=pause):
                    if pause >= over:
                        break
                    yield Sleep(pause)
                    event = Waited()
                case Send(seconds=most, wait=wait):
                    if KEY_HEADER in request.headers:
                        request.headers.setdefault("Prefer", f"wait={wait}")
                    event, last = yield Transmit(request, min(most, over))
                case AskStatus(url=status, seconds=most):
                    headers = {
                        name: text
                        for name, text in request.headers.items()
                        if name not in ("idempotency-key", "prefer", "content-length", "content-type")
                    }
                    event, _ = yield Transmit(httpx.Request("GET", status, headers=headers), min(most, over))
            action = plan.after(event, self.now())
            LOG.info("%s %s: attempt %d", request.method, request.url.host, plan.sends)
        if isinstance(last, httpx.Response):
            return last
        if last is not None:
            raise last
        code = action.outcome.code if isinstance(action, Finish) and isinstance(action.outcome, NotYet) else "DEADLINE"
        raise NotSent(f"nothing was sent: {code}", request=request)


class RetryTransport(_Retrying, httpx.BaseTransport):
    """Retries requests with a key beneath an ``httpx.Client``.

    Parameters:
        transport: the transport that sends, such as ``httpx.HTTPTransport()``.
        budget, breaker: as in :class:`~semel.client.sync_client.Client`. The client's own ``timeout=`` is ignored.
        add_key: give each POST and PATCH without a key a new one.
        bare: send keys without quotes.

    The answer of a retried request is read whole before it is returned. The caller gets the last answer or the last
    exception, or :class:`NotSent` if nothing was sent.

    >>> import httpx
    >>> server = httpx.MockTransport(
    ...     lambda request: httpx.Response(201 if "Idempotency-Key" in request.headers else 400)
    ... )
    >>> with httpx.Client(transport=RetryTransport(server, budget=Budget(seconds=5))) as http:
    ...     http.post("https://shop.example/payments", json={"amount": "5.00"})
    <Response [201 Created]>
    """

    def __init__(
        self,
        transport: httpx.BaseTransport,
        *,
        budget: Budget | None = None,
        breaker: Breaker | None = None,
        add_key: bool = True,
        bare: bool = False,
    ) -> None:
        super().__init__(budget, breaker, add_key, bare)
        self._transport = transport
        self._sleep: Callable[[float], Any] = time.sleep

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, again where that is safe."""
        if not self._is_retried(request):
            return self._transport.handle_request(request)
        steps, result = self._steps(request), None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                response: httpx.Response = end.value
                return response
            match step:
                case Sleep(seconds=pause):
                    self._sleep(pause)
                    result = None
                case Transmit():
                    result = self._transmit(step)

    def close(self) -> None:
        """Close the transport beneath."""
        self._transport.close()

    def _transmit(self, step: Transmit) -> _Came:
        step.request.extensions["timeout"] = httpx.Timeout(step.seconds).as_dict()

        def attempt() -> httpx.Response:
            response = self._transport.handle_request(step.request)
            try:
                assert isinstance(response.stream, httpx.SyncByteStream)
                return _whole(response, b"".join(response.stream))
            finally:
                response.close()

        try:
            return _came(within(step.seconds, attempt))
        except DeadlineOver:
            return _late(step)
        except httpx.RequestError as error:
            return no_answer(error), error


class AsyncRetryTransport(_Retrying, httpx.AsyncBaseTransport):
    """Retries requests with a key beneath an ``httpx.AsyncClient``, as :class:`RetryTransport` does."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        *,
        budget: Budget | None = None,
        breaker: Breaker | None = None,
        add_key: bool = True,
        bare: bool = False,
    ) -> None:
        super().__init__(budget, breaker, add_key, bare)
        self._transport = transport
        self._sleep: Callable[[float], Any] = anyio.sleep

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, again where that is safe."""
        if not self._is_retried(request):
            return await self._transport.handle_async_request(request)
        steps, result = self._steps(request), None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                response: httpx.Response = end.value
                return response
            match step:
                case Sleep(seconds=pause):
                    await self._sleep(pause)
                    result = None
                case Transmit():
                    result = await self._transmit(step)

    async def aclose(self) -> None:
        """Close the transport beneath."""
        await self._transport.aclose()

    async def _transmit(self, step: Transmit) -> _Came:
        step.request.extensions["timeout"] = httpx.Timeout(step.seconds).as_dict()
        try:
            with anyio.fail_after(step.seconds):
                response = await self._transport.handle_async_request(step.request)
                try:
                    assert isinstance(response.stream, httpx.AsyncByteStream)
                    return _came(_whole(response, b"".join([part async for part in response.stream])))
                finally:
                    await response.aclose()
        except TimeoutError:
            return _late(step)
        except httpx.RequestError as error:
            return no_answer(error), error


def _whole(response: httpx.Response, raw: bytes) -> httpx.Response:
    """Return the same answer with its body in memory, still encoded as received."""
    return httpx.Response(
        response.status_code, headers=response.headers, stream=httpx.ByteStream(raw), extensions=response.extensions
    )


def _came(response: httpx.Response) -> _Came:
    assert isinstance(response.stream, httpx.ByteStream)
    copy = httpx.Response(response.status_code, headers=response.headers, stream=response.stream)
    try:
        copy.read()
    except httpx.DecodingError as error:
        return NoAnswer(f"{type(error).__name__}: {error}"), error
    return to_answered(copy, time.time()), response


def _late(step: Transmit) -> _Came:
    text = f"no whole answer within {step.seconds:.1f} s"
    return NoAnswer(text), httpx.ReadTimeout(text, request=step.request)
