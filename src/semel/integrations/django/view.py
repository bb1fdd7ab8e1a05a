"""``@semel.command`` on Django's views: the claim, inside of everything that decides whether the view is called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import date, time
from decimal import Decimal
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, cast
from uuid import UUID

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.http import HttpRequest, HttpResponseNotAllowed
from django.urls import path as url
from django.views.decorators.http import require_http_methods

from semel.core.model import Answer, Effects
from semel.engine.permit import Permit
from semel.errors import ConfigurationError
from semel.http.routing import PATH, UNSAFE_METHODS, Params
from semel.http.spelling import without_slashes
from semel.integrations.django.answer import response_of, stream_of
from semel.integrations.django.atomic import run_atomic
from semel.integrations.django.call import CALL, DjangoCall, environ_of
from semel.integrations.django.site import BULKS, Declared, ProjectStore, site
from semel.integrations.endpoint import DECLARED, check_endpoint, parameter_text
from semel.policy import Command, Policy, PolicyOptions
from semel.stores.sql import django as databases

if TYPE_CHECKING:
    from semel.bulk.declaration import BulkItem, BulkOptions
    from semel.bulk.wsgi import BulkView
    from semel.engine.sync_engine import Engine
    from semel.http.settings import HttpSettings
    from semel.imports.run import Imports

F = TypeVar("F", bound=Callable[..., Any])
_PERMIT: Final = "semel_permit"
_PLAIN: Final = (str, int, float, Decimal, UUID, date, time, NoneType)  # what path converters make; each has its text


class RolledBackError(Exception):
    """The doubt of a command whose view has answered, but whose rows were rolled back."""


def command(
    name: str,
    policy: Policy | None = None,
    *,
    using: str | None = None,
    paths: Literal["apart", "one"] | None = None,
    **options: Unpack[PolicyOptions],
) -> Callable[[F], F]:
    """Declare a view, or a method of a class-based view, as an operation.

    Parameters: ``name`` of the operation, stable when paths and functions are renamed; ``policy`` or its ``options``,
    those of :class:`~semel.policy.Policy`; ``using`` the alias of the database that holds the record, by default
    ``SEMEL["DATABASE"]``; ``paths`` whether the path counts in the fingerprint: "apart"; "one" if all of its paths mean
    the same; None: only if several templates lead to the view. Write it *below* every decorator that decides who may
    call, such as ``login_required``, and below Django REST framework's own. The view finds its permit in
    ``request.semel_permit``.

    Raises PolicyError and ConfigurationError, when the view's module is imported.

        >>> from semel.integrations import django as semel  # doctest: +SKIP
        >>> @semel.command("orders.pay", effects="atomic")  # doctest: +SKIP
        ... def pay(request, number):
        ...     return JsonResponse({"order": Order.objects.create(number=number).pk}, status=201)
    """

    def declare(view: F) -> F:
        _check_view(view)
        is_async = iscoroutinefunction(view)
        declared = site().declare(name, policy, options, paths=paths, using=using)
        is_atomic = declared.policy.terms.effects is Effects.ATOMIC
        if is_atomic and is_async:
            raise ConfigurationError(
                f"{view.__qualname__}: effects='atomic' needs Django's transaction, which no coroutine can have; write "
                "def, and Django runs the view in a thread"
            )

        @functools.wraps(view)
        def serve_claimed(*args: Any, **kwargs: Any) -> Any:
            return _serve(view, declared, args, kwargs)

        @functools.wraps(view)
        async def serve_claimed_async(*args: Any, **kwargs: Any) -> Any:
            return await _serve_async(view, declared, args, kwargs)

        wrapped: Any = serve_claimed_async if is_async else serve_claimed
        if declared.policy.steps:  # no later failure of the request may undo a step's record
            wrapped = databases.outside_of_requests(wrapped)
        setattr(wrapped, DECLARED, declared)
        site().plain[id(view)] = (view, name)
        return cast(F, wrapped)

    return declare


def _check_view(view: Any) -> None:
    """Refuse a view that cannot be protected. Raises ConfigurationError."""
    if isinstance(getattr(view, DECLARED, None), Declared):
        raise ConfigurationError(f"{view.__qualname__} is declared twice; one view is one operation")
    kind = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if kind is not None:
        raise ConfigurationError(
            f"@semel.command is above {kind.__name__}, which authenticates inside the view: write it on the method, "
            "such as post, or below @api_view"
        )
    if getattr(view, "__module__", "") == "django.utils.decorators":
        raise ConfigurationError(
            "method_decorator creates its function for each request; write @semel.command on the method itself, such "
            "as post"
        )
    check_endpoint(view)


# --- serving --------------------------------------------------------------------------------------


def _serve(view: Callable[..., Any], declared: Declared, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    request = _request_of(declared, args)
    call = _call_of(declared, request)
    if call is None:
        return HttpResponseNotAllowed(UNSAFE_METHODS)
    if declared.policy.steps:
        _check_outside(f"the steps of {declared.name!r} are made")
    place, command = _command(call, declared, request, args, kwargs)
    if not isinstance(command, Command):
        return _serve_unclaimed(view, request, command, args, kwargs)
    if declared.policy.terms.effects is Effects.ATOMIC:
        return run_atomic(call, place, declared.using, command, request, functools.partial(view, *args, **kwargs))
    permit = call.claim(command)
    if not isinstance(permit, Permit):
        return _serve_unclaimed(view, request, permit, args, kwargs)
    if call.wants_async and (accepted := call.accept()) is not None:
        return response_of(accepted)
    _give(request, permit)
    before = databases.failures()
    try:
        response = view(*args, **kwargs)
    except BaseException as error:
        call.note_failure(error)
        raise
    if databases.rolls_back_any():
        doubt = RolledBackError("the view rolled back a database's transaction, so its answer is not stored")
        call.note_failure(doubt)
        failure = databases.failure_since(before)
        if failure is not None and response.status_code < 400:
            raise doubt from failure
    return response


async def _serve_async(
    view: Callable[..., Any], declared: Declared, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    request = _request_of(declared, args)
    call = _call_of(declared, request)
    if call is None:
        return HttpResponseNotAllowed(UNSAFE_METHODS)

    def claim() -> Permit | Answer | None:
        if declared.policy.steps:
            _check_outside(f"the steps of {declared.name!r} are made")
        _, command = _command(call, declared, request, args, kwargs)
        permit = call.claim(command) if isinstance(command, Command) else command
        if isinstance(permit, Permit) and call.wants_async:
            return call.accept() or permit
        return permit

    # Django's user may be read from the database, which is for threads: this thread has its own connection.
    permit = await sync_to_async(claim, thread_sensitive=True)()
    if isinstance(permit, Answer):
        return response_of(permit)
    _give(request, permit)
    try:
        return await view(*args, **kwargs)
    except BaseException as error:
        call.note_failure(error)
        raise


def _check_outside(what: str) -> None:
    """Refuse steps inside a transaction whose rollback would undo their records."""
    alias = databases.find_open_block()
    if alias is not None:
        raise ConfigurationError(
            f"{what} inside a Django transaction of DATABASES[{alias!r}], whose rollback would undo the record: put "
            f"@transaction.non_atomic_requests(using={alias!r}) around the view (for a class, around dispatch), and "
            "open no atomic() around it"
        )


def _serve_unclaimed(
    view: Callable[..., Any], request: Any, answer: Answer | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if answer is not None:
        return response_of(answer)
    _give(request, None)
    return view(*args, **kwargs)


def _give(request: Any, permit: Permit | None) -> None:
    setattr(getattr(request, "_request", request), _PERMIT, permit)


def _request_of(declared: Declared, args: tuple[Any, ...]) -> Any:
    """Find the request among the arguments: first of a function, second of a method."""
    for each in args[:2]:
        if isinstance(each, HttpRequest) or isinstance(getattr(each, "_request", None), HttpRequest):
            return each
    raise ConfigurationError(
        f"the operation {declared.name!r} was called without a request: @semel.command is for views and for the "
        "methods of class-based views, such as post"
    )


def _call_of(declared: Declared, request: Any) -> DjangoCall | None:
    """Return the request's capture; None for a method that is not a command."""
    if request.method not in UNSAFE_METHODS:
        return None
    call = getattr(getattr(request, "_request", request), CALL, None)
    if not isinstance(call, DjangoCall):
        raise ConfigurationError(
            f"the operation {declared.name!r} is called without its middleware; add "
            "'semel.integrations.django.middleware.SemelMiddleware' to MIDDLEWARE, at its end"
        )
    return call


