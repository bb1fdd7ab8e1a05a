"""Lists look at a bounded number of records, and lead on: nothing is hidden in a store of any size."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bench.tenmillion import build, measure
from semel import Answer, Engine, Permit
from semel.admin import filters
from semel.admin.move.rows import pages_of
from semel.cli.main import main
from semel.core.contract import Store
from semel.core.identity import uuid_text
from semel.core.model import Find, State
from semel.stores.redis import pages
from semel.stores.sql import tables
from semel.stores.sqlite.store import SQL, SqliteStore
from semel.testing.clock import SettableClock
from tests.bulk.fellows import mariadb_home
from tests.console.conftest import migrate
from tests.console.test_console import command, console, pay_with_canary, step_in_doubt, unknown
from tests.servers import redis
from verification.subjects.redis import redis_subject


def make(permit: Permit) -> Answer:
    return Answer(201, (), b"")


def test_a_filter_reads_a_bounded_number_and_links_to_the_rest(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    walks_to_the_rare_one(engine, monkeypatch)


def test_bounded_reads_on_mariadb(monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(mariadb_home().backend("pymysql")) as engine:
        walks_to_the_rare_one(engine, monkeypatch)


def test_bounded_reads_on_redis_and_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Engine(redis_subject("127.0.0.1", redis.valkey(), redis.prefix(), SettableClock()).backend)
    stored.migrate()
    with stored as engine:  # it looks at some of each of its 64 parts
        walks_to_the_rare_one(engine, monkeypatch, others=400)
    with Engine.connect("memory://?persistence=none") as engine:
        walks_to_the_rare_one(engine, monkeypatch)


def test_more_unknown_records_than_a_page_reads_appear_page_by_page(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that is longer than a page may read is not read: its page walks along the newest records."""
    look_at_most(4, type(engine.store), monkeypatch)
    lost = {unknown(engine, f"lost-{number}") for number in range(6)}
    for number in range(9):
        engine.run(command(f"k{number}"), make)
    query, clicks, seen = Find(states=(State.UNKNOWN,), limit=50), 0, list[str]()
    while True:
        page = filters.find_bounded(engine, query)
        seen += [uuid_text(record.operation_id) for record in page.records]
        if page.next_before is None:
            break
        query, clicks = query._replace(before=page.next_before), clicks + 1
    assert (set(seen), len(seen)) == (lost, 6)
    assert clicks >= 3
    look_at_most(6, type(engine.store), monkeypatch)
    whole = filters.find_bounded(engine, Find(states=(State.UNKNOWN,), limit=50))
    assert (len(whole.records), whole.next_before) == (6, None)  # at one look: the list fits


def test_the_command_prints_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look_at_most(5, SqliteStore, monkeypatch)
    url = f"sqlite:///{tmp_path}/semel.db"
    with migrate(url) as engine:
        engine.run(command("k", caller="rare"), pay_with_canary)
        for number in range(7):
            engine.run(command(f"k{number}"), pay_with_canary)

    def list_records(*more: str) -> dict[str, Any]:
        assert main(["list", "--caller", "rare", "--url", url, *more]) == 0
        said = capsys.readouterr()
        return {"out": said.out, "err": said.err, **(json.loads(said.out) if "--json" in more else {})}

    first = list_records("--json")
    assert first["records"] == []
    assert f"--before {first['nextBefore']}, or --whole" in " ".join(list_records()["out"].split())
    rest = list_records("--json", "--before", str(first["nextBefore"]))
    assert ([each["caller"] for each in rest["records"]], rest["nextBefore"]) == (["rare"], None)
    assert [each["caller"] for each in list_records("--json", "--whole")["records"]] == ["rare"]
    assert list_records("--json", "--before", str(2**63 - 1))["records"] == []
    assert main(["list", "--before", str(2**63), "--url", url]) == 2


def look_at_most(records: int, store: type[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "capabilities", replace(store.capabilities, looks_max=records))


def walks_to_the_rare_one(engine: Engine, monkeypatch: pytest.MonkeyPatch, *, others: int = 12) -> None:
    look_at_most(5, type(engine.store), monkeypatch)
    monkeypatch.setattr(pages, "EACH_MOST", 1)
    engine.run(command("k", caller="rare"), make)
    for number in range(others):
        engine.run(command(f"k{number}"), make)
    lost = unknown(engine, "lost")
    client = console(engine)
    path, clicks = "/records?caller=rare", 0
    while "acme/rare" not in (page := client.get(path).text):
        older = re.search(r'href="([^"]+)">Older', page)
        assert older is not None, page
        assert "among the newest ones" in page
        path, clicks = older[1].replace("&amp;", "&"), clicks + 1
    assert clicks >= 1
    assert lost in client.get("/records?state=UNKNOWN").text
    assert "payments.create" in client.get("/records").text
    seen = [filters.find_bounded(engine, Find(operation="payments.create", limit=50))]
    while seen[-1].next_before is not None:
        seen.append(filters.find_bounded(engine, Find(operation="payments.create", before=seen[-1].next_before)))
    assert sum(len(each.records) for each in seen) == others + 2  # each once


@pytest.mark.parametrize("stretch", [1, 3, 20])
def test_a_filtered_walk_finds_each_record_once_with_any_statement_limit(
    engine: Engine, stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "STRETCH", stretch)
    lost = {step_in_doubt(engine, f"lost-{number}", [])[0] for number in range(5)}
    for number in range(8):
        engine.run(command(f"k{number}"), make)
    for size in (1, 2, 50):
        few = tables.STEPS._replace(page=size)
        found = list(pages_of(engine, few))
        assert sorted(uuid_text(cast(bytes, row[1])) for each in found for row in each) == sorted(lost)
        assert all(len(each) <= size for each in found)


def test_the_engine_reads_the_store_of_the_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Small here; ten million take minutes."""
    build(tmp_path / "semel.db", 2_000, unknown=30, items=50)
    measure(f"sqlite:///{tmp_path}/semel.db", rounds=1)
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert set(lines) == {"200", "semel"}
    with Engine.connect(f"sqlite:///{tmp_path}/semel.db") as engine:
        [record] = engine.perform(
            "find", lambda: engine.store.find(Find(caller="rare", states=(State.SUCCEEDED,)))
        ).records
        assert record.status == 201


def test_lists_on_sqlite_walk_an_index(tmp_path: Path) -> None:
    with migrate(f"sqlite:///{tmp_path}/semel.db") as engine:
        asked: list[str] = []
        with closing(sqlite3.connect(tmp_path / "semel.db")) as db:
            values = {"before": None, "after": 0, "states": ",1,2,", "tenant": None, "caller": "x", "operation": None}
            values |= {"lapsed": 1, "now": 0, "limit": 50}
            for name in ("find_records", "find_open"):
                plan = db.execute(
                    f"EXPLAIN QUERY PLAN {SQL[name].text}", {**values, "lapsed": 1, "now": 0, "limit": 50}
                )
                asked.append(" ".join(str(row[3]) for row in plan))
        assert engine.backend.name == "sqlite"
    assert "rowid>? AND rowid<?" in asked[0], asked
    assert "semel_record_open" in asked[1], asked
