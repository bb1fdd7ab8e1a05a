"""How long the bodies of lists and files may be in Litestar and Quart, and who else may read them."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar, post
from litestar.testing import TestClient
from quart import Quart, request

from semel import AsyncBulk, AsyncEngine, Engine
from semel.bulk.declaration import BulkItem
from semel.http.caller import single_caller
from semel.integrations.litestar import Semel as LitestarSemel
from semel.integrations.quart import Semel as QuartSemel
from semel.policy import RETRY_BYTES_MAX

LIST = json.dumps([{"n": n, "filling": "x" * 100} for n in range(50)]).encode()
HEADERS = {"Idempotency-Key": "k", "Content-Type": "application/json"}


@pytest.fixture
def engine(tmp_path: Path) -> AsyncEngine:
    url = f"sqlite:///{tmp_path}/app.db"
    with closing(Engine.connect(url)) as plain:
        plain.migrate()
    return AsyncEngine.connect(url)


def bulk_on(engine: AsyncEngine) -> AsyncBulk:
    return AsyncBulk(engine, operation="cases", effects="idempotent")


async def approve(item: BulkItem) -> None: ...


@pytest.mark.parametrize(
    ("of_handler", "body_bytes_max", "status"), [({}, 10_000, 200), ({"request_max_body_size": 500}, 10_000, 413)]
)
def test_a_list_is_limited_by_its_own_option_not_litestars(
    engine: AsyncEngine, of_handler: dict[str, Any], body_bytes_max: int, status: int
) -> None:
    semel = LitestarSemel(engine, caller=single_caller)
    made = semel.bulk(bulk_on(engine), approve, body_bytes_max=body_bytes_max)
    app = Litestar([post("/cases", **of_handler)(made.answer)], plugins=[semel], request_max_body_size=1000)
    with TestClient(app) as client:
        assert client.post("/cases", content=LIST, headers=HEADERS).status_code == status


class QuartShop:
    """An application with one list, and what its ``before_request`` does."""

    def __init__(self, engine: AsyncEngine, before: Callable[[], Any], **config: Any) -> None:
        self.app = Quart("cases")
        self.app.config.update(config)
        semel = QuartSemel(self.app, engine, caller=single_caller)
        made = semel.bulk(bulk_on(engine), approve, body_bytes_max=1_000_000)
        self.app.before_request(before)
        self.app.post("/cases")(made.answer)

        def wrap_as_logging(view: Any) -> Any:
            @functools.wraps(view)
            async def call(**named: Any) -> Any:
                return await view(**named)

            return call

        self.app.add_url_rule("/logged", view_func=wrap_as_logging(made.answer), endpoint="logged", methods=["POST"])

        @self.app.post("/own")
        async def own() -> Any:
            return await made.answer()

        @self.app.post("/echo")
        async def echo() -> Any:
            return await request.get_data()

    def run(self, story: Callable[[Any], Any]) -> None:
        async def live() -> None:
            async with self.app.test_app() as running:
                await story(running.test_client())

        asyncio.run(live())


async def nothing() -> None: ...


async def read_whole() -> None:
    assert await request.get_data() == LIST


async def read_in_pieces_to_nowhere() -> None:
    async for _ in request.body:
        pass


@pytest.mark.parametrize(
    ("before", "config", "status"),
    [
        (nothing, {}, 200),
        (nothing, {"MAX_CONTENT_LENGTH": 1000}, 200),  # the list says how long it may be
        (read_whole, {}, 200),
        (read_whole, {"MAX_CONTENT_LENGTH": 1000}, 413),
        (read_in_pieces_to_nowhere, {}, 400),  # the list is gone: it has no items
    ],
)
@pytest.mark.parametrize("path", ["/cases", "/logged", "/own"])
@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_quart_hook_can_read_a_lists_body(
    engine: AsyncEngine, before: Any, config: dict[str, Any], status: int, path: str, in_pieces: bool
) -> None:
    async def story(client: Any) -> None:
        sent: Any = LIST
        if in_pieces:
            async with client.request(path, method="POST", headers=HEADERS) as connection:
                for at in range(0, len(sent), 400):
                    await connection.send(sent[at : at + 400])
                await connection.send_complete()
            answer = await connection.as_response()
        else:
            answer = await client.post(path, data=sent, headers=HEADERS)
        assert answer.status_code == status
        assert len(await (await client.post("/echo", data=LIST[:900])).get_data()) == 900

    if before in (read_whole, read_in_pieces_to_nowhere):
        plain = before

        async def before() -> None:
            if request.path != "/echo":
                await plain()

    QuartShop(engine, before, **config).run(story)


def test_a_body_that_is_longer_than_any_list_ends_without_being_held(engine: AsyncEngine) -> None:
    async def story(client: Any) -> None:
        async with client.request("/cases", method="POST", headers=HEADERS) as connection:
            for _ in range(RETRY_BYTES_MAX // 100_000 + 1):
                await connection.send(b" " * 100_000)
            await connection.send_complete()
        answer = await connection.as_response()
        assert answer.status_code == 413
        assert (await client.post("/unknown", data=LIST, headers=HEADERS)).status_code == 404
        assert (await client.put("/cases", data=LIST, headers=HEADERS)).status_code == 405

    QuartShop(engine, nothing).run(story)
