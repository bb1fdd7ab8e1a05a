"""`semel doctor` on real servers: their settings, their clock, their room, their connections and this user's rights."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from semel import Engine, Policy
from semel.cli.commands.stores.doctor import clock_offset
from semel.cli.main import main
from semel.errors import ConfigurationError
from semel.stores.findings import look_at_connections
from semel.stores.mariadb.doctor import defaults, rights
from semel.stores.postgres.doctor import room
from semel.stores.postgres.settings import judge, judge_rights
from semel.stores.redis.doctor import memory
from tests.servers import mariadb, postgres, redis

Capture = pytest.CaptureFixture[str]
SCHEMA = f"{postgres.schema()}_doctor"
ROLE = f"{SCHEMA}_role"


def run_doctor(url: str, capsys: Capture) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run doctor; return its exit code and its findings by check. The two must agree."""
    capsys.readouterr()
    code = main(["doctor", "--json", "--url", url])
    document = json.loads(capsys.readouterr().out)
    bad = [each for each in document["findings"] if each["level"] in ("warning", "problem")]
    assert document["healthy"] is not bad
    assert (code == 0) is not bool(bad)
    assert all(each["remedy"] for each in bad), bad
    return code, {each["check"]: each for each in document["findings"]}


@pytest.fixture
def owner() -> Iterator[psycopg.Connection[Any]]:
    """A migrated schema of this module's own, seen by a superuser; a role that may do all that a service needs."""
    with psycopg.connect(postgres.postgres(), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        with closing(Engine.connect(f"{postgres.postgres()}?schema={SCHEMA}")) as engine:
            engine.migrate()
        connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'hunter2'")
        connection.execute(f"GRANT USAGE ON SCHEMA {SCHEMA} TO {ROLE}")
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {SCHEMA} TO {ROLE}")
        yield connection
        connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
        connection.execute(f"DROP OWNED BY {ROLE}")
        connection.execute(f"DROP ROLE {ROLE}")


def url_of_role(scheme: str = "postgresql") -> str:
    place = urlsplit(postgres.postgres())
    return f"{scheme}://{ROLE}:hunter2@127.0.0.1:{place.port}/postgres?schema={SCHEMA}"


def test_a_sound_postgresql_is_healthy(owner: psycopg.Connection[Any], capsys: Capture) -> None:
    code, found = run_doctor(url_of_role(), capsys)
    assert code == 0, found
    assert found["durability"]["detail"] == "every commit waits for the log on disk"
    assert found["version"]["detail"].startswith("PostgreSQL ")
    assert "about 0 rows" in found["room"]["detail"]
    assert found["grants"]["level"] == "ok"
    assert "connections are taken" in found["connections"]["detail"]
    assert "with this host's within 0." in found["clock"]["detail"]
    assert found["schema"]["detail"] == "version 3, nothing pending"


def test_a_role_with_asynchronous_commits_counts_as_not_durable(
    owner: psycopg.Connection[Any], capsys: Capture
) -> None:
    """It is the connection's own setting that counts. EXTERNAL does not start; the URL may accept the loss by name."""
    owner.execute(f"ALTER ROLE {ROLE} SET synchronous_commit = off")
    code, found = run_doctor(url_of_role(), capsys)
    assert (code, found["durability"]["level"]) == (1, "problem")
    assert found["durability"]["remedy"] == "set synchronous_commit = on for this role or database"
    for options, policy, starts in (
        ("", Policy(effects="external"), False),
        ("", Policy(effects="idempotent"), True),
        ("", Policy(effects="atomic"), True),
        ("&persistence=none", Policy(effects="external"), True),
    ):
        with closing(Engine.connect(url_of_role() + options)) as engine:
            engine.core.needs.declare("payments.create", policy)
            if starts:
                engine.open()
            else:
                with pytest.raises(ConfigurationError, match=r"'payments\.create' .*Set synchronous_commit = on.*"):
                    engine.open()


def test_rights_that_are_missing_are_named(owner: psycopg.Connection[Any], capsys: Capture) -> None:
    owner.execute(f"REVOKE DELETE ON {SCHEMA}.semel_record FROM {ROLE}")
    code, found = run_doctor(url_of_role(), capsys)
    assert (code, found["grants"]["level"]) == (1, "warning")
    assert found["grants"]["remedy"] == "GRANT DELETE ON semel_record to this user"
    owner.execute(f"REVOKE SELECT ON {SCHEMA}.semel_event FROM {ROLE}")
    remedy = "GRANT SELECT ON semel_event to this user; GRANT DELETE ON semel_record to this user"
    assert run_doctor(url_of_role(), capsys)[1]["grants"]["remedy"] == remedy
    owner.execute(f"GRANT SELECT ON {SCHEMA}.semel_event TO {ROLE}")
    owner.execute(f"REVOKE UPDATE ON {SCHEMA}.semel_record FROM {ROLE}")
    assert run_doctor(url_of_role(), capsys)[1]["grants"]["level"] == "problem"
    with (
        closing(Engine.connect(url_of_role())) as engine,
        pytest.raises(
            ConfigurationError, match="no end of a command could be written: GRANT DELETE, UPDATE ON semel_record to"
        ),
    ):
        engine.open()  # not at the first settlement, when the handler has run


def test_tables_that_a_crash_empties_are_named(owner: psycopg.Connection[Any], capsys: Capture) -> None:
    owner.execute(f"CREATE UNLOGGED TABLE {SCHEMA}.doctor_cache (n integer)")
    code, found = run_doctor(url_of_role(), capsys)
    assert (code, found["tables"]["level"]) == (0, "note")
    assert "doctor_cache" in found["tables"]["detail"]
    owner.execute(f"ALTER TABLE {SCHEMA}.semel_record SET UNLOGGED")
    code, found = run_doctor(url_of_role(), capsys)
    assert (code, found["tables"]["level"]) == (1, "problem")
    assert found["tables"]["detail"].startswith("unlogged: semel_record, ")


CHECKED = """
from semel import Engine
from semel.functions import command
from semel.http.caller import single_caller

@command(Engine.connect({url!r}), "pay", key="order", caller=single_caller, effects={effects!r})
def pay(order: str) -> str:
    raise AssertionError("the function ran")
"""


def checked_tables(
    url: str, effects: str, folder: Path, patched: pytest.MonkeyPatch, capsys: Capture
) -> list[tuple[str, str]]:
    """What `semel check` answers about the tables of an application's database: level and answer."""
    (folder / "checked_tables.py").write_text(CHECKED.format(url=url, effects=effects))
    patched.syspath_prepend(folder)
    patched.delitem(sys.modules, "checked_tables", raising=False)
    capsys.readouterr()
    main(["check", "checked_tables", "--json"])
    told = json.loads(capsys.readouterr().out)["servers"]
    words = ("a commit of its own", "without transactions", "unlogged")
    return [(each["level"], each["answer"]) for each in told if any(word in each["answer"] for word in words)]


def test_check_names_unlogged_tables_of_atomic_operations(
    owner: psycopg.Connection[Any], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.execute(f"CREATE UNLOGGED TABLE {SCHEMA}.doctor_cache (n integer)")
    [(level, answer)] = checked_tables(url_of_role(), "atomic", tmp_path, monkeypatch, capsys)
    assert (level, "unlogged: " in answer, "doctor_cache" in answer) == ("open", True, True)
    assert checked_tables(url_of_role(), "external", tmp_path, monkeypatch, capsys) == []
    owner.execute(f"ALTER TABLE {SCHEMA}.semel_record SET UNLOGGED")
    [(level, answer)] = checked_tables(url_of_role(), "external", tmp_path, monkeypatch, capsys)
    assert (level, "unlogged: semel_record" in answer) == ("unsafe", True)


def test_foreign_tables_are_named(owner: psycopg.Connection[Any], capsys: Capture) -> None:
    owner.execute("CREATE FOREIGN DATA WRAPPER doctor_wrapper")
    try:
        owner.execute("CREATE SERVER doctor_server FOREIGN DATA WRAPPER doctor_wrapper")
        owner.execute(f"CREATE FOREIGN TABLE {SCHEMA}.doctor_far (n integer) SERVER doctor_server")
        _, found = run_doctor(url_of_role(), capsys)
    finally:
        owner.execute("DROP FOREIGN DATA WRAPPER doctor_wrapper CASCADE")
    assert found["tables"]["level"] == "note"
    assert "foreign: doctor_far; " in found["tables"]["detail"]


@pytest.mark.parametrize(
    ("changed", "check", "level"),
    [
        ({"server_version_num": "130012"}, "version", "unusable"),
        ({"synchronous_commit": "off"}, "durability", "forgets"),
        ({"fsync": "off"}, "durability", "warning"),
        ({"full_page_writes": "off"}, "pages", "warning"),
        ({"in_recovery": "on"}, "role", "warning"),
        ({"default_transaction_read_only": "on"}, "role", "warning"),
        ({"synchronous_standby_names": "b", "synchronous_commit": "local"}, "standbys", "warning"),
        ({"synchronous_standby_names": "b", "replicas": "1"}, "standbys", "ok"),
        ({"replicas": "1"}, "standbys", "warning"),
    ],
)
def test_each_doubtful_setting_of_postgresql(changed: dict[str, str], check: str, level: str) -> None:
    sound = {"server_version_num": "180000", "synchronous_commit": "on", "fsync": "on", "full_page_writes": "on"}
    assert {seen.level for seen in judge(sound)} == {"ok"}
    found = {seen.check: seen for seen in judge({**sound, **changed})}
    assert found[check].level == level
    assert bool(found[check].remedy) is (level != "ok")


@mariadb.MARK
def test_mariadb(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own server never waits for its disk, which is the one thing that is found."""
    run = mariadb.mariadb()
    server = replace(run, database=f"{run.database}_doctor")
    with closing(mariadb.connect(server.port)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE OR REPLACE DATABASE {server.database}")
        with closing(Engine.connect(mariadb.url(server))) as engine:
            engine.migrate()
        code, found = run_doctor(mariadb.url(server), capsys)
        assert (code, [name for name, each in found.items() if each["level"] == "warning"]) == (1, ["flush"])
        assert found["defaults"]["level"] == "ok"
        assert found["grants"]["level"] == "ok"
        assert found["tables"]["level"] == "ok"
        cursor.execute(f"CREATE TABLE {server.database}.log (n integer) ENGINE=MyISAM")
        listed = run_doctor(mariadb.url(server), capsys)[1]["tables"]
        assert (listed["level"], listed["detail"].partition(":")[0]) == ("note", "log (MyISAM) without transactions")
        [(level, answer)] = checked_tables(mariadb.url(server), "atomic", tmp_path, monkeypatch, capsys)
        assert (level, "log (MyISAM) without transactions" in answer) == ("open", True)
        cursor.execute(f"DROP TABLE {server.database}.log")
        assert "about 0 rows" in found["room"]["detail"]
        assert "connections are taken" in found["connections"]["detail"]
        assert "with this host's within 0." in found["clock"]["detail"]
        cursor.execute("CREATE OR REPLACE USER semel_doctor@'127.0.0.1' IDENTIFIED BY 'hunter2'")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE ON {server.database}.* TO semel_doctor@'127.0.0.1'")
        own = mariadb.url(server).replace(f"{server.user}:{server.password}@", "semel_doctor:hunter2@")
        assert run_doctor(own, capsys)[1]["grants"]["detail"] == "this user lacks DELETE on semel_record"
        cursor.execute("DROP USER semel_doctor@'127.0.0.1'")
        cursor.execute(f"DROP DATABASE {server.database}")


def test_redis(capsys: Capture) -> None:
    url = f"redis://127.0.0.1:{redis.valkey()}/0?prefix={redis.prefix()}&persistence=none"  # it syncs each second
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    code, found = run_doctor(url, capsys)
    assert code == 0, found
    assert "no maxmemory" in found["memory"]["detail"]
    assert "with this host's within 0." in found["clock"]["detail"]


def test_short_resources_are_reported() -> None:
    assert look_at_connections(89, 100).level == "ok"
    assert look_at_connections(90, 100).level == "warning"
    assert room(1 << 30, 1_000_000, 900_000).level == "ok"
    assert room(1 << 30, 1_000, 200_000).level == "warning"
    assert memory(89, 100).level == "ok"
    assert memory(90, 100).level == "warning"
    assert rights({"SELECT"}, has_role=True).level == "note"
    assert defaults("STRICT_TRANS_TABLES,NO_ZERO_DATE", "REPEATABLE-READ").level == "ok"
    assert judge_rights([("semel_audit", "SELECT")]).level == "warning"


def test_clocks_that_disagree_are_reported_with_their_distance() -> None:
    assert clock_offset(10_000_000, 13_000_000, 10_100_000).detail.startswith(
        "store and host are 3 s apart (the store is ahead)"
    )
    assert "the store is behind" in clock_offset(10_000_000, 7_000_000, 10_100_000).detail
    assert clock_offset(10_000_000, 11_500_000, 10_100_000).detail.endswith("within 1.400 s")
