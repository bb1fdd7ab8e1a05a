"""Price lists of suppliers: one import for the same bytes, and no supplier sends or sees another's files."""

from __future__ import annotations

import importlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from semel import Engine

ACME = {"Authorization": "Bearer token-of-acme", "Content-Type": "text/csv"}
LIST = b"sku,price\nA-1,9.99\nB-2,0\n"


@pytest.fixture
def prices(tmp_path: Path) -> Iterator[tuple[Any, TestClient]]:
    url = f"sqlite:///{tmp_path / 'prices.db'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "PRICES_URL", url)
        module = importlib.reload(importlib.import_module("examples.imports.app"))
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    module.make_table()
    with TestClient(module.app) as client:
        yield module, client


def test_a_list_sent_twice_is_one_import_and_a_grown_one_adds_rows(
    prices: tuple[Any, TestClient], tmp_path: Path
) -> None:
    _, client = prices
    path = "/suppliers/ACME/prices"
    first = client.post(path, content=LIST, headers=ACME)
    again = client.post(
        path, files={"file": ("other.csv", LIST, "text/csv")}, headers={"Authorization": ACME["Authorization"]}
    )
    assert (first.status_code, again.status_code, first.json()["id"]) == (202, 200, again.json()["id"])
    grown = client.post(path, content=LIST + b"C-3,1.50\n", headers=ACME)
    looks = 500
    while (job := client.get(grown.headers["location"], headers=ACME).json())["state"] in (
        "QUEUED",
        "RUNNING",
    ) and looks:
        looks -= 1
    assert (job["state"], job["counts"]["booked"], job["counts"]["skipped"], job["counts"]["failed"]) == (
        "DONE",
        1,
        1,
        1,
    )
    rows = client.get(f"{grown.headers['location']}/rows?state=failed", headers=ACME).json()["rows"]
    assert [(row["line"], row["column"]) for row in rows] == [(3, "price")]
    with closing(sqlite3.connect(tmp_path / "prices.db")) as db:
        assert db.execute("SELECT sku, price FROM price ORDER BY sku").fetchall() == [("A-1", "9.99"), ("C-3", "1.50")]
    beta = {**ACME, "Authorization": "Bearer token-of-beta"}
    assert client.post(path, content=LIST, headers=beta).status_code == 403
    assert client.get(grown.headers["location"], headers=beta).status_code == 404
    assert client.get("/imports?key=ACME:", headers=beta).json() == {"imports": []}
