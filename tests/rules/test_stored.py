"""How an answer lies in the store, which rows are sound, and which records belong on an operator's page."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel import Engine, Permit
from semel.core.decide import decide
from semel.core.model import AnswerKind, Find, Proceed, Record, Replay, Scope, State
from semel.core.outcomes import Succeeded
from semel.core.record import (
    answer_digest,
    answer_of,
    is_sound,
    matches,
    pack_headers,
    state_of,
    unpack_headers,
    uuid_of,
)
from semel.policy import Command, Policy
from semel.stores.memory.store import grant_row
from semel.testing.attempts import OK, attempt

NOW = 1_700_000_000_000_000
PLAIN = settings(derandomize=True, deadline=None, max_examples=60)
BLOCK = pack_headers(OK.headers)


def a_row() -> Record:
    claim = attempt(policy=Policy())
    verdict = decide(None, claim, NOW)
    assert isinstance(verdict, Proceed)
    return grant_row(None, claim, verdict.grant)


def make_answered() -> Record:
    digest = answer_digest(OK.status, BLOCK, OK.body)
    row = a_row()._replace(state=State.SUCCEEDED, answer_kind=AnswerKind.KEPT, answer_digest=digest)
    return row._replace(status=201, headers=BLOCK, body=OK.body)


class Name(StrEnum):
    """A text of the application's own class."""

    PAY = "pay"


@pytest.mark.parametrize("what", ["scope", "key", "recipe", "resource", "status"])
def test_an_answer_is_replayed_for_subclasses_of_str_and_int(what: str) -> None:
    engine = Engine.connect("memory://?persistence=none")
    given: dict[str, Any] = {"scope": Scope("acme", "alice", "pay"), "key": "pay-0001", "recipe": "demo"}
    if what in given:
        given[what] = Scope(Name.PAY, Name.PAY, Name.PAY) if what == "scope" else Name.PAY
    command = Command(**given, fingerprint=bytes(32), policy=Policy())
    assert {type(each) for each in (*command.scope, command.key)} == {str}
    permit = engine.claim(command)
    assert isinstance(permit, Permit)
    if what == "resource":
        permit.result(Name.PAY, Name.PAY)
    status = HTTPStatus.CREATED if what == "status" else 201
    engine.settle(permit, Succeeded(OK._replace(status=status)))
    again = engine.claim(command)
    assert isinstance(again, Replay)
    assert again.answer == OK._replace(status=201)
    engine.close()


# --- answers ---


@PLAIN
@given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=4))
def test_headers_are_read_back_pair_by_pair(pairs: list[tuple[bytes, bytes]]) -> None:
    """Also empty names and values, which take no byte but their lengths."""
    block = pack_headers(tuple(pairs))
    assert unpack_headers(block) == tuple(pairs)
    for end in range(len(block)):
        read = unpack_headers(block[:end])
        assert read is None or pack_headers(read) == block[:end]


@pytest.mark.parametrize(
    "block", [b"\x00", b"\x00\x01\x00\x00\x00", b"\x00\x01\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x02a"]
)
def test_a_block_that_ends_too_early_is_corrupt(block: bytes) -> None:
    assert unpack_headers(block) is None


def test_the_digest_is_framed_and_does_not_change() -> None:
    """It is stored, so it may not change: the bytes were computed from its definition."""
    assert answer_digest(201, b"", b"made").hex() == "beffda51eb8772475abe99c945b230f3"
    assert answer_digest(None, b"ab", b"c") != answer_digest(None, b"a", b"bc")
    assert len({answer_digest(status, b"", b"") for status in (None, -2, 0, 1)}) == 4


def test_a_kept_answer_is_read_back() -> None:
    assert answer_of(make_answered()) == OK


@pytest.mark.parametrize(
    "changes",
    [
        {"answer_kind": AnswerKind.NOT_KEPT},
        {"headers": None},
        {"headers": "text"},
        {"body": None},
        {"body": "made"},
        {"status": "201"},
        {"status": 200},
        {"body": b"mode"},
        {"answer_digest": None},
        {"headers": b"\x00", "answer_digest": answer_digest(201, b"\x00", b"made")},
    ],
)
def test_a_damaged_answer_is_not_an_answer(changes: dict[str, Any]) -> None:
    assert answer_of(make_answered()._replace(**changes)) is None


