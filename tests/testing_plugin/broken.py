"""Applications that are wrong on purpose: each a mistake that people make, with nothing else wrong."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, Response

from semel import AsyncEngine, Permit
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import from_state, single_caller
from semel.http.routing import Operation
from semel.integrations.fastapi import Semel
from tests.testing_plugin.good import Provider, authenticate

Make = Callable[[AsyncEngine, Provider], Any]


def no_semel(engine: AsyncEngine, provider: Provider) -> FastAPI:
    app = FastAPI(title="no_semel")

    @app.post("/payments", dependencies=[Depends(authenticate)])
    async def create(body: dict[str, int]) -> dict[str, int]:
        return {"id": provider.charge(body["amount"])}

    return app


def outside_of_authentication(engine: AsyncEngine, provider: Provider) -> FastAPI:
    """The middleware answers before the dependency has looked at the credentials."""
    app = no_semel(engine, provider)
    app.title = "outside_of_authentication"
    operations = [Operation("/payments")]
    app.add_middleware(
        SemelMiddleware,
        engine=engine,
        caller=single_caller,
        operations=operations,
        manage_engine=True,
    )
    return app


def key_made_by_the_server(engine: AsyncEngine, provider: Provider) -> Any:
    """A gateway that gives every request a key of its own, and says so in the answer."""
    inner = _declare(engine, provider, "key_made_by_the_server")

    async def gateway(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            made = str(uuid.uuid4()).encode()
            kept = [line for line in scope["headers"] if line[0] != b"idempotency-key"]
            scope = {**scope, "headers": [*kept, (b"idempotency-key", made)]}
            plain = send

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message["headers"], (b"idempotency-key", made)]}
                await plain(message)

        await inner(scope, receive, send)

    return Around(inner, gateway)


class Around:
    """An ASGI layer, with the application in ``app`` as is usual."""

    title = "key_made_by_the_server"

    def __init__(self, app: Any, call: Any) -> None:
        self.app = app
        self._call = call

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._call(scope, receive, send)


def _declare(engine: AsyncEngine, provider: Provider, title: str, *dependencies: Any, **policy: Any) -> FastAPI:
    app = FastAPI(title=title)
    semel = Semel(engine, caller=from_state("caller"))

    @app.post("/payments", dependencies=[Depends(authenticate), *dependencies])
    @semel.command("payments.create", **policy)
    async def create(body: dict[str, Any]) -> dict[str, int]:
        return {"id": provider.charge(body["amount"])}

    semel.install(app)
    return app


def effect_before_the_claim(engine: AsyncEngine, provider: Provider) -> FastAPI:
    """The money moves in a dependency, which runs before the endpoint's wrapper claims."""
    app = FastAPI(title="effect_before_the_claim")
    semel = Semel(engine, caller=from_state("caller"))

    async def charge_early(body: dict[str, int]) -> int:
        return provider.charge(body["amount"])

    @app.post("/payments", dependencies=[Depends(authenticate)])
    @semel.command("payments.create")
    async def create(number: int = Depends(charge_early)) -> dict[str, int]:
        return {"id": number}

    semel.install(app)
    return app


def payload_that_changes(engine: AsyncEngine, provider: Provider) -> Any:
    """A layer outside of Semel stamps every body with its own number."""
    inner = _declare(engine, provider, "payload_that_changes")
    numbers = itertools.count(1)

    async def stamping(scope: Any, receive: Any, send: Any) -> None:
        async def receive_stamped() -> Any:
            message = await receive()
            if message["type"] == "http.request" and message["body"].endswith(b"}"):
                body = message["body"][:-1] + b', "trace": %d}' % next(numbers)
                message = {**message, "body": body}
            return message

        if scope["type"] == "http":
            kept = [line for line in scope["headers"] if line[0] != b"content-length"]
            await inner({**scope, "headers": kept}, receive_stamped, send)
        else:
            await inner(scope, receive, send)

    around = Around(inner, stamping)
    around.title = "payload_that_changes"
    return around


