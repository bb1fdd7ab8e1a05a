"""Bulks and imports with live progress, and messages that wait: what the pages show, and what they release."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import AsyncEngine, Bulk, Engine, ItemFailed
from semel.bulk.declaration import BulkItem
from semel.cli.main import main
from semel.imports import Csv, Imports, Row
from semel.inbox.run import Inbox, Poison
from semel.inbox.store import Receipt
from tests.bulk.fellows import mariadb_home
from tests.console.conftest import migrate
from tests.console.test_console import CANARY, EVIL, console, token_of

REFRESH = 'http-equiv="refresh"'
CASES = [{"clientItemId": f"{name}{EVIL if name == 'a' else ''}", "secret": CANARY} for name in "abcd"]


def link_of(page: str, text: str) -> str:
    found = re.search(rf'href="([^"]*)"[^>]*>{text}<', page)
    assert found is not None, page
    return found[1].replace("&amp;", "&")


def test_a_bulks_page_reloads_only_while_the_bulk_runs(engine: Engine) -> None:
    seen: dict[str, Any] = {}
    client = console(engine)

    def handler(item: BulkItem) -> str:
        if item.place == 2 and not seen:
            seen["list"] = client.get("/bulks").text
            id = re.search(r'href="/bulks/([0-9a-f-]{36})"', seen["list"])
            assert id is not None
            seen["one"] = client.get(f"/bulks/{id[1]}").text
            seen["stopped"] = client.get(f"/bulks/{id[1]}{link_of(seen['one'], 'Stop')}").text
        if item.place == 1:
            raise ItemFailed("CLOSED", retryable=True)
        return f"r-{item.place}"

    id = Bulk(engine, operation="count", effects="idempotent").run(CASES, handler, key=CANARY, caller=EVIL).operation_id
    assert REFRESH in seen["list"]
    assert REFRESH in seen["one"]
    assert "<progress" in seen["one"]
    assert REFRESH not in seen["stopped"]
    assert "Load it again by itself" in seen["stopped"]
    page = client.get(f"/bulks/{id}")
    assert page.status_code == 200
    assert REFRESH not in page.text
    assert "4 of 4 items: 3 succeeded, 1 failed (1 may be retried), 0 unknown" in page.text
    failed = client.get(f"/bulks/{id}?state=FAILED").text
    assert "CLOSED" in failed
    assert "r-2" not in failed
    assert f'href="/bulks/{id}"' in client.get(f"/records/{id}").text
    for text in (*seen.values(), page.text, client.get("/bulks").text):
        assert EVIL not in text
        assert CANARY not in text


def test_the_command_line_lists_the_same_bulks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    with migrate(url) as engine:
        bulk = Bulk(engine, operation="count", effects="atomic")
        ids = [bulk.run([{"n": 1}], lambda item: None, key=f"k{n}", caller="alice").operation_id for n in range(3)]
        page = console(engine).get("/bulks").text
        assert sorted(ids, key=page.index) == ids[::-1]
    assert main(["bulk", "--limit", "2", "--url", url]) == 0
    said = capsys.readouterr().out
    assert ids[2] in said
    assert ids[0] not in said
    assert f"--before {ids[1]}" in said
    assert main(["bulk", "--before", ids[1], "--url", url]) == 0
    assert ids[0] in capsys.readouterr().out
    assert main(["bulk", "--items", "all", "--url", url]) == 2
    assert "--items needs the KEY of a bulk" in capsys.readouterr().err


def test_an_import_shows_its_rows_without_the_files_contents(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    with migrate(url) as engine:
        client = console(engine)
        before: list[str] = []

        async def work() -> str:
            async with AsyncEngine.connect(url) as service:
                imports = Imports(service, operation="stock.import", formats=[Csv()])

                @imports.row
                async def book(row: Row) -> None:
                    if row.number == 2:
                        raise ItemFailed("CLOSED")

                job = await imports.submit(
                    f"n,secret\n1,{CANARY}\n2,{CANARY}\n3\n".encode(), supplier="ACME", filename=f"{EVIL}.csv"
                )
                before.append(await asyncio.to_thread(lambda: client.get(f"/imports/{job.id}").text))
                await imports.run_due()
                return job.id

        id = asyncio.run(work())
        assert REFRESH in before[0]
        page = client.get(f"/imports/{id}")
        assert page.status_code == 200
        assert REFRESH not in page.text
        assert "DONE, 3 of 3 rows, 1 booked, 0 skipped, 2 failed, 0 unknown" in page.text
        assert "CLOSED" in page.text
        listed = client.get("/imports?supplier=ACME&state=DONE").text
        assert id in listed
        assert id not in client.get("/imports?supplier=BETA").text
        with closing(sqlite3.connect(tmp_path / "semel.db")) as db:  # as if its process had died in the middle
            db.execute("UPDATE semel_import SET state = 2, next_at = created_at + 1")
            db.execute("UPDATE semel_import SET next_at = next_at - 600000000, created_at = created_at - 600000001")
            db.commit()
        stuck, stuck_list = (client.get(path).text for path in (f"/imports/{id}", "/imports"))
        for text in (stuck, stuck_list):
            assert "its lease ended 10 min ago, and no process has taken it over" in text
            assert "ImportWorker" in text
        assert REFRESH not in stuck  # nothing continues
        for text in (before[0], page.text, listed, stuck, stuck_list):
            assert CANARY not in text
            assert EVIL not in text


def park(engine: Engine, id: str) -> None:
    def fails(message: object) -> None:
        raise Poison(f"no such currency {EVIL}")

    assert Inbox(engine, consumer="billing").handle(id, fails) is Receipt.PARKED


def test_a_parked_message_is_counted_by_the_overview_and_warned_of_by_the_quick_doctor(engine: Engine) -> None:
    client = console(engine)
    assert "<b>0</b>messages parked" in client.get("/").text
    park(engine, "order-7")
    assert '<b class="bad">1</b>messages parked' in client.get("/").text
    page = client.get("/doctor").text
    assert "1 parked, the first for" in page
    assert "semel messages release" in page


def test_a_parked_message_is_released_only_in_the_state_that_was_shown(engine: Engine) -> None:
    park(engine, f"order-7{EVIL}")
    client = console(engine)
    page = client.get("/messages?parked=1").text
    assert EVIL not in page
    assert "no such currency" in page
    form = {
        "token": token_of(page),
        "consumer": "billing",
        "message": f"order-7{EVIL}",
        "seen": re.findall(r'name="seen" value="([^"]*)"', page)[0],
    }
    assert client.post("/messages", data={**form, "token": "x"}).status_code == 403
    assert console(engine, read_only=True).post("/messages", data=form).status_code == 403
    assert client.post("/messages", data=form, follow_redirects=False).status_code == 303
    assert client.post("/messages", data=form).status_code == 409
    park(engine, f"order-7{EVIL}")
    assert client.post("/messages", data=form).status_code == 409  # it was parked again since
    assert client.post("/messages", data={**form, "message": ""}).status_code == 400
    assert "1 parked" in client.get("/messages").text


def test_every_page_of_progress_works_on_mariadb() -> None:
    with Engine(mariadb_home().backend("pymysql")) as engine:
        ids = [
            Bulk(engine, operation="count", effects="idempotent")
            .run([{"n": 1}], lambda item: None, key=f"k{number}", caller="alice")
            .operation_id
            for number in range(2)
        ]
        park(engine, "order-7")
        client = console(engine)
        bulks = client.get("/bulks").text
        assert bulks.index(ids[1]) < bulks.index(ids[0])
        assert ids[1] not in client.get(f"/bulks?before={ids[1]}").text
        assert client.get(f"/bulks/{ids[0]}").status_code == 200
        assert client.get("/imports").status_code == 200
        assert "order-7" in client.get("/messages").text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/bulks?before=x", 400),
        ("/bulks/x", 404),
        ("/bulks/00000000-0000-7000-8000-000000000000", 404),
        ("/bulks/..%2f..%2fetc", 404),
        ("/imports?before=x", 400),
        ("/imports?state=NOTHING", 400),
        ("/imports?supplier=%00", 200),
        ("/imports/00000000-0000-7000-8000-000000000000", 404),
        ("/messages?consumer=" + "x" * 2000, 400),
        ("/messages?consumer=%00", 400),
    ],
)
def test_bad_parameters_get_an_error_page(engine: Engine, path: str, status: int) -> None:
    page = console(engine).get(path)
    assert page.status_code == status, page.text
    assert "<h1>" in page.text


def test_a_store_without_bulks_and_messages_is_reported() -> None:
    with Engine.connect("memory://?persistence=none") as engine:
        for path in ("/bulks", "/imports", "/messages", "/bulks/00000000-0000-7000-8000-000000000000"):
            page = console(engine).get(path)
            assert (page.status_code, "SQL database" in page.text) == (404, True), path
