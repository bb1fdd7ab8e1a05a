"""What one server of the bench serves, as its command line says."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]
Handler = Callable[[Request], Awaitable[Response]]
Handlers = Mapping[str, Handler]  # by path; each answers POST


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One application and how it is protected.

    Parameters:
        module: where its ``build(setup, handlers)`` is found, such as ``bench.peers.idemkit``.
        store: a store URL (``memory://``, ``sqlite:///PATH``, ``redis://…``); None where there is no store.
        book: the folder where the correctness handlers write their effects; None serves the payments of the bench.
        lease_seconds: the lease, where it shall differ from the default.
        callers: whether callers are distinguished (by the header ``x-user``, for want of authentication).
        counted: whether Semel counts its store calls.
        shop: whether ``book`` is for the shop of ``bench.conform``.
        port: where it listens; 0 is any free port.
    """

    module: str
    store: str | None = None
    book: str | None = None
    lease_seconds: float | None = None
    callers: bool = False
    counted: bool = False
    shop: bool = False
    port: int = 0

    def to_json(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Setup:
        """Read what ``to_json`` has written."""
        return cls(**json.loads(text))

    @property
    def path(self) -> str:
        """The database file of a ``sqlite:///`` store."""
        assert self.store is not None
        assert self.store.startswith("sqlite:///")
        return self.store.removeprefix("sqlite:///")
