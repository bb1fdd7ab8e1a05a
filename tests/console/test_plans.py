"""What operators ask a server is found by an index, however large it is: by the server's own plans and counts."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from bench.tenmillion import build_postgres, commands_of, page, pages_of
from semel import Engine
from semel.admin.census import read_census
from semel.cli.main import main
from semel.console import Console
from semel.core.model import State
from semel.inbox.store import InboxRows
from semel.stores.mariadb.store import SQL as MARIADB_SQL
from semel.stores.postgres.store import SQL
from semel.stores.sql.dialect import MARIADB, POSTGRES
from semel.stores.sql.statements import Statement
from tests.bulk.fellows import mariadb_home
from tests.console.conftest import migrate, new_database
from tests.servers.mariadb import MARK
from tests.servers.redis import eventually

LARGE = ("semel_record", "semel_inbox", "semel_item", "semel_operation")
READ: dict[str, Any] = {
    **{"now": None, "before": None, "after": 0, "tenant": None, "caller": None, "operation": None},
    **{"states": [1, 2, 6], "lapsed": False, "limit": 50, "look": 5000, "page": 100},
    **{"consumer": "", "after_consumer": "", "parked": 0},
}


@pytest.fixture(scope="module")
def bench_database() -> str:
    """A database with the rows of the bench, of which the planner knows nothing better than to use indexes."""
    url = new_database()
    build_postgres(url, 2_000, unknown=30, items=20, open=40)
    with psycopg.connect(url, autocommit=True) as connection:
        [name] = connection.execute("SELECT current_database()").fetchone() or ("",)
        connection.execute(f'ALTER DATABASE "{name}" SET enable_seqscan = off')
    return url


def scans(url: str) -> dict[str, int]:
    """How often each large table was read from its beginning, once all sessions have reported."""
    with psycopg.connect(url, autocommit=True) as connection:
        others = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        eventually(lambda: connection.execute(others).fetchone() is None)
        rows = connection.execute("SELECT relname, seq_scan FROM pg_stat_user_tables").fetchall()
        return {name: count for name, count in rows if name in LARGE}


def test_no_page_and_no_command_reads_a_large_table_from_its_beginning(
    bench_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = scans(bench_database)
    assert set(before) == set(LARGE)
    with Engine.connect(bench_database) as engine:
        console = Console(engine, lambda request: "olga")
        for target in pages_of(engine):
            assert page(console, target) == 200, target
        commands = commands_of(engine)
    for words in commands:
        assert main([*words, "--url", bench_database]) in (0, 1), words
    capsys.readouterr()
    assert scans(bench_database) == before


def plan_of(url: str, statement: Statement) -> str:
    text = re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", statement.text.replace("%", "%%"))
    with psycopg.connect(url) as connection:
        plan = connection.execute(f"EXPLAIN {text}", READ).fetchall()
    return "\n".join(line for (line,) in plan)


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (POSTGRES.statements("inbox")["open"], "semel_inbox_open"),
        (POSTGRES.statements("inbox")["standing"], "semel_inbox_open"),
        (SQL["find"], "Index Scan Backward using semel_record_seq"),
        (SQL["find_needing"], "semel_record_pkey"),
        (POSTGRES.statements("seals")["records_open"], "semel_record_pkey"),
    ],
)
def test_postgresql_reads_by_the_index(bench_database: str, statement: Statement, index: str) -> None:
    plan = plan_of(bench_database, statement)
    assert index in plan, plan
    assert not re.search(r"Seq Scan on semel_(record|inbox)", plan), plan


def test_an_inbox_without_the_index_works(bench_database: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = new_database()
    with migrate(url) as engine, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP INDEX semel_inbox_open")
        assert engine.perform("inbox", InboxRows(engine.store, "", 1, 0).backlog).tried == 0
        main(["doctor", "--url", url])
        assert "pending: waiting_messages" in " ".join(capsys.readouterr().out.split())
        assert engine.migrate() == ["waiting_messages"]
        assert engine.migrate() == []


@MARK
def test_mariadb_reads_waiting_messages_and_a_census_by_the_index() -> None:
    home = mariadb_home()
    with Engine(home.backend("pymysql")) as engine:
        rows = "INSERT INTO semel_inbox (consumer, message_id, handled_at, tries, forget_after) VALUES "
        many = ", ".join(f"('billing', 'm-{n}', {'NULL' if n < 3 else n}, 1, 9000000000000000)" for n in range(400))
        home.fetch(f"{rows}{many}")
        home.fetch("ANALYZE TABLE semel_inbox")
        for name in ("open", "standing"):
            text = MARIADB.statements("inbox")[name].text
            for parameter, value in {**READ, "now": 1}.items():
                text = re.sub(rf":{parameter}\b", "0" if value == 0 else repr(value), text)
            plan = home.fetch(f"EXPLAIN {text}")
            assert any("semel_inbox_open" in map(str, line) for line in plan), plan
        found = engine.perform("inbox", lambda: InboxRows(engine.store, "", 1, 0).open(("", ""), 50, parked=False))
        assert [each.message_id for each in found] == ["m-0", "m-1", "m-2"]
        assert engine.migrate() == []
        home.fetch("DROP INDEX semel_inbox_open ON semel_inbox")
        assert engine.migrate() == ["waiting_messages"]
        assert "find_needing" in MARIADB_SQL
        assert read_census(engine).attention == ()


def test_a_full_census_has_as_many_unknown_as_open_records(bench_database: str) -> None:
    with Engine.connect(bench_database) as engine:
        seen = read_census(engine, 20)
        states = [record.state for record in seen.attention]
        assert (seen.more, len(states)) == (True, 20)
        assert 9 <= states.count(State.UNKNOWN) <= 11
        whole = read_census(engine, 1_000)
        assert (whole.more, len(whole.lapsed), len(whole.unknown)) == (False, 40, 31)
