"""Resumable views without their clients, as ``semel worker --complete shop.wsgi:application`` runs them.

A stored request enters behind all other middlewares, because it has no credential. Its user is the record's caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.core.handlers.wsgi import WSGIRequest

from semel.errors import ConfigurationError
from semel.http.caller import Caller
from semel.http.wsgi.route import CALL_KEY
from semel.integrations.django.call import CALL, DjangoCall
from semel.integrations.django.middleware import INSTALLED
from semel.integrations.django.site import site
from semel.resuming.worker import Completer
from semel.resuming.wsgi import completer_for
from semel.stores.sql import django as databases


def completers() -> Iterator[Completer]:
    """Make a completer of each store's resumable views. Raises ConfigurationError if the middleware is missing."""
    if not INSTALLED:
        raise ConfigurationError("add 'semel.integrations.django.middleware.SemelMiddleware' to MIDDLEWARE, at its end")
    here = site()
    here.look_at_routes()  # imports the views
    for place in here.places():
        made = completer_for(place.engine, serve_kept, [each.route for each in place.declared.values()])
        if made is not None:
            yield made


def serve_kept(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Make a WSGI application of Django behind its middlewares, for requests without a client."""
    middleware, outer = INSTALLED[-1], environ[CALL_KEY]
    request = WSGIRequest(environ)
    scope = environ["semel.permit"].command.scope
    request.semel_permit = environ["semel.permit"]
    request.user = user = site().resumed_user(Caller(scope.tenant, scope.caller))

    async def find_user() -> Any:  # as login_required asks in front of a coroutine
        return user

    request.auser = find_user
    request.csrf_processing_done = True  # checked already, when its client sent it
    call = DjangoCall(request, middleware)
    call.given = outer.given
    setattr(request, CALL, call)
    try:
        response = middleware.respond(request)
        start_response(f"{response.status_code} {response.reason_phrase}", list(response.items()))
        body = b"".join(response) if response.streaming else response.content
        response.close()
        if call.failure is not None:
            outer.note_failure(call.failure)
        return [body]
    finally:
        call.finish()
        databases.close_connections()
