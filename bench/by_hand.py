"""The shop without Semel: claim, row and answer by hand, three statements in autocommit on one of its connections.

It is the least that three commits can be. Nothing is compared, taken over, fenced or replayed; a key that is met
again is refused.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from bench.bare import application
from bench.plain import CLAIMS, COMPLETIONS, make_plain_table, plain_id
from bench.setup import App, Handler, Handlers, Setup
from bench.shop import WRITES, make_table, own_connections
from semel.stores.deadline import Deadline


def build(setup: Setup, handlers: Handlers) -> App:
    """Every handler claims its key, writes its row, and stores that it was answered."""
    assert setup.store is not None
    kind = urlsplit(setup.store).scheme
    make_table(kind, setup.store)
    make_plain_table(setup.store)
    return application({path: _by_hand(handler, kind, setup.store) for path, handler in handlers.items()})


def _by_hand(handler: Handler, kind: str, url: str) -> Handler:
    claim, write, complete = CLAIMS[kind], WRITES[kind], COMPLETIONS[kind]
    connections = own_connections(kind, url)

    async def pay(request: Request) -> Response:
        id = plain_id(request.headers["idempotency-key"])
        connection, _ = await connections.take(Deadline(60.0))
        try:
            if not await claim(connection, id):
                return Response(status_code=409)
            await write(connection)
            answer = await handler(request)
            if not await complete(connection, id):
                return Response(status_code=500)
        finally:
            connections.give(connection)
        return answer

    return pay
