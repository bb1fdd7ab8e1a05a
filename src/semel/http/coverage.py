"""Handle requests without a declared operation: refuse them, apply the default policy, or pass them on.

Frameworks are more lenient than templates: they merge slashes, decode a path again, take ``post`` for ``POST``. A
request that might reach a protected view in this way would run unprotected, so it is refused before the application
sees it. Flask, Quart and Django tell where a request leads; for all others its normal spelling is compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from semel.core.model import Answer
from semel.http.problems import MISSPELLED, UNCOVERED
from semel.http.routing import UNSAFE_METHODS, Operation, Params, Route
from semel.http.settings import HttpSettings
from semel.http.spelling import normal_raw_segments, normal_segments

OVERRIDES: Final = frozenset({b"x-http-method-override", b"x-http-method", b"x-method-override"})
_REDIRECT: Final = object()  # the framework redirects the client to another spelling, and runs no view
_LAYERS_MAX: Final = 20
_REMEMBERED_MAX: Final = 1024  # paths, which clients may make up
_REMEMBERED_LENGTH_MAX: Final = 256
_INNER: Final = ("wsgi_app", "asgi_app", "app", "application")
_SAMPLES: Final = ("1", "a", "00000000-0000-4000-8000-000000000000", "2020-01-01")  # the values that converters accept

View = Callable[[str, str], object]  # from method and path to the view, _REDIRECT, or None where there is no view


class Coverage:
    """Judges the requests for which :meth:`~semel.http.routing.Routes.find` finds no operation.

    Parameters: ``app`` inside the middleware.
    """

    def __init__(self, surface: HttpSettings, app: object) -> None:
        self._surface = surface
        self._app = app
        self._misspelled = lru_cache(maxsize=_REMEMBERED_MAX)(self._find_misspelled)
        self._view: View | None = None
        self._protected: dict[tuple[str, object], str] | None = None  # by method and view: the template

    @property
    def is_fixed(self) -> bool:
        """Whether a judgement depends on the request's method, path and headers alone, not on a framework."""
        return self._view is None

    def judge(
        self,
        method: str,
        path: str,
        is_keyed: Callable[[], bool],
        raw_path: bytes | None = None,
        *,
        overriding: Sequence[str] = (),
    ) -> tuple[Route, Params] | Answer | None:
        """Return the default policy's route, the answer that refuses the request, or None if it passes.

        Parameters: ``is_keyed`` says whether it carries a key; ``raw_path`` as it came over the wire, below the place
        where the application is mounted, if the server has it; ``overriding`` the method that its ``OVERRIDES`` headers
        name, which a layer inside may use instead.
        """
        surface = self._surface
        upper = method.upper()
        if overriding:
            for other in {each.strip().upper() for each in overriding} & set(UNSAFE_METHODS) - {upper}:
                template = self._leads_to(other, path, raw_path)
                if template is not None:
                    text = f"Nothing was done. Send it as {other} {template}, without the header for another method."
                    return surface.problems.answer(MISSPELLED, text)
        if upper not in UNSAFE_METHODS:
            return None
        template = self._leads_to(upper, path, raw_path)
        if template is not None:
            return surface.problems.answer(
                MISSPELLED,
                f"Nothing was done. Send it as {upper} {template}, spelled exactly so: without doubled or further "
                "slashes, without encoded characters that need no encoding, and in the same case.",
            )
        found = surface.routes.find_default(method, path)
        if found is not None:
            return found
        keyed = is_keyed()
        if surface.uncovered == "refuse" or (surface.uncovered == "refuse-keyed" and keyed):
            text = "Nothing was done: no operation is declared for this method and path, so a retry would not be safe."
            return surface.problems.answer(UNCOVERED, text)
        if keyed:  # its client believes that it is protected
            surface.tell_unprotected(f"{method} *", "no-operation")
        return None

    def _leads_to(self, method: str, path: str, raw_path: bytes | None) -> str | None:
        """Return the template of the operation that the application might run for a request."""
        if not self._surface.operations:
            return None
        view = self._ask(method, path)
        if view is not None:
            if view is _REDIRECT:
                return None
            assert self._protected is not None
            found = self._protected.get((method, view))
            if found is not None:
                return found
        raw = raw_path if raw_path is not None and b"%" in raw_path else b""
        is_short = len(path) + len(raw) <= _REMEMBERED_LENGTH_MAX
        return (self._misspelled if is_short else self._find_misspelled)(method, path, raw)

    def _find_misspelled(self, method: str, path: str, raw_path: bytes) -> str | None:
        """Find the template that the request's path, decoded or as on the wire, matches in its normal spelling."""
        routes = self._surface.routes
        found = routes.find_misspelled(method, normal_segments(path))
        if found is None and raw_path:
            found = routes.find_misspelled(method, normal_raw_segments(raw_path))
        return found

    def _ask(self, method: str, path: str) -> object:
        """Return the view that the framework would call."""
        if self._protected is None:  # at the first such request: the application has all of its routes by then
            self._view = _view_of(self._app)
            self._protected = dict(self._find_protected_views(self._surface.operations))
        return None if self._view is None else self._view(method, path)

    def _find_protected_views(self, operations: Iterable[Operation]) -> Iterator[tuple[tuple[str, object], str]]:
        if self._view is None:
            return
        for operation in operations:
            for template in operation.templates:
                for method in operation.methods:
                    for sample in _SAMPLES:
                        view = self._view(method, _fill(template, sample))
                        if view is not None and view is not _REDIRECT:
                            yield (method, view), template
                            break


def _fill(template: str, sample: str) -> str:
    return "/".join(sample if part.startswith("{") else part for part in template.split("/"))


def _view_of(app: object) -> View | None:
    """Return the view lookup of the framework inside; None if unknown."""
    found = app
    for depth in range(_LAYERS_MAX):
        found = getattr(found, "__self__", found)  # app.wsgi_app is a method
        if hasattr(found, "url_map") and hasattr(found, "view_functions"):
            return _werkzeug(found, direct=depth == 0)
        if type(found).__module__.startswith("django.core.handlers"):
            return _django()
        attributes: Mapping[str, Any] = getattr(found, "__dict__", {})
        found = next((attributes[name] for name in _INNER if attributes.get(name) is not None), None)
        if found is None:
            break
    return None


def _werkzeug(app: Any, *, direct: bool) -> View | None:
    """Return the lookup of Flask and Quart. ``direct``: no layer in between could change the path."""
    url_map = app.url_map
    if url_map.host_matching or any(rule.subdomain for rule in url_map.iter_rules()):
        return None  # the view would depend on the host as well
    adapter = url_map.bind("localhost")

    def view(method: str, path: str) -> object:
        try:
            endpoint, _ = adapter.match(path, method=method)
        except Exception as error:  # noqa: BLE001 -- no such view; Werkzeug's errors are known by name here
            return _REDIRECT if direct and type(error).__name__ == "RequestRedirect" else None
        function = app.view_functions.get(endpoint, endpoint)
        return getattr(function, "view_class", function)

    return view


def _django() -> View | None:
    resolve = getattr(sys.modules.get("django.urls"), "resolve", None)
    if resolve is None:
        return None

    def view(method: str, path: str) -> object:
        try:
            function = resolve(path).func
        except Exception:  # noqa: BLE001 -- no such view, or settings that cannot be used outside of a request
            return None
        kind = getattr(function, "view_class", None) or getattr(function, "cls", function)
        actions = getattr(function, "actions", None)  # of a view set of Django REST framework
        return (kind, actions.get(method.lower())) if isinstance(actions, Mapping) else kind

    return view