# --- rows ---

TIMES = ("created_at", "first_started_at", "lease_until", "deadline_at", "dedup_until", "fence")
SETTLED_TIMES = ("settled_at", "answer_until")


def sound_with(row: Record, column: str, value: Any) -> bool:
    return is_sound(row._replace(**{column: value}))


@pytest.mark.parametrize("column", [*TIMES, *SETTLED_TIMES])
def test_times_are_checked(column: str) -> None:
    """From 0 to the last that 57 bits hold, alone or beside the other one."""
    for base in (a_row(), a_row()._replace(settled_at=NOW, answer_until=NOW)):
        assert sound_with(base, column, 0)
        assert sound_with(base, column, 2**57 - 1)
        assert not sound_with(base, column, 2**57)
        assert not sound_with(base, column, -1)
        assert not sound_with(base, column, "soon")
        assert not sound_with(base, column, 1.0)


@pytest.mark.parametrize("column", Record._fields)
def test_every_column_is_checked_for_its_type(column: str) -> None:
    assert is_sound(make_answered())
    assert not sound_with(make_answered(), column, [1])
    nullable = "None" in str(Record.__annotations__[column])
    assert sound_with(make_answered(), column, None) is nullable


def test_a_missing_id_is_shown_as_zeros() -> None:
    row = a_row()
    assert uuid_of(row) == row.operation_id
    for damaged in ("text", b"short", b"x" * 17, None):
        assert uuid_of(row._replace(operation_id=damaged)) == bytes(16)  # type: ignore[arg-type]


def test_a_state_is_named_or_none() -> None:
    for state in State:
        assert state_of(a_row()._replace(state=int(state))) is state
    for damaged in (0, 99, "PROCESSING", None):
        assert state_of(a_row()._replace(state=damaged)) is None  # type: ignore[arg-type]


# --- an operator's page ---


@pytest.mark.parametrize(
    ("query", "belongs"),
    [
        (Find(), True),
        (Find(states=(State.PROCESSING,)), True),
        (Find(states=(State.UNKNOWN, State.PROCESSING)), True),
        (Find(states=(State.UNKNOWN,)), False),
        (Find(tenant="acme"), True),
        (Find(tenant="other"), False),
        (Find(tenant=""), False),
        (Find(caller="alice"), True),
        (Find(caller="bob"), False),
        (Find(operation="pay"), True),
        (Find(operation="refund"), False),
        (Find(tenant="acme", caller="alice", operation="pay", states=(State.PROCESSING,)), True),
        (Find(tenant="acme", caller="alice", operation="refund", states=(State.PROCESSING,)), False),
        (Find(tenant="acme", caller="bob", operation="pay", states=(State.PROCESSING,)), False),
        (Find(tenant="other", caller="alice", operation="pay", states=(State.PROCESSING,)), False),
        (Find(tenant="acme", caller="alice", operation="pay", states=(State.SUCCEEDED,)), False),
        (Find(tenant="other", lapsed=True), False),
        (Find(operation="refund", lapsed=True), False),
    ],
)
def test_a_page_contains_the_matching_records(query: Find, belongs: bool) -> None:
    row = a_row()
    assert matches(row, query, row.lease_until) is belongs


@pytest.mark.parametrize("state", State)
def test_a_lapsed_record_is_open_and_its_lease_is_over(state: State) -> None:
    row = a_row()._replace(state=state)
    is_open = state in (State.CLAIMED, State.PROCESSING)
    lapsed = Find(lapsed=True)
    assert matches(row, lapsed, row.lease_until) is is_open
    assert matches(row, lapsed, row.lease_until - 1) is False
    assert matches(row._replace(lease_until="never"), lapsed, row.lease_until) is False  # type: ignore[arg-type]
