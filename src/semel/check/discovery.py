"""Find an application's commands: those that Semel protects, and those that it does not.

Discovery calls nothing of the application and imports no framework. It reads middleware, routes and endpoints through
the attributes that Starlette, FastAPI and Flask document, and guesses nothing.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from types import FunctionType
from typing import Any, Final, Literal, NamedTuple

from semel.bulk.declaration import BulkPolicy
from semel.check.reconcilers import Reconciled
from semel.http.asgi.middleware import SemelMiddleware as AsgiMiddleware
from semel.http.asgi.route import CaptureMiddleware as AsgiCapture
from semel.http.routing import DEFAULT_METHODS, UNSAFE_METHODS
from semel.http.settings import AnyEngine, HttpSettings
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.http.wsgi.route import CaptureMiddleware as WsgiCapture
from semel.integrations.endpoint import SERVED, bulk_used_by
from semel.policy import Policy

DECLARED: Final = "__semel__"  # the attribute that the integrations set on an endpoint
CAPTURE: Final = "CaptureMiddleware"
_LAYERS_MAX: Final = 100
_WRAPPED: Final = ("wsgi_app", "app", "asgi_app", "middleware_stack", "application")  # hold the inner layer
_PARAMETER: Final = re.compile(r"\{(\w+)(:\w+)?\}|<(?:(\w+)(?:\([^)]*\))?:)?(\w+)>")

Kind = Literal["ASGI", "WSGI", "functions"]
Way = Literal["endpoint", "middleware", "function"]


@dataclass(frozen=True, slots=True)
class CheckedOperation:
    """One protected operation. ``path`` is its template; ``managed`` whether the application runs a reaper (None: not
    visible), ``completed`` whether it runs a completer; ``reconciled_by`` the reconciler of its unknown outcomes;
    ``bulk`` the policy of a list of items, else None."""

    name: str
    methods: tuple[str, ...]
    path: str
    policy: Policy
    way: Way
    surface: HttpSettings | None
    engine: AnyEngine
    managed: bool | None
    caller: Any = None
    completed: bool = False
    reconciled_by: Reconciled | None = None
    bulk: BulkPolicy | None = None

    @property
    def title(self) -> str:
        """The operation's name in reports."""
        route = f"{'|'.join(self.methods)} {self.path}".strip()
        return self.name if self.name == route or not route else f"{self.name} ({route})"

    def serves(self, method: str, path: str) -> bool:
        """Return whether a request belongs to this operation."""
        any_path = self.path.endswith("*") and path.startswith(self.path[:-1])
        return method in self.methods and (any_path or _matches(self.path, path))


class Mistake(NamedTuple):
    """A mistake that makes every request fail, and its remedy."""

    said: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Discovered:
    """The discovered commands. ``unprotected``: routes that take commands without a declared operation."""

    kind: Kind
    operations: tuple[CheckedOperation, ...]
    unprotected: tuple[str, ...]
    routes: tuple[str, ...]
    mistakes: tuple[Mistake, ...] = ()

    def find(self, method: str, path: str) -> CheckedOperation | None:
        """Find the operation of a request: a declared one before the default of a middleware."""
        found = [each for each in self.operations if each.serves(method, path)]
        return min(found, key=lambda each: each.path.endswith("*"), default=None)

    @property
    def engines(self) -> tuple[AnyEngine, ...]:
        """Every engine, once."""
        return tuple({id(each.engine): each.engine for each in self.operations}.values())


@dataclass(frozen=True, slots=True)
class DeclaredFunction:
    """A function that is declared as a command; ``keyed_by_call``: each call passes its own key (``with_key``)."""

    operation: CheckedOperation
    keyed_by_call: bool


@dataclass(frozen=True, slots=True)
class _Route:
    path: str
    methods: tuple[str, ...]
    endpoint: Any
    named: bool = True  # whether the application itself names the methods


@dataclass(frozen=True, slots=True)
class _Layer:
    """One of our middlewares: its settings (None if endpoints claim), its engine, and whether it manages the engine."""

    surface: HttpSettings | None
    engine: AnyEngine
    managed: bool | None
    prefix: str


