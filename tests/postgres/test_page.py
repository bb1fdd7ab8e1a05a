"""The examples of docs/postgresql.md are run as they stand there, on this run's server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.utils.connection import ConnectionProxy

from semel import Engine
from semel.stores.postgres.url import postgres_backend
from tests.docs.pages import DOCS, Block, blocks
from tests.docs.running import file_of, run_python
from tests.postgres.conftest import Outside
from tests.postgres.users import ALIAS, django_connection
from tests.servers.postgres import schema

PAGE = DOCS / "postgresql.md"
SHOWN = "postgresql://app@localhost/shop"


def test_the_pages_examples(conninfo: str, outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is the file that it says it is; the later ones import the first."""
    monkeypatch.syspath_prepend(tmp_path)
    role = f"page_{schema()}"
    if not outside.fetch(f"SELECT FROM pg_roles WHERE rolname = '{role}'"):
        outside.connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    outside.connection.execute(f"ALTER ROLE {role} SET search_path = {schema()}")
    url = conninfo.replace("postgres@", f"{role}@")
    namespace: dict[str, Any] = {}
    ran = []
    for block in blocks(PAGE.read_text("utf-8")):
        file = file_of(block)
        if file is None:
            continue
        text = block.text.replace(SHOWN, url)
        (tmp_path / file).write_text(text.split("\nwith psycopg.connect", 1)[0] if file == "owned.py" else text)
        namespace = {"__name__": "example"}
        if file == "views.py":
            django_connection(conninfo)
            monkeypatch.setattr("django.db.connection", ConnectionProxy(connections, ALIAS))
            monkeypatch.setattr("django.db.transaction.DEFAULT_DB_ALIAS", ALIAS)
        run_python(Block(block.language, text, block.line), str(PAGE.name), namespace)
        ran.append(file)
    engine = Engine(postgres_backend(conninfo, schema=schema()))
    assert [namespace["place"](engine, "k-4") for _ in range(2)] == [b"ordered"] * 2
    engine.close()
    connections[ALIAS].close()
    del sys.modules["owned"]
    assert ran == ["owned.py", "joined.py", "joined_async.py", "views.py"]
    assert [sku for (sku,) in outside.fetch("SELECT sku FROM orders ORDER BY sku")] == [
        f"book-{number}" for number in (1, 2, 3, 4, 5)
    ]
    outside.connection.execute(f"DROP OWNED BY {role}")
    outside.connection.execute(f"DROP ROLE {role}")
