"""The status resource of a WSGI application: served by the middleware, where the operations' links lead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from semel.engine.sync import Engine
from semel.errors import ConfigurationError
from semel.model import Answer
from semel.web.operations import SyncOperations
from semel.web.routing import DEFAULT_METHODS
from semel.web.surface import Surface


class StatusResource:
    """``GET /operations/{id}``, ``?key=…`` and ``?reference=…`` for the caller's own operations.

    Raises ConfigurationError: the surface's problems name no path with ``{id}`` as its last part.
    """

    def __init__(self, surface: Surface, engine: Engine) -> None:
        path = surface.problems.operations_path
        if path is None or not path.startswith("/") or not path.endswith("/{id}"):
            raise ConfigurationError(
                f"serve_operations=True needs Problems(operations_path='/operations/{{id}}'), a path that ends with "
                f"/{{id}}; it is {path!r}"
            )
        self._root = path.removesuffix("/{id}")
        self._surface = surface
        self._operations = SyncOperations(surface, engine, self._names)

    def answer(self, method: str, path: str, environ: Mapping[str, Any]) -> Answer | None:
        """The answer to a request to this resource; None where it is another one."""
        if path != self._root and not path.startswith(f"{self._root}/"):
            return None
        if method not in ("GET", "HEAD"):
            return Answer(405, ((b"allow", b"GET, HEAD"), (b"content-length", b"0")), b"")
        rest = path[len(self._root) :].strip("/")
        if rest:
            found = self._operations.by_id(rest, environ)
        else:
            found = self._operations.by_key(environ.get("QUERY_STRING", "").encode("latin-1"), environ)
        headers = (*found.headers, (b"content-length", b"%d" % len(found.body)))
        if any(name == b"content-length" for name, _ in found.headers):
            headers = found.headers
        return Answer(found.status, headers, b"" if method == "HEAD" else found.body)

    def _names(self) -> Iterator[str]:
        for each in self._surface.operations:
            if each.name is not None:
                yield each.name
            else:
                yield from (f"{method} {each.template}" for method in each.methods)
        if self._surface.default is not None:
            yield from (f"{method} *" for method in DEFAULT_METHODS)
