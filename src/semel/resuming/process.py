"""The completers of `semel worker --complete`: those of one application, inside its lifespan and on its engines.

An ASGI application's lifespan is run as a server would, so that its handlers find what they need; no socket is opened.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from semel.admin.failures import UsageFailed
from semel.check.application import load
from semel.check.discovery import CheckedOperation, discover, function_operation, is_wsgi, parts_of
from semel.cli.arguments import Parser
from semel.engine.async_engine import AsyncEngine
from semel.errors import SemelError
from semel.http.asgi.middleware import SemelMiddleware as AsgiMiddleware
from semel.http.routing import Route
from semel.http.settings import HttpSettings
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.resuming.asgi import completer_for
from semel.resuming.asgi import completer_of as asgi_completer
from semel.resuming.worker import COMPLETED_OUTSIDE, Completer
from semel.resuming.wsgi import completer_for as wsgi_completer_for
from semel.resuming.wsgi import completer_of as wsgi_completer

_NOTHING = (
    "--complete {spec}: it declares no resumable operation that can be seen; declare Policy(steps=True, "
    "resumable=True), and give an ASGI or WSGI application, or a module with @command functions"
)


@dataclass(frozen=True, slots=True)
class Completing:
    """The completers of one application, and the engine of the first."""

    completers: tuple[Completer, ...]
    engine: Any

    @property
    def operations(self) -> list[str]:
        """The names of all operations that they complete."""
        return sorted(name for each in self.completers for name in each.operations)

    @property
    def completed(self) -> int:
        """The number of executions finished here."""
        return sum(each.completed for each in self.completers)

    @property
    def failed(self) -> int:
        """The number of runs that raised here; they are retried."""
        return sum(each.failed for each in self.completers)


def add_complete(parser: Parser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--complete",
        metavar="MODULE:APP",
        help="an ASGI or WSGI application, or a module of @command functions, whose abandoned resumable commands are "
        "brought to their end here; without --url its own store is the worker's",
    )


def load_application(spec: str) -> Any:
    """Load ``--complete MODULE:APP``. Raises UsageFailed, naming the missing part."""
    try:
        return load(spec)
    except UsageFailed as error:
        raise UsageFailed(str(error).replace("APPLICATION", "--complete", 1)) from None


@asynccontextmanager
async def completing(app: Any, spec: str) -> AsyncIterator[Completing]:
    """Run an application's lifespan, open its engines, and yield its completers.

    Raises UsageFailed, which names the mistake in ``--complete``, and the errors of opening an engine.
    """
    async with AsyncExitStack() as stack:
        try:
            if isinstance(app, ModuleType) or function_operation(app) is not None:
                made = list(_of_functions(app))
            elif type(app).__module__.startswith("django.core.handlers"):
                from semel.integrations.django.resuming import completers

                made = list(completers())
            elif is_wsgi(app):
                made = list(_of_wsgi(app))
            elif not _may_be_asgi(app):
                raise UsageFailed(
                    f"--complete {spec} is of the type {type(app).__name__}, no ASGI or WSGI application and no module"
                )
            else:
                state = await stack.enter_async_context(_lifespan(app, spec))
                made = list(_of_asgi(app, lambda: state))
        except SemelError as error:
            error.args = (f"--complete {spec}: {error}",)
            raise
        if not made:
            raise UsageFailed(_NOTHING.format(spec=spec))
        for engine in {id(each.engine): each.engine for each in made}.values():
            await _open(engine, stack)
        yield Completing(tuple(made), made[0].engine)


def _may_be_asgi(app: Any) -> bool:
    """Whether an object can be called as an ASGI application is; its call's result is not known yet."""
    try:
        inspect.signature(app).bind({}, None, None)
    except TypeError:
        return False
    except ValueError:  # it has no signature that can be seen
        return callable(app)
    return True


async def _open(engine: Any, stack: AsyncExitStack) -> None:
    if isinstance(engine, AsyncEngine):
        stack.push_async_callback(engine.close)
        await engine.open()
    else:
        stack.push_async_callback(asyncio.to_thread, engine.close)
        await asyncio.to_thread(engine.open)


# --- applications -----------------------------------------------------------------------------------


