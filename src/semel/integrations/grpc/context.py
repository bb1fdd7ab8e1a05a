"""A servicer method's context in place of gRPC's: it records how the call ends instead of sending it."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
import grpc.aio
from grpc import StatusCode as Code

from semel.engine.permit import Permit
from semel.errors import ConfigurationError
from semel.integrations.grpc.status import Metadata, RpcEnd, as_code, as_details, as_metadata


class CallAborted(grpc.aio.AbortError):  # type: ignore[misc]  # it has no types of its own
    """A method ended its call by ``context.abort``."""


class CapturedContext:
    """A stand-in for gRPC's context: records what would end the call, and passes on the rest."""

    def __init__(self, context: Any, permit: Permit) -> None:
        self._context = context
        self._aborted: RpcEnd | None = None
        self._code: Code | None = None
        self._details = ""
        self._trailing: Metadata = ()
        self.semel_permit = permit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    @property
    def is_aborted(self) -> bool:
        """Whether the method has ended its call by ``abort``; nothing it does later changes that."""
        return self._aborted is not None

    def end(self, body: bytes) -> RpcEnd:
        """Return the end of the call; ``body`` is the serialised response, if any."""
        if self._aborted is not None:
            return self._aborted
        return RpcEnd(self._code or Code.OK, self._details, self._trailing, body)

    # --- as grpc.ServicerContext has them ---------------------------------------------------------

    def abort(self, code: Code, details: str = "", trailing_metadata: Any = ()) -> Any:
        """End the call with this code. Raises CallAborted."""
        self._abort(code, details, trailing_metadata)

    def abort_with_status(self, status: Any) -> Any:
        """End the call with this status. Raises CallAborted."""
        self._abort(status.code, status.details, status.trailing_metadata)

    def _abort(self, code: Code, details: str, trailing: Any) -> NoReturn:
        code = as_code(code)
        if code is Code.OK:  # as gRPC does
            code, details = Code.UNKNOWN, ""
        self._aborted = RpcEnd(code, as_details(details), as_metadata(trailing) or self._trailing)
        raise CallAborted(f"{code.name}: {details}")

    def set_code(self, code: Code) -> None:
        """Set the code that the call ends with when the method returns."""
        self._code = as_code(code)

    def set_details(self, details: str) -> None:
        """Set the message for people of a call that does not end with OK."""
        self._details = as_details(details)

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Set the metadata that is sent when the call is over."""
        self._trailing = as_metadata(trailing_metadata)

    def code(self) -> Code | None:
        """Return the code that was set."""
        return self._code

    def details(self) -> str:
        """Return the message that was set."""
        return self._details

    def trailing_metadata(self) -> Metadata:
        """Return the metadata that was set to be sent when the call is over."""
        return self._trailing


class AsyncCapturedContext(CapturedContext):
    """The same for coroutines, which await their abort."""

    async def abort(self, code: Code, details: str = "", trailing_metadata: Any = ()) -> Any:
        """End the call with this code. Raises CallAborted."""
        self._abort(code, details, trailing_metadata)

    async def abort_with_status(self, status: Any) -> Any:
        """End the call with this status. Raises CallAborted."""
        self._abort(status.code, status.details, status.trailing_metadata)


def permit_of(context: Any) -> Permit:
    """Return the permit of the call that is being run: ``permit_of(context).key_for("charge")``.

    Parameters: ``context`` that the servicer's method was given.

    Raises ConfigurationError where the method is not declared, or the call has no key.
    """
    permit = getattr(context, "semel_permit", None)
    if not isinstance(permit, Permit):
        raise ConfigurationError(
            "this call is not protected, so that there is no permit: declare its method in the interceptor's "
            "operations=, and let key='required' refuse calls without a key"
        )
    return permit
