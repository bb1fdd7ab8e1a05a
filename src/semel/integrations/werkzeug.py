"""The shared part of Flask and Quart: Werkzeug's rules and exceptions, and the caller function."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, time
from decimal import Decimal
from types import NoneType
from typing import Any, Final
from uuid import UUID

import click
from werkzeug.exceptions import HTTPException

from semel.articles import name_type
from semel.check.discovery import functions_of
from semel.errors import ConfigurationError
from semel.http.caller import Caller
from semel.http.routing import PATH, UNSAFE_METHODS, Params, Route
from semel.http.spelling import without_slashes
from semel.integrations.endpoint import DECLARED, count_bulk_paths

_PLAIN: Final = (str, int, float, Decimal, UUID, date, time, NoneType)  # what URL converters make; each has its text
ABOVE: Final = (
    "the operation {name!r} is not protected: write @semel.command below the route's decorator, next to the function"
)
WHO: Final = (
    "who is calling? A key means something only for its caller. Give a function that says who, such as "
    "caller=lambda: {example}, or for a tool with one tenant and one user "
    "caller=single_caller (from semel.http)"
)


def check_routes(app: Any, plain: Mapping[int, tuple[Any, str]], declared: Mapping[str, Any]) -> None:
    """Refuse an application that would not be protected as declared; let the path count if several lead to a view.

    Parameters: ``plain`` the undecorated views, by identity; ``declared`` the application's operations, by name.

    Raises ConfigurationError for a decorator above the route, or a command that GET leads to.
    """
    found: dict[str, set[str]] = {}
    count_bulk_paths(
        (function, f"{rule.host or rule.subdomain or ''}//{rule.rule}")
        for rule in app.url_map.iter_rules()
        for methods, function in functions_of(app.view_functions.get(rule.endpoint), frozenset(rule.methods or ()))
        if methods.intersection(UNSAFE_METHODS)
    )
    for rule in app.url_map.iter_rules():
        view = app.view_functions.get(rule.endpoint)
        for methods, function in functions_of(view, frozenset(rule.methods or ()) - {"HEAD", "OPTIONS"}):
            hidden = plain.get(id(function))
            if hidden is not None and hidden[0] is function:
                raise ConfigurationError(ABOVE.format(name=hidden[1]))
            name = getattr(getattr(function, DECLARED, None) or getattr(view, DECLARED, None), "name", None)
            if name is None:
                continue
            reads = sorted(methods.difference(UNSAFE_METHODS))
            if reads:
                raise ConfigurationError(
                    f"the operation {name!r} is routed to by {', '.join(reads)} {rule.rule}, which is no "
                    f"command; route to it by one of {', '.join(UNSAFE_METHODS)}, and serve what only reads from "
                    "another view"
                )
            where = rule.host or rule.subdomain or ""
            found.setdefault(name, set()).add(f"{where}//{without_slashes(rule.rule)}")
    for name, each in declared.items():
        if each.paths is None and len(found.get(name, ())) != 1:  # none: a decorator hides the view
            each.route.count_path()


def check_unrouted(apps: Iterator[Any], view: Any, name: str) -> None:
    """Refuse a view that one of these applications routes to already, as it was. Raises ConfigurationError."""
    for app in apps:
        if any(each is view for each in app.view_functions.values()):
            raise ConfigurationError(ABOVE.format(name=name))


def params_of(request: Any, route: Route, path: str) -> Params:
    """Read the path's parameters, and the path itself if it counts."""
    named: Mapping[str, Any] = request.view_args or {}
    plain = {name: str(value) for name, value in named.items() if isinstance(value, _PLAIN)}
    params: Params = tuple(sorted(plain.items()))
    rule = request.url_rule
    # A converter's object may have no canonical text, and url_value_preprocessor may have removed a value.
    is_whole = rule is not None and set(plain) == set(rule.arguments)
    if is_whole and not route.counts_path:
        return params
    path = without_slashes(path)
    if rule is None or rule.host or rule.subdomain:
        path = f"//{request.host}/{path}"
    return (*params, (PATH, path))


def read_caller(caller: Any, tenant: str) -> Callable[[Any], Caller | None]:
    """Make the surface's caller function of the environ or the scope. Raises ConfigurationError."""
    if not callable(caller):
        raise ConfigurationError(f"caller must be a function that returns the caller; it is {caller!r}")
    if inspect.iscoroutinefunction(caller):
        raise ConfigurationError(
            f"caller must be a plain function, and {caller.__qualname__} is a coroutine function: await its data in "
            "before_request, and let caller read them from g"
        )
    Caller(tenant, "anyone")  # there is one tenant
    try:
        takes_request = bool(inspect.signature(caller).parameters)
    except (TypeError, ValueError):
        takes_request = True

    @functools.wraps(caller)
    def read(request: Any) -> Caller | None:
        found = caller(request) if takes_request else caller()
        if found is None or found == "" or isinstance(found, Caller):
            return found or None
        if isinstance(found, (str, int, UUID)) and not isinstance(found, bool):
            return Caller(tenant, str(found))
        raise ConfigurationError(
            f"caller= returned {name_type(found)}; it must return a text, a number, a UUID, a "
            "semel.http.Caller, or None where the caller is not known"
        )

    return read


def read_headers(fields: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Read an answer's headers as texts."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields]


def find_status(error: BaseException) -> int | None:
    """Find the status of an exception that is an answer, such as ``abort(redirect(...))``; None for any other."""
    if not isinstance(error, HTTPException):
        return None
    return error.code if error.response is None else getattr(error.response, "status_code", None)


def semel_commands(info: type, url_of: Callable[[Any], str]) -> click.Command:
    """Make the command group ``flask semel …``.

    Parameters: ``info`` the framework's ScriptInfo, which loads the application; ``url_of`` an application: its store.
    """

    @click.command(
        "semel",
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
        add_help_option=False,
        short_help="Semel's own commands, such as list, explain, doctor and settle, on the application's store.",
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def run(context: click.Context, arguments: tuple[str, ...]) -> None:
        from semel.cli.main import Project, main

        os.environ["SEMEL_URL"] = url_of(context.ensure_object(info).load_app())  # --url still overrides it
        project = Project("the application's engine", f"{context.find_root().info_name or 'flask'} semel")
        sys.exit(main(list(arguments), project))

    return run