def _command(
    call: DjangoCall, declared: Declared, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ProjectStore, Command | Answer | None]:
    here = site()
    place = here.place(declared.using)
    here.look_at_routes()
    route = place.declared[declared.name].route
    at = next(index for index, each in enumerate(args) if each is request)
    named = {**{str(index): value for index, value in enumerate(args[at + 1 :])}, **kwargs}
    if declared.paths is None and getattr(getattr(request, "_request", request), "urlconf", None) is not None:
        route.count_path()  # this request's own routes: not the ones that were checked
    if route.key_from is not None or route.reference_from is not None:
        named = {**named, **_lookup_parameter(args[:at], kwargs)}
    plain = {name: str(value) for name, value in named.items() if isinstance(value, _PLAIN)}
    params: Params = tuple(sorted(plain.items()))
    if route.counts_path or len(plain) < len(named):  # a converter's object may have no text of its own
        params = (*params, (PATH, without_slashes(request.path_info)))
    return place, call.command_of(place, route, params, request)


def _lookup_parameter(views: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, str]:
    """Return the parameter by which a REST framework view finds its object, converted by its model: ``07`` is 7."""
    for view in views:
        field = getattr(view, "lookup_field", None)
        name: str = getattr(view, "lookup_url_kwarg", None) or field or ""
        if not isinstance(kwargs.get(name), str):
            continue
        queryset = view.queryset if view.queryset is not None else view.get_queryset()
        meta = queryset.model._meta
        try:
            read = (meta.pk if field == "pk" else meta.get_field(field)).to_python(kwargs[name])
        except (FieldDoesNotExist, ValidationError):  # a field of another model; no value that an object could have
            continue
        return {name: parameter_text(read) or kwargs[name]}
    return {}


