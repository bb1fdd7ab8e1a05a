"""How a record lies in its string, and where it stands in lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from semel import Policy
from semel.core.decide import decide, first_grant
from semel.core.model import AnswerKind, Claim, Proceed, Record, Replay, State, Verdict
from semel.core.record import answer_digest
from semel.core.settle import lapse_row, settle_row
from semel.stores.memory.store import grant_row
from semel.stores.redis.keys import TAGS, below, newer_first
from semel.stores.redis.layout import HEAD_BYTES, Damaged, decode, decode_any, encode, record_prefix
from semel.stores.redis.rows import LUA, due_at
from semel.stores.redis.store import RedisStore
from semel.testing.attempts import EXTERNAL, IDEMPOTENT, attempt, settlement

NOW = 1_700_000_000_000_000


def make_settled(claim: Claim | None = None) -> Record:
    claim = claim or attempt()
    grant = first_grant(claim, NOW)
    _, row = settle_row(grant_row(None, claim, grant), settlement(grant), NOW + 1)
    assert row is not None
    return row


MATE = attempt(key="mate", nonce=9)
MATES = encode(make_settled(MATE))  # its record's string


def test_a_record_is_read_as_it_was_written() -> None:
    row = make_settled()
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
    data = encode(make_settled())
    for length in range(len(data)):
        with pytest.raises(Damaged):
            decode(data[:length])
    for place in range(HEAD_BYTES):
        found = decode_any(data[:place] + b"\xff" + data[place + 1 :], b"i" * 16)
        assert found.id == b"i" * 16
        assert found.format == 0


def meet(data: bytes, claim: Claim, now: int) -> Verdict | None:
    """The verdict of a claim on a stored string, alone and beside another one; None if the claim proceeds."""
    alone = batch_met([data], [claim], now)
    verdict = None if alone is None else alone[0]
    for order in (1, -1):
        beside = batch_met([data, MATES][::order], [claim, MATE][::order], now)
        assert (beside and beside[::order][0]) == verdict
    assert looked_at([data], [claim], now) == [verdict if type(verdict) is Replay else None]
    found = [[seen] for seen in looked_at([data, MATES], [claim, MATE], now)]
    assert found == [looked_at([data], [claim], now), looked_at([MATES], [MATE], now)]
    return verdict


def looked_at(strings: Sequence[bytes], claims: Sequence[Claim], now: int) -> list[Replay | None]:
    """Return the verdict of a look on the same string."""
    look = RedisStore("shop").look_kept
    assert look is not None
    flow = look([(claim.id, claim.recipe, claim.fingerprint) for claim in claims])
    next(flow)
    with pytest.raises(StopIteration) as end:
        flow.send([[now, *strings]])
    return list(end.value.value)


def batch_met(strings: Sequence[bytes], claims: Sequence[Claim], now: int) -> Sequence[Verdict] | None:
    flow = RedisStore("shop").claim(claims)
    next(flow)
    try:
        flow.send([[now, *strings]])
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    return None


def expect(data: bytes, claim: Claim, now: int) -> Verdict | None:
    """The same verdict, by the rules alone."""
    verdict = decide(decode_any(data, claim.id), claim, now, begun=False)
    return None if isinstance(verdict, Proceed) else verdict


ANSWERED: tuple[dict[str, Any], ...] = (
    {},
    {"state": State.FAILED_REPLAYABLE, "status": 404},
    {"headers": b"", "body": b""},
    {"body": b"-1:3:201" * 40},
    {"resource_type": "payment", "resource_id": "7"},
    {"answer_until": None},
)


def encode_answered(changes: dict[str, Any]) -> bytes:
    row = make_settled()._replace(**changes)
    digest = answer_digest(row.status, row.headers or b"", row.body or b"")
    return encode(row._replace(answer_digest=digest))


@pytest.mark.parametrize("changes", ANSWERED)
def test_a_kept_answer_is_recognised_as_the_rules_recognise_it(changes: dict[str, Any]) -> None:
    """By the same request, another one, and one under another recipe; as long as it is kept, and afterwards."""
    data = encode_answered(changes)
    until = make_settled().answer_until
    assert until is not None
    others = attempt(key="another"), attempt(request=7), attempt()._replace(recipe="2.other")
    for claim in (attempt(), attempt(nonce=2), *others):
        for now in (NOW + 2, until - 1, until, until + 1):
            assert meet(data, claim, now) == expect(data, claim, now)
    assert isinstance(meet(data, attempt(), NOW + 2), Replay)


@pytest.mark.parametrize("changes", ANSWERED[:3])
def test_a_kept_answer_is_not_decoded(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.stores.redis.store.decode_any", None)
    assert isinstance(meet(encode_answered(changes), attempt(), NOW + 2), Replay)


@pytest.mark.parametrize("changes", ANSWERED[:3])
def test_damage_is_noticed_in_a_kept_answer(changes: dict[str, Any]) -> None:
    """Every byte of it, and every length: what is no replay by the rules is none by its bytes."""
    data, claim = encode_answered(changes), attempt()
    for place in range(len(data)):
        for byte in (b"\xff", b"\0", b" ", b"-", b"0", b"7", b"a", b":"):
            changed = data[:place] + byte + data[place + 1 :]
            assert meet(changed, claim, NOW + 2) == expect(changed, claim, NOW + 2), (place, byte)
        assert meet(data[:place], claim, NOW + 2) == expect(data[:place], claim, NOW + 2), place
    for more in (b"x", b"-1:", b"3:x"):
        assert meet(data + more, claim, NOW + 2) == expect(data + more, claim, NOW + 2)


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


def test_only_a_processing_record_is_ever_due() -> None:
    claim = attempt()
    row = grant_row(None, claim, first_grant(claim, NOW))
    for state in set(State) - {State.PROCESSING}:
        assert due_at(row._replace(state=state)) is None
    assert row.answer_kind == AnswerKind.NONE


def test_a_cursor_lies_between_all_tags() -> None:
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
    assert {name for name, script in LUA.items() if not script.writes} == {"look", "look_kept", "due", "earliest"}
