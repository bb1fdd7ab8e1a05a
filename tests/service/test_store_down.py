"""The service's own readings, when the store refuses them: a 503 as everywhere, and never a plain 500."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from semel import Engine
from semel.reference import orders
from semel.reference.app import create_app
from semel.reference.settings import Settings
from tests.web.driving import Response, asgi_call, asgi_scope


def read(folder: Path, path: str) -> Response:
    """Return what the service answers once the table of orders is gone."""
    url = f"sqlite:///{folder / 'semel.db'}"
    engine = Engine.connect(url)
    engine.migrate()
    engine.perform("create_table", orders.create_table)
    engine.close()

    async def main() -> Response:
        app = create_app(Settings(url=url))
        async with app.router.lifespan_context(app):
            connection = sqlite3.connect(folder / "semel.db")
            connection.execute("DROP TABLE shop_order")
            connection.close()
            headers = [("Authorization", "Bearer alice")]
            scope: Any = {**asgi_scope("GET", path, "", headers, None), "scheme": "http", "server": ("test", 80)}
            return await asgi_call(app, scope, [b""])

    return asyncio.run(main())


@pytest.mark.parametrize("path", ["/orders", "/orders/ord_1"])
def test_a_list_that_the_store_refuses_may_be_asked_for_again(tmp_path: Path, path: str) -> None:
    answer = read(tmp_path, path)
    assert answer.status == 503
    assert (answer.code, answer.problem["retryable"]) == ("IDEMPOTENCY_STORE_UNAVAILABLE", True)
    assert 1 <= int(answer.header("retry-after") or 0) <= 5
    assert "shop_order" not in json.dumps(answer.problem)
