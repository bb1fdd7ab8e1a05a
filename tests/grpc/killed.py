"""A server that dies within its method, or behind its commit: ``python -m tests.grpc.killed URL WHERE FILE``."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RequestInfo
from google.rpc.status_pb2 import Status

from semel import Engine, Policy
from semel.integrations.grpc import SemelInterceptor, permit_of, single_caller

METHOD = "/shop.Pay/Create"


def main(url: str, where: str, file: str) -> None:
    def create(request: RequestInfo, context: Any) -> Status:
        permit_of(context).connection.execute("INSERT INTO effect VALUES (1)")
        if where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        return Status(message="paid")

    class Dies(grpc.ServerInterceptor):  # type: ignore[misc]  # it has no types of its own
        """Kills the process when the answer of the layer below is known and not sent."""

        def intercept_service(self, continuation: Any, details: Any) -> Any:
            inner = continuation(details)

            def method(request: bytes, context: Any) -> Any:
                answer = inner.unary_unary(request, context)
                if where == "after":
                    os.kill(os.getpid(), signal.SIGKILL)
                return answer

            return grpc.unary_unary_rpc_method_handler(method, inner.request_deserializer, inner.response_serializer)

    engine = Engine.connect(url)
    engine.open()
    once = SemelInterceptor(engine, caller=single_caller, operations={METHOD: Policy(effects="atomic")})
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, interceptors=[Dies(), once])
        handler = grpc.unary_unary_rpc_method_handler(create, RequestInfo.FromString, Status.SerializeToString)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shop.Pay", {"Create": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        Path(file).write_text(f"{port}\n")
        print("ready", flush=True)
        server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