def is_wsgi(app: Any) -> bool:
    """Return whether an application looks like WSGI: its call is not a coroutine and takes two arguments."""
    if hasattr(app, "wsgi_app") or isinstance(app, WsgiMiddleware):
        return True
    call = app if inspect.isroutine(app) else type(app).__call__
    if inspect.iscoroutinefunction(call):
        return False
    try:
        return len(inspect.signature(app).parameters) == 2
    except (TypeError, ValueError):
        return False


def is_asgi(app: Any) -> bool:
    """Return whether an application looks like ASGI."""
    call = app if inspect.isroutine(app) else type(app).__call__
    if not inspect.iscoroutinefunction(call):
        return False
    return len(inspect.signature(app).parameters) == 3


def is_django(app: Any) -> bool:
    """Return whether an application is Django's own, over WSGI or ASGI."""
    return type(app).__module__.startswith("django.core.handlers")


def discover(app: Any) -> Discovered:
    """Find the commands of an ASGI or WSGI application."""
    layers: list[_Layer] = []
    routes: list[_Route] = []
    project: list[CheckedOperation] = []
    views: list[_Route] = []
    mistakes: list[Mistake] = []
    for part, prefix in parts_of(app):
        if is_django(part):
            project, views, mistakes = _of_django()
            continue
        layers += _layers(part, prefix)
        routes += _routes(getattr(part, "routes", None) or (), prefix)
        routes += _rules(part)
    operations = [*_of_layers(layers), *_of_endpoints(routes, layers), *_of_bulks(routes)]
    declared = any(each.way == "endpoint" for each in operations)
    operations += [*project, *_of_bulks(views)]
    if declared and not any(layer.surface is None for layer in layers):
        said = "operations are declared, but semel.install(app) was not called: every call of them fails"
        mistakes.append(Mistake(said, "call semel.install(app) once, after you create the application"))
    mistakes += _find_read_routes(routes)
    listed = [
        f"{method} {route.path}"
        for route in (*routes, *(view for view in views if view.named))
        if not _takes_imports(route.endpoint)  # protected by their content, not by a client's key
        for method in route.methods
        if method in UNSAFE_METHODS
    ]
    found = Discovered("WSGI" if is_wsgi(app) else "ASGI", tuple(operations), (), tuple(dict.fromkeys(listed)))
    bare = [each for each in found.routes if found.find(*_sample(each)) is None]
    return Discovered(found.kind, found.operations, tuple(bare), found.routes, tuple(mistakes))


def _takes_imports(endpoint: Any) -> bool:
    """Return whether an endpoint takes uploads (``semel.imports(...)``)."""
    return type(getattr(endpoint, SERVED, None)).__name__ == "ImportEndpoint" or hasattr(endpoint, "takes_imports")


def function_operation(thing: Any) -> DeclaredFunction | None:
    """Return the declaration of a function (``semel.functions.command``), or None. Resolves its engine."""
    if isinstance(thing, type) or not isinstance(getattr(type(thing), "with_key", None), FunctionType):
        return None
    declared = getattr(thing, "_declared", None)
    if declared is None:
        return None
    operation = CheckedOperation(
        thing.operation, (), "", thing.policy, "function", None, declared.engine(), None, declared.make_caller
    )
    return DeclaredFunction(operation, declared.make_key is None)


def discover_functions(owner: Any) -> Discovered:
    """Return the declared functions of a module or a class, or the given one."""
    things = [owner] if function_operation(owner) is not None else list(vars(owner).values())
    found = {id(each.operation): each.operation for thing in things if (each := function_operation(thing)) is not None}
    return Discovered("functions", tuple(found.values()), (), ())


# --- walking ------------------------------------------------------------------------------------


def parts_of(app: Any) -> Iterator[tuple[Any, str]]:
    """Yield the application and everything that it wraps or mounts, from the outside in, each with its mount path."""
    seen: set[int] = set()
    waiting: list[tuple[Any, str]] = [(app, "")]
    while waiting and len(seen) < _LAYERS_MAX:
        part, prefix = waiting.pop(0)
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        yield part, prefix
        instance = getattr(part, "__dict__", {})
        waiting += [(instance.get(name), prefix) for name in _WRAPPED]
        for route in inner if isinstance(inner := getattr(part, "routes", None), list) else ():
            if hasattr(route, "routes"):  # a mount; a plain route's "app" is its endpoint
                waiting.append((getattr(route, "app", None), prefix + (getattr(route, "path", None) or "")))


