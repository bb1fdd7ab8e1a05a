"""The gate as one ASGI application: the checks of a request's form and of its key, and the upstream."""

from __future__ import annotations

from collections.abc import Sequence

from semel.gateway.gate import KeyGate
from semel.gateway.guarded import Guarded, longest
from semel.proxy.application import Front
from semel.proxy.configuration import UpstreamOrigin
from semel.proxy.upstream import IDLE_SECONDS, Upstream


class GateApplication(Front):
    """Checks the keys of ``operations`` in front of ``origin``, and forwards each request once."""

    def __init__(self, origin: UpstreamOrigin, operations: Sequence[Guarded]) -> None:
        upstream = Upstream(origin, {}, idle_seconds=max(IDLE_SECONDS, longest(operations)))
        self._gate = KeyGate(upstream, operations)
        super().__init__(self._gate, upstream)

    def declares(self, method: str, path: str) -> bool:
        """Return whether the gate requires a key."""
        return self._gate.finds(method, path) is not None
