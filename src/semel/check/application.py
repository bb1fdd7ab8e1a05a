"""Load `module:app` from the command line, and list the operations that the application declares.

Importing a user's module may print, fail or end the process: in each case the command line prints one line.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Literal

from semel.admin.failures import UsageFailed
from semel.bulk.declaration import BulkPolicy
from semel.check.discovery import discover, is_asgi, is_wsgi
from semel.cli.loading import error_text, set_up_django
from semel.errors import SemelError
from semel.policy import Policy

NAMED_MAX: Final = 8  # names suggested in place of a missing one
DJANGO_HINT: Final = "; of a Django project its wsgi module, as shop.wsgi:application"
Way = Literal["endpoint", "middleware", "function"]


@dataclass(frozen=True, slots=True)
class Declaration:
    """One operation that an application declares.

    Parameters: ``name`` of the operation; its ``route``, empty for functions; the ``surface`` that it
    belongs to, None for functions; ``reaped`` whether the application runs a reaper, None where that is not visible;
    ``bulk`` where it is a list of items.
    """

    name: str
    route: str
    policy: Policy
    way: Way
    engine: Any
    surface: Any = None
    reaped: bool | None = None
    bulk: BulkPolicy | None = None


def load(spec: str) -> Any:
    """Load the object that ``module:name`` names: `module`, `module:app`, `module:package.app` or `module:make_app()`.

    Raises UsageFailed, naming what is missing, or what the module raised and where.
    """
    module_name, _, path = spec.partition(":")
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise UsageFailed(f"APPLICATION must have the form module:app, such as shop.main:app; it is {spec!r}")
    # As `python -m` does: modules in the current folder can be named.
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    set_up_django()
    found: Any = _import(module_name)
    called = path.endswith("()")
    for name in path.removesuffix("()").split(".") if path else ():
        try:
            found = getattr(found, name)
        except AttributeError:
            near = difflib.get_close_matches(name, [each for each in dir(found) if not each.startswith("_")], n=1)
            named = sorted(
                each for each, value in getattr(found, "__dict__", {}).items() if _is_own(each, value, module_name)
            )[:NAMED_MAX]
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(named)}" if named else ""
            raise UsageFailed(f"APPLICATION {spec}: {module_name} has no {name!r}{hint}") from None
    found = _call(found, spec) if called else found
    return _application_of(found) if isinstance(found, ModuleType) else found


def load_server(spec: str) -> Any:
    """Load the ASGI or WSGI application that ``spec`` names. Raises UsageFailed as :func:`load`, or if it is none."""
    app = load(spec)
    if callable(app) and (is_asgi(app) or is_wsgi(app)):
        return app
    raise UsageFailed(
        f"APPLICATION {spec} is of the type {type(app).__name__}, no ASGI or WSGI application; for a factory write "
        f"'{spec.removesuffix('()')}()'"
    )


def _application_of(module: ModuleType) -> Any:
    """Return Django's application if the module is the ROOT_URLCONF of the project that is set up, else the module."""
    conf = sys.modules.get("django.conf")
    settings = getattr(conf, "settings", None)
    if not getattr(settings, "configured", False) or getattr(settings, "ROOT_URLCONF", None) != module.__name__:
        return module
    return importlib.import_module("django.core.wsgi").get_wsgi_application()


def _is_own(name: str, value: object, module: str) -> bool:
    """Return whether a module's name is worth suggesting: public, callable, and not an imported class."""
    ours = getattr(value, "__module__", module) == module or not isinstance(value, type)
    return not name.startswith("_") and callable(value) and ours and not isinstance(value, ModuleType)


def _import(name: str) -> ModuleType:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageFailed(
                f"APPLICATION: there is no module {name!r} here ({os.getcwd()}); run semel in the folder that contains "
                "it, or install it"
            ) from None
        raise UsageFailed(f"APPLICATION: {name} could not be imported: {error_text(error)}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- a user's module may raise anything: report it
        raise UsageFailed(f"APPLICATION: {name} could not be imported: {error_text(error)}") from None


def _call(make: Any, spec: str) -> Any:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return make()
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- as above
        raise UsageFailed(f"APPLICATION: {spec} could not be called: {error_text(error)}") from None


def declarations(spec: str) -> list[Declaration]:
    """List every operation of an application, of a module's functions, or of a single command. Raises UsageFailed."""
    target = load(spec)
    try:
        found = list(_of_module(target) if isinstance(target, ModuleType) else _of_object(target))
    except SemelError as error:
        raise UsageFailed(f"APPLICATION {spec}: {error}") from error
    if not found:
        raise UsageFailed(
            f"APPLICATION {spec} declares no operation that can be seen: give an ASGI or WSGI application with "
            f"@semel.command or SemelMiddleware, or a module with @command functions{DJANGO_HINT}"
        )
    return found


def _of_module(module: ModuleType) -> Iterator[Declaration]:
    seen: set[int] = set()
    for value in list(vars(module).values()):
        if id(value) not in seen and (_is_function(value) or _is_semel(value)):
            seen.add(id(value))
            yield from _of_object(value)


def _of_object(target: Any) -> Iterator[Declaration]:
    if _is_function(target):
        declared = getattr(target, "_declared", None)
        engine = getattr(declared, "engine", None)
        yield Declaration(target.operation, "", target.policy, "function", engine() if callable(engine) else engine)
    elif _is_semel(target):
        for each in target.declared.values():
            yield Declaration(each.name, "", each.policy, "endpoint", target.engine, target.surface)
    else:
        for each in discover(target).operations:
            route = f"{'|'.join(each.methods)} {each.path}".strip()
            own = "" if route == each.name else route
            yield Declaration(each.name, own, each.policy, each.way, each.engine, each.surface, each.managed, each.bulk)


def _is_function(value: Any) -> bool:
    """Return whether a value is a function that was declared as a command."""
    return isinstance(getattr(value, "policy", None), Policy) and isinstance(getattr(value, "operation", None), str)


def _is_semel(value: Any) -> bool:
    """Return whether a value is the object that declares an application's endpoints."""
    return isinstance(getattr(value, "declared", None), dict) and hasattr(value, "surface")