def answer_with_a_cookie(engine: AsyncEngine, provider: Provider) -> FastAPI:
    app = FastAPI(title="answer_with_a_cookie")
    semel = Semel(engine, caller=from_state("caller"))

    @app.post("/payments", dependencies=[Depends(authenticate)])
    @semel.command("payments.create")
    async def create(body: dict[str, int]) -> Response:
        number = provider.charge(body["amount"])
        return JSONResponse({"id": number}, headers={"Set-Cookie": f"session={number}; HttpOnly"})

    semel.install(app)
    return app


def looks_first_and_writes_later(engine: AsyncEngine, provider: Provider) -> FastAPI:
    """A cache of answers without a claim: right one after the other, wrong at the same time."""
    app = FastAPI(title="looks_first_and_writes_later")
    answers: dict[tuple[str, str], tuple[bytes, dict[str, int]]] = {}

    @app.post("/payments", dependencies=[Depends(authenticate)])
    async def create(request: Request, idempotency_key: str = Header("")) -> dict[str, int]:
        if not 1 <= len(idempotency_key) <= 255 or " " in idempotency_key:
            raise HTTPException(400)
        place, body = (request.state.caller.id, idempotency_key), await request.body()
        if place in answers:
            if answers[place][0] != body:
                raise HTTPException(422)
            return answers[place][1]
        await asyncio.sleep(0)  # the provider's network
        answer = {"id": provider.charge(1)}
        answers[place] = (body, answer)
        return answer

    return app


def cookie_in_the_cache(engine: AsyncEngine, provider: Provider) -> FastAPI:
    """A cache that keeps whole answers with cookies, and does not identify callers."""
    app = FastAPI(title="cookie_in_the_cache")
    answers: dict[str, Response] = {}

    @app.post("/payments")
    async def create(body: dict[str, int], idempotency_key: str = Header("none")) -> Response:
        if idempotency_key not in answers:
            number = provider.charge(body["amount"])
            answers[idempotency_key] = JSONResponse({"id": number}, headers={"Set-Cookie": f"session={number}"})
        return answers[idempotency_key]

    return app


def answer_made_anew(engine: AsyncEngine, provider: Provider) -> FastAPI:
    """The effect is deduplicated, the answer is not stored: each retry reads something else."""
    app = FastAPI(title="answer_made_anew")
    done: set[str] = set()
    numbers = itertools.count(1)

    @app.post("/payments")
    async def create(body: dict[str, int], idempotency_key: str = Header(min_length=1)) -> dict[str, int]:
        if idempotency_key not in done:
            done.add(idempotency_key)
            provider.charge(body["amount"])
        return {"receipt": next(numbers)}

    return app


def merges_by_content(engine: AsyncEngine, provider: Provider) -> FastAPI:
    """No key is asked for; equal payloads are taken for retries."""
    app = FastAPI(title="merges_by_content")
    answers: dict[int, dict[str, int]] = {}

    @app.post("/payments")
    async def create(body: dict[str, int]) -> dict[str, int]:
        if body["amount"] not in answers:
            answers[body["amount"]] = {"id": provider.charge(body["amount"])}
        return answers[body["amount"]]

    return app


def idempotent_in_name_only(engine: AsyncEngine, provider: Provider) -> FastAPI:
    """Declared idempotent; the provider is given no key."""
    return _declare(engine, provider, "idempotent_in_name_only", effects="idempotent")


def one_caller_for_all(engine: AsyncEngine, provider: Provider) -> FastAPI:
    """Callers are authenticated, but not distinguished."""
    app = FastAPI(title="one_caller_for_all")
    semel = Semel(engine, caller=lambda request: single_caller({}))

    @app.post("/payments", dependencies=[Depends(authenticate)])
    @semel.command("payments.create")
    async def create(body: dict[str, int], permit: Permit = semel.permit) -> dict[str, int]:
        return {"id": provider.charge(body["amount"])}

    semel.install(app)
    return app


BROKEN: dict[str, Make] = {
    make.__name__: make
    for make in (
        no_semel,
        outside_of_authentication,
        key_made_by_the_server,
        effect_before_the_claim,
        payload_that_changes,
        answer_with_a_cookie,
        looks_first_and_writes_later,
        cookie_in_the_cache,
        answer_made_anew,
        merges_by_content,
        idempotent_in_name_only,
        one_caller_for_all,
    )
}
