"""The status resource behind a middleware: served where the operations' links lead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from semel.core.identity import uuid_bytes
from semel.core.model import Answer
from semel.engine.async_engine import AsyncEngine
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError
from semel.http.problem_page import problem_page
from semel.http.problems import PAGE_NAME
from semel.http.routing import DEFAULT_METHODS
from semel.http.settings import HttpSettings
from semel.operations.http import Operations, SyncOperations

_NOT_READ: Final = Answer(405, ((b"allow", b"GET, HEAD"), (b"content-length", b"0")), b"")


class _Place:
    """The place of a surface's status resource, and its routing.

    Parameters: ``serve`` True: serve all requests below its path; None: those that name an operation by id, key or
    reference, so that an application may have pages of its own there; False: none, the application serves it.

    Raises ConfigurationError: ``serve`` is True and the surface's problems name no path with ``{id}`` as its last part.
    """

    def __init__(self, surface: HttpSettings, serve: bool | None) -> None:
        path = surface.problems.operations_path
        here = path is not None and path.startswith("/") and path.endswith("/{id}")
        if serve and not here:
            raise ConfigurationError(
                f"serve_operations=True needs Problems(operations_path='/operations/{{id}}'), a path that ends with "
                f"/{{id}}; it is {path!r}"
            )
        self._root = None if path is None or not here or serve is False else path.removesuffix("/{id}")
        self._insists = bool(serve)
        self._surface = surface

    def concerns(self, path: str) -> bool:
        """Return whether a request's path may be one of the resource's."""
        return self._root is not None and path.startswith(self._root)

    def _parse(self, method: str, paths: tuple[str, ...], query: bytes) -> str | Answer | None:
        """Return the id in a path, "" if the query names the operation, the answer to another method, or None.

        Parameters: ``paths`` that the request may be known by: within the application, and with its mount.
        """
        root = self._root
        if root is None:
            return None
        found = [path for path in paths if path == root or path.startswith(f"{root}/")]
        if not found:
            return None
        rest = found[0][len(root) :].strip("/")
        reads = method in ("GET", "HEAD")
        if reads and rest == PAGE_NAME:
            return _with_length(problem_page(), method)
        if not self._insists:
            named = parse_qs(query.decode("latin-1"), keep_blank_values=True)
            names_one = uuid_bytes(rest) is not None if rest else "key" in named or "reference" in named
            if not reads or not names_one:
                return None
        return rest if reads else _NOT_READ

    def _names(self) -> Iterator[str]:
        for each in self._surface.operations:
            if each.name is not None:
                yield each.name
            else:
                yield from (f"{method} {each.template}" for method in each.methods)
        if self._surface.default is not None:
            yield from (f"{method} *" for method in DEFAULT_METHODS)


class StatusResource(_Place):
    """``GET /operations/{id}``, ``?key=…`` and ``?reference=…`` for the caller's own operations, over WSGI."""

    def __init__(self, surface: HttpSettings, engine: Engine, serve: bool | None) -> None:
        super().__init__(surface, serve)
        self._operations = SyncOperations(surface, engine, self._names)

    def answer(self, method: str, path: str, environ: Mapping[str, Any]) -> Answer | None:
        """The answer to a request to this resource; None where it is another one."""
        query = environ.get("QUERY_STRING", "").encode("latin-1")
        asked = self._parse(method, (path, environ.get("SCRIPT_NAME", "") + path), query)
        if not isinstance(asked, str):
            return asked
        operations = self._operations
        return _with_length(operations.by_id(asked, environ) if asked else operations.by_key(query, environ), method)


class AsyncStatusResource(_Place):
    """As :class:`StatusResource`, over ASGI."""

    def __init__(self, surface: HttpSettings, engine: AsyncEngine, serve: bool | None) -> None:
        super().__init__(surface, serve)
        self._operations = Operations(surface, engine, self._names)

    async def answer(self, path: str, scope: Mapping[str, Any]) -> Answer | None:
        """The answer to a request to this resource; None where it is another one."""
        query: bytes = scope.get("query_string", b"")
        asked = self._parse(scope["method"], (path, scope["path"]), query)
        if not isinstance(asked, str):
            return asked
        operations = self._operations
        found = await (operations.by_id(asked, scope) if asked else operations.by_key(query, scope))
        return _with_length(found, scope["method"])


def _with_length(found: Answer, method: str) -> Answer:
    headers = found.headers
    if all(name != b"content-length" for name, _ in headers):
        headers = (*headers, (b"content-length", b"%d" % len(found.body)))
    return Answer(found.status, headers, b"" if method == "HEAD" else found.body)