def _layers(part: Any, prefix: str) -> Iterator[_Layer]:
    if isinstance(part, AsgiMiddleware):
        yield _Layer(part.surface, part.engine, part._manage_engine, prefix)
    elif isinstance(part, WsgiMiddleware):
        yield _Layer(part.surface, part.engine, None, prefix)
    elif isinstance(part, (WsgiCapture, AsgiCapture)):
        yield _Layer(None, part.engine, None, prefix)
    for entry in middleware if isinstance(middleware := getattr(part, "middleware", None), list) else ():  # Litestar's
        if "semel" in (options := getattr(entry, "kwargs", {})):
            yield _Layer(None, options["semel"].engine, None, prefix)
    built = getattr(part, "middleware_stack", None) is not None
    for entry in getattr(part, "user_middleware", ()):
        kind, options = getattr(entry, "cls", None), dict(getattr(entry, "kwargs", {}))
        if kind is AsgiMiddleware and not built:  # a built stack is walked as it is
            managed = options.pop("manage_engine", False)
            options.pop("serve_operations", None)
            engine = options.pop("engine")
            yield _Layer(HttpSettings.of(engine, options), engine, managed, prefix)
        elif getattr(kind, "__name__", "") == CAPTURE:
            yield _Layer(None, options["engine"], None, prefix)


def _routes(routes: Any, prefix: str) -> Iterator[_Route]:
    for route in routes:
        path = prefix + (getattr(route, "path", None) or "")
        router = getattr(route, "original_router", None)  # FastAPI keeps included routers whole
        inner = getattr(route, "routes", None)
        if router is not None:
            yield from _routes(router.routes, prefix + (getattr(route.include_context, "prefix", "") or ""))
        elif isinstance(inner, list):
            yield from _routes(inner, path)
        elif hasattr(route, "endpoint"):
            yield from _endpoints(path, route)
        else:
            for handler in getattr(route, "route_handlers", ()):  # Litestar's
                yield _Route(
                    path, tuple(sorted(map(str, handler.http_methods))), getattr(handler.fn, "__func__", handler.fn)
                )


def _endpoints(path: str, route: Any) -> Iterator[_Route]:
    endpoint, methods = route.endpoint, getattr(route, "methods", None)
    if inspect.isclass(endpoint):
        for method in ("GET", "HEAD", "OPTIONS", *UNSAFE_METHODS):
            if hasattr(endpoint, method.lower()):
                yield _Route(path, (method,), getattr(endpoint, method.lower()))
    elif methods:
        yield _Route(path, tuple(sorted(methods)), endpoint)


def _rules(app: Any) -> Iterator[_Route]:
    """Yield Flask's routes. Flask itself answers HEAD and OPTIONS."""
    url_map = getattr(app, "url_map", None)
    if url_map is None or not hasattr(url_map, "iter_rules"):
        return
    for rule in url_map.iter_rules():
        view = getattr(app, "view_functions", {}).get(rule.endpoint)
        for methods, function in functions_of(view, frozenset(rule.methods or ()) - {"HEAD", "OPTIONS"}):
            yield _Route(rule.rule, tuple(sorted(methods)), function)


def functions_of(view: Any, methods: frozenset[str]) -> Iterator[tuple[frozenset[str], Any]]:
    """Yield the functions behind one Flask view, each with its HTTP methods: several in a ``MethodView``."""
    kind = getattr(view, "view_class", None)
    own = {method: getattr(kind, method.lower(), None) for method in methods} if kind is not None else {}
    if any(own.values()):
        for method, function in own.items():
            yield frozenset({method}), function
    else:
        yield methods, getattr(kind, "dispatch_request", view) if kind is not None else view


def _of_django() -> tuple[list[CheckedOperation], list[_Route], list[Mistake]]:
    """Return the operations, the views that take commands, and the mistakes of the Django project that is set up."""
    project = import_module("semel.integrations.django.discovery")
    checks = import_module("semel.integrations.django.checks")
    operations = [replace(each, path=_use_braces(each.path)) for each in project.project_operations()]
    views = [
        _Route(_use_braces(view.path), view.methods, view.function, view.names_methods)
        for view in project.views()
        if not view.is_repeated
    ]
    return operations, views, [Mistake(*each) for each in checks.project_mistakes()]


