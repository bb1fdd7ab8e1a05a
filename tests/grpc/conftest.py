"""Real servers of both colours on loopback ports, and the same calls to both from a real channel.

The messages are ones that googleapis ships: ``RequestInfo`` has a ``request_id`` (AIP-155) and a text.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RequestInfo
from google.rpc.status_pb2 import Status

from semel import AsyncEngine, Engine, Policy
from semel.integrations.grpc import AsyncSemelInterceptor, Call, Caller, Rpc, SemelInterceptor

METHOD = "/shop.Pay/Create"
OTHER = "/shop.Pay/Cancel"
STREAM = "/shop.Pay/Watch"
Method = Callable[[RequestInfo, Any], Any]


def by_account(call: Call) -> Caller | None:
    account = call.metadata.get("account")
    return None if account is None else Caller("shop", str(account))


class Service:
    """A server of one colour with an engine, and how it is called."""

    def __init__(self, colour: str, url: str, threads: int = 8, **options: Any) -> None:
        self.colour = colour
        self.url = url
        self.connected: dict[str, Any] = options.pop("connected", {})
        self.options: dict[str, Any] = {"caller": by_account, "operations": {METHOD: Policy(wait_seconds=0)}, **options}
        self.methods: dict[str, Method] = {}
        self.seen: list[RequestInfo] = []
        self.threads = threads
        self.thread = threading.Thread(target=self._serve_async if colour == "async" else self._serve)
        self.started = threading.Event()
        self.port = 0
        self.failure: BaseException | None = None
        self.stop: Callable[[float | None], object] = lambda grace: None  # begins to stop the server
        self._stop: Callable[[], object] = lambda: None

    def __enter__(self) -> Service:
        self.thread.start()
        assert self.started.wait(20)
        if self.failure is not None:
            self.thread.join(20)
            raise self.failure
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        stop, self._stop = self._stop, lambda: None  # once: a test may have ended it
        stop()
        self.thread.join(20)

    def _handlers(self) -> Any:
        def unary(path: str) -> Any:
            def plain(request: RequestInfo, context: Any) -> Any:
                return self._call(path, request, context)

            async def coroutine(request: RequestInfo, context: Any) -> Any:
                made = self._call(path, request, context)
                return await made if inspect.isawaitable(made) else made

            method = coroutine if self.colour == "async" else plain
            return grpc.unary_unary_rpc_method_handler(method, RequestInfo.FromString, Status.SerializeToString)

        stream = grpc.unary_stream_rpc_method_handler(
            lambda request, context: iter(()), RequestInfo.FromString, Status.SerializeToString
        )
        return grpc.method_handlers_generic_handler(
            "shop.Pay", {"Create": unary(METHOD), "Cancel": unary(OTHER), "Watch": stream}
        )

    def _call(self, path: str, request: RequestInfo, context: Any) -> Any:
        self.seen.append(request)
        return self.methods[path](request, context)

    def _serve(self) -> None:
        try:
            engine = Engine.connect(self.url, **self.connected)
            engine.migrate()
            engine.open()
            interceptor = SemelInterceptor(engine, **self.options)
        except BaseException as error:  # noqa: BLE001 - raised where the service was asked for
            self.failure = error
            self.started.set()
            return
        with ThreadPoolExecutor(self.threads) as pool:
            server = grpc.server(pool, interceptors=[interceptor])
            server.add_generic_rpc_handlers((self._handlers(),))
            self.port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            self.engine: Any = engine
            self.stop = lambda grace: server.stop(grace)
            self._stop = lambda: server.stop(None)
            self.started.set()
            server.wait_for_termination()
        engine.close()

    def _serve_async(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        try:
            engine = AsyncEngine.connect(self.url, **self.connected)
            await engine.migrate()
            await engine.open()
            interceptor = AsyncSemelInterceptor(engine, **self.options)
        except BaseException as error:  # noqa: BLE001 - raised where the service was asked for
            self.failure = error
            self.started.set()
            return
        server = grpc.aio.server(interceptors=[interceptor])
        server.add_generic_rpc_handlers((self._handlers(),))
        self.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.engine = engine
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(over.set)
        self.stop = lambda grace: asyncio.run_coroutine_threadsafe(server.stop(grace), loop)
        self.started.set()
        await over.wait()
        await server.stop(None)
        await engine.close()

    def send(
        self,
        text: str = "one",
        key: str | None = "8e03978e-40d5-43dd-bc93-6894a57f9324",
        account: str | None = "alice",
        method: str = METHOD,
        request_id: str = "",
        timeout: float = 20,
        more: tuple[tuple[str, str], ...] = (),
    ) -> Any:
        """One call: what it ended with, as a future that is done."""
        metadata = [*more]
        if key is not None:
            metadata.append(("idempotency-key", key))
        if account is not None:
            metadata.append(("account", account))
        stub = self.channel.unary_unary(method, RequestInfo.SerializeToString, Status.FromString)
        call = stub.future(RequestInfo(request_id=request_id, serving_data=text), timeout=timeout, metadata=metadata)
        call.code()  # waits until it is over
        return call


def trailing(call: Any) -> dict[str, Any]:
    return dict(call.trailing_metadata())


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    given: str = request.param
    return given


@pytest.fixture
def serve(colour: str) -> Iterator[Callable[..., Service]]:
    """Starts a service with one method, which answers with what it was asked."""
    made: list[Service] = []

    def start(
        method: Method = lambda request, context: Status(message=f"paid {request.serving_data}"),
        url: str = "memory://",
        **options: Any,
    ) -> Service:
        service = Service(colour, url, **options)
        service.methods = {METHOD: method, OTHER: method}
        service.__enter__()
        made.append(service)
        return service

    yield start
    for service in made:
        service.__exit__()


__all__ = ["METHOD", "OTHER", "STREAM", "Rpc", "Service", "trailing"]
