"""Verdicts as gRPC statuses, and gRPC statuses as stored answers. Nothing here sends anything.

A stored answer has the HTTP status that google.rpc.code maps its code to, so that one policy and one operator's view
serve both: ``NOT_FOUND`` is a definite refusal like 404, ``UNAVAILABLE`` may have had an effect like 503.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode as Code

from semel.core.model import Answer
from semel.errors import SemelError
from semel.http import problems
from semel.http.problems import KeyAction, Kind
from semel.http.refused import RefusedCall

Metadata = tuple[tuple[str, str | bytes], ...]

DOMAIN: Final = "semel"  # of ErrorInfo: the source of the reason
DETAILS: Final = "grpc-status-details-bin"
CODE: Final = "semel-code"
OPERATION: Final = "semel-operation"
REPLAYED: Final = "idempotency-replayed"

# From google/rpc/code.proto. CANCELLED has 499 there, which would make it a definite refusal: a
# cancelled handler may have had its effect.
_HTTP: Final = {
    Code.OK: 200,
    Code.CANCELLED: 500,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.UNAUTHENTICATED: 401,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
}
_NUMBERS: Final = {code.value[0]: code for code in Code}
_STATUS: Final = b"grpc-status"
_MESSAGE: Final = b"grpc-message"


@dataclass(frozen=True, slots=True)
class RpcEnd:
    """The end of a call: its code, message, trailing metadata, and the response's bytes if it is OK."""

    code: Code
    details: str = ""
    trailing: Metadata = ()
    body: bytes = b""

    def answer(self, kept: frozenset[str]) -> Answer:
        """Make the stored answer: the trailing metadata named in ``kept``, and the error's details."""
        pairs = [(name.encode(), _raw(value)) for name, value in self.trailing if name in kept or name == DETAILS]
        if self.code is not Code.OK:
            pairs = [(_STATUS, b"%d" % self.code.value[0]), (_MESSAGE, self.details.encode()), *pairs]
        return Answer(_HTTP[self.code], tuple(pairs), self.body if self.code is Code.OK else b"")

    def find_dropped(self, kept: frozenset[str]) -> list[bytes]:
        """Return the names of the trailing metadata that are not stored."""
        return [name.encode() for name, _ in self.trailing if name not in kept and name != DETAILS]

    @classmethod
    def of_answer(cls, answer: Answer) -> RpcEnd:
        """Return the end that an answer was made of."""
        code, details, trailing = Code.OK, "", []
        for name, value in answer.headers:
            if name == _STATUS:
                code = _NUMBERS[int(value)]
            elif name == _MESSAGE:
                details = value.decode()
            else:
                trailing.append((name.decode(), value if name.endswith(b"-bin") else _text(value)))
        return cls(code, details, tuple(trailing), answer.body)

    def also(self, *pairs: tuple[str, str | bytes]) -> RpcEnd:
        """Return the same with more trailing metadata."""
        return RpcEnd(self.code, self.details, (*self.trailing, *pairs), self.body)


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:  # a handler gave bytes under a name for texts; gRPC sends them as they are
        return value


def as_metadata(given: Iterable[Any] | None) -> Metadata:
    """Make a handler's metadata into pairs."""
    return tuple((str(name), value) for name, value in given or ())


def as_code(given: Any) -> Code:
    """Read a handler's code as gRPC does: itself or its number; UNKNOWN if it is neither."""
    return given if isinstance(given, Code) else _NUMBERS.get(given, Code.UNKNOWN)


def as_details(given: str | bytes | None) -> str:
    """Make a handler's text for people into one that can be sent and stored."""
    raw = given if isinstance(given, bytes) else str(given or "").encode(errors="replace")
    return raw.decode(errors="replace")


# --- refusals ---------------------------------------------------------------------------------------

_CODES: Final[dict[Kind, Code]] = {
    problems.MISSING_KEY: Code.INVALID_ARGUMENT,
    problems.INVALID_KEY: Code.INVALID_ARGUMENT,
    problems.TOO_LARGE: Code.INVALID_ARGUMENT,
    problems.CALLER_UNKNOWN: Code.UNAUTHENTICATED,
    problems.KEY_REUSED: Code.FAILED_PRECONDITION,
    problems.IN_PROGRESS: Code.ABORTED,
    problems.OUTCOME_UNKNOWN: Code.FAILED_PRECONDITION,
    problems.RECORD_EXPIRED: Code.FAILED_PRECONDITION,
    problems.NOT_REPLAYABLE: Code.FAILED_PRECONDITION,
    problems.REFERENCE_TAKEN: Code.FAILED_PRECONDITION,
    problems.QUOTA_EXCEEDED: Code.RESOURCE_EXHAUSTED,
    problems.RECORD_UNREADABLE: Code.INTERNAL,
    problems.STORE_UNAVAILABLE: Code.UNAVAILABLE,
}


def refuse(error: SemelError, *, maybe_done: bool = False) -> RpcEnd | None:
    """Return the end of a call that Semel refused; None for an error of the developer.

    Parameters: ``maybe_done`` where an ATOMIC method has run, so that it may have been committed.
    """
    why = RefusedCall.of(error, maybe_done=maybe_done)
    if why is None:
        return None
    return refusal(
        why.kind, _CODES[why.kind], why.detail, why.key_action, why.operation_id, why.retry_seconds, why.state
    )


def refusal(
    problem: Kind,
    code: Code,
    said: str,
    action: KeyAction | None = None,
    operation_id: str | None = None,
    retry_seconds: float | None = None,
    state: str | None = None,
) -> RpcEnd:
    """Make an end with the details of google.rpc: ErrorInfo, whose reason is the problem's code, and RetryInfo."""
    more = {"keyAction": action or problem.key_action, "operationId": operation_id, "state": state}
    info = ErrorInfo(reason=problem.code, domain=DOMAIN, metadata={name: text for name, text in more.items() if text})
    details = [_pack(info)]
    if retry_seconds is not None:
        retry = RetryInfo()
        retry.retry_delay.FromMilliseconds(math.ceil(max(retry_seconds, 0) * 1000))
        details.append(_pack(retry))
    status = Status(code=code.value[0], message=said, details=details)
    trailing: Metadata = ((DETAILS, status.SerializeToString()), (CODE, problem.code))
    if operation_id is not None:
        trailing = (*trailing, (OPERATION, operation_id))
    return RpcEnd(code, said, trailing)


def _pack(message: Any) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


def retry_delay(trailing: Iterable[Any] | None) -> float | None:
    """Read the seconds of a RetryInfo in a call's trailing metadata; None if there is no valid one."""
    for name, value in trailing or ():
        if name == DETAILS and isinstance(value, bytes):
            try:
                details = Status.FromString(value).details
                for detail in details:
                    retry = RetryInfo()
                    if detail.Unpack(retry):
                        seconds: float = retry.retry_delay.ToMilliseconds() / 1000
                        return seconds
            except DecodeError:  # of a proxy or another server: the call's own code must still reach the caller
                continue
    return None
