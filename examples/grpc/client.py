"""A client: ``python -m examples.grpc.client 127.0.0.1:8000 ACCOUNT KEY METHOD TEXT [TIMES]``.

It sends the same call so many times at once, and prints the answer to the last of them. The server lets some
duplicates wait for the running call and rejects the others; the interceptor retries those under the same key.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.rpc.error_details_pb2 import RequestInfo
from google.rpc.status_pb2 import Status

from examples.grpc.server import SERVICE
from semel.integrations.grpc import KeyInterceptor


def main(target: str, account: str, key: str, method: str, text: str, times: str = "1") -> None:
    """Send, and print."""
    metadata = (("idempotency-key", key), ("account", account))
    path = f"/{SERVICE}/{method}"
    with grpc.insecure_channel(target) as channel:
        safe = grpc.intercept_channel(channel, KeyInterceptor({path}))
        send = safe.unary_unary(path, RequestInfo.SerializeToString, Status.FromString)

        def ask(_: int) -> str:
            try:
                answer = send(RequestInfo(serving_data=text), metadata=metadata, timeout=20)
            except grpc.RpcError as error:
                told = dict(error.trailing_metadata() or ())
                return f"{error.code().name} {told.get('semel-code', error.details())}"
            return f"{answer.message}, number {answer.code}"

        with ThreadPoolExecutor(int(times)) as pool:
            print(list(pool.map(ask, range(int(times))))[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
