"""One bulk at two paths: each path's list is a command of its own, in every framework."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from flask import Flask
from litestar import Litestar, post
from litestar.testing import TestClient as LitestarClient
from quart import Quart
from starlette.applications import Starlette
from starlette.routing import Route

from semel import AsyncBulk, AsyncEngine, Engine
from semel.bulk.declaration import BulkItem
from semel.http.caller import single_caller
from semel.integrations import fastapi, flask, litestar, quart, starlette
from semel.integrations.endpoint import bulk_used_by

BOTH = ("/eu/imports", "/us/imports")
Send = Callable[[str], tuple[int, str | None]]
done: list[int] = []


async def take(item: BulkItem) -> None:
    done.append(item.place)


def take_here(item: BulkItem) -> None:
    done.append(item.place)


def read(answer: Any) -> tuple[int, str | None]:
    return answer.status_code, answer.headers.get("Idempotency-Replayed")


def how(path: str) -> dict[str, Any]:
    headers = {"Idempotency-Key": "a-file", "Content-Type": "application/json"}
    return {"url": path, "content": b"[1, 2]", "headers": headers}


def on_starlette(engine: Any, paths: tuple[str, ...]) -> Iterator[Send]:
    semel = starlette.Semel(engine, caller=single_caller)
    answer = semel.bulk(AsyncBulk(engine, operation="imports"), take).answer
    app = Starlette(routes=[Route(path, answer, methods=["POST"]) for path in paths])
    semel.install(app)
    with TestClient(app) as client:
        yield lambda path: read(client.post(**how(path)))


def on_fastapi(engine: Any, paths: tuple[str, ...]) -> Iterator[Send]:
    app, router, semel = FastAPI(), APIRouter(), fastapi.Semel(engine, caller=single_caller)
    router.post("/imports")(semel.bulk(AsyncBulk(engine, operation="imports"), take).answer)
    for path in paths:
        app.include_router(router, prefix=path.removesuffix("/imports"))
    semel.install(app)
    with TestClient(app) as client:
        yield lambda path: read(client.post(**how(path)))


def on_litestar(engine: Any, paths: tuple[str, ...]) -> Iterator[Send]:
    semel = litestar.Semel(engine, caller=single_caller)
    answer = semel.bulk(AsyncBulk(engine, operation="imports"), take).answer
    with LitestarClient(Litestar([post(list(paths))(answer)], plugins=[semel])) as client:
        yield lambda path: read(client.post(**how(path)))


def on_quart(engine: Any, paths: tuple[str, ...]) -> Iterator[Send]:
    app = Quart("imports")
    answer = quart.Semel(app, engine, caller=single_caller).bulk(AsyncBulk(engine, operation="imports"), take).answer
    for path in paths:
        app.add_url_rule(path, path, answer, methods=["POST"])

    async def send(path: str) -> tuple[int, str | None]:
        sent = how(path)
        return read(await app.test_client().post(sent["url"], data=sent["content"], headers=sent["headers"]))

    with asyncio.Runner() as runner:
        served = app.test_app()
        runner.run(served.startup())
        yield lambda path: runner.run(send(path))
        runner.run(served.shutdown())


def on_flask(engine: Any, paths: tuple[str, ...]) -> Iterator[Send]:
    app = Flask("imports")
    bulk = flask.Semel(app, engine, caller=single_caller).bulk("imports", take_here)
    for path in paths:
        app.add_url_rule(path, path, bulk.answer, methods=["POST"])

    def send(path: str) -> tuple[int, str | None]:
        sent = how(path)
        return read(app.test_client().post(sent["url"], data=sent["content"], headers=sent["headers"], buffered=True))

    yield send


Serve = Callable[..., Iterator[Send]]


@pytest.fixture(params=[on_starlette, on_fastapi, on_litestar, on_quart, on_flask])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[tuple[str, ...]], Any]:
    """Serves the list at some paths, on one file, and gives what its requests are answered."""
    url, made = f"sqlite:///{tmp_path}/app.db", request.param
    with closing(Engine.connect(url)) as plain:
        plain.migrate()
    done.clear()

    def answers(paths: tuple[str, ...], *asked: str) -> list[tuple[int, str | None]]:
        engine: Any = Engine.connect(url) if made is on_flask else AsyncEngine.connect(url)
        serving = made(engine, paths)
        send = next(serving)
        told = [send(path) for path in asked]
        assert next(serving, None) is None
        if made is on_flask:
            engine.close()
        return told

    return answers


def test_another_path_never_gets_the_first_paths_answer(serve: Callable[..., Any]) -> None:
    assert serve(BOTH, *BOTH, BOTH[0]) == [(200, None), (422, None), (200, "true")]
    assert len(done) == 2


def test_a_view_with_an_empty_closure_is_not_a_list() -> None:
    def make_view() -> Callable[[], Any]:
        def view() -> Any:
            return later

        if not done:
            return view
        later = 1
        return view

    done.clear()
    assert bulk_used_by(make_view()) is None


def test_a_list_from_before_the_second_path_is_replayed(
    serve: Callable[..., Any],
) -> None:
    assert serve(BOTH[:1], BOTH[0]) == [(200, None)]
    assert serve(BOTH, BOTH[0]) == [(200, "true")]
    assert len(done) == 2


def test_a_list_that_counted_its_path_never_runs_again_where_it_does_not_count(serve: Callable[..., Any]) -> None:
    assert serve(BOTH, BOTH[0]) == [(200, None)]
    assert serve(BOTH[:1], BOTH[0]) == [(500, None)]  # IDEMPOTENCY_RECORD_UNREADABLE, as of any command
    assert len(done) == 2