def _of_functions(owner: Any) -> Iterator[Completer]:
    from semel.functions import completer

    things = list(vars(owner).values()) if isinstance(owner, ModuleType) else [owner]
    by_engine: dict[int, dict[int, Any]] = {}
    for thing in things:
        found = function_operation(thing)
        if found is not None and found.operation.policy.resumable:
            by_engine.setdefault(id(found.operation.engine), {})[id(thing)] = thing
    for functions in by_engine.values():
        yield completer(*functions.values())


def _of_wsgi(app: Any) -> Iterator[Completer]:
    for part, _ in parts_of(app):
        if isinstance(part, WsgiMiddleware):
            made = wsgi_completer(part.surface, part.engine, part.app)
            if made is not None:
                yield made
    for engine, routes in _endpoints(app):
        made = wsgi_completer_for(engine, app, routes)
        if made is not None:
            yield made


def _of_asgi(app: Any, state: Callable[[], dict[str, Any]]) -> Iterator[Completer]:
    for part, _ in parts_of(app):
        if isinstance(part, AsgiMiddleware):
            made = asgi_completer(part.surface, part.engine, part.app, state)
            if made is not None:
                yield made
    for engine, routes in _endpoints(app):
        made = completer_for(engine, app, routes, state)
        if made is not None:
            yield made


def _endpoints(app: Any) -> Iterator[tuple[Any, list[Route]]]:
    """Return the operations declared at an application's endpoints, by their engines."""
    declared: dict[int, list[CheckedOperation]] = {}
    for each in discover(app).operations:
        if each.way == "endpoint" and each.bulk is None:
            declared.setdefault(id(each.engine), []).append(each)
    for operations in declared.values():
        named = {each.name: each for each in operations}
        yield operations[0].engine, [_surface(each).route(each.name, each.policy) for each in named.values()]


def _surface(operation: CheckedOperation) -> HttpSettings:
    if operation.surface is None:
        raise UsageFailed(
            f"--complete: the object that declared {operation.name!r} cannot be seen from its endpoint; register it "
            "with a Completer of your own"
        )
    return operation.surface


# --- lifespan ---------------------------------------------------------------------------------------


@asynccontextmanager
async def _lifespan(app: Any, spec: str) -> AsyncIterator[dict[str, Any]]:
    """Run the application's lifespan meanwhile, and yield its state; an application needs no lifespan."""
    state: dict[str, Any] = {}
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    token = COMPLETED_OUTSIDE.set(True)
    task = asyncio.ensure_future(app(scope, told.get, said.put))
    COMPLETED_OUTSIDE.reset(token)
    told.put_nowait({"type": "lifespan.startup"})
    first = await _next(task, said)
    if first is None or first["type"] == "lifespan.startup.failed":
        error = await _await_end(task)
        if isinstance(error, SemelError):
            raise error
        if first is not None:
            lines = str(first.get("message", "")).strip().splitlines() or [type(error).__name__]
            raise UsageFailed(f"--complete {spec}: the application's lifespan failed: {lines[-1]}")
    try:
        yield state
    finally:
        if not task.done():
            told.put_nowait({"type": "lifespan.shutdown"})
            await _await_end(task)


async def _next(task: asyncio.Future[None], said: asyncio.Queue[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the application's next message; None if it ends without one."""
    message = asyncio.ensure_future(said.get())
    both: set[asyncio.Future[Any]] = {task, message}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if message.done() or not said.empty():
        return await message
    message.cancel()
    return None


async def _await_end(task: asyncio.Future[None]) -> BaseException | None:
    """Wait for the application's lifespan to end; returns its exception."""
    [raised] = await asyncio.gather(task, return_exceptions=True)
    return raised if isinstance(raised, BaseException) else None


# --- messages ---------------------------------------------------------------------------------------


def note_failures(loop: asyncio.AbstractEventLoop, note: Callable[[str], None]) -> None:
    """Report a failed resumed execution as one line: the exception's type and place, never its text."""

    def tell(loop: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
        error = what.get("exception")
        message = what.get("message", "something failed")
        if error is None:
            note(f"semel: {message}")
            return
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = "" if frame is None else f" ({frame.tb_frame.f_code.co_filename}, line {frame.tb_lineno})"
        text = f": {error}" if isinstance(error, SemelError) else ""
        note(f"semel: {message}: {type(error).__name__}{text}{where}")
        sys.stderr.flush()

    loop.set_exception_handler(tell)
