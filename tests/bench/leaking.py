"""A subject with planted faults: one answer for each key, for any caller and request, and no claim before it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from bench.bare import application
from bench.setup import App, Handler, Handlers, Setup


def build(setup: Setup, handlers: Handlers) -> App:
    """Look up, then run, then remember: two at once both run."""
    answers: dict[str, Response] = {}

    def remember_by_key(run: Handler) -> Handler:
        async def endpoint(request: Request) -> Response:
            key = request.headers["idempotency-key"]
            if key not in answers:
                answers[key] = await run(request)
            return answers[key]

        return endpoint

    return application({path: remember_by_key(run) for path, run in handlers.items()})
