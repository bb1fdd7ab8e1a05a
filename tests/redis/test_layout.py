"""How a record lies in its string, and where it stands in lists."""

from __future__ import annotations

from typing import Any

import pytest

from semel import Policy
from semel.core.decide import first_grant
from semel.core.model import AnswerKind, Record, State
from semel.core.settle import lapse_row, settle_row
from semel.stores.memory.store import grant_row
from semel.stores.redis.keys import TAGS, below, newer_first
from semel.stores.redis.layout import HEAD_BYTES, Damaged, Names, decode, decode_any, encode, record_prefix
from semel.stores.redis.rows import LUA, due_at
from semel.stores.redis.store import frame_names, names_of
from semel.testing.attempts import EXTERNAL, IDEMPOTENT, attempt, word

NOW = 1_700_000_000_000_000


def settled() -> Record:
    claim = attempt()
    grant = first_grant(claim, NOW)
    _, row = settle_row(grant_row(None, claim, grant), word(grant), NOW + 1)
    assert row is not None
    return row


def test_a_record_is_read_as_it_was_written() -> None:
    row = settled()
    assert decode(encode(row)) == row
    assert decode(encode(row), small=True) == row._replace(headers=None, body=None)
    for other in (
        {"request": b"kept"},
        {"headers": b"", "body": b""},
        {"headers": None},
        {"request": b"1:", "body": None},
    ):
        assert decode(encode(row._replace(**other))) == row._replace(**other)
    assert encode(row).startswith(record_prefix(row))


def test_a_string_that_was_cut_or_damaged_is_no_record() -> None:
    """Every length of it, and every head: refused as unreadable, never an error of ours."""
    data = encode(settled())
    for length in range(len(data)):
        with pytest.raises(Damaged):
            decode(data[:length])
    for place in range(HEAD_BYTES):
        found = decode_any(data[:place] + b"\xff" + data[place + 1 :], b"i" * 16)
        assert found.id == b"i" * 16
        assert found.format == 0


@pytest.mark.parametrize("damaged", [False, True])
def test_what_a_claim_knows_already_changes_nothing_of_what_is_read(damaged: bool) -> None:
    """Its own names or another one's, of records with and without an answer, whole and cut at every length."""
    mine, other = attempt(), attempt(key="another", request=7)
    open_row = grant_row(None, mine, first_grant(mine, NOW))
    for row in (open_row, settled(), settled()._replace(headers=b"", body=b""), settled()._replace(request=b"kept")):
        data = encode(row)
        if damaged:
            data = data[: HEAD_BYTES + 2] + b"\xff" + data[HEAD_BYTES + 3 :]
        for claim in (mine, other):
            names = names_of(claim, frame_names(claim))
            for end in range(HEAD_BYTES, len(data) + 1):
                assert decode_any(data[:end], b"i", names=names) == decode_any(data[:end], b"i")
    assert decode(encode(open_row), names=Names(frame_names(mine), tuple("abcdefg"))).tenant == "b"


@pytest.mark.parametrize("policy", [EXTERNAL, IDEMPOTENT, Policy(effects="idempotent", attempts_max=1)])
@pytest.mark.parametrize("back", [False, True])
def test_a_lapse_is_due_exactly_when_the_rule_marks_it(policy: Policy, back: bool) -> None:
    claim = attempt(policy=policy)
    row = grant_row(None, claim, first_grant(claim, NOW))
    if back:
        row = row._replace(lease_until=0, lapses=policy.attempts_max)
    due = due_at(row)
    assert due is not None
    assert lapse_row(row, max(due, 1)) is not None
    if due > 0:
        assert lapse_row(row, due - 1) is None


def test_what_is_not_processing_is_never_due() -> None:
    claim = attempt()
    row = grant_row(None, claim, first_grant(claim, NOW))
    for state in set(State) - {State.PROCESSING}:
        assert due_at(row._replace(state=state)) is None
    assert row.answer_kind == AnswerKind.NONE


def test_a_cursor_stands_between_all_tags() -> None:
    places: list[Any] = [newer_first(place, tag) for place in range(3, 6) for tag in range(TAGS)]
    assert places == sorted(places)
    for cursor in places:
        for tag in range(TAGS):
            last = int(below(cursor, tag))
            assert newer_first(last, tag) < cursor <= newer_first(last + 1, tag)


def test_no_script_that_ends_a_command_is_stopped_by_a_full_server() -> None:
    free = {name for name, script in LUA.items() if b"allow-oom" in script.text.split(b"\n")[0]}
    reading = {name for name, script in LUA.items() if b"no-writes" in script.text.split(b"\n")[0]}
    assert set(LUA) - free - reading == {"claim", "mark", "migrate", "version"}
    assert {name for name, script in LUA.items() if not script.writes} == {"look", "due", "earliest"}
