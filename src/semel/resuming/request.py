"""The stored form of a resumable operation's request: its head on one line, followed by its body."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from semel.errors import SemelError
from semel.http.routing import Route
from semel.http.settings import HttpSettings

if TYPE_CHECKING:
    from semel.policy import Command

# The headers that describe the body and the address: without its host and scheme an application answers with its own
# redirect or 400, which would pass for the command's answer. Never a credential.
HEADERS_KEPT: Final = frozenset(
    {
        *(b"content-type", b"content-encoding", b"content-language", b"accept", b"accept-language"),
        *(b"host", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto"),
    }
)
RESUMED: Final = "semel.resumed"
"""Set in the scope or environ of a run without its client, and of no other request, even with ``semel.permit``."""
_CALL_KEY: Final = "semel.call"  # in the scope of an application whose endpoints claim for themselves


class KeptRequest(NamedTuple):
    """A kept request.

    ``root``: where the called application was mounted; ``scheme``: of the requested URL.
    """

    method: str
    path: str
    root: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    scheme: str = "http"


class Asking(NamedTuple):
    """Replaces the permit while a check finds out whether a request would reach the endpoint."""

    command: Command


class NotReached(SemelError):
    """The application answered a kept request before the operation's endpoint was reached; nothing has run."""

    @classmethod
    def describe(cls, name: str, what: str, where: str) -> Self:
        """Describe what happened before an operation's endpoint, and what to change. ``where``: scope or environ."""
        return cls(
            f"a request without its client {what} before the endpoint of the operation {name!r} was reached: let "
            f"requests whose {where} has 'semel.resumed' pass what authenticates"
        )


def pack_head(method: str, request: Mapping[str, Any], query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Pack a request's head, kept before its body. ``request``: the ASGI scope, the WSGI environ, or Django's."""
    request = getattr(request, "META", request)
    path, root = _place(request)
    kept = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers if name in HEADERS_KEPT]
    scheme = request.get("scheme") or request.get("wsgi.url_scheme") or "http"
    head = {"method": method, "path": path, "root": root, "query": query.decode("latin-1"), "headers": kept}
    head["scheme"] = scheme
    return json.dumps(head).encode() + b"\n"


def _place(request: Mapping[str, Any]) -> tuple[str, str]:
    if "path" not in request:
        return request.get("PATH_INFO", "/"), request.get("SCRIPT_NAME", "")
    root: str = request.get("root_path", "")
    if _CALL_KEY in request:  # the call starts outside again, before the mounts on the way
        root = request.get("app_root_path", root)
    return request["path"], root


def unpack(request: bytes) -> KeptRequest:
    """Unpack a kept request."""
    line, _, body = request.partition(b"\n")
    head = json.loads(line)
    headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"])
    query = head["query"].encode("latin-1")
    root, scheme = head.get("root", ""), head.get("scheme", "http")
    return KeptRequest(head["method"], head["path"], root, query, headers, body, scheme)


def resumable_routes(surface: HttpSettings) -> list[Route]:
    """Yield a route for each resumable operation that is declared at a surface."""
    return [
        surface.route(each.name or f"{method} {each.template}", each.policy)
        for each in surface.operations
        if each.policy.resumable
        for method in (each.methods if each.name is None else each.methods[:1])
    ]
