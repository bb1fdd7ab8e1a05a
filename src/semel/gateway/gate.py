"""An ASGI layer without a store: refuses keys that are missing or malformed before a request reaches the service."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from semel.errors import ConfigurationError, InvalidKey, MissingKey
from semel.gateway.guarded import Guarded, ordered, refusal
from semel.http.keys import parse_key
from semel.http.problems import INVALID_KEY, MISSING_KEY, Kind, Problems

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class KeyGate:
    """Checks the key of each declared command and passes the request on as it is. It makes no key and changes none.

    The service behind it enforces idempotency; this layer only refuses early what the service would refuse.

    Parameters: ``app`` the ASGI application behind it; ``operations`` what needs a key; ``problems`` how refusals are
    written, as the service's own.

    Raises ConfigurationError where ``operations`` is empty.

    >>> KeyGate(app=None, operations=[Guarded("pay", ("POST",), "/payments")]).finds("POST", "/payments").name
    'pay'
    """

    def __init__(self, app: App | None, operations: Sequence[Guarded], *, problems: Problems | None = None) -> None:
        if not operations:
            raise ConfigurationError("operations is empty; name one, such as Guarded('pay', ('POST',), '/payments')")
        self._app = app
        self._operations = [(re.compile(each.pattern), each) for each in ordered(operations)]
        self._problems = problems or Problems()

    def finds(self, method: str, path: str) -> Guarded | None:
        """The operation of a request, by its method and its decoded path; None where none is declared."""
        for pattern, operation in self._operations:
            if method in operation.methods and pattern.search(path):
                return operation
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on."""
        kind = self._refused(scope) if scope["type"] == "http" else None
        if kind is None:
            assert self._app is not None
            await self._app(scope, receive, send)
            return
        headers, body = refusal(kind, self._problems)
        fields = [*headers, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": kind.status, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    def _refused(self, scope: Scope) -> Kind | None:
        operation = self.finds(scope["method"], scope["path"])
        if operation is None or operation.header is None:
            return None
        name = operation.header.lower().encode()
        lines = [value for field, value in scope["headers"] if field.lower() == name]
        try:
            parse_key(lines)
        except MissingKey:
            return MISSING_KEY if operation.required else None
        except InvalidKey:
            return INVALID_KEY
        return None
