"""Flask: the operation is declared on the view, claimed inside it, and captured around the application.

So Semel never records requests that authentication, ``before_request`` or URL converters refuse, and replays nothing to
a caller whom the application would refuse. With ``effects="atomic"`` Flask-SQLAlchemy's session works in the command's
own transaction, and one commit makes the rows and the record final.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, cast
from uuid import UUID

from flask import Flask, Response, current_app, got_request_exception, has_app_context, has_request_context, request
from flask.cli import ScriptInfo
from werkzeug.exceptions import MethodNotAllowed
from werkzeug.wrappers import Response as BaseResponse

from semel.core.model import Answer, Effects
from semel.engine.permit import Permit
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError
from semel.http.caller import Caller
from semel.http.exchange import RETRY_BYTES_MAX
from semel.http.problem_page import problem_page
from semel.http.problems import PAGE_NAME
from semel.http.routing import UNSAFE_METHODS
from semel.http.settings import EndpointSettings, HttpSettings
from semel.http.wsgi.route import CALL_KEY, CaptureMiddleware, RouteCall
from semel.integrations.endpoint import (
    DECLARED,
    DeclaredEndpoint,
    check_declaration,
    check_endpoint,
    declare_endpoint,
)
from semel.integrations.werkzeug import (
    WHO,
    check_routes,
    check_unrouted,
    find_status,
    params_of,
    read_caller,
    read_headers,
    semel_commands,
)
from semel.operations.http import SyncOperations
from semel.policy import Command, Policy, PolicyOptions

if TYPE_CHECKING:
    from semel.bulk.declaration import BulkItem, BulkOptions
    from semel.bulk.wsgi import BulkView, Told
    from semel.imports.run import Imports
    from semel.imports.wsgi import ImportsOverWsgi

F = TypeVar("F", bound=Callable[..., Any])

_EXTENSION: Final = "semel"  # in app.extensions
_PERMIT: Final = "semel.permit"  # in the environ
_FIND: Final = "flask-sqlalchemy"


@dataclass(frozen=True, slots=True)
class DeclaredView:
    """The arguments of ``@semel.command`` for a view."""

    name: str
    policy: Policy
    paths: Literal["apart", "one"] | None


class Semel:
    """Protects the commands of Flask applications, view by view.

    Parameters: ``app`` and ``engine``, or neither, and :meth:`init_app` later; ``caller``, a function without
    parameters or of the WSGI environ, asked inside the view: it returns a text, a number, a UUID or a
    :class:`~semel.http.caller.Caller`, or None where the caller is not known; ``tenant`` of texts, numbers and UUIDs;
    ``session`` the ``scoped_session`` that ATOMIC views write with: by default Flask-SQLAlchemy's, None for none;
    ``operations_path`` where the status of operations is served: where the answers link to (None: by the application
    itself, or nowhere); ``waiters_max`` how many threads may wait for running duplicates; further settings as
    :class:`~semel.http.settings.HttpSettings`.

    Raises ConfigurationError for a missing caller, an engine of the other colour, or an invalid setting.

    >>> from flask import Flask
    >>> from semel import Engine
    >>> from semel.http.caller import single_caller
    >>> app = Flask("notes")
    >>> semel = Semel(app, Engine.connect("memory://"), caller=single_caller)
    >>> @app.post("/notes")
    ... @semel.command("notes.create", effects="idempotent")
    ... def create_note():
    ...     return {"attempt": semel.permit.attempt}, 201
    >>> answer = app.test_client().post("/notes", headers={"Idempotency-Key": "note-1"})
    >>> answer.status_code, answer.json
    (201, {'attempt': 1})
    """

    def __init__(
        self,
        app: Flask | None = None,
        engine: Engine | None = None,
        *,
        caller: Callable[..., Caller | str | int | UUID | None] | None = None,
        tenant: str = "single",
        session: Any = _FIND,
        operations_path: str | None = "/operations",
        waiters_max: int | None = None,
        **settings: Unpack[EndpointSettings],
    ) -> None:
        if app is not None and not isinstance(app, Flask):
            raise ConfigurationError(f"Semel(app, engine, caller=...): app must be a Flask, not {type(app).__name__}")
        if caller is None:
            raise ConfigurationError(WHO.format(example="current_user.get_id() with Flask-Login"))
        if "may" in settings:
            raise ConfigurationError(
                "may= is for the middlewares, which claim before the application decides; here a view claims after "
                "its decorators and before_request: let one of those refuse"
            )
        self.engine: Engine | None = None  # of the last application that was initialised
        self.surface: HttpSettings | None = None
        self.declared: dict[str, DeclaredView] = {}
        self.bulks: list[str] = []
        self.has_atomic_bulk = False
        self._options: dict[str, Any] = {"caller": read_caller(caller, tenant), **settings}
        self._session = session
        self._operations_path = operations_path
        self._waiters_max = waiters_max
        self._plain: dict[int, tuple[Any, str]] = {}  # views as they were before they were declared
        self._apps: weakref.WeakSet[Flask] = weakref.WeakSet()
        if engine is not None and app is None:
            raise ConfigurationError("an engine belongs to an application: Semel(app, engine) or init_app(app, engine)")
        if app is not None:
            self.init_app(app, engine)

    @property
    def permit(self) -> Any:
        """The :class:`~semel.engine.permit.Permit` of the running view; None where the key is optional and was not
        sent. Raises ConfigurationError outside of a declared view.
        """
        if not has_request_context() or _PERMIT not in request.environ:
            raise ConfigurationError("semel.permit is the permit of a view below @semel.command; no such view runs")
        return request.environ[_PERMIT]

    # --- declaring --------------------------------------------------------------------------------

    def command(
        self,
        name: str,
        policy: Policy | None = None,
        *,
        paths: Literal["apart", "one"] | None = None,
        **options: Unpack[PolicyOptions],
    ) -> Callable[[F], F]:
        """Declare a view, or a method of a ``MethodView``, as an operation.

        Parameters: ``name`` of the operation, stable when paths and functions are renamed; ``policy`` or its
        ``options``, those of :class:`~semel.policy.Policy`; ``paths`` whether the path counts in the fingerprint:
        "apart"; "one" if all of its paths mean the same; None: only if several rules lead to the view. Write it *below*
        the route and below every decorator that decides who may call, such as ``login_required``.

        Raises PolicyError and ConfigurationError, when the view's module is imported.
        """
        chosen = check_declaration(name, policy, options, paths=paths, taken=(*self.declared, *self.bulks))
        declared = DeclaredView(name, chosen, paths)
        for app in self._apps:
            _state_of(app).declare(declared)
        self.declared[name] = declared
        views: list[object] = []

        def declare(view: F) -> F:
            if views:
                raise ConfigurationError(f"duplicate operation name {name!r}: their keys would collide")
            views.append(view)
            self._check_view(view, declared)
            self._plain[id(view)] = (view, name)
            is_coroutine = inspect.iscoroutinefunction(view)

            @functools.wraps(view)
            def serve_claimed(*args: Any, **kwargs: Any) -> Any:
                run = (
                    current_app.ensure_sync(view) if is_coroutine else view
                )  # before the claim: it may not be possible
                return self._serve(run, declared, args, kwargs)

            setattr(serve_claimed, DECLARED, declared)
            return cast(F, serve_claimed)

        return declare

    def bulk(
        self,
        operation: str,
        handler: Callable[[BulkItem], object],
        *,
        body_bytes_max: int = 64 * 1024 * 1024,
        items_at: str | None = None,
        counts: Sequence[str] | None = None,
        **options: Unpack[BulkOptions],
    ) -> BulkView:
        """Declare a list as one command: ``app.post("/approvals")(semel.bulk("cases.approve", approve).answer)``.

        Parameters: ``operation`` its name, and ``options`` those of :class:`~semel.bulk.declaration.BulkPolicy`;
        ``handler`` a function of an item; ``body_bytes_max`` of a list; ``items_at`` where its items are in an object,
        such as ``"/items"`` (a plain array is accepted, too); ``counts`` names of request headers that count, by
        default the application's.

        Raises ConfigurationError and PolicyError, when the module is imported.
        """
        from semel.bulk.wsgi import BulkView

        if operation in self.declared or operation in self.bulks:
            raise ConfigurationError(f"duplicate operation name {operation!r}: their keys would collide")
        if asyncio.iscoroutinefunction(handler):
            raise ConfigurationError("a bulk's handler here must be a plain function: def approve(item): ...")
        made = BulkView(
            operation,
            self._joining(operation, handler),
            options,
            place=self._place,
            around=_in_app_context,
            body_bytes_max=body_bytes_max,
            items_at=items_at,
            counts=counts,
        )
        self.bulks.append(operation)
        self.has_atomic_bulk |= made.policy.effects == "atomic"

        def answer(**_: Any) -> Response:
            params = tuple(sorted((name, str(value)) for name, value in (request.view_args or {}).items()))
            return _to_response(made.respond(request.environ, request.environ, params, _path_of(request.environ)))

        answer.__name__ = operation.replace(".", "_")  # Flask's name for it
        made.answer = answer
        return made

    def _joining(self, name: str, handler: Callable[[BulkItem], object]) -> Callable[[BulkItem], object]:
        """Make a handler whose atomic items are written by the application's session, on each chunk's connection."""

        @functools.wraps(handler)
        def handle(item: BulkItem) -> object:
            sessions = _state_of(current_app).sessions if item.connection is not None else None
            if sessions is None:
                return handler(item)
            from semel.stores.sql import sqlalchemy as databases

            session = sessions()
            databases.check_unwritten(session, name)
            joined = databases.JoinedSession(session, item.connection, name)
            try:
                returned = handler(item)
                session.commit()
                return returned
            finally:
                joined.leave()

        return handle if callable(handler) else handler

    def _place(self) -> tuple[Engine, HttpSettings]:
        """Return the engine and the surface of the running application, else of the last that was initialised."""
        state = current_app.extensions.get(_EXTENSION) if has_app_context() else None
        if isinstance(state, _State) and state.semel is self:
            return state.engine, state.surface
        if self.engine is None or self.surface is None:
            raise ConfigurationError("this Semel has no application yet: call semel.init_app(app, engine)")
        return self.engine, self.surface

    def imports(
        self,
        app: Flask,
        imports: Imports | Sequence[Imports],
        *,
        path: str | dict[str, str],
        supplier: str | Callable[[Any], object],
        may: Callable[[Any, str], bool],
        jobs_path: str = "/imports",
        idle_seconds: float = 60.0,
    ) -> ImportsOverWsgi:
        """Take files at a path of an application, report on their jobs, and run the jobs in its processes.

        Parameters: ``imports`` one or several, on an AsyncEngine of their own, each with a handler; ``path`` of
        uploads, such as ``"/suppliers/{supplier}/imports"``, for several one of each by its operation; ``supplier``
        where its code is: ``"path:supplier"``, ``"header:NAME"``, ``"query:NAME"`` or a function of the environ;
        ``may`` a function of the environ and the supplier's code that says whether this caller may send and see its
        files; ``jobs_path`` of the questions; ``idle_seconds`` how long a client may send nothing.

        Raises ConfigurationError, when the application is built.
        """
        from semel.imports.wsgi import ImportsOverWsgi  # which answers in Starlette's terms

        served = ImportsOverWsgi(
            imports,
            path=path,
            supplier=supplier,
            may=may,
            jobs_path=jobs_path,
            idle_seconds=idle_seconds,
            **self._options,
        )
        if f"semel_import {jobs_path}" in app.view_functions:
            raise ConfigurationError(
                f"other imports answer at {jobs_path!r} already: give all of them in one call, with "
                "path={'stock.import': '/suppliers/{supplier}/stock', ...}, or another jobs_path"
            )
        for template, methods in served.paths:

            def answer(**_: Any) -> Response:
                return _response_of(served.respond(request.environ))

            answer.takes_imports = True  # type: ignore[attr-defined]
            rule = template.replace("{", "<").replace("}", ">")
            app.add_url_rule(rule, f"semel_import {template}", answer, methods=list(methods))
        return served

    def _check_view(self, view: Any, declared: DeclaredView) -> None:
        if isinstance(getattr(view, DECLARED, None), DeclaredView):
            raise ConfigurationError(f"{view.__qualname__} is declared twice; one view is one operation")
        kind = getattr(view, "view_class", None)
        if kind is not None:
            raise ConfigurationError(
                f"@semel.command was given {kind.__name__}.as_view(...): write it on the method, such as post"
            )
        check_endpoint(view)
        if declared.policy.terms.effects is Effects.ATOMIC and inspect.iscoroutinefunction(view):
            raise ConfigurationError(
                f"{view.__qualname__}: effects='atomic' needs its transaction in the request's own thread, and Flask "
                "runs async views in another one; write def"
            )
        check_unrouted(iter(self._apps), view, declared.name)

    # --- installing -------------------------------------------------------------------------------

    def init_app(self, app: Flask, engine: Engine | None = None) -> None:
        """Capture the application's answers, serve the operations' status, and add the commands ``flask semel``.

        Call it once for each application, as the last change to ``app.wsgi_app``.

        Raises ConfigurationError.
        """
        if not isinstance(app, Flask):
            raise ConfigurationError(f"init_app(app, engine): app must be a Flask, not {type(app).__name__}")
        if not isinstance(engine, Engine):
            given = "none was given" if engine is None else f"not {type(engine).__name__}"
            raise ConfigurationError(
                f"a Flask application needs a semel.Engine, {given}: init_app(app, Engine.connect('sqlite:///shop.db'))"
            )
        if _EXTENSION in app.extensions:
            raise ConfigurationError(f"the application {app.name!r} has a Semel already; one protects it")
        surface = HttpSettings.of(engine, self._options, ("tenant", "session", "operations_path", "waiters_max"))
        place = surface.problems.check_place(self._operations_path)
        state = _State(self, app, engine, surface, self._session)
        for declared in self.declared.values():
            state.declare(declared)
        app.extensions[_EXTENSION] = state
        self._apps.add(app)
        self.engine, self.surface = engine, surface
        app.wsgi_app = CaptureMiddleware(  # type: ignore[method-assign]
            app.wsgi_app,
            engine,
            bytes_max=state.body_bytes_max,
            check=state.check,
            waiters_max=self._waiters_max,
        )
        _note_exceptions(app)
        if place is not None:
            _serve_operations(app, state, place)
        app.cli.add_command(_commands)

    # --- serving ----------------------------------------------------------------------------------

    def _serve(
        self, view: Callable[..., Any], declared: DeclaredView, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        state = current_app.extensions.get(_EXTENSION)
        if not isinstance(state, _State) or state.semel is not self:
            raise ConfigurationError(
                f"the operation {declared.name!r} is called in the application {current_app.name!r}, which its Semel "
                "does not know: call semel.init_app(app, engine)"
            )
        if request.method not in UNSAFE_METHODS:
            raise MethodNotAllowed(valid_methods=UNSAFE_METHODS)
        environ = request.environ
        call = environ.get(CALL_KEY)
        if not isinstance(call, RouteCall):
            raise ConfigurationError(
                f"the operation {declared.name!r} is called outside of its capture: call the application by its "
                "wsgi_app or its test_client(), and let semel.init_app be the last that replaces app.wsgi_app"
            )
        sessions = state.sessions if declared.policy.terms.effects is Effects.ATOMIC else None
        if sessions is not None:
            state.check_session(sessions, declared.name)
        route = state.declared[declared.name].route
        claimed = call.command_of(
            state.engine, state.surface, route, params_of(request, route, _path_of(environ)), environ
        )
        permit = call.claim(claimed) if isinstance(claimed, Command) else claimed
        if isinstance(permit, Answer):
            return _response_of(permit)
        if permit is not None and call.wants_async and (accepted := call.accept()) is not None:
            return _response_of(accepted)
        environ[_PERMIT] = permit
        if permit is None:
            return view(*args, **kwargs)
        try:
            session = None if sessions is None else state.join(sessions(), permit, declared.name, call)
            answered = view(*args, **kwargs)
            if declared.policy.terms.effects is Effects.ATOMIC:
                answered = _read(answered, declared.policy.answer_bytes_max)
            if session is not None and _status_of(answered) < 400:
                session.commit()
            return answered
        except BaseException as error:
            # Any exception rolls back an ATOMIC view's rows, so its answer is not a success.
            call.note_failure(error, None if declared.policy.terms.effects is Effects.ATOMIC else find_status(error))
            raise


class _State:
    """One application with its engine: ``app.extensions["semel"]``."""

    def __init__(self, semel: Semel, app: Flask, engine: Engine, surface: HttpSettings, session: Any) -> None:
        self.semel = semel
        self.engine = engine
        self.surface = surface
        self.declared: dict[str, DeclaredEndpoint] = {}
        self.operations = SyncOperations(surface, engine, lambda: (*self.declared, *semel.bulks))
        self.sessions: Callable[[], Any] | None = None
        self._session = session
        self._app = weakref.ref(app)
        self._lock = threading.Lock()
        self._is_checked = False
        self._is_joinable = False

    def declare(self, declared: DeclaredView) -> None:
        """Make an operation on this engine from a declaration. Raises PolicyError and ConfigurationError."""
        self.declared[declared.name] = declare_endpoint(
            self.engine,
            self.surface,
            declared.name,
            declared.policy,
            {},
            paths=declared.paths,
            taken=self.declared,
        )

    def body_bytes_max(self) -> int:
        """Return the longest body that any operation may take."""
        return max([RETRY_BYTES_MAX, *(each.policy.body_bytes_max for each in self.declared.values())])

    # --- checks -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse every request of an application that would not be protected as declared.

        Raises ConfigurationError: a decorator above the route, a command that GET leads to, a session elsewhere.
        """
        if self._is_checked:
            return
        with self._lock:
            app = self._app()
            assert app is not None
            check_routes(app, self.semel._plain, self.declared)
            atomic = any(each.policy.terms.effects is Effects.ATOMIC for each in self.declared.values())
            if atomic or self.semel.has_atomic_bulk:
                self._find_sessions(app)
            self._is_checked = True

    def _find_sessions(self, app: Flask) -> None:
        sessions = self._session
        if sessions == _FIND:
            sessions = getattr(app.extensions.get("sqlalchemy"), "session", None)
        if sessions is None:
            return
        from semel.stores.sql import sqlalchemy as databases

        if not hasattr(sessions, "session_factory"):
            raise ConfigurationError(f"session must be a scoped_session of SQLAlchemy's; it is {sessions!r}")
        with app.app_context():
            session = sessions.session_factory()  # a session of its own: one in use stays untouched
            bind = session.get_bind().engine
            session.close()
        databases.check_same_database(bind, self.engine.backend.url, self.engine.backend.file)
        databases.watch_sessions(sessions)
        self.sessions = sessions

    # --- the session of an ATOMIC view ------------------------------------------------------------

    def check_session(self, sessions: Callable[[], Any], name: str) -> None:
        """Refuse, before the claim, a session that cannot join the command's transaction. Raises ConfigurationError."""
        from semel.stores.sql import sqlalchemy as databases

        session = sessions()
        databases.check_unwritten(session, name)
        if not self._is_joinable and self.engine.backend.file is None:
            databases.check_joinable_bind(session.get_bind().engine, self.engine.backend.join)
        self._is_joinable = True

    def join(self, session: Any, permit: Permit, name: str, call: RouteCall) -> Any:
        """Let the session work in the command's transaction until the command is settled."""
        from semel.stores.sql import sqlalchemy as databases

        call.before_settling.append(databases.JoinedSession(session, permit.connection, name).leave)
        return session


