"""gRPC: unary calls that happen once for each key, on ``grpc.aio`` and on threads, and clients that keep their key."""

from __future__ import annotations

from semel.extras import install_command

try:
    import google.rpc.error_details_pb2  # noqa: F401 - a missing one is reported here, in a sentence
    import grpc  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error.name} is missing, which semel.integrations.grpc needs: {install_command('grpc')}", name=error.name
    ) from error

from semel.http.caller import Caller, single_caller
from semel.integrations.grpc.client import AsyncKeyInterceptor, KeyInterceptor
from semel.integrations.grpc.context import permit_of
from semel.integrations.grpc.rpc import Call, Rpc
from semel.integrations.grpc.server import AsyncSemelInterceptor, SemelInterceptor

__all__ = [
    "AsyncKeyInterceptor",
    "AsyncSemelInterceptor",
    "Call",
    "Caller",
    "KeyInterceptor",
    "Rpc",
    "SemelInterceptor",
    "permit_of",
    "single_caller",
]
