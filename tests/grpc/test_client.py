"""The client's interceptors keep one key over all attempts of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RequestInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode as Code

from semel.errors import ConfigurationError, InProgressError
from semel.integrations.grpc import AsyncKeyInterceptor, KeyInterceptor
from semel.integrations.grpc.status import refuse
from tests.grpc.conftest import METHOD, OTHER


class Flaky:
    """A server that ends the first calls with what it is given, and notes their keys."""

    def __init__(self, *first: Code) -> None:
        self.left = list(first)
        self.keys: list[str | None] = []
        self.pool = ThreadPoolExecutor(4)
        self.server = grpc.server(self.pool)
        handler = grpc.unary_unary_rpc_method_handler(self._answer, RequestInfo.FromString, Status.SerializeToString)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("shop.Pay", {"Create": handler, "Cancel": handler}),)
        )
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def _answer(self, request: RequestInfo, context: Any) -> Status:
        self.keys.append(dict(context.invocation_metadata()).get("idempotency-key"))
        if self.left:
            code = self.left.pop(0)
            if code is Code.ABORTED:
                end = refuse(InProgressError("running", retry_after_seconds=0.01))
                assert end is not None
                context.set_trailing_metadata(end.trailing)
            context.abort(code, "not now")
        return Status(message="paid")

    def close(self) -> None:
        self.server.stop(None).wait(20)
        self.pool.shutdown()


Send = Callable[..., tuple[Code, Flaky]]


@pytest.fixture(params=["sync", "async"])
def send(request: pytest.FixtureRequest) -> Any:
    """One call through the interceptor to a server that fails so; how it ended, and what the server saw."""

    def sync(server: Flaky, method: str, metadata: Any, timeout: float, **options: Any) -> Code:
        with grpc.insecure_channel(server.address) as channel:
            safe = grpc.intercept_channel(channel, KeyInterceptor({METHOD}, longest_seconds=0.02, **options))
            stub = safe.unary_unary(method, RequestInfo.SerializeToString, Status.FromString)
            call = stub.future(RequestInfo(), metadata=metadata, timeout=timeout)
            code: Code = call.code()
            return code

    async def call_async(server: Flaky, method: str, metadata: Any, seconds: float, **options: Any) -> Code:
        interceptor = AsyncKeyInterceptor({METHOD}, longest_seconds=0.02, **options)
        async with grpc.aio.insecure_channel(server.address, interceptors=[interceptor]) as channel:
            stub = channel.unary_unary(method, RequestInfo.SerializeToString, Status.FromString)
            call = stub(RequestInfo(), metadata=metadata, timeout=seconds)
            code: Code = await call.code()
            return code

    def run(
        *first: Code, method: str = METHOD, metadata: Any = None, timeout: float = 20, **options: Any
    ) -> tuple[Code, Flaky]:
        server = Flaky(*first)
        try:
            if request.param == "sync":
                return sync(server, method, metadata, timeout, **options), server
            return asyncio.run(call_async(server, method, metadata, timeout, **options)), server
        finally:
            server.close()

    return run


def test_a_call_is_sent_again_under_its_key(send: Send) -> None:
    code, server = send(Code.UNAVAILABLE, Code.ABORTED, Code.UNAVAILABLE)
    assert code is Code.OK
    assert len(server.keys) == 4
    assert len(set(server.keys)) == 1
    assert server.keys[0] is not None


def test_two_calls_have_two_keys(send: Send) -> None:
    (_, one), (_, other) = send(), send()
    assert one.keys != other.keys


def test_a_key_given_by_the_caller_stays(send: Send) -> None:
    _, server = send(Code.UNAVAILABLE, metadata=(("idempotency-key", "stored-with-the-intent"),))
    assert server.keys == ["stored-with-the-intent"] * 2


@pytest.mark.parametrize("code", [Code.FAILED_PRECONDITION, Code.INTERNAL, Code.UNKNOWN, Code.RESOURCE_EXHAUSTED])
def test_a_final_error_is_not_retried(send: Send, code: Code) -> None:
    ended, server = send(code)
    assert (ended, len(server.keys)) == (code, 1)


def test_the_attempts_are_bounded(send: Send) -> None:
    ended, server = send(*[Code.UNAVAILABLE] * 9, attempts_max=3)
    assert (ended, len(server.keys)) == (Code.UNAVAILABLE, 3)


def test_other_methods_get_no_key_and_no_second_attempt(send: Send) -> None:
    ended, server = send(Code.UNAVAILABLE, method=OTHER)
    assert (ended, server.keys) == (Code.UNAVAILABLE, [None])


@pytest.mark.parametrize("options", [{"attempts_max": 0}, {"longest_seconds": 0}])
def test_impossible_options_are_refused(options: Any) -> None:
    for kind in (KeyInterceptor, AsyncKeyInterceptor):
        with pytest.raises(ConfigurationError):
            kind({METHOD}, **options)
        with pytest.raises(ConfigurationError, match="must be paths"):
            kind(METHOD)


def test_unreadable_details_request_no_delay() -> None:
    from semel.integrations.grpc.status import DETAILS, retry_delay

    assert retry_delay([(DETAILS, b"\xff\xff not a status")]) is None
