"""Imports under a WSGI server: run the ASGI endpoints on an event loop in a separate thread.

A request's thread hands its request to the loop. Meanwhile it does the work that needs this thread: it reads the body,
a piece when the loop wants one, and calls ``caller``, ``supplier`` and ``may``. The answers equal those of an ASGI
application, byte by byte. The jobs run on the loop as well.
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Unpack

from starlette.applications import Starlette

from semel.core.model import Answer
from semel.errors import ConfigurationError, InvalidBody, SchemaError, StoreError, StoreUnavailable
from semel.http.body_time import end_reading
from semel.http.caller import Caller
from semel.http.settings import EndpointSettings, HttpSettings, is_allowed
from semel.http.wsgi.answer import Environ, StartResponse, headers_of, send_answer
from semel.http.wsgi.body import BodyPieces
from semel.imports.endpoint import IDLE_SECONDS
from semel.imports.run import Imports
from semel.integrations.starlette import Semel
from semel.stores.process import begin_in_children

_CALLER: Final = "semel.imports.caller"
_SUPPLIER: Final = "semel.imports.supplier"
_IN_THREAD: Final = "semel.imports.in_thread"
CLOSE_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 5.0  # between two checks that the loop is alive


class ImportsOverWsgi:
    """A WSGI application that accepts files, reports on their jobs, and runs the jobs.

    Parameters: ``imports`` one or several, on one :class:`~semel.AsyncEngine` of their own, each with a handler;
    ``path`` of uploads, such as ``"/suppliers/{supplier}/imports"``, for several one of each by its operation;
    ``caller`` a function of the environ that returns a :class:`~semel.http.caller.Caller`, or None for an unknown
    caller; ``supplier`` where its code is: ``"path:supplier"``, ``"header:NAME"``, ``"query:NAME"`` or a function of
    the environ; ``may`` a function of the environ and the supplier's code; ``jobs_path`` of the jobs;
    ``idle_seconds`` how long a client may send nothing; further settings of
    :class:`~semel.http.settings.HttpSettings`.

    ``caller``, ``supplier`` and ``may`` are called in the request's thread. The loop begins with the first request of a
    process; :meth:`open` begins it earlier, such as in gunicorn's ``post_worker_init``.

    Raises ConfigurationError.

    >>> import io, tempfile
    >>> from semel import AsyncEngine, Engine
    >>> from semel.http.caller import single_caller
    >>> folder = tempfile.TemporaryDirectory()
    >>> engine = Engine.connect(f"sqlite:///{folder.name}/app.db")
    >>> _ = engine.migrate()
    >>> engine.close()
    >>> stock = Imports(AsyncEngine.connect(f"sqlite:///{folder.name}/app.db"), operation="stock.import")
    >>> @stock.row
    ... async def book(row):
    ...     return row.value["sku"]
    >>> app = ImportsOverWsgi(
    ...     stock,
    ...     path="/suppliers/{supplier}/imports",
    ...     supplier="path:supplier",
    ...     may=lambda environ, supplier: True,
    ...     caller=single_caller,
    ... )
    >>> file = b"sku\\nA-1\\n"
    >>> environ = {
    ...     "REQUEST_METHOD": "POST",
    ...     "PATH_INFO": "/suppliers/ACME/imports",
    ...     "CONTENT_TYPE": "text/csv",
    ...     "CONTENT_LENGTH": str(len(file)),
    ...     "wsgi.input": io.BytesIO(file),
    ... }
    >>> app.respond(environ).status
    202
    >>> app.close()
    >>> folder.cleanup()
    """

    def __init__(
        self,
        imports: Imports | Sequence[Imports],
        *,
        path: str | dict[str, str],
        caller: Callable[[Any], Caller | None],
        supplier: str | Callable[[Any], object],
        may: Callable[[Any, str], bool],
        jobs_path: str = "/imports",
        idle_seconds: float = IDLE_SECONDS,
        **settings: Unpack[EndpointSettings],
    ) -> None:
        several = [imports] if isinstance(imports, Imports) else list(imports)
        if not several or not all(isinstance(each, Imports) for each in several):
            raise ConfigurationError("ImportsOverWsgi takes Imports, or several: Imports(engine, operation=...)")
        for name, given in (("caller", caller), ("may", may)):
            if not callable(given) or asyncio.iscoroutinefunction(given):
                raise ConfigurationError(f"{name} is called in the request's thread: make it a plain function")
        if not isinstance(path, (str, dict)) or (isinstance(path, str) and len(several) > 1):
            raise ConfigurationError("path: several imports have one each: {'stock.import': '/stock', ...}")
        for template in [path, jobs_path] if isinstance(path, str) else [*path.values(), jobs_path]:
            if not str(template).startswith("/") or ":" in str(template):
                raise ConfigurationError(f"path must be as '/suppliers/{{supplier}}/imports'; it is {template!r}")
        self._asks = caller
        self._may = may
        self._supplier = supplier if callable(supplier) else None
        self._loop = _LoopThread(self._lifespan)
        self.app = Starlette()
        engine = several[0].engine
        semel = Semel(engine, caller=lambda request: request.scope[_CALLER], **settings)
        self.surface: HttpSettings = semel.surface
        for each in several:
            if isinstance(path, dict) and each.operation not in path:
                raise ConfigurationError(f"path has none for {each.operation!r}")
            semel.imports(
                self.app,
                each,
                path=path if isinstance(path, str) else path[each.operation],
                supplier=(lambda request: request.scope[_SUPPLIER]) if callable(supplier) else supplier,
                may=_may_in_thread,
                jobs_path=jobs_path,
                idle_seconds=idle_seconds,
            )
        self.paths = [(each.path, each.methods or set()) for each in self.app.routes]  # type: ignore[attr-defined]
        semel.install(self.app, operations_path=None, reap=False, complete=False)

    def _lifespan(self) -> Any:
        return self.app.router.lifespan_context(self.app)

    def open(self) -> None:
        """Start the loop of this process, and its jobs. Raises the errors of opening the engine."""
        self._loop.run(None)

    def close(self) -> None:
        """End the loop. Another process, or the next one, takes over a running job."""
        self._loop.close()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request, as the WSGI interface requires."""
        return send_answer(start_response, self.respond(environ))

    def respond(self, environ: Environ, asked: Any = None) -> Answer:
        """Answer a request without a server.

        Parameters: ``asked`` the argument of ``caller``, ``supplier`` and ``may`` in place of the environ.
        """
        about = environ if asked is None else asked
        body = BodyPieces(environ)
        exchange = _Exchange(environ, body)
        scope = _scope_of(environ)
        scope[_CALLER] = self._asks(about)
        if self._supplier is not None and scope["method"] == "POST":
            scope[_SUPPLIER] = self._supplier(about)
        scope[_IN_THREAD] = lambda supplier: exchange.in_thread(lambda: is_allowed(self._may(about, supplier)))
        try:
            self._loop.run(lambda loop: exchange.begin(loop, self.app, scope))
            answer = exchange.serve(self._loop.is_alive)
        except (StoreError, SchemaError) as error:
            self.surface.outage.tell(error)
            return self.surface.problems.of_error(error)
        return answer._replace(body=b"") if scope["method"] == "HEAD" else answer


