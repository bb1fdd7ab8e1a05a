"""`semel explain`: the story of a record, as the rules give it, and every way to name the record."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from semel import Answer, Bulk
from semel.admin import filters
from semel.admin.explain import attempt_at
from semel.core.decide import TABLE, Situation
from semel.core.identity import uuid_bytes
from semel.core.model import State
from tests.cli.conftest import HOUR_US, Ran, Shelf

Run = Callable[..., Ran]
SCOPE = ["--tenant", "demo", "--caller", "alice", "--operation", "pay"]


def refuse(shelf: Shelf, key: str) -> str:
    with shelf.engine() as engine:
        return engine.run(shelf.command(key), lambda permit: Answer(409, (), b"no")).operation_id


def release(shelf: Shelf, key: str) -> str:
    with shelf.engine() as engine:
        return engine.run(shelf.command(key), lambda permit: Answer(429, (), b"later")).operation_id


STORIES: dict[str, tuple[Callable[[Shelf], str], str, Situation, str, str]] = {
    "running": (
        lambda shelf: shelf.abandon("k"),
        "believed alive",
        Situation.PROCESSING_LIVE,
        "Wait",
        "ask again",
    ),
    "lapsed": (
        lambda shelf: shelf.abandon("k", ago_us=HOUR_US),
        "expired",
        Situation.EXTERNAL_LAPSED,
        "semel settle",
        "finding out",
    ),
    "lapsed idempotent": (
        lambda shelf: shelf.abandon("k", effects="idempotent", ago_us=HOUR_US),
        "expired",
        Situation.IDEMPOTENT_LAPSED,
        "No action",
        "it runs",
    ),
    "succeeded": (
        lambda shelf: shelf.succeed("k"),
        "status 201",
        Situation.ANSWER_KEPT,
        "No action",
        "first answer",
    ),
    "refused": (lambda shelf: refuse(shelf, "k"), "status 409", Situation.REFUSAL_KEPT, "No action", "first answer"),
    "released": (lambda shelf: release(shelf, "k"), "http-429", Situation.NOTHING_HAPPENED, "No action", "it runs"),
    "expired": (
        lambda shelf: shelf.succeed("k", ago_us=HOUR_US, answer_seconds=60),
        "EXPIRED",
        Situation.EXPIRED,
        "No action",
        "your own reference",
    ),
    "expired, new": (
        lambda shelf: shelf.succeed("k", ago_us=HOUR_US, answer_seconds=60, after_expiry="new"),
        "EXPIRED",
        Situation.EXPIRED_NEW,
        "No action",
        "it runs",
    ),
    "unknown": (lambda shelf: shelf.unknown("k"), "ConnectionError", Situation.UNKNOWN, "semel settle", "finding out"),
}


@pytest.mark.parametrize(("make", "happened", "situation", "operator", "client"), STORIES.values(), ids=STORIES)
def test_the_explanation_follows_the_rules(
    semel: Run,
    shelf: Shelf,
    make: Callable[[Shelf], str],
    happened: str,
    situation: Situation,
    operator: str,
    client: str,
) -> None:
    operation_id = make(shelf)
    story = semel("explain", "k", *SCOPE, "--json").document["story"]
    rule = TABLE[situation]
    assert (story["sameRequest"]["verdict"], story["sameRequest"]["why"]) == (rule.verdict.__name__, rule.why)
    assert story["otherRequest"]["verdict"] == "KeyReused"
    assert story["otherRequest"]["answer"]["status"] == 422
    assert happened in " ".join(story["happened"])
    assert operator in " ".join(story["operator"])
    assert client in story["client"]
    text = semel("explain", operation_id)
    assert text.code == 0
    assert rule.why in " ".join(text.out.split())
    assert "k" not in text.out.split()  # the key itself is not stored, and not repeated


def test_a_lists_effects_are_its_items_own(semel: Run, shelf: Shelf) -> None:
    """The record of every list is EXTERNAL, with any effects of its items."""
    with shelf.engine() as engine:
        bulk = Bulk(engine, operation="cases.approve", effects="atomic")
        bulk.run([{"clientItemId": "a"}], lambda item: None, key="list-1", caller="alice")
    [first, *_] = semel("explain", "list-1", "--json").document["story"]["happened"]
    assert "EXTERNAL" not in first
    assert "each item has the effects that its declaration says" in first


def test_the_end_of_retention_is_shown(semel: Run, shelf: Shelf) -> None:
    shelf.succeed("kept")
    shelf.unknown("open")
    shelf.succeed("over", ago_us=2 * HOUR_US, answer_seconds=60, tombstone_seconds=60)
    kept = {key: semel("explain", key, "--json").document["story"]["kept"] for key in ("kept", "open", "over")}
    assert "is replayed until 20" in kept["kept"]
    assert "is new afterwards" in kept["kept"]
    assert "never expire" in kept["open"]
    assert "next purge" in kept["over"]


def test_the_settling_actor_and_a_new_generation_are_shown(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.unknown("k", ago_us=HOUR_US)
    assert semel("settle", operation_id, "--did-not-happen", "--reason", "no charge", "--actor", "olga").code == 0
    happened = " ".join(semel("explain", "k", "--json").document["story"]["happened"])
    assert "olga settled it (did-not-happen): no charge" in happened
    assert "generation 1" in happened


def test_explain_reports_that_a_running_command_cannot_be_settled_before_its_deadline(semel: Run, shelf: Shelf) -> None:
    shelf.unknown("k", ago_us=60_000_000)  # the deadline is five minutes
    assert "only with --force" in " ".join(semel("explain", "k", "--json").document["story"]["operator"])


# --- naming the record --------------------------------------------------------------------------


def test_every_name_leads_to_the_record(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.unknown("rent-june", operation="ship")
    shown = semel("show", operation_id, "--json").document
    names = (
        *("rent-june", '"rent-june"', operation_id, operation_id.replace("-", ""), operation_id[:13]),
        *(shown["recordId"], shown["recordId"][:8], shown["keyHash"], shown["keyHash"][:6].upper()),
    )
    for name in names:
        assert semel("explain", name, "--json").document["operationId"] == operation_id, name
    for name in names[2:]:
        assert semel("show", name, "--json").document["operationId"] == operation_id, name


def test_a_key_that_is_a_uuid_is_a_key(semel: Run, shelf: Shelf) -> None:
    key = "8e03978e-40d5-43e8-bc93-6894a57f9324"
    operation_id = shelf.succeed(key)
    assert semel("explain", key, "--json").document["operationId"] == operation_id
    assert semel("explain", key, *SCOPE, "--json").document["operationId"] == operation_id


def test_several_records_are_listed_and_the_scope_distinguishes_them(semel: Run, shelf: Shelf) -> None:
    ids = {caller: shelf.succeed("same", caller=caller) for caller in ("alice", "bob")}
    ran = semel("explain", "same")
    assert ran.code == 1
    assert all(id in ran.err for id in ids.values())
    assert semel("explain", "same", "--caller", "bob", "--json").document["operationId"] == ids["bob"]


def test_a_key_without_a_record_names_other_scopes(semel: Run, shelf: Shelf) -> None:
    shelf.succeed("same")
    nowhere = semel("explain", "other")
    assert nowhere.code == 4
    assert "as a new command" in nowhere.err
    elsewhere = semel("explain", "same", "--tenant", "demo", "--caller", "bob", "--operation", "pay")
    assert elsewhere.code == 4
    assert "pay of demo/alice" in elsewhere.err
    assert semel("show", "abcdef").code == 4
    assert semel("explain", "a b").code == 2
    assert semel("show", "abcde").code == 2


def test_a_search_goes_through_every_page(semel: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    oldest = shelf.succeed("key-0")
    for number in range(1, 5):
        shelf.succeed(f"key-{number}")
    monkeypatch.setattr(filters.pages, "__defaults__", (2,))
    assert semel("explain", "key-0", "--json").document["operationId"] == oldest


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [("state", 99), ("lease_until", "'soon'"), ("created_at", -5), ("operation_id", "'none'"), ("recipe", "x'ff'")],
)
@pytest.mark.parametrize(
    "arguments", [["list"], ["watch", "--count", "1"], ["export"], ["doctor"], ["config"]], ids=str
)
def test_a_damaged_record_is_shown_and_explained(
    semel: Run, shelf: Shelf, column: str, value: Any, arguments: list[str]
) -> None:
    shelf.succeed("k")
    with closing(sqlite3.connect(shelf.path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints=1")
        connection.execute(f"UPDATE semel_record SET {column} = {value}")
    story = semel("explain", "k", *SCOPE, "--json").document["story"]
    assert story["sameRequest"]["verdict"] == "Unreadable"
    assert "backup" in " ".join(story["operator"])
    ran = semel(*arguments)
    assert ran.code in (0, 1)
    assert "Traceback" not in ran.err


def test_the_prediction_uses_the_record_as_it_is(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.succeed("k")
    raw = uuid_bytes(operation_id)
    assert raw is not None
    with shelf.engine() as engine:
        [record] = engine.perform("read", lambda: engine.store.read_operations((raw,)))
    assert record is not None
    corrupt = record._replace(body=b"another body")
    assert attempt_at(corrupt, record.fingerprint, record.created_at + 1).verdict == "Unreadable"
    running = record._replace(state=State.CLAIMED, settled_at=None, answer_kind=0)
    assert attempt_at(running, record.fingerprint, record.lease_until).verdict == "Proceed"


def test_show_prints_lapsed_only_as_true(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.abandon("k", ago_us=HOUR_US)
    with shelf.engine() as engine:
        engine.perform("lapse", lambda: engine.store.lapse(10))
    shown = semel("show", operation_id)
    assert ["lapsed", "True"] in [line.split() for line in shown.out.splitlines()]
    assert "False" not in shown.out
    assert semel("show", operation_id, "--json").document["lapsed"] is True
    assert "False" not in semel("show", shelf.unknown("other")).out


def test_a_prefix_that_is_too_short_is_refused_with_the_least_length(semel: Run, shelf: Shelf) -> None:
    id = shelf.unknown("k", ago_us=HOUR_US)
    short = semel("explain", id[:4])
    assert (short.code, "give at least 6 hex digits" in short.err) == (4, True)
    assert "hex digits" not in semel("explain", "pay-2").err
    assert semel("explain", id[:13]).code == 0


@pytest.mark.parametrize("words", [("settle", "pay-2", "--did-not-happen", "--reason", "x"), ("show", "order-1")])
def test_a_key_in_place_of_an_id_is_referred_to_explain(semel: Run, shelf: Shelf, words: tuple[str, ...]) -> None:
    shelf.unknown("pay-2", ago_us=HOUR_US)
    refused = semel(*words)
    assert (refused.code, "semel explain KEY" in refused.err) == (2, True)
    assert "semel settle" in semel("explain", "pay-2").out
