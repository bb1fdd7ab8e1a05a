"""An ASGI layer without a store: refuses keys that are missing or malformed before a request reaches the service."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from semel.errors import ConfigurationError, InvalidKey, MissingKey
from semel.gateway.guarded import Guarded, refusal, sort_by_precision
from semel.http.problems import INVALID_KEY, MISSING_KEY, TOO_EARLY, Kind, Problems
from semel.http.spelling import normal_raw_segments, normal_segments, without_formats
from semel.keys import parse_key
from semel.proxy.configuration import KEYED

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class KeyGate:
    """Checks the key of each declared command and forwards the request unchanged. It makes no key and changes none.

    The service behind it enforces idempotency; this layer only refuses early what the service would refuse.

    Parameters: ``app`` the ASGI application behind it; ``operations`` that need a key; ``problems`` the format of
    refusals, as in the service.

    Another spelling of a declared path, such as ``/Payments/`` or ``/payments.json``, needs a key as well: the service
    may route it to the same operation. A request with a checked key has ``semel.keyed`` in its scope. The gate refuses
    a command in TLS early data (``Early-Data: 1``) with 425, and a key header that ``Connection`` names with 400: the
    next proxy would drop it.

    Raises ConfigurationError if ``operations`` is empty.

    >>> KeyGate(app=None, operations=[Guarded("pay", ("POST",), "/payments")]).finds("POST", "/payments").name
    'pay'
    """

    def __init__(self, app: App | None, operations: Sequence[Guarded], *, problems: Problems | None = None) -> None:
        if not operations:
            raise ConfigurationError("operations is empty; name one, such as Guarded('pay', ('POST',), '/payments')")
        self._app = app
        inner = sort_by_precision(operations)
        self._exact = [(re.compile(each.pattern.encode()), each) for each in inner]
        self._lenient = [(re.compile(each.lenient_pattern.encode(), re.DOTALL), each) for each in inner]
        self._methods = {method for each in inner for method in each.methods}
        self._problems = problems or Problems()

    def finds(self, method: str, path: str, raw_path: bytes = b"") -> Guarded | None:
        """Return the operation of a request, by its method and its decoded path; None if none is declared.

        Parameters: ``raw_path`` as received, for services that split it before they decode it.
        """
        method = method.upper()
        if method not in self._methods:
            return None
        found = _first(self._exact, method, path)
        if found is None:
            found = _first(self._lenient, method, "/" + "/".join(normal_segments(path)))
        if found is None:
            shorter = without_formats(normal_segments(path))
            tried = (_first(self._lenient, method, "/" + "/".join(segments)) for segments in shorter)
            found = next(filter(None, tried), None)
        if found is None and raw_path:
            parts = (each.replace("/", "%2f") for each in normal_raw_segments(raw_path))
            found = _first(self._lenient, method, "/" + "/".join(parts))
        return found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on."""
        kind = self._check(scope) if scope["type"] == "http" else False
        if isinstance(kind, bool):
            assert self._app is not None
            await self._app({**scope, KEYED: True} if kind else scope, receive, send)
            return
        headers, body = refusal(kind, self._problems)
        fields = [*headers, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": kind.status, "headers": fields})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _check(self, scope: Scope) -> Kind | bool:
        """Return the refusal of a request; True if it has a valid key, False if it has none and needs none."""
        operation = self.finds(scope["method"], scope["path"], scope.get("raw_path") or b"")
        if operation is None or operation.header is None:
            return False
        name = operation.header.lower().encode()
        fields = [(field.lower(), value) for field, value in scope["headers"]]
        if any(field == b"early-data" and b"1" in value for field, value in fields):
            return TOO_EARLY
        if any(field == b"connection" and name in value.lower() for field, value in fields):
            return INVALID_KEY
        lines = [value for field, value in fields if field == name]
        try:
            parse_key(lines)
        except MissingKey:
            return MISSING_KEY if operation.required else False
        except InvalidKey:
            return INVALID_KEY
        return True


def _first(patterns: Sequence[tuple[re.Pattern[bytes], Guarded]], method: str, path: str) -> Guarded | None:
    text = path.encode("utf-8", "surrogatepass")
    return next((each for pattern, each in patterns if method in each.methods and pattern.fullmatch(text)), None)