def _state_of(app: Flask) -> _State:
    state: _State = app.extensions[_EXTENSION]
    return state


def _path_of(environ: Mapping[str, Any]) -> str:
    return str(environ.get("PATH_INFO", "")).encode("latin-1").decode("utf-8", "surrogateescape")


def _response_of(answer: Answer) -> Response:
    """Make an answer into a response for the application's own ``after_request``; the capture sends it."""
    return Response(answer.body, 200 if answer.status is None else answer.status, read_headers(answer.headers))


def _to_response(told: Answer | Told) -> Response:
    """Make a bulk's answer into a response, whose items are read while it is sent."""
    if isinstance(told, Answer):
        return _response_of(told)
    return Response(told.pieces, told.status, read_headers(told.headers))


def _in_app_context(act: Callable[[], None]) -> Callable[[], None]:
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]

    def run() -> None:
        with app.app_context():
            act()

    return run


def _read(answered: Any, bytes_max: int) -> Any:
    """Read the stream of a view's answer, because it may read uncommitted rows.

    One that is too long stays a stream. Other return values are passed to the decorators above.
    """
    first = answered[0] if isinstance(answered, tuple) and answered else answered
    if not isinstance(first, (BaseResponse, Iterator)):
        return answered
    response = current_app.make_response(answered)
    if not response.is_streamed or response.direct_passthrough:
        return response
    source, pieces, size = response.iter_encoded(), [], 0
    response.call_on_close(getattr(response.response, "close", lambda: None))
    for piece in source:
        pieces.append(piece)
        size += len(piece)
        if size > bytes_max:
            response.response = chain(pieces, source)
            return response
    response.response = pieces
    return response


