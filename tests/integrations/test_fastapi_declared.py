"""FastAPI: what may be declared a command, and which parameter is its permit."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import pytest
from fastapi import Body, FastAPI, Header, Request

from semel import AsyncEngine, Permit
from semel.errors import ConfigurationError, PolicyError
from semel.integrations.fastapi import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import both, caller_of, refuses
from tests.integrations.fastapi_made import PAYMENT, Payment

UNKNOWN = "IDEMPOTENCY_OUTCOME_UNKNOWN"


def test_missing_arguments_of_a_declaration_are_refused() -> None:
    engine = AsyncEngine.connect("memory://")
    semel = Semel(engine, caller=caller_of)
    semel.command("once")
    for declare, words in (
        (lambda: Semel(engine), "who is calling?"),
        (lambda: Semel(engine, caler=caller_of), "did you mean 'caller'?"),  # type: ignore[call-arg]
        (lambda: semel.command("once"), "duplicate operation name 'once'"),
        (lambda: semel.command(""), "a command needs a name"),
        (lambda: semel.command("paths", efects="atomic"), "did you mean 'effects'?"),  # type: ignore[call-arg]
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
    assert "duplicate operation name 'once'" in refuses(lambda: command(second))


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


def test_a_safe_method_cannot_be_a_command(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    semel.install(app)
    web = serve(app, engine)  # what is routed to later is met when it is called

    @app.get("/payments")
    @semel.command("payments.list")
    async def payments() -> None:
        raise AssertionError("it ran")

    assert web.call("/payments", method="GET").status == 500
    assert "GET" in str(web.raised)
    assert "is not a command" in str(web.raised)


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


# --- the permit's parameter ---


def test_the_permit_may_be_any_parameter_and_fastapi_never_sees_it(serve: Serve, engine: AsyncEngine) -> None:
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
    async def pay_typed(permit: Annotated[Permit, Semel.permit], payment: Payment, x: Annotated[int, Header()]) -> None:
        got.append((payment.amount, x, permit.command.scope.operation))

    semel.install(app)
    web = serve(app, engine)
    for path in "abcd":
        assert web.call(f"/{path}", PAYMENT, headers=[("X", "5")]).status == 200
    assert got == [(1250, 5, name) for name in "abcd"]
    parameters = [route["post"]["parameters"] for path, route in app.openapi()["paths"].items() if len(path) == 2]
    assert [sorted(parameter["name"] for parameter in each) for each in parameters] == [["Idempotency-Key", "x"]] * 4


def test_the_permits_type_may_be_imported_only_for_type_checkers(serve: Serve, engine: AsyncEngine) -> None:
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
