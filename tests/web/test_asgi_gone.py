"""Clients that go away, holders that are superseded, handlers that are stopped: what runs on, and what is stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel.core.model import State
from semel.engine.async_engine import AsyncEngine
from semel.errors import ConfigurationError
from semel.policy import Policy
from tests.web.asgi_calls import Client, answer, call, on_a_loop, protect, scope_of, settle_down, states
from tests.web.driving import Message, response_of

# --- clients that go away ---


def test_a_client_that_disconnects_changes_no_outcome() -> None:
    async def test(engine: AsyncEngine) -> None:
        entered, finish = asyncio.Event(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            told = asyncio.create_task(receive())
            entered.set()
            await finish.wait()
            assert not told.done()  # it was not notified of the disconnect
            await answer(send)
            assert (await told)["type"] == "http.disconnect"

        web = protect(app, engine)
        client = Client()
        server = asyncio.create_task(web(scope_of(), client.receive, client.send))
        await entered.wait()
        client.gone.set()
        server.cancel()  # as Hypercorn, Daphne or an outer middleware do
        with pytest.raises(asyncio.CancelledError):
            await server
        finish.set()
        await web.close()
        assert states(engine) == [State.SUCCEEDED]
        assert (await call(web)).replayed

    on_a_loop(test)


def test_an_answer_that_the_client_does_not_read_is_stored() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answer(send)

        async def fail_to_send(message: Message) -> None:
            raise ConnectionResetError

        web = protect(app, engine)
        await web(scope_of(), Client().receive, fail_to_send)
        assert (await call(web)).replayed

    on_a_loop(test)


def test_an_exception_after_the_client_has_gone_is_reported() -> None:
    async def test(engine: AsyncEngine) -> None:
        entered, finish = asyncio.Event(), asyncio.Event()
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

        async def app(scope: Any, receive: Any, send: Any) -> None:
            entered.set()
            await finish.wait()
            raise ValueError("nobody listens")

        web = protect(app, engine)
        client = Client()
        server = asyncio.create_task(web(scope_of(), client.receive, client.send))
        await entered.wait()
        server.cancel()
        await asyncio.wait([server])
        finish.set()
        await web.close()
        await settle_down()
        assert [str(context["exception"]) for context in reported] == ["nobody listens"]
        assert states(engine) == [State.UNKNOWN]

    on_a_loop(test)


def test_a_client_that_disconnects_before_its_body_is_complete_claims_nothing() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            raise AssertionError("not called")

        for pieces in ([], [{"type": "http.request", "body": b"{", "more_body": True}]):
            messages = [*pieces, {"type": "http.disconnect"}]

            async def receive(messages: list[Any] = messages) -> Any:
                return messages.pop(0)

            client = Client()
            await protect(app, engine)(scope_of(), receive, client.send)
            assert client.sent == []
        assert states(engine) == []

    on_a_loop(test)


def test_a_long_answer_continues_without_its_client() -> None:
    async def test(engine: AsyncEngine) -> None:
        produced = 0

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal produced
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(5):
                await send({"type": "http.response.body", "body": b"x" * 50, "more_body": True})
                produced += 1
            await send({"type": "http.response.body"})

        client = Client()

        def break_off(message: Message) -> None:
            if message["type"] == "http.response.body":
                raise BrokenPipeError

        client.on_send = break_off
        await protect(app, engine, Policy(answer_bytes_max=100))(scope_of(), client.receive, client.send)
        assert produced == 5
        assert states(engine) == [State.SUCCEEDED]

    on_a_loop(test)


def test_an_endless_answer_is_notified_of_the_disconnect() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            headers = [(b"content-type", b"text/event-stream")]
            await receive()
            told = asyncio.create_task(receive())
            await asyncio.sleep(0)
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not told.done():
                await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
                await asyncio.sleep(0)

        client = Client()
        client.on_send = lambda message: client.gone.set() if len(client.sent) > 3 else None
        await protect(app, engine)(scope_of(), client.receive, client.send)
        assert states(engine) == [State.SUCCEEDED]

    on_a_loop(test)


def test_a_handler_past_its_deadline_is_notified_of_the_disconnect() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            scope["semel.permit"].deadline_monotonic = 0
            assert (await receive())["type"] == "http.disconnect"
            await answer(send)

        async def impatient(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)

        client = Client()
        client.gone.set()
        web = protect(impatient, engine)
        claim = engine.claim

        async def overdue(command: Any, *, wait_seconds: float | None = None) -> Any:
            permit: Any = await claim(command)
            permit.deadline_monotonic = 0.0
            return permit

        engine.claim = overdue  # type: ignore[method-assign]
        await web(scope_of(), client.receive, client.send)
        assert client.asked == 1

    on_a_loop(test)


# --- superseded and stopped handlers ---


def test_a_superseded_idempotent_handler_is_cancelled_and_its_caller_gets_the_stored_outcome() -> None:
    async def test(engine: AsyncEngine) -> None:
        entered = asyncio.Event()
        ended: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")

        web = protect(app, engine, Policy(effects="idempotent"))
        first = asyncio.create_task(call(web))
        await entered.wait()
        table = engine.backend.driver._table
        [row] = table.rows()
        table.put(row._replace(fence=row.fence + 1, nonce=b"somebody else's!"))
        [permit] = engine.core.live.values()
        permit.lose()
        told = await first
        assert told.code == "IDEMPOTENCY_REQUEST_IN_PROGRESS"
        assert ended == ["cancelled"]

    on_a_loop(test)


def test_a_handler_superseded_after_its_end_is_not_cancelled() -> None:
    async def test(engine: AsyncEngine) -> None:
        permits: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            permits.append(scope["semel.permit"])
            await answer(send)

        web = protect(app, engine, Policy(effects="idempotent"))
        assert (await call(web)).status == 201
        permits[0].lose()
        assert (await call(web)).replayed

    on_a_loop(test)


def test_an_atomic_answer_that_cannot_be_kept_is_rolled_back(tmp_path: Any) -> None:
    async def main() -> None:
        engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/semel.db")
        await engine.migrate()
        async with engine:
            lengths = iter([200, 200, 50])

            async def app(scope: Any, receive: Any, send: Any) -> None:
                await answer(send, b"x" * next(lengths))

            web = protect(app, engine, Policy(effects="atomic", answer_bytes_max=100))
            client = Client()
            for _ in range(2):
                with pytest.raises(Exception, match="answer_bytes_max"):
                    await web(scope_of(), client.receive, client.send)
                refused = response_of(client.sent)
                assert (refused.status, refused.code) == (500, "IDEMPOTENCY_ANSWER_TOO_LARGE")
                client = Client()
            assert (await call(web)).status == 201
            assert (await call(web)).replayed

    asyncio.run(main())


def test_an_atomic_handler_ends_at_its_deadline(tmp_path: Any) -> None:
    async def main() -> None:
        engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/semel.db")
        await engine.migrate()
        async with engine:
            entered = 0

            async def app(scope: Any, receive: Any, send: Any) -> None:
                nonlocal entered
                entered += 1
                if entered == 1:
                    await asyncio.Event().wait()
                await answer(send)

            web = protect(app, engine, Policy(effects="atomic"))
            claim = engine.claim

            async def overdue(command: Any, *, wait_seconds: float | None = None) -> Any:
                permit: Any = await claim(command)
                if not entered:
                    permit.deadline_monotonic = 0.0
                return permit

            engine.claim = overdue  # type: ignore[method-assign]
            with pytest.raises(TimeoutError):
                await call(web)
            assert (await call(web)).status == 201  # nothing had happened

    asyncio.run(main())


def test_atomic_operations_need_a_store_that_has_transactions() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None: ...

        with pytest.raises(ConfigurationError, match="atomic"):
            protect(app, engine, Policy(effects="atomic"))

    on_a_loop(test)
