"""A Flask shop with imports, for gunicorn: ``tests.imports.served:make_app()``."""

from __future__ import annotations

import os

from flask import Flask, jsonify, request

from semel import AsyncEngine, Engine
from semel.imports import Imports, Row
from semel.integrations.flask import Semel
from tests.bulk.fellows import sqlite_at


def make_app() -> Flask:
    """The shop on the file in ``SHOP_FOLDER``, migrated already."""
    file = f"{os.environ['SHOP_FOLDER']}/shop.db"
    app = Flask("imports")
    semel = Semel(app, Engine.connect(f"sqlite:///{file}"), caller=lambda: request.headers.get("Authorization"))
    stock = Imports(AsyncEngine.connect(f"sqlite:///{file}"), operation="stock.import", file_bytes_max=5_000_000)

    @stock.row
    async def book(row: Row) -> None:
        row.connection.execute("INSERT INTO effect VALUES (?)", (int(row.value["n"]),))

    semel.imports(
        app,
        stock,
        path="/suppliers/{supplier}/imports",
        supplier="path:supplier",
        may=lambda environ, supplier: supplier == "ACME",
    )
    app.get("/effects")(lambda: jsonify(sqlite_at(file).effects()))
    return app
