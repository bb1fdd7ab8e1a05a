"""The server's interceptors: a declared unary method runs once for each key, and later calls get its first answer.

Put them last in the list of interceptors, after authentication, so that a replay passes through it too.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import grpc
import grpc.aio
from grpc import StatusCode as Code

from semel.core.model import Answer
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.engine.result import Result
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, NotReplicated, OutcomeUnknownError, SemelError, StoreError
from semel.http import problems
from semel.http.wsgi.threads import Threads
from semel.integrations.grpc.context import AsyncCapturedContext, CallAborted, CapturedContext
from semel.integrations.grpc.rpc import STREAMS, CallerOfCall, DeclaredRpc, Rpc, declare
from semel.integrations.grpc.status import OPERATION, REPLAYED, RpcEnd, refusal, refuse
from semel.policy import Command, Policy

_LOG: Final = logging.getLogger("semel")
_TOO_LARGE: Final = "The answer is larger than the server keeps, so everything was rolled back: nothing happened."


class _Run:
    """One protected call: its command's handler and its end. It is the same in both colours."""

    def __init__(self, declared: DeclaredRpc, handler: Any, context: Any) -> None:
        self.declared = declared
        self.handler = handler
        self.context = context
        self.permit: Permit | None = None
        self.ended: RpcEnd | None = None
        self.failed: BaseException | None = None

    def capture(self, permit: Permit, kind: type[CapturedContext]) -> CapturedContext:
        self.permit = permit
        return kind(self.context, permit)

    def answer_of(self, context: CapturedContext, response: Any) -> Answer:
        """Make the answer of a method that has returned or aborted."""
        body = b""
        if not context.is_aborted and response is not None:
            body = _serialise(self.handler.response_serializer, response)
        end = context.end(body)
        if response is None and end.code is Code.OK:
            raise TypeError(f"{self.declared.method} returned None; a method must return its response or abort")
        answer = end.answer(self.declared.kept)
        self.declared.keeping.tell_dropped(end.find_dropped(self.declared.kept), "trailing metadata")
        if len(answer.body) > self.declared.policy.answer_bytes_max:
            if self.declared.atomic:
                end = refusal(problems.ANSWER_TOO_LARGE, Code.INTERNAL, _TOO_LARGE)
                raise _RolledBack(end)
            assert self.permit is not None
            self.permit.kept = False
        self.ended = end
        return answer

    def result(self, result: Result) -> RpcEnd:
        """Return the end of the call for the client: complete if it ran here, the stored part for a replay."""
        if result.replayed or self.ended is None:
            return RpcEnd.of_answer(result.answer).also((OPERATION, result.operation_id), (REPLAYED, "true"))
        return self.ended.also((OPERATION, result.operation_id))

    def refusal(self, error: BaseException) -> RpcEnd:
        """Return the end of a call that raised. Raises the error again if it is the method's own or the developer's."""
        if isinstance(error, _RolledBack):
            return error.end
        unconfirmed = self.permit is not None and isinstance(error, StoreError)
        if unconfirmed and (not self.declared.atomic or isinstance(error, NotReplicated)):
            if self.failed is not None:
                raise self.failed
            assert self.permit is not None
            error = OutcomeUnknownError(
                "the call ran, but the store did not confirm it; call again with the same key to learn how it ended",
                operation_id=self.permit.operation_id,
            )
        if error is self.failed or not isinstance(error, SemelError):
            raise error
        end = refuse(error, maybe_done=self.permit is not None)
        if end is None:
            raise error
        return end


class _RolledBack(Exception):
    """An ATOMIC answer is too large to be kept: everything is rolled back."""

    def __init__(self, end: RpcEnd) -> None:
        super().__init__(end.details)
        self.end = end


def _serialise(serialise: Callable[[Any], bytes] | None, response: Any) -> bytes:
    return bytes(response) if serialise is None else serialise(response)


def _as_they_are(raw: bytes) -> bytes:
    return raw


