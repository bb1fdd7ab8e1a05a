"""What fuzzing has found, each as its own test: it stays found."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel.core.decide import decide, first_grant
from semel.core.identity import uuid_text
from semel.core.model import MovedOn, Resolution, State, Superseded, Unreadable
from semel.core.settle import abandon_row, lapse_row, mark_row, renew_row, settle_row
from semel.errors import InvalidKey, StoreUnavailable, UrlError
from semel.http.routing import Operation
from semel.keys import parse_key
from semel.operations.http import Operations
from semel.policy import Policy
from semel.reconciliation.resolutions import resolve_row
from semel.stores.memory.store import grant_row
from semel.stores.sqlite.connection import store_error
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.store import SqliteStore
from semel.stores.urls import connect_backend
from semel.testing.attempts import IDEMPOTENT, attempt, renewal, settlement
from semel.testing.clock import START_US
from tests.web.driving import ALICE, AsgiWeb, Reply


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite://]", "host"),
        ("memory://][?", "host"),
        ("sqlite://\u2100/x", "host"),
        ("sqlite:///~nobody-here-of-that-name/x", "home folder of an unknown user"),
        ("sqlite:///x\0y.db", "NUL"),
        ("sqlite:///x%00y.db", "NUL"),
        ("sqlite:////", "needs a file"),
        ("sqlite:///data/", "needs a file"),
        ("sqlite://user:s3cret@host/x.db", "three slashes"),
    ],
)
def test_an_odd_url_is_a_url_error_that_repeats_no_password(url: str, told: str) -> None:
    with pytest.raises(UrlError, match=told) as caught:
        connect_backend(url)
    assert "s3cret" not in str(caught.value)


DAMAGES: dict[str, dict[str, Any]] = {
    "a time that is text": {"lease_until": "soon"},
    "a time that is no time": {"answer_until": 2**60},
    "a fence that is missing": {"fence": None},
    "an id that is text": {"operation_id": "not an id"},
    "another record's id": {"id": bytes(16)},
    "an attempt that is bytes": {"attempt": b"\x01", "state": State.FAILED_NOT_REPLAYABLE},
    "settled, and yet running": {"state": State.PROCESSING},
    "settled, and yet only claimed": {"state": State.CLAIMED},
    "answered, and yet nothing happened": {"state": State.FAILED_NOT_REPLAYABLE},
}


@pytest.mark.parametrize("columns", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_record_is_unreadable_and_is_left_as_it_is(columns: dict[str, Any]) -> None:
    claim = attempt()
    grant = first_grant(claim, START_US)
    _, row = settle_row(grant_row(None, claim, grant), settlement(grant), START_US)
    assert row is not None
    row = row._replace(**columns)
    verdict = decide(row, attempt(nonce=2), START_US + 10**9)
    assert isinstance(verdict, Unreadable)
    assert verdict.reason == "corrupt"
    assert len(verdict.operation_id) == 16
    assert abandon_row(row, row.nonce, START_US) is None or row.settled_at is not None
    assert lapse_row(row, START_US) is None


def test_a_running_record_with_a_damaged_time_stops_neither_its_holder_nor_the_reaper() -> None:
    claim = attempt(policy=IDEMPOTENT)
    grant = first_grant(claim, START_US)
    row = grant_row(None, claim, grant)._replace(dedup_until="never")  # type: ignore[arg-type]  # as SQLite may hold
    assert renew_row(row, renewal(grant), START_US) is None
    assert mark_row(row, renewal(grant)) is None
    assert abandon_row(row, row.nonce, START_US) is None
    assert lapse_row(row, START_US + 10**12) is None
    assert settle_row(row, settlement(grant), START_US) == (Superseded(None), None)
    assert resolve_row(row, Resolution(row.id, row.fence, False, None, "ops", "why"), START_US) == (
        MovedOn(None),
        None,
    )


def test_the_status_of_a_damaged_operation_is_refused_without_a_traceback() -> None:
    web = AsgiWeb(lambda seen: Reply(), operations=[Operation("/payments", Policy())])
    try:
        assert web.call().status == 201
        [row] = web.records()
        table = web.engine.backend.driver._table
        table.records[row.id] = row._replace(settled_at="then")
        operations = Operations(web.middleware.surface, web.engine, lambda: ["POST /payments"])
        request = {"state": {"user": ALICE}}
        answer = web.runner.run(operations.by_id(uuid_text(row.operation_id), request))
        assert answer.status == 500
        assert b"IDEMPOTENCY_RECORD_UNREADABLE" in answer.body
        assert web.call().code == "IDEMPOTENCY_RECORD_UNREADABLE"
        assert len(web.seen) == 1
    finally:
        web.close()


def make_file(path: Path) -> SqliteDriver:
    """A database file with one running record of alice."""
    store, driver = SqliteStore(), SqliteDriver(str(path))
    driver.run(lambda: store.migrate("a-store", b"none"))
    driver.run(lambda: store.claim([attempt()]))
    driver.close()
    return driver


def test_text_that_is_not_utf8_is_a_damaged_file_and_is_not_repeated(tmp_path: Path) -> None:
    driver = make_file(tmp_path / "semel.db")
    with closing(sqlite3.connect(driver.path)) as connection, connection:
        connection.execute("UPDATE semel_record SET caller = CAST(x'616c696365ff' AS TEXT)")
    try:
        with pytest.raises(StoreUnavailable, match="damaged: restore it") as caught:
            driver.run(lambda: SqliteStore().claim([attempt(nonce=2)]))
    finally:
        driver.close()
    assert "alice" not in str(caught.value)


def test_a_schema_that_is_not_utf8_is_a_damaged_file(tmp_path: Path) -> None:
    driver = make_file(tmp_path / "semel.db")
    with closing(sqlite3.connect(driver.path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE").fetchall()
    content = (tmp_path / "semel.db").read_bytes()
    # SQLite quotes the unknown word in its message, and Python cannot decode the quotation.
    (tmp_path / "semel.db").write_bytes(content.replace(b"CREATE TABLE semel_audit", b"CREATE T\xffBLE semel_audit"))
    try:
        for verb in (SqliteStore().identity, lambda: SqliteStore().claim([attempt(nonce=2)])):
            with pytest.raises(StoreUnavailable, match="damaged: restore it"):
                driver.run(verb)
    finally:
        driver.close()


def test_a_display_string_among_the_parameters_has_no_escapes() -> None:
    # RFC 9651, 3.3.8: a backslash stands for itself there, so the quote behind it ends the parameter.
    assert parse_key([rb'"abc";note=%"C:\";w=1']) == "abc"
    with pytest.raises(InvalidKey):
        parse_key([rb'"abc";note=%"C:\"x";w=1'])


def test_an_error_that_quotes_a_damaged_schema_is_one_line() -> None:
    told = str(
        store_error(sqlite3.DatabaseError('malformed database schema (x) - unrecognized token: "\'\n    act\n"'))
    )
    assert "\n" not in told
    assert "malformed database schema" in told
