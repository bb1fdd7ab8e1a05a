"""Without ``tls`` in the URL nothing of TLS is done: a context is twenty milliseconds of reading certificates."""

from __future__ import annotations

import ssl

import pytest

from semel.stores.mariadb.protocol import MariadbServer
from tests.engine.shells import command
from tests.mariadb.conftest import ATOMIC, Fellow, insert_and_answer, plain


def test_no_context_is_made(server: MariadbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> ssl.SSLContext:
        raise AssertionError("certificates were read")

    monkeypatch.setattr(ssl, "create_default_context", never)
    for kind in ("pymysql", "asyncmy"):
        fellow = Fellow(kind, server)
        fellow.run(command(kind), plain)
        fellow.close()
    fellow = Fellow("pymysql", server)
    fellow.run(command("unit", policy=ATOMIC), insert_and_answer)
    fellow.close()