def _begin(declared: DeclaredRpc, handler: Any, raw: bytes, context: Any) -> tuple[Any, Command | RpcEnd | None]:
    """Read a call's message and its command; or the end of an invalid call, or None if it runs unprotected.

    Raises the errors that a developer has to fix.
    """
    message = raw if handler.request_deserializer is None else handler.request_deserializer(raw)
    try:
        return message, declared.command(raw, message, context.invocation_metadata() or (), context)
    except SemelError as error:
        end = refuse(error)
        if end is None:
            raise
        return message, end


def _find(methods: Mapping[str, DeclaredRpc], handler: Any, method: str) -> DeclaredRpc | None:
    """Find the declaration of a call's method. Raises ConfigurationError if it streams."""
    declared = methods.get(method)
    if declared is None or handler is None:
        return None
    if handler.request_streaming or handler.response_streaming:
        raise ConfigurationError(STREAMS.format(method=method))
    return declared


def _streams(error: ConfigurationError) -> tuple[Code, str]:
    _LOG.error("%s", error)
    return (
        Code.UNIMPLEMENTED,
        "The server declares this streaming method as a command, but only unary methods can be commands.",
    )


class SemelInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]  # it has no types of its own
    """Makes declared unary methods safe to retry, on a server of threads.

    Parameters:
        engine: an :class:`~semel.Engine`, opened.
        caller: a function of the :class:`~semel.integrations.grpc.Call` that returns the
            :class:`~semel.integrations.grpc.Caller` whose keys they are, from what an earlier interceptor verified;
            None where the caller is not known. ``single_caller`` where there is only one.
        operations: the policy, or the :class:`~semel.integrations.grpc.Rpc`, of each method by its path.
        services: the descriptors of the services (``shop_pb2.DESCRIPTOR.services_by_name["Shop"]``), so that a wrong
            path, a missing field and a method that streams are refused here; without them at the first call.
        waiters_max: how many threads may wait for running duplicates; None: half of those seen at work at one time.

    Raises ConfigurationError and PolicyError.

    Source of the codes and details: google/rpc/code.proto and error_details.proto, AIP-155 and AIP-193.

    >>> import grpc
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from semel import Engine, Policy
    >>> from semel.integrations.grpc import SemelInterceptor, single_caller
    >>> engine = Engine.connect("memory://")
    >>> once = SemelInterceptor(engine, caller=single_caller, operations={"/shop.Pay/Create": Policy()})
    >>> server = grpc.server(ThreadPoolExecutor(8), interceptors=[once])
    """

    def __init__(
        self,
        engine: Engine,
        *,
        caller: CallerOfCall | None = None,
        operations: Mapping[str, Policy | Rpc],
        services: Iterable[Any] = (),
        waiters_max: int | None = None,
    ) -> None:
        if not isinstance(engine, Engine):
            raise ConfigurationError(f"a server of threads needs an Engine; it was given {type(engine).__name__}")
        self._engine = engine
        self._threads = Threads(waiters_max)
        engine.core.waiters_limit = self._threads.waiters
        self._methods = declare(operations, engine, caller, services)

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Return a method's handler, with protection if it is declared (gRPC's hook)."""
        handler = continuation(handler_call_details)
        try:
            declared = _find(self._methods, handler, handler_call_details.method)
        except ConfigurationError as error:
            code, details = _streams(error)
            return _refusing(handler, lambda context: context.abort(code, details))
        if declared is None:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            lambda raw, context: self._serve(declared, handler, raw, context),
            request_deserializer=_as_they_are,
            response_serializer=_as_they_are,
        )

    def _serve(self, declared: DeclaredRpc, handler: Any, raw: bytes, context: Any) -> Any:
        with self._threads:
            return self._serve_one(declared, handler, raw, context)

    def _serve_one(self, declared: DeclaredRpc, handler: Any, raw: bytes, context: Any) -> Any:
        message, command = _begin(declared, handler, raw, context)
        if isinstance(command, RpcEnd):
            return _send(context, command)
        if command is None:
            return _serialise(handler.response_serializer, handler.unary_unary(message, context))
        return _send(context, self._run(_Run(declared, handler, context), command, message))

    def _run(self, run: _Run, command: Command, message: Any) -> RpcEnd:
        def handle(permit: Permit) -> Answer:
            captured = run.capture(permit, CapturedContext)
            try:
                response = run.handler.unary_unary(message, captured)
            except BaseException as error:
                if not isinstance(error, CallAborted) or not captured.is_aborted:
                    run.failed = error
                    raise
                response = None
            return run.answer_of(captured, response)

        wait = run.declared.wait_seconds(run.context.time_remaining())
        try:
            return run.result(self._engine.run(command, handle, wait_seconds=wait))
        except Exception as error:  # noqa: BLE001 - raised again, unless it is a verdict
            return run.refusal(error)


class AsyncSemelInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # it has no types of its own
    """The same for ``grpc.aio``, on an :class:`~semel.AsyncEngine`. Methods may be coroutines or plain functions.

    Parameters and errors as :class:`SemelInterceptor`. A call that its client cancels continues until it is settled.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        caller: CallerOfCall | None = None,
        operations: Mapping[str, Policy | Rpc],
        services: Iterable[Any] = (),
    ) -> None:
        if not isinstance(engine, AsyncEngine):
            raise ConfigurationError(f"a server of grpc.aio needs an AsyncEngine; it was given {type(engine).__name__}")
        self._engine = engine
        self._methods = declare(operations, engine, caller, services)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return a method's handler, with protection if it is declared (gRPC's hook)."""
        handler = await continuation(handler_call_details)
        try:
            declared = _find(self._methods, handler, handler_call_details.method)
        except ConfigurationError as error:
            code, details = _streams(error)
            return _refusing(handler, lambda context: context.abort(code, details), is_async=True)
        if declared is None:
            return handler

        async def serve(raw: bytes, context: Any) -> Any:
            return await self._serve(declared, handler, raw, context)

        return grpc.unary_unary_rpc_method_handler(
            serve, request_deserializer=_as_they_are, response_serializer=_as_they_are
        )

    async def _serve(self, declared: DeclaredRpc, handler: Any, raw: bytes, context: Any) -> Any:
        message, command = _begin(declared, handler, raw, context)
        if isinstance(command, RpcEnd):
            return await _send(context, command)
        if command is None:
            return _serialise(handler.response_serializer, await _call(handler.unary_unary, message, context))
        end = await self._run(_Run(declared, handler, context), command, message)
        sent = _send(context, end)
        return await sent if inspect.isawaitable(sent) else sent

    async def _run(self, run: _Run, command: Command, message: Any) -> RpcEnd:
        method = run.handler.unary_unary
        kind = AsyncCapturedContext if inspect.iscoroutinefunction(method) else CapturedContext

        async def handle(permit: Permit) -> Answer:
            captured = run.capture(permit, kind)
            try:
                response = await _call(method, message, captured)
            except BaseException as error:
                if not isinstance(error, CallAborted) or not captured.is_aborted:
                    run.failed = error
                    raise
                response = None
            return run.answer_of(captured, response)

        wait = run.declared.wait_seconds(run.context.time_remaining())
        try:
            return run.result(await self._engine.run(command, handle, wait_seconds=wait))
        except Exception as error:  # noqa: BLE001 - raised again, unless it is a verdict
            return run.refusal(error)


async def _call(method: Callable[[Any, Any], Any], message: Any, context: Any) -> Any:
    if inspect.iscoroutinefunction(method):
        return await method(message, context)
    made = await asyncio.to_thread(method, message, context)
    return await made if inspect.isawaitable(made) else made  # an object whose call is a coroutine


def _send(context: Any, end: RpcEnd) -> Any:
    """End the call; over grpc.aio, an end with an error must be awaited."""
    if end.trailing:
        context.set_trailing_metadata(end.trailing)
    if end.code is Code.OK:
        return end.body
    return context.abort(end.code, end.details)


def _refusing(handler: Any, refuse: Callable[[Any], Any], *, is_async: bool = False) -> Any:
    """Make a handler of the same shape that refuses each call."""

    def plain(request: Any, context: Any) -> Any:
        refuse(context)

    async def coroutine(request: Any, context: Any) -> Any:
        await refuse(context)

    shape = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
    make = getattr(grpc, f"{shape[0]}_{shape[1]}_rpc_method_handler")
    return make(coroutine if is_async else plain, handler.request_deserializer, handler.response_serializer)
