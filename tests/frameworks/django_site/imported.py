"""Imports of the project, on their own store."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from semel import AsyncEngine
from semel.imports import Imports, Row

STORE = f"sqlite:///{settings.FOLDER}/imports.sqlite3"
stock = Imports(AsyncEngine.connect(STORE), operation="stock.import")


@stock.row
async def book(row: Row) -> str:
    return str(row.value["n"])


def may_upload(request: Any, supplier: str) -> bool:
    """Whether a caller may send a supplier's files."""
    return supplier == "ACME" and request.user.pk == "alice"
