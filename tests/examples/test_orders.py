"""The orders example, as its reader runs it."""

from __future__ import annotations

from pathlib import Path

from tests.examples.serving import semel, serving


def test_orders(tmp_path: Path) -> None:
    semel(tmp_path, "migrate", "--url", "sqlite:///orders.db")
    with serving(tmp_path, "examples.orders.app:app") as shop:
        first = shop.post("/orders/o-1", {"sku": "book", "quantity": 2}, "key-1")
        assert first.status == 201, (first, shop.log)
        again = shop.post("/orders/o-1", {"sku": "book", "quantity": 2}, "key-1")
        assert again.replayed
        assert len(shop.get("/orders")) == 1
