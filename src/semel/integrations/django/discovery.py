"""The declarations of a project, for ``semel check``, ``config`` and ``openapi``, and for ``manage.py check``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from django.apps import apps
from django.conf import settings
from django.contrib.admindocs.views import simplify_regex
from django.urls import get_resolver

from semel.check.discovery import CheckedOperation
from semel.http.routing import UNSAFE_METHODS
from semel.integrations.django.site import Declared, Site, callbacks, find_declared_in, site
from semel.integrations.endpoint import DECLARED

_FORMAT: Final = ".<format>"  # the second path that a REST framework router makes for each view


class View(NamedTuple):
    """A function, or a method of a view class, with its path and its HTTP methods."""

    path: str
    methods: tuple[str, ...]
    function: Any
    declared: Declared | None
    names_methods: bool  # whether the project itself declares these methods
    authenticated_by: tuple[type, ...] = ()  # the classes of REST framework

    @property
    def is_repeated(self) -> bool:
        """Whether its path is another view's path plus the format of the answer."""
        return self.path.rstrip("/").endswith(_FORMAT)


def declared_operations(here: Site) -> Iterator[CheckedOperation]:
    """Find every declared operation with each of its paths; without a path if none leads to it."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for view in views():
        if view.declared is not None and not view.is_repeated:
            paths = found.setdefault(view.declared.name, {})
            paths[view.path] = tuple(dict.fromkeys((*paths.get(view.path, ()), *view.methods)))
    for name, each in here.declared.items():
        place = here.place(each.using)
        for path, methods in found.get(name, {"": ()}).items():
            yield CheckedOperation(
                name, methods, path, each.policy, "endpoint", place.surface, place.engine, None, completed=False
            )


def project_operations() -> list[CheckedOperation]:
    """Find the operations of this process's project. Raises ConfigurationError."""
    here = site()
    here.look_at_routes()
    return list(declared_operations(here))


def views() -> Iterator[View]:
    """Find the project's views that take commands."""
    for template, callback in callbacks(get_resolver().url_patterns):
        path = simplify_regex(template)
        kind = getattr(callback, "view_class", None) or getattr(callback, "cls", None)
        if kind is None:
            declared = getattr(callback, DECLARED, None)
            yield View(path, ("POST",), callback, declared if isinstance(declared, Declared) else None, False)
            continue
        actions = getattr(callback, "actions", None)  # of a view set of REST framework
        named = actions if isinstance(actions, Mapping) else {each.lower(): each.lower() for each in UNSAFE_METHODS}
        for method, name in named.items():
            function = getattr(kind, name, None)
            if function is not None and method.upper() in UNSAFE_METHODS:
                is_own = not kind.__module__.startswith("django.")  # a project cannot declare these
                classes = tuple(getattr(kind, "authentication_classes", ()))
                yield View(path, (method.upper(),), _behind(function), find_declared_in(kind, name), is_own, classes)


def authenticated_by_default() -> list[type]:
    """Return REST_FRAMEWORK['DEFAULT_AUTHENTICATION_CLASSES']; none in a project without REST framework."""
    if not (apps.is_installed("rest_framework") or hasattr(settings, "REST_FRAMEWORK")):
        return []
    from rest_framework.settings import api_settings

    return list(api_settings.DEFAULT_AUTHENTICATION_CLASSES)


def _behind(method: Any) -> Any:
    """Find the function from which ``@api_view`` made a class, in place of that class's method."""
    if getattr(method, "__module__", "") != "rest_framework.decorators":
        return method
    return next((cell.cell_contents for cell in method.__closure__ or () if callable(cell.cell_contents)), method)
