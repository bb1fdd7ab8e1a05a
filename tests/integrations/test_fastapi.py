"""FastAPI: the claim is made inside the endpoint, so what the application refuses is nobody's business but its own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import (
    APIRouter,
    Body,
    Depends,
    FastAPI,
    File,
    Form,
    Header,
    HTTPException,
    Request,
    Response,
    UploadFile,
    WebSocket,
)
from pydantic import BaseModel
from starlette.testclient import TestClient

from semel import AsyncEngine, Permit
from semel.errors import ConfigurationError, PolicyError
from semel.integrations.fastapi import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import Web, both, caller_of, multipart, noting, refuses

PAYMENT = {"amount": 1250}
MISSING = "MISSING_IDEMPOTENCY_KEY"
INVALID = "INVALID_IDEMPOTENCY_KEY"
REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
RUNNING = "IDEMPOTENCY_REQUEST_IN_PROGRESS"
UNKNOWN = "IDEMPOTENCY_OUTCOME_UNKNOWN"
TOO_LARGE = "IDEMPOTENCY_REQUEST_TOO_LARGE"


class Payment(BaseModel):
    amount: int


def authenticated(request: Request) -> None:
    if caller_of(request) is None:
        raise HTTPException(401, "who are you?", {"WWW-Authenticate": "Bearer"})


class Made:
    """An application with one command, ``POST /payments``, and what its handler has done."""

    def __init__(self, serve: Serve, engine: AsyncEngine, **options: Any) -> None:
        self.ran: list[int] = []
        self.fails: BaseException | None = None
        self.gate: asyncio.Event | None = None
        self.began = asyncio.Event()
        self.semel = semel = Semel(engine, caller=caller_of)
        self.app = app = FastAPI()

        @app.post("/payments", status_code=201, dependencies=[Depends(authenticated)])
        @semel.command("payments.create", **options)
        async def create_payment(payment: Payment, response: Response, permit: Permit = semel.permit) -> dict[str, int]:
            self.ran.append(payment.amount)
            self.began.set()
            if self.gate is not None:
                await self.gate.wait()
            if self.fails is not None:
                raise self.fails
            response.headers["Location"] = f"/payments/{len(self.ran)}"
            return {"amount": payment.amount, "attempt": permit.attempt}

        semel.install(app, dependencies=[Depends(authenticated)])
        self.web = serve(app, engine)


@pytest.fixture
def made(serve: Serve, engine: AsyncEngine) -> Made:
    return Made(serve, engine)


# --- the order of checks ---


def test_a_command_runs_once_and_its_answer_is_replayed(made: Made) -> None:
    first, second = both(made.web, "/payments", PAYMENT)
    assert (first.status, first.body) == (201, b'{"amount":1250,"attempt":1}')
    assert (second.header("location"), second.header("content-type")) == ("/payments/1", "application/json")
    assert second.header("cache-control") == "no-store"
    assert second.header("content-length") == str(len(first.body))
    assert (made.ran, made.web.states) == ([1250], ["SUCCEEDED"])


BAD = {"amount": "much"}


@pytest.mark.parametrize(
    ("body", "how", "status", "code"),
    [
        # Authentication and validation are the application's own: they come before anything is said about the key.
        (BAD, {"caller": None, "key": None}, 401, None),
        (PAYMENT, {"caller": None, "key": "a b\x01"}, 401, None),
        (BAD, {"key": None}, 422, None),
        (BAD, {"key": "a b\x01"}, 422, None),
        (b'{"amount":', {"headers": [("Content-Type", "application/json")]}, 422, None),
        (PAYMENT, {"key": None}, 400, MISSING),
        (PAYMENT, {"key": ""}, 400, INVALID),
        (PAYMENT, {"key": "k" * 256}, 400, INVALID),
        (PAYMENT, {"headers": [("Idempotency-Key", "another")]}, 400, INVALID),
        (PAYMENT, {"headers": [("Early-Data", "1")]}, 425, "IDEMPOTENCY_TOO_EARLY"),
    ],
)
def test_what_is_refused_before_the_claim_is_never_recorded(
    made: Made, body: Any, how: dict[str, Any], status: int, code: str | None
) -> None:
    refused = made.web.call("/payments", body, **how)
    assert refused.status == status
    assert refused.header("semel-code") == code
    assert (made.ran, made.web.records()) == ([], [])


def test_a_request_that_was_invalid_may_be_corrected_under_the_same_key(made: Made) -> None:
    assert made.web.call("/payments", BAD).status == 422
    assert made.web.call("/payments", PAYMENT).status == 201


def test_nothing_is_replayed_to_whom_the_application_does_not_let_in(made: Made) -> None:
    assert made.web.call("/payments", PAYMENT).status == 201
    assert made.web.call("/payments", PAYMENT, caller=None).status == 401
    assert made.web.call("/payments", BAD).status == 422


def test_another_request_under_the_same_key_is_refused_in_every_state(made: Made) -> None:
    other = {"amount": 1}
    made.fails = RuntimeError("lost")
    assert made.web.call("/payments", PAYMENT).status == 500
    assert made.web.call("/payments", other).code == REUSED
    assert made.web.call("/payments", PAYMENT).code == UNKNOWN
    made.fails = None
    assert made.web.call("/payments", PAYMENT, key="second").status == 201
    assert made.web.call("/payments", other, key="second").code == REUSED
    assert made.ran == [1250, 1250]


def test_the_same_key_of_another_caller_is_another_command(made: Made) -> None:
    for caller in ("alice", "bob"):
        assert not made.web.call("/payments", PAYMENT, caller=caller).replayed
    assert len(made.ran) == 2


@pytest.mark.parametrize(
    ("options", "headers"), [({"wait_seconds": 0}, []), ({"wait_seconds": 60}, [("Prefer", "wait=0")])]
)
def test_a_duplicate_is_told_that_the_command_runs(
    serve: Serve, engine: AsyncEngine, options: dict[str, Any], headers: list[tuple[str, str]]
) -> None:
    made = Made(serve, engine, **options)
    first, second, _ = made.web.runner.run(_overlap(made, headers))
    assert (second.status, second.code, second.problem["keyAction"]) == (409, RUNNING, "keep")
    assert 1 <= int(second.header("retry-after") or 0) <= 30
    assert (first.status, made.ran) == (201, [1250])


def test_a_duplicate_waits_as_long_as_it_prefers(serve: Serve, engine: AsyncEngine) -> None:
    made = Made(serve, engine, wait_seconds=0)
    first, _, third = made.web.runner.run(_overlap(made, [("Prefer", 'respond-async, wait="15"')]))
    assert (third.status, third.body, third.replayed) == (201, first.body, True)
    assert made.ran == [1250]


async def _overlap(made: Made, headers: list[tuple[str, str]]) -> tuple[Any, Any, Any]:
    """One request; a duplicate while it runs, which does not wait; one with these headers, answered at the end."""
    made.gate = asyncio.Event()
    first = asyncio.create_task(made.web.ask("/payments", PAYMENT))
    await made.began.wait()
    impatient = headers if "wait=0" in str(headers) else []
    second = await made.web.ask("/payments", PAYMENT, headers=impatient)
    third = asyncio.create_task(made.web.ask("/payments", PAYMENT, headers=headers))
    while not impatient and made.web.engine.core.waiting == 0 and not third.done():  # noqa: ASYNC110 - others' state
        await asyncio.sleep(0)
    made.gate.set()
    return await first, second, await third


def test_twenty_parallel_duplicates_are_one_command(serve: Serve, engine: AsyncEngine) -> None:
    made = Made(serve, engine, wait_seconds=15)

    async def crowd() -> list[Any]:
        return await asyncio.gather(*(made.web.ask("/payments", PAYMENT) for _ in range(20)))

    answers = made.web.runner.run(crowd())
    assert {(answer.status, answer.body) for answer in answers} == {(201, b'{"amount":1250,"attempt":1}')}
    assert (sum(answer.replayed for answer in answers), made.ran) == (19, [1250])


# --- what may be declared ---


def test_what_the_application_must_say() -> None:
    engine = AsyncEngine.connect("memory://")
    semel = Semel(engine, caller=caller_of)
    semel.command("once")
    for declare, words in (
        (lambda: Semel(engine), "who is calling?"),
        (lambda: Semel(engine, caler=caller_of), "did you mean 'caller'?"),
        (lambda: semel.command("once"), "two operations are named 'once'"),
        (lambda: semel.command(""), "a command needs a name"),
        (lambda: semel.command("paths", efects="atomic"), "did you mean 'effects'?"),
        (lambda: semel.command("paths", lease_seconds=0), "lease_seconds"),
        (lambda: semel.command("paths", effects="atomic"), "effects='atomic' needs a store in the same database"),
        (lambda: semel.install("app"), "install takes a FastAPI application"),  # type: ignore[arg-type]
    ):
        assert words in refuses(declare)


def test_a_decorator_is_used_for_one_endpoint_only(engine: AsyncEngine) -> None:
    command = Semel(engine, caller=caller_of).command("once")

    async def first() -> None: ...

    async def second() -> None: ...

    command(first)
    assert "two operations are named 'once'" in refuses(lambda: command(second))


def test_a_policy_and_options_are_not_mixed(engine: AsyncEngine) -> None:
    from semel import Policy

    with pytest.raises(PolicyError, match="not both"):
        Semel(engine, caller=caller_of).command("mixed", Policy(), effects="external")


def test_a_generator_cannot_be_a_command(engine: AsyncEngine) -> None:
    """FastAPI iterates such an endpoint after its call has returned: there is no call to protect."""
    semel = Semel(engine, caller=caller_of)

    async def streaming() -> Any:
        yield b"1"

    def streaming_sync() -> Any:
        yield b"1"

    for name, endpoint in (("a", streaming), ("b", streaming_sync)):
        assert "StreamingResponse" in refuses(functools.partial(semel.command(name), endpoint))


def test_without_install_a_command_fails_loudly_and_does_not_run(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()

    @app.post("/payments")
    @semel.command("payments.create")
    async def create_payment(payment: Payment) -> None:
        raise AssertionError("it ran")

    web = serve(app, engine)
    web.runner.run(engine.open())
    assert web.call("/payments", PAYMENT).status == 500
    assert isinstance(web.raised, ConfigurationError)
    assert "call semel.install(app) once" in str(web.raised)


def test_a_safe_method_is_no_command(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    semel.install(app)
    web = serve(app, engine)  # what is routed to later is met when it is called

    @app.get("/payments")
    @semel.command("payments.list")
    async def payments() -> None:
        raise AssertionError("it ran")

    assert web.call("/payments", method="GET").status == 500
    assert "GET is no command" in str(web.raised)


def test_a_command_inside_a_command_is_refused(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    ran = []

    @semel.command("inner")
    async def inner(request: Request) -> None:
        ran.append("inner")

    @app.post("/outer")
    @semel.command("outer")
    async def outer(request: Request) -> None:
        ran.append("outer")
        await inner(semel_request=request, request=request)  # type: ignore[call-arg]

    semel.install(app)
    web = serve(app, engine)
    assert web.call("/outer").status == 500
    assert isinstance(web.raised, ConfigurationError)
    assert (ran, web.states) == (["outer"], ["UNKNOWN"])


# --- where the endpoint is and what it is ---


def _direct(app: FastAPI) -> tuple[Any, str]:
    return app, "/payments"


def _included(app: FastAPI) -> tuple[Any, str]:
    router = APIRouter()
    app.include_router(router)
    return router, "/payments"


def _prefixed(app: FastAPI) -> tuple[Any, str]:
    router = APIRouter(prefix="/api")
    app.include_router(router, prefix="/v1")
    return router, "/v1/api/payments"


def _nested(app: FastAPI) -> tuple[Any, str]:
    inner, outer = APIRouter(prefix="/inner"), APIRouter(prefix="/outer")
    outer.include_router(inner, prefix="/between")
    app.include_router(outer, prefix="/v1")
    return inner, "/v1/outer/between/inner/payments"


def _mounted(app: FastAPI) -> tuple[Any, str]:
    sub = FastAPI()
    app.mount("/sub", sub)
    return sub, "/sub/payments"


PLACES = [_direct, _included, _prefixed, _nested, _mounted]


@pytest.mark.parametrize("place", PLACES)
def test_the_endpoint_may_be_anywhere(
    serve: Serve, engine: AsyncEngine, place: Callable[[FastAPI], tuple[Any, str]]
) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    router: FastAPI
    router, path = place(app)
    ran = []

    @router.post("/payments", status_code=201)
    @semel.command("payments.create")
    async def create_payment(payment: Payment, permit: Permit = semel.permit) -> str:
        ran.append(permit.operation_id)
        return "paid"

    semel.install(app)
    web = serve(app, engine)
    both(web, path, PAYMENT)
    assert web.call(path, {"amount": 1}).code == REUSED
    assert len(ran) == 1


class Callable_:
    def __init__(self, ran: list[int]) -> None:
        self.ran = ran

    async def __call__(self, payment: Payment, permit: Permit = Semel.permit) -> dict[str, str]:
        self.ran.append(payment.amount)
        return {"by": permit.command.scope.operation}

    async def method(self, payment: Payment, permit: Permit = Semel.permit) -> dict[str, str]:
        return await self(payment, permit)

    def sync_method(self, payment: Payment, permit: Permit = Semel.permit) -> dict[str, str]:
        self.ran.append(payment.amount)
        return {"by": permit.command.scope.operation}


class SyncCallable(Callable_):
    def __call__(self, payment: Payment, permit: Permit = Semel.permit) -> Any:
        return self.sync_method(payment, permit)


async def given(ran: list[int], payment: Payment, permit: Permit = Semel.permit) -> dict[str, str]:
    ran.append(payment.amount)
    return {"by": permit.command.scope.operation}


def given_sync(ran: list[int], payment: Payment, permit: Permit = Semel.permit) -> dict[str, str]:
    ran.append(payment.amount)
    return {"by": permit.command.scope.operation}


@pytest.mark.parametrize(
    "make",
    [
        Callable_,
        SyncCallable,
        lambda ran: Callable_(ran).method,
        lambda ran: Callable_(ran).sync_method,
        lambda ran: functools.partial(given, ran),
        lambda ran: functools.partial(given_sync, ran),
        lambda ran: functools.partial(Callable_(ran)),
    ],
    ids=["instance", "sync-instance", "method", "sync-method", "partial", "sync-partial", "partial-of-instance"],
)
def test_the_endpoint_may_be_anything_that_fastapi_calls(
    serve: Serve, engine: AsyncEngine, make: Callable[[list[int]], Any]
) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    ran: list[int] = []
    app.post("/payments", status_code=201)(semel.command("payments.create")(make(ran)))
    semel.install(app)
    web = serve(app, engine)
    first, _ = both(web, "/payments", PAYMENT)
    assert (first.status, first.body, ran) == (201, b'{"by":"payments.create"}', [1250])


def test_the_same_key_on_two_operations_is_two_commands(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    ran = []

    @app.post("/payments")
    @semel.command("payments.create")
    async def create_payment(payment: Payment) -> None:
        ran.append("payment")

    @app.post("/refunds")
    @semel.command("refunds.create")
    def create_refund(payment: Payment) -> None:
        ran.append("refund")

    semel.install(app)
    web = serve(app, engine)
    for path in ("/payments", "/refunds"):
        both(web, path, PAYMENT)
    assert ran == ["payment", "refund"]


def test_path_parameters_and_query_are_part_of_the_request(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()

    @app.put("/payments/{number}")
    @semel.command("payments.put")
    async def put_payment(number: int, dry: bool = False) -> int:
        return number

    semel.install(app)
    web = serve(app, engine)
    both(web, "/payments/7", method="PUT", query="dry=1")
    assert web.call("/payments/8", method="PUT", query="dry=1").code == REUSED
    assert web.call("/payments/7", method="PUT", query="dry=0").code == REUSED
    # FastAPI makes the number of it only after routing: another spelling is another request, and loudly so.
    assert web.call("/payments/007", method="PUT", query="dry=1").code == REUSED


def test_dependency_overrides_still_work(made: Made) -> None:
    made.app.dependency_overrides[authenticated] = lambda: None
    assert made.web.call("/payments", PAYMENT, caller=None).code == "IDEMPOTENCY_CALLER_UNKNOWN"
    assert made.web.call("/payments", PAYMENT).status == 201


def test_what_dependencies_do_is_done_again_for_every_retry_because_fastapi_solves_them_before_the_claim(
    serve: Serve, engine: AsyncEngine
) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    done = []

    @app.post("/payments", dependencies=[Depends(lambda: done.append("dependency"))])
    @semel.command("payments.create")
    async def create_payment() -> None:
        done.append("endpoint")

    semel.install(app)
    both(serve(app, engine), "/payments")
    assert done == ["dependency", "endpoint", "dependency"]


def test_without_its_optional_key_a_command_runs_unprotected(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    permits = []

    @app.post("/notes")
    @semel.command("notes.create", effects="idempotent", key="optional")
    async def create_note(payment: Payment, permit: Permit | None = semel.permit) -> None:
        permits.append(permit)

    semel.install(app)
    web = serve(app, engine)
    assert [web.call("/notes", PAYMENT, key=None).status for _ in range(2)] == [200, 200]
    assert (permits, web.records()) == ([None, None], [])


# --- the permit's parameter ---


def test_the_permit_may_stand_anywhere_and_fastapi_never_sees_it(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    got = []

    @app.post("/a")
    @semel.command("a")
    async def last(payment: Payment, x: Annotated[int, Header()], permit: Permit = semel.permit) -> None:
        got.append((payment.amount, x, permit.command.scope.operation))

    @app.post("/b")
    @semel.command("b")
    async def first(permit: Permit = semel.permit, x: int = Header(), payment: Payment = Body()) -> None:
        got.append((payment.amount, x, permit.command.scope.operation))

    @app.post("/c")
    @semel.command("c")
    def keyword(*, permit: Permit = semel.permit, payment: Payment, x: Annotated[int, Header()]) -> None:
        got.append((payment.amount, x, permit.command.scope.operation))

    @app.post("/d")
    @semel.command("d")
    async def annotated(permit: Annotated[Permit, Semel.permit], payment: Payment, x: Annotated[int, Header()]) -> None:
        got.append((payment.amount, x, permit.command.scope.operation))

    semel.install(app)
    web = serve(app, engine)
    for path in "abcd":
        assert web.call(f"/{path}", PAYMENT, headers=[("X", "5")]).status == 200
    assert got == [(1250, 5, name) for name in "abcd"]
    parameters = [route["post"]["parameters"] for path, route in app.openapi()["paths"].items() if len(path) == 2]
    assert [sorted(parameter["name"] for parameter in each) for each in parameters] == [["Idempotency-Key", "x"]] * 4


def test_the_permits_type_need_not_be_known_when_the_application_runs(serve: Serve, engine: AsyncEngine) -> None:
    """Imported under TYPE_CHECKING, as linters ask; FastAPI, which must know all other types, never sees it."""
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    names: dict[str, Any] = {"semel": semel, "app": app, "Payment": Payment, "__name__": __name__}
    source = """