# --- operations -----------------------------------------------------------------------------


def _of_layers(layers: list[_Layer]) -> Iterator[CheckedOperation]:
    for layer in layers:
        surface = layer.surface
        if surface is None:
            continue
        for each in surface.operations:
            methods = tuple(each.methods)
            name = each.name or f"{'|'.join(methods)} {each.template}"
            completed = layer.managed is True
            for template in each.templates:
                yield CheckedOperation(
                    name,
                    methods,
                    layer.prefix + template,
                    each.policy,
                    "middleware",
                    surface,
                    layer.engine,
                    layer.managed,
                    completed=completed,
                )
        if surface.default is not None:
            yield CheckedOperation(
                "any other",
                DEFAULT_METHODS,
                f"{layer.prefix}*",
                replace(surface.default, key="optional"),  # requests without a key do not concern us
                "middleware",
                surface,
                layer.engine,
                layer.managed,
            )


def _of_endpoints(routes: list[_Route], layers: list[_Layer]) -> Iterator[CheckedOperation]:
    seen: set[tuple[str, str]] = set()
    for route in routes:
        declared = getattr(route.endpoint, DECLARED, None)
        if declared is None or not hasattr(declared, "policy") or (declared.name, route.path) in seen:
            continue
        seen.add((declared.name, route.path))
        # The wrapper's closure holds the declaring Semel, which has the surface.
        owner = inspect.getclosurevars(inspect.unwrap(route.endpoint, stop=_holds_owner)).nonlocals.get("self")
        surface = getattr(owner, "surface", None)
        engine = getattr(owner, "engine", None) or next(layer.engine for layer in layers if layer.surface is None)
        methods = tuple(method for method in route.methods if method in UNSAFE_METHODS) or route.methods
        completed = getattr(owner, "completes", False)
        yield CheckedOperation(
            declared.name,
            methods,
            _use_braces(route.path),
            declared.policy,
            "endpoint",
            surface,
            engine,
            None,
            completed=completed,
        )


def _use_braces(template: str) -> str:
    """Convert Flask's ``<int:number>`` to the form of all other templates."""
    return re.sub(r"<(?:(\w+)(?:\([^)]*\))?:)?(\w+)>", lambda found: _brace(found[1], found[2]), template)


def _brace(converter: str | None, name: str) -> str:
    return f"{{{name}:path}}" if converter == "path" else f"{{{name}}}"


def _of_bulks(routes: list[_Route]) -> Iterator[CheckedOperation]:
    """Yield the endpoints that answer with a bulk (``semel.bulk(...)``): its own method, or functions that use one."""
    for route in routes:
        methods = tuple(method for method in route.methods if method in UNSAFE_METHODS)
        found = None if hasattr(route.endpoint, DECLARED) else bulk_used_by(route.endpoint)
        if found is not None and methods:
            policy = found.bulk.policy
            yield CheckedOperation(
                policy.operation,
                methods,
                route.path,
                policy.policy,
                "endpoint",
                found._surface,
                found.bulk._engine,
                None,
                bulk=policy,
            )


def _find_read_routes(routes: list[_Route]) -> Iterator[Mistake]:
    for route in routes:
        declared = getattr(route.endpoint, DECLARED, None)
        reads = [method for method in route.methods if method not in UNSAFE_METHODS]
        if declared is not None and reads and hasattr(declared, "policy"):
            yield Mistake(
                f"{declared.name} is routed to by {', '.join(reads)} {route.path}, which is not a command: each such "
                "request fails",
                "route to it by POST, and serve reads from another endpoint",
            )


def _holds_owner(function: Any) -> bool:
    return "self" in getattr(getattr(function, "__code__", None), "co_freevars", ())


def _sample(listed: str) -> tuple[str, str]:
    """Return a request that a route would take."""
    method, _, path = listed.partition(" ")
    return method, _PARAMETER.sub("1", path)


def _matches(template: str, path: str) -> bool:
    pattern, at = "", 0
    for found in _PARAMETER.finditer(template):
        rest = found[2] == ":path" or found[3] == "path"
        pattern += re.escape(template[at : found.start()]) + (".+" if rest else "[^/]+")
        at = found.end()
    return re.fullmatch(pattern + re.escape(template[at:]), path) is not None
