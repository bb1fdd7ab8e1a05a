"""The middleware that captures the answers of declared views. Put it at the end of ``MIDDLEWARE``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction

from semel.engine.sync_engine import Engine
from semel.http.routing import UNSAFE_METHODS
from semel.http.wsgi.threads import Accepted
from semel.integrations.django.answer import response_of
from semel.integrations.django.call import CALL, DjangoCall
from semel.integrations.django.site import site

INSTALLED: Final[list[SemelMiddleware]] = []  # the last one that Django has made


class SemelMiddleware:
    """Captures the answers of the views that are declared with ``@semel.command``; nothing else is touched.

    At the end of ``MIDDLEWARE`` it sees the view's answer after Django's commit, and the other middlewares process each
    replay once, as they do a first answer. Works over WSGI and over ASGI.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        self._tasks: set[asyncio.Task[Any]] = set()
        self._has_looked = False
        self._is_async = iscoroutinefunction(get_response)
        self.accepted = Accepted()
        INSTALLED.append(self)
        del INSTALLED[:-1]
        if self._is_async:
            markcoroutinefunction(self)

    def respond(self, request: Any) -> Any:
        """Return Django's answer from the layers behind this middleware, in the calling thread."""
        return async_to_sync(self.get_response)(request) if self._is_async else self.get_response(request)

    def __call__(self, request: Any) -> Any:
        """Serve one request, as Django's interface requires."""
        if self._is_async:
            return self._serve_async(request)
        if request.method not in UNSAFE_METHODS or hasattr(request, CALL):
            return self.get_response(request)
        self._look()
        with site().threads:
            return self._serve(request)

    def process_exception(self, request: Any, error: Exception) -> None:
        """Note what a view or Django's commit has raised, and Django would answer with 500 (Django's hook)."""
        call = getattr(request, CALL, None)
        if call is not None and call.atomic is not None:
            call.atomic.note_error(error)

    def limit_waiters(self, engine: Engine) -> None:
        """Limit the threads of a WSGI server that wait for running duplicates, so that others stay free."""
        if not self._is_async:  # where each request has its own thread
            engine.core.waiters_limit = site().threads.waiters

    def _serve(self, request: Any) -> Any:
        call = DjangoCall(request, self)
        setattr(request, CALL, call)
        try:
            refused = call.announce_length()
            response = response_of(refused) if refused is not None else call.conclude(self.get_response(request))
            call.finish(response)
        except BaseException as error:
            call.let_go(error)  # settles the grant by the meaning of this exception
            call.finish()
            raise
        return response

    def _look(self) -> None:
        """Refuse every request of a project that would not be protected as declared."""
        if not self._has_looked:
            site().look_at_routes()
            self._has_looked = True

    async def _serve_async(self, request: Any) -> Any:
        if request.method not in UNSAFE_METHODS or hasattr(request, CALL):
            return await self.get_response(request)
        self._look()
        # Django cancels a request when its client disconnects, but a view that has claimed runs to its end.
        task = asyncio.create_task(self._capture(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _capture(self, request: Any) -> Any:
        call = DjangoCall(request, self)
        setattr(request, CALL, call)
        try:
            response = await call.conclude_async(await self.get_response(request))
            call.finish(response)
        except BaseException as error:
            call.let_go(error)
            call.finish()
            raise
        return response