from __future__ import annotations
@app.post("/payments")
@semel.command("payments.create")
async def create_payment(payment: Payment, permit: OnlyForTheTypeChecker = semel.permit) -> dict[str, int]:
    return {"amount": payment.amount, "attempt": permit.attempt}
"""
    exec(source, names)
    semel.install(app)
    first, _ = both(serve(app, engine), "/payments", PAYMENT)
    assert first.body == b'{"amount":1250,"attempt":1}'


# --- bodies ---


def test_forms_are_compared_by_their_fields(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()

    @app.post("/form")
    @semel.command("form")
    async def form(amount: Annotated[int, Form()], text: Annotated[str, Form()]) -> str:
        return f"{amount} {text}"

    semel.install(app)
    web = serve(app, engine)
    kind = [("Content-Type", "application/x-www-form-urlencoded")]
    first = web.call("/form", b"amount=5&text=a+b", headers=kind)
    assert first.body == b'"5 a b"'
    assert web.call("/form", b"amount=5&text=a%20b", headers=kind).replayed
    assert web.call("/form", b"amount=6&text=a+b", headers=kind).code == REUSED


@pytest.mark.parametrize("size", [10, 70_000, 3_000_000], ids=["small", "several-chunks", "on-disk"])
def test_uploads_are_compared_by_their_parts(serve: Serve, engine: AsyncEngine, size: int) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    got = []

    @app.post("/files")
    @semel.command("files.create")
    async def upload(name: Annotated[str, Form()], file: Annotated[UploadFile, File()]) -> int:
        got.append(len(await file.read()))
        return got[-1]

    semel.install(app)
    web = serve(app, engine)

    def post(content: bytes, boundary: str) -> Any:
        body, headers = multipart([("name", None, b"n"), ("file", "f.txt", content)], boundary)
        pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
        return web.call("/files", pieces, headers=headers)

    first = post(b"x" * size, "one")
    assert (first.status, first.body) == (200, str(size).encode())
    again = post(b"x" * size, "another")  # each try of a client has another boundary
    assert (again.replayed, again.body) == (True, first.body)
    assert post(b"x" * (size - 1) + b"y", "one").code == REUSED
    assert got == [size]


READERS = ["body", "stream", "json-field", "nothing"]


@pytest.mark.parametrize("reads", READERS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"abc",
        [b"ab", b"", b"c"],
        [b"x" * 65_536 for _ in range(40)],
        b"x" * 2_000_000,
        [b"", b""],
    ],
    ids=["empty", "whole", "chunked", "large-chunked", "large-whole", "empty-chunked"],
)
def test_a_raw_body_reaches_the_endpoint_as_it_was_sent(
    serve: Serve, engine: AsyncEngine, reads: str, body: Any
) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    got = []

    async def early(request: Request) -> None:
        if reads == "json-field":
            await request.body()

    @app.post("/raw", dependencies=[Depends(early)])
    @semel.command("raw")
    async def raw(request: Request) -> int:
        if reads == "stream":
            got.append(b"".join([chunk async for chunk in request.stream()]))
        elif reads != "nothing":
            got.append(await request.body())
        return 1

    semel.install(app)
    web = serve(app, engine)
    whole = body if isinstance(body, bytes) else b"".join(body)
    first = web.call("/raw", body)
    assert (first.status, web.raised) == (200, None)
    again = web.call("/raw", body)
    assert (again.replayed, again.body) == (True, first.body)
    assert web.call("/raw", whole + b"!").code == REUSED
    assert got == ([] if reads == "nothing" else [whole])


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("parsed", [False, True])
def test_a_body_over_the_limit_is_refused_and_the_handler_does_not_run(
    serve: Serve, engine: AsyncEngine, chunked: bool, parsed: bool
) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    ran = []

    @app.post("/raw")
    @semel.command("raw", body_bytes_max=1000)
    async def raw(request: Request) -> None:
        ran.append("raw")

    @app.post("/parsed")
    @semel.command("parsed", body_bytes_max=1000)
    async def of_text(text: Annotated[str, Body()]) -> None:
        ran.append("parsed")

    semel.install(app)
    web = serve(app, engine)
    path, kind = ("/parsed", [("Content-Type", "application/json")]) if parsed else ("/raw", [])
    for size, refused in ((1000, False), (1001, True), (100_000, True)):
        text = b'"' + b"x" * (size - 2) + b'"'
        sent = [text[:500], text[500:]] if chunked else text
        answer = web.call(path, sent, headers=kind, key=f"key-{size}")
        assert answer.status == (413 if refused else 200)
        if refused:
            assert answer.code == TOO_LARGE
    assert (len(ran), len(web.records())) == (1, 1)


@pytest.mark.parametrize("parsed", [False, True])
def test_a_body_that_its_client_did_not_finish_is_no_command(serve: Serve, engine: AsyncEngine, parsed: bool) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    ran = []

    @app.post("/raw")
    @semel.command("raw")
    async def raw(request: Request) -> None:
        ran.append(await request.body())

    @app.post("/parsed")
    @semel.command("parsed")
    async def of_text(text: Annotated[str, Body()]) -> None:
        ran.append(text.encode())

    semel.install(app)
    web = serve(app, engine)
    web.call("/parsed" if parsed else "/raw", [b'"half of it'], leaves=True)
    assert (ran, web.records()) == ([], [])


def test_a_client_that_leaves_changes_nothing(made: Made) -> None:
    async def leave() -> Any:
        made.gate = asyncio.Event()
        call = asyncio.create_task(made.web.ask("/payments", PAYMENT))
        await made.began.wait()
        call.cancel()
        await asyncio.wait({call})
        made.gate.set()
        return await made.web.ask("/payments", PAYMENT, headers=[("Prefer", "wait=15")])

    answer = made.web.runner.run(leave())
    assert (answer.status, answer.replayed, made.ran) == (201, True, [1250])


# --- the whole application ---


def test_the_engine_lives_as_long_as_the_application(engine: AsyncEngine) -> None:
    notes: list[str] = []
    app = FastAPI(lifespan=lambda _: noting(notes, "up", "down"))
    Semel(engine, caller=caller_of).install(app)
    web = Web(app, engine)
    assert notes == ["up"]
    assert web.runner.run(engine.perform("identity", engine.store.identity)) is not None
    web.close()
    assert notes == ["up", "down"]


def test_an_application_whose_store_is_not_migrated_does_not_start(tmp_path: Any) -> None:
    engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/missing.db")
    app = FastAPI()
    Semel(engine, caller=caller_of).install(app)
    with pytest.raises(ConfigurationError, match="migrate"):
        Web(app, engine)


def test_what_is_no_command_passes_untouched(made: Made) -> None:
    @made.app.post("/echo")
    async def echo(request: Request) -> dict[str, str]:
        return {"body": (await request.body()).decode()}

    assert made.web.call("/echo", b"x" * 5, key="k").body == b'{"body":"xxxxx"}'
    assert made.web.call("/nowhere", PAYMENT).status == 404
    assert made.web.call("/payments", method="DELETE").status == 405
    assert made.web.records() == []


def test_a_websocket_passes(engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()

    @app.websocket("/socket")
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    semel.install(app)
    with TestClient(app) as client, client.websocket_connect("/socket") as socket:
        socket.send_text("hello")
        assert socket.receive_text() == "hello"
