"""The client's interceptors: one key for each call, kept over its retries."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
from grpc import StatusCode as Code

from semel.core.backoff import retry_seconds
from semel.errors import ConfigurationError
from semel.integrations.grpc.rpc import KEY
from semel.integrations.grpc.status import retry_delay

# With a RetryInfo from the server: the same call may be sent again with the same key.
_ASKED_AGAIN: Final = frozenset({Code.ABORTED, Code.RESOURCE_EXHAUSTED})


class _Details(NamedTuple):
    """A call's details as both colours of gRPC read them, with the key in its metadata."""

    method: Any
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any = None


class _Plan:
    """The shared decisions of both clients: which calls get a key, and when to retry one."""

    def __init__(
        self, methods: Collection[str], attempts_max: int, longest_seconds: float, make_key: Callable[[], str]
    ) -> None:
        if isinstance(methods, str) or not all(isinstance(each, str) and each.startswith("/") for each in methods):
            raise ConfigurationError(f"methods must be paths, such as ('/shop.Payments/Create',); it is {methods!r}")
        if type(attempts_max) is not int or attempts_max < 1:
            raise ConfigurationError(f"attempts_max must be at least 1; it is {attempts_max!r}")
        if not isinstance(longest_seconds, int | float) or not longest_seconds > 0:
            raise ConfigurationError(f"longest_seconds must be more than 0; it is {longest_seconds!r}")
        self._methods = frozenset(methods)
        self._attempts_max = attempts_max
        self._longest = longest_seconds
        self._make_key = make_key

    def add_key(self, details: Any) -> _Details | None:
        """Add a key to the call's details; None if its method is not listed."""
        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        if method not in self._methods:
            return None
        metadata = list(details.metadata or ())
        if not any(name == KEY for name, _ in metadata):
            metadata.append((KEY, self._make_key()))
        return _Details(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            getattr(details, "compression", None),
        )

    def pause(self, tried: int, code: Any, trailing: Any, left: float | None) -> float | None:
        """Return the seconds to wait before the next attempt; None if there is none."""
        asked = retry_delay(trailing)
        if tried >= self._attempts_max or not (
            code is Code.UNAVAILABLE or (code in _ASKED_AGAIN and asked is not None)
        ):
            return None
        pause = max(asked or 0.0, retry_seconds(tried, random.random(), longest=self._longest))  # noqa: S311
        return None if left is not None and pause >= left else pause


def new_key() -> str:
    """Make a key for one intent: a random UUID."""
    return str(uuid.uuid4())


class KeyInterceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # it has no types of its own
    """Gives each call of these methods an ``idempotency-key``, and retries it under the same key.

    Parameters:
        methods: paths of methods whose server honours the key; other calls pass as they are.
        attempts_max: how often to send a call at most.
        longest_seconds: the longest pause between two attempts, unless the server asks for a longer one (RetryInfo).
        make_key: makes a key; a call that has the metadata already keeps its own, such as one that was stored with an
            intent before a restart.

    It retries on ``UNAVAILABLE``, and on ``ABORTED`` and ``RESOURCE_EXHAUSTED`` if the server sends a RetryInfo; within
    the call's own timeout. A call blocks meanwhile, also one that was begun with ``.future()``.

    Raises ConfigurationError.

    >>> import grpc
    >>> from semel.integrations.grpc import KeyInterceptor
    >>> with grpc.insecure_channel("127.0.0.1:50051") as channel:
    ...     safe = grpc.intercept_channel(channel, KeyInterceptor({"/shop.Payments/Create"}))
    """

    def __init__(
        self,
        methods: Collection[str],
        *,
        attempts_max: int = 5,
        longest_seconds: float = 2.0,
        make_key: Callable[[], str] = new_key,
    ) -> None:
        self._plan = _Plan(methods, attempts_max, longest_seconds, make_key)

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        """Intercept one call (gRPC's hook)."""
        details = self._plan.add_key(client_call_details)
        if details is None:
            return continuation(client_call_details, request)
        ends = None if details.timeout is None else time.monotonic() + details.timeout
        tried = 0
        while True:
            left = None if ends is None else ends - time.monotonic()
            call = continuation(details._replace(timeout=left), request)
            tried += 1
            code = call.code()
            left = None if ends is None else ends - time.monotonic()
            pause = None if code is Code.OK else self._plan.pause(tried, code, call.trailing_metadata(), left)
            if pause is None:
                return call
            time.sleep(pause)


class AsyncKeyInterceptor(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # it has no types of its own
    """The same for ``grpc.aio``: ``grpc.aio.insecure_channel(address, interceptors=[AsyncKeyInterceptor(...)])``.

    Parameters and errors as :class:`KeyInterceptor`.
    """

    def __init__(
        self,
        methods: Collection[str],
        *,
        attempts_max: int = 5,
        longest_seconds: float = 2.0,
        make_key: Callable[[], str] = new_key,
    ) -> None:
        self._plan = _Plan(methods, attempts_max, longest_seconds, make_key)

    async def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Awaitable[Any]], client_call_details: Any, request: Any
    ) -> Any:
        """Intercept one call (gRPC's hook)."""
        details = self._plan.add_key(client_call_details)
        if details is None:
            return await continuation(client_call_details, request)
        loop = asyncio.get_running_loop()
        ends = None if details.timeout is None else loop.time() + details.timeout
        tried = 0
        while True:
            left = None if ends is None else ends - loop.time()
            metadata = grpc.aio.Metadata(*details.metadata)
            given = grpc.aio.ClientCallDetails(
                details.method, left, metadata, details.credentials, details.wait_for_ready
            )
            call = await continuation(given, request)
            tried += 1
            code = await call.code()
            left = None if ends is None else ends - loop.time()
            pause = None if code is Code.OK else self._plan.pause(tried, code, await call.trailing_metadata(), left)
            if pause is None:
                return call
            await asyncio.sleep(pause)
