"""The bench's large stores on MariaDB and Redis, small here: all answers come, and MariaDB reads by index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from uuid import uuid4

import pytest

from bench.tenmillion import build_mariadb, build_redis, commands_of, connect_mariadb, page, pages_of
from semel import Engine
from semel.cli.main import main
from semel.console import Console
from semel.stores.mariadb.store import SQL
from tests.servers import mariadb, redis
from tests.servers.mariadb import MARK

READ = {
    **{"now": "1", "before": "4000", "after": "1000", "tenant": "NULL", "caller": "'caller-7'", "operation": "NULL"},
    **{"states": "(1, 2, 6)", "lapsed": "0", "limit": "50", "look": "200"},
}


@pytest.fixture(scope="module")
def large_store() -> Iterator[str]:
    server = replace(mariadb.mariadb(), database=f"large_{uuid4().hex}")
    with closing(mariadb.connect(server.port)) as connection:
        connection.cursor().execute(f"CREATE DATABASE {server.database}")
        url = mariadb.url(server)
        build_mariadb(url, 5_000, unknown=30, items=20, open=40)
        yield url
        connection.cursor().execute(f"DROP DATABASE {server.database}")


def answers_all(url: str) -> None:
    with Engine.connect(url) as engine:
        console = Console(engine, lambda request: "olga")
        for target in pages_of(engine):
            assert page(console, target) == 200, target
        commands = commands_of(engine)
    for words in commands:
        assert main([*words, "--url", url]) in (0, 1), words


@MARK
def test_every_page_answers_on_mariadb(large_store: str) -> None:
    answers_all(large_store)


def test_every_page_answers_on_redis() -> None:
    url = f"redis://127.0.0.1:{redis.valkey()}/0?prefix={redis.prefix()}"
    build_redis(url, 2_000, unknown=30, open=40)
    answers_all(url)


@MARK
@pytest.mark.parametrize(
    ("name", "index"), [("find", "semel_record_seq"), ("find_unknown", "PRIMARY"), ("find_needing", "PRIMARY")]
)
def test_mariadb_reads_no_records_from_the_beginning(large_store: str, name: str, index: str) -> None:
    text = SQL[name].text
    for parameter, value in READ.items():
        text = re.sub(rf":{parameter}\b", value, text)
    with closing(connect_mariadb(large_store)) as db, db.cursor() as cursor:
        cursor.execute(f"EXPLAIN {text}")
        rows = cursor.fetchall()
    of_records = [row for row in rows if row[2] in ("semel_record", "n")]
    assert of_records
    assert all(row[3] != "ALL" for row in of_records), rows
    assert index in [row[5] for row in of_records], rows