def _status_of(answered: Any) -> int:
    """Read the status of a view's answer; 200 if it names none."""
    if isinstance(answered, BaseResponse):
        return answered.status_code
    named = answered[1] if isinstance(answered, tuple) and len(answered) > 1 else 200
    found = str(int(named) if isinstance(named, int) else named)[:3]
    return int(found) if found.isdecimal() else 200


def _note_exceptions(app: Flask) -> None:
    """Report exceptions from outside the view to the capture, even if an error handler answers them."""
    handle = app.handle_user_exception

    def handle_noted(*args: Any) -> Any:
        _note(app, args[-1])
        return handle(*args)

    app.handle_user_exception = handle_noted  # type: ignore[method-assign,assignment]
    got_request_exception.connect(_note, app)


def _note(sender: Any, exception: BaseException, **_: Any) -> None:
    call = request.environ.get(CALL_KEY) if has_request_context() else None
    if isinstance(call, RouteCall):
        call.note(exception)


def _serve_operations(app: Flask, state: _State, root: str) -> None:
    """Serve the status of each operation, where the links of the answers lead."""

    def by_key() -> Response:
        query = request.environ.get("QUERY_STRING", "").encode("latin-1")
        return _response_of(state.operations.by_key(query, request.environ))

    def by_id(operation_id: str) -> Response:
        return _response_of(state.operations.by_id(operation_id, request.environ))

    app.add_url_rule(f"{root}/{PAGE_NAME}", "semel_problems", lambda: _response_of(problem_page()))
    app.add_url_rule(root or "/", "semel_operation_by_key", by_key)
    app.add_url_rule(f"{root}/<operation_id>", "semel_operation_by_id", by_id)


_commands = semel_commands(ScriptInfo, lambda app: _state_of(app).engine.backend.url)
