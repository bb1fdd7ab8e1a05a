"""exactly-once: a guard of functions, not of HTTP. Each handler's work is a guarded function, called by an endpoint.

What the package leaves to its user is decided here, and told apart in the comparison: the key is the header, with the
caller before it where callers are told apart; the request's digest is its ``fingerprint``; the function's result is the
answer's status and text; its two errors become 409 and 422.
"""

from __future__ import annotations

import hashlib
from typing import Any

from exactly_once import KeyReuseError, QuarantinedError, Store, once
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bench.bare import application
from bench.setup import App, Handler, Handlers, Setup


def build(setup: Setup, handlers: Handlers) -> App:
    """One ``@once`` a handler."""
    return application({path: guard(run, store_of(setup), setup) for path, run in handlers.items()})


def store_of(setup: Setup) -> Any:
    """The store of a URL."""
    assert setup.store is not None
    if setup.store == "memory://":
        return Store.memory()
    return Store.redis(setup.store) if setup.store.startswith("redis://") else Store.sqlite(setup.path)


def guard(run: Handler, store: Any, setup: Setup) -> Handler:
    """An endpoint whose work is guarded."""

    @once(  # type: ignore[untyped-decorator, unused-ignore]
        store,
        key=lambda key, digest, request: key,
        fingerprint=lambda key, digest, request: digest,
        lease_ttl=setup.lease_seconds,
    )
    async def work(key: str, digest: str, request: Request) -> list[Any]:
        response = await run(request)
        # A result is JSON here, so that bytes and streams are not offered.
        return [response.status_code, bytes(response.body).decode()]

    async def endpoint(request: Request) -> Response:
        key = request.headers.get("idempotency-key")
        if not key:
            return JSONResponse({"code": "key_missing"}, 400)
        if setup.callers:
            key = f"{request.headers.get('x-user', 'anonymous')}:{key}"
        digest = hashlib.sha256(await request.body()).hexdigest()
        try:
            status, text = await work(key, digest, request)
        except QuarantinedError:
            return JSONResponse({"code": "quarantined"}, 409)
        except KeyReuseError:
            return JSONResponse({"code": "key_reused"}, 422)
        return Response(text, status, media_type="application/json")

    return endpoint