async def _may_in_thread(request: Any, supplier: str) -> bool:
    allowed: bool = await request.scope[_IN_THREAD](supplier)
    return allowed


class _Exchange:
    """One request between its own thread and the loop."""

    def __init__(self, environ: Environ, body: BodyPieces) -> None:
        self._environ = environ
        self._body = body
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._head: tuple[int, tuple[tuple[bytes, bytes], ...]] | None = None
        self._pieces: list[bytes] = []
        self._inside: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_reading = False
        self._is_read = False

    # --- on the loop ------------------------------------------------------------------------------

    def begin(self, loop: asyncio.AbstractEventLoop, app: Any, scope: dict[str, Any]) -> None:
        """Hand the request to the application."""
        self._inside = loop
        self._task = loop.create_task(app(scope, self._receive, self._send), name="semel-import-request")
        self._task.add_done_callback(self._end)

    def _end(self, _: Any) -> None:
        self._asked.put(None)
        if self._is_reading:  # the answer does not wait for a client that sends nothing more
            end_reading(self._environ)

    async def in_thread(self, act: Callable[[], Any]) -> Any:
        """Run ``act`` in the request's thread, and return its result."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.put((act, future))
        return await future

    async def _receive(self) -> dict[str, Any]:
        if self._is_read:
            return {"type": "http.disconnect"}
        self._is_reading = True
        try:
            piece = await self.in_thread(self._body.next)
        except (OSError, InvalidBody):  # the client has disconnected, or sent less than its Content-Length
            self._is_read = True
            return {"type": "http.disconnect"}
        self._is_reading = False
        self._is_read = not piece
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._head = message["status"], tuple((bytes(name), bytes(value)) for name, value in message["headers"])
        else:
            self._pieces.append(message.get("body", b""))

    # --- in the request's thread ------------------------------------------------------------------

    def serve(self, is_alive: Callable[[], bool]) -> Answer:
        """Perform the loop's requests until there is an answer. Raises the application's errors and StoreUnavailable.

        Parameters: ``is_alive`` whether the loop is.
        """
        try:
            while (wanted := self._next(is_alive)) is not None:
                act, future = wanted
                try:
                    result = act()
                except Exception as raised:  # noqa: BLE001 -- the application handles it
                    self._reply(_fail, future, raised)
                else:
                    self._reply(_succeed, future, result)
        except BaseException:  # the server is ending this thread
            if self._task is not None:
                self._reply(self._task.cancel)
            raise
        if self._task is None or self._task.cancelled():
            raise StoreUnavailable("the imports of this process have ended; send the request again")
        error = self._task.exception()
        if error is not None:
            raise error
        assert self._head is not None
        return Answer(self._head[0], self._head[1], b"".join(self._pieces))

    def _next(self, is_alive: Callable[[], bool]) -> tuple[Callable[[], Any], asyncio.Future[Any]] | None:
        while True:
            try:
                return self._asked.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if not is_alive():  # the loop ended before it took the request
                    return None

    def _reply(self, act: Callable[..., object], *arguments: Any) -> None:
        assert self._inside is not None
        with suppress(RuntimeError):  # the loop has ended, and the task with it
            self._inside.call_soon_threadsafe(act, *arguments)


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class _LoopThread:
    """An event loop in a thread of each process, inside a lifespan; it starts at its first use."""

    def __init__(self, lifespan: Callable[[], Any]) -> None:
        self._lifespan = lifespan
        self.begin_process()
        begin_in_children(self)
        atexit.register(_close_one, weakref.ref(self))

    def begin_process(self) -> None:
        """Start without a loop: at construction, and in a forked child."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None

    def run(self, act: Callable[[asyncio.AbstractEventLoop], None] | None) -> None:
        """Call ``act`` on the loop. Raises the errors of the lifespan's startup."""
        with self._lock:
            if not self.is_alive():
                self._begin()
            assert self._loop is not None
            if act is not None:
                self._loop.call_soon_threadsafe(act, self._loop)

    def is_alive(self) -> bool:
        """Return whether this process has a running loop."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def _begin(self) -> None:
        begun: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, args=(begun,), name="semel-imports", daemon=True)
        self._thread.start()
        error = begun.get()
        if error is not None:
            self._thread.join()
            self._thread = None
            raise error

    def _main(self, begun: queue.SimpleQueue[BaseException | None]) -> None:
        async def live() -> None:
            self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            async with self._lifespan():
                begun.put(None)
                await self._over.wait()

        try:
            asyncio.run(live())
        except BaseException as error:  # noqa: BLE001 -- the starter gets it; none occurs after the start
            begun.put(error)

    def close(self) -> None:
        """End the lifespan, and wait for it for a limited time."""
        with self._lock:
            thread, loop, over = self._thread, self._loop, self._over
            self._thread = None
        if thread is not None and loop is not None and over is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(over.set)
            thread.join(CLOSE_SECONDS)


def _close_one(found: weakref.ref[_LoopThread]) -> None:
    thread = found()
    if thread is not None:
        thread.close()


def _scope_of(environ: Environ) -> dict[str, Any]:
    """Return the ASGI scope of the same request."""
    root = _text(environ.get("SCRIPT_NAME", ""))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": environ["REQUEST_METHOD"].upper(),
        "scheme": environ.get("wsgi.url_scheme", "http"),
        "path": root + _text(environ.get("PATH_INFO", "")),
        "root_path": root,
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1"),
        "headers": headers_of(environ),
        "client": None,
        "server": None,
    }


def _text(path: str) -> str:
    return path.encode("latin-1").decode("utf-8", "replace")