def bulk(
    operation: str,
    handler: Callable[[BulkItem], object],
    *,
    using: str | None = None,
    body_bytes_max: int = 64 * 1024 * 1024,
    items_at: str | None = None,
    counts: Sequence[str] | None = None,
    **options: Unpack[BulkOptions],
) -> BulkView:
    """Declare a list of items as one command: ``path("approvals", semel.bulk("cases.approve", approve).answer)``.

    Parameters: ``operation`` its name, and ``options`` those of :class:`~semel.bulk.declaration.BulkPolicy`;
    ``handler`` a function of an item; ``using`` the alias of the database that holds its record; ``body_bytes_max`` of
    a list; ``items_at`` where its items are in an object, such as ``"/items"`` (a plain array is accepted, too);
    ``counts`` names of request headers that count, by default the project's. In a method of a class-based view, or
    below ``@api_view``, return ``approvals.answer(request)``.

    Raises ConfigurationError and PolicyError, when the module is imported.
    """
    from semel.bulk.wsgi import BulkView

    if operation in site().declared or operation in BULKS:
        raise ConfigurationError(f"duplicate operation name {operation!r}: their keys would collide")

    def place() -> tuple[Engine, HttpSettings]:
        found = site().place(using or site().database)
        return found.engine, found.surface

    if not callable(handler) or iscoroutinefunction(handler):
        raise ConfigurationError("a bulk's handler here must be a plain function: def approve(item): ...")

    made = BulkView(
        operation,
        handler,
        options,
        place=place,
        around=_with_connections,
        body_bytes_max=body_bytes_max,
        items_at=items_at,
        counts=counts,
    )
    BULKS.append(operation)

    def answer(request: Any, **named: Any) -> Any:
        if request.method not in UNSAFE_METHODS:
            return HttpResponseNotAllowed(UNSAFE_METHODS)
        _check_outside(f"the list {operation!r} is done")
        params = tuple(sorted((name, str(value)) for name, value in named.items()))
        told = made.respond(environ_of(request), request, params, request.path_info)
        return response_of(told) if isinstance(told, Answer) else stream_of(told, request)

    made.answer = databases.outside_of_requests(answer)
    return made


def _with_connections(act: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            act()
        finally:
            databases.close_connections()

    return run


_JOBS_PATHS: Final[set[str]] = set()


def _add_root(path: str) -> str:
    return f"/{path.lstrip('/')}"


def imports(
    imports: Imports | Sequence[Imports],
    *,
    path: str | dict[str, str],
    supplier: str | Callable[[Any], object],
    may: Callable[[Any, str], bool],
    jobs_path: str = "imports",
    idle_seconds: float = 60.0,
    decorate: Callable[[Any], Any] = lambda view: view,
) -> list[Any]:
    """Make URL patterns that take files, report on their jobs, and run the jobs in the servers' processes.

    Parameters: ``imports`` one or several, on an AsyncEngine of their own, each with a handler; ``path`` of uploads,
    such as ``"suppliers/{supplier}/imports"``, for several one of each by its operation; ``supplier`` where its code
    is: ``"path:supplier"``, ``"header:NAME"``, ``"query:NAME"`` or a function of the request; ``may`` a function of
    the request and the supplier's code that says whether this caller may send and see its files; ``jobs_path`` of the
    questions; ``idle_seconds`` how long a client may send nothing; ``decorate`` a decorator for each view, such as
    ``login_required`` or ``csrf_exempt``.

    Write them at the root of the project: ``urlpatterns += semel.imports(...)``.

    Raises ConfigurationError, when the module with the URLs is imported.
    """
    from semel.imports.wsgi import ImportsOverWsgi  # which answers in Starlette's terms

    if jobs_path.strip("/") in _JOBS_PATHS:
        raise ConfigurationError(
            f"other imports answer at {jobs_path!r} already: give all of them in one call, with "
            "path={'stock.import': 'suppliers/{supplier}/stock', ...}, or another jobs_path"
        )
    rooted = _add_root(path) if isinstance(path, str) else {name: _add_root(each) for name, each in path.items()}
    served = ImportsOverWsgi(
        imports,
        path=rooted,
        supplier=supplier,
        may=may,
        jobs_path=_add_root(jobs_path),
        idle_seconds=idle_seconds,
        **site().surface_options,
    )
    _JOBS_PATHS.add(jobs_path.strip("/"))
    by_path: dict[str, set[str]] = {}
    for template, methods in served.paths:
        by_path.setdefault(template, set()).update(methods)

    def answer(request: Any, **_: Any) -> Any:
        return response_of(served.respond(environ_of(request), request))

    return [
        url(
            template[1:].replace("{", "<str:").replace("}", ">"),
            decorate(require_http_methods(sorted(methods))(answer)),
        )
        for template, methods in by_path.items()
    ]
