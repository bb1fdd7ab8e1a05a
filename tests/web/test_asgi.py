"""What only ASGI has: the order of settling and sending, and duplicates that wait on one loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel.core.model import State
from semel.engine.async_engine import AsyncEngine
from semel.http.asgi import middleware
from semel.http.exchange import Exchange
from tests.web.asgi_calls import Client, answer, call, on_a_loop, protect, scope_of, settle_down, states
from tests.web.driving import BODY, asgi_call, response_of

# --- settle, then send ---


def test_the_answer_is_sent_after_the_call_has_returned_and_is_settled() -> None:
    async def test(engine: AsyncEngine) -> None:
        log: list[str] = []
        client = Client()
        client.on_send = lambda message: log.append(f"sent {states(engine)[0].name}")

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answer(send)
            await asyncio.sleep(0)
            log.append(f"committed {states(engine)[0].name}")

        await protect(app, engine)(scope_of(), client.receive, client.send)
        assert log == ["committed PROCESSING", "sent SUCCEEDED", "sent SUCCEEDED"]

    on_a_loop(test)


def test_the_applications_error_page_is_sent_and_the_exception_propagates() -> None:
    async def test(engine: AsyncEngine) -> None:
        client = Client()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answer(send, b"oops", 500)
            raise ValueError("seen by the log")

        with pytest.raises(ValueError, match="seen by the log"):
            await protect(app, engine)(scope_of(), client.receive, client.send)
        first = response_of(client.sent)
        assert (first.status, first.body) == (500, b"oops")
        assert first.link() is not None
        assert states(engine) == [State.UNKNOWN]

    on_a_loop(test)


def test_parallel_duplicates_have_one_effect_and_one_answer() -> None:
    async def test(engine: AsyncEngine) -> None:
        entered, finish = asyncio.Event(), asyncio.Event()
        effects = 0

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal effects
            effects += 1
            entered.set()
            await finish.wait()
            await answer(send, b"effect %d" % effects)

        web = protect(app, engine)
        calls = [asyncio.create_task(call(web)) for _ in range(20)]
        await entered.wait()
        await settle_down()
        finish.set()
        answers = await asyncio.gather(*calls)
        assert {(reply.status, reply.body) for reply in answers} == {(201, b"effect 1")}
        assert sum(reply.replayed for reply in answers) == 19
        assert effects == 1

    on_a_loop(test)


@pytest.mark.parametrize("prefer", [b"wait=0", b"respond-async, wait=0"])
def test_a_duplicate_that_does_not_wait_is_refused_at_once(prefer: bytes) -> None:
    async def test(engine: AsyncEngine) -> None:
        entered, finish = asyncio.Event(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            entered.set()
            await finish.wait()
            await answer(send)

        web = protect(app, engine)
        first = asyncio.create_task(call(web))
        await entered.wait()
        scope = scope_of()
        scope["headers"].append((b"prefer", prefer))
        told = await asgi_call(web, scope, [BODY])
        assert (told.status, told.code) == (409, "IDEMPOTENCY_REQUEST_IN_PROGRESS")
        assert 1 <= told.problem["retryAfter"] <= 30
        finish.set()
        assert (await first).status == 201

    on_a_loop(test)


def test_preferred_waiting_is_bounded() -> None:
    async def test(engine: AsyncEngine) -> None:
        asked: list[float | None] = []
        claim = engine.claim

        async def noting(command: Any, *, wait_seconds: float | None = None) -> Any:
            asked.append(wait_seconds)
            return await claim(command)

        engine.claim = noting  # type: ignore[method-assign]

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answer(send)

        web = protect(app, engine, wait_seconds_max=7)
        for prefer in (b"wait=3", b'wait="5"', b"wait=100", b"x;wait=9", b"a, WAIT=1;b=2, wait=6"):
            scope = scope_of()
            scope["headers"].append((b"prefer", prefer))
            await asgi_call(web, scope, [BODY])
        assert asked == [3, 5, 7, None, 1]

    on_a_loop(test)


def test_a_body_that_comes_later_in_one_piece_is_read_like_one_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(engine: AsyncEngine) -> None:
        asked: list[Any] = []
        given: list[bytes] = []
        claim = engine.claim

        async def noting(command: Any, *, wait_seconds: float | None = None) -> Any:
            asked.append(type(command))
            return await claim(command, wait_seconds=wait_seconds)

        engine.claim = noting  # type: ignore[method-assign]

        async def app(scope: Any, receive: Any, send: Any) -> None:
            given.append((await receive())["body"])
            await answer(send)

        async def late() -> Any:
            await asyncio.sleep(0)
            return {"type": "http.request", "body": BODY}

        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        web = protect(app, engine)
        await call(web)
        await web(scope_of(), late, send)  # the same command, given by a connection that was slower
        await web(scope_of("another-key-of-the-same-client"), late, send)
        assert [message.get("status") for message in sent] == [201, None, 201, None]
        assert given == [BODY, BODY]
        assert asked == [Exchange, Exchange, Exchange]  # no command beside the request, no spool

    monkeypatch.setattr(middleware, "Spool", None)
    on_a_loop(test)


def test_an_application_may_answer_after_an_invalid_response_start() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            with pytest.raises(AttributeError):
                await send({"type": "http.response.start", "status": 201, "headers": [(1, b"x")]})
            await answer(send)
            with pytest.raises(RuntimeError, match="started its response twice"):
                await answer(send)

        assert (await call(protect(app, engine))).status == 201

    on_a_loop(test)


def test_a_body_before_its_head_is_an_error_of_the_application() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            with pytest.raises(RuntimeError, match="before it started its response"):
                await send({"type": "http.response.body", "body": b"x"})
            await answer(send)

        assert (await call(protect(app, engine))).status == 201

    on_a_loop(test)
