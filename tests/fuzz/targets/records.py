"""Damaged records: with any row, an attempt gets a verdict, no rule raises, and nothing settled runs again.

The row starts out as a real one in each state, and any of its columns is then overwritten by any value that a store
could hold there. What cannot be noticed by looking at the row is listed in `UNNOTICED`.
"""

from __future__ import annotations

from typing import Any, Final

from semel.core.decide import decide, first_grant
from semel.core.model import (
    Answer,
    AnswerKind,
    Claim,
    Find,
    Proceed,
    Record,
    Renewal,
    Replay,
    Resolution,
    Settlement,
    State,
    Unreadable,
)
from semel.core.record import answer_of, matches, pack_headers, state_of, unpack_headers
from semel.core.settle import abandon_row, lapse_row, mark_row, renew_row, settle_row
from semel.operations.http import describe
from semel.policy import Policy
from semel.reconciliation.resolutions import resolve_row
from semel.stores.memory.store import grant_row
from semel.testing.attempts import ATOMIC, EXTERNAL, IDEMPOTENT, OK, attempt, settlement
from semel.testing.clock import START_US
from tests.fuzz.reading import Choices

POLICIES: Final = (
    EXTERNAL,
    IDEMPOTENT,
    ATOMIC,
    Policy(answer_seconds=3600, tombstone_seconds=7200, after_expiry="new"),
)
COLUMNS: Final = Record._fields
# Any of these, changed alone to another well-formed value, is a record that could be: the retention of the answer.
UNNOTICED: Final = frozenset({"answer_until", "after_expiry"})
TOKENS = (
    *(bytes([index]) for index in range(8)),
    *(
        bytes([COLUMNS.index(name)]) + b"\x00\x08"
        for name in ("state", "fence", "lease_until", "answer_until", "effects")
    ),
    *(
        b"\x02\x04text",
        b"\x01\x04blob",
        b"\x03",
        b"\x04\x01",
        b"\xff" * 8,
        b"\x7f" + b"\xff" * 7,
        b"\x00\x04\x00\x00\x00\x05",
    ),
)


def one(data: bytes) -> None:
    """A policy, a state, a time, and the columns that are overwritten."""
    choices = Choices(data)
    claim = attempt(policy=choices.pick(POLICIES))
    settled, row = _row(claim, choices.pick([*State, None]))
    now = START_US + choices.pick((0, 1, 31, 400, 4000, 90_000, 10_000_000)) * 1_000_000
    damaged: list[str] = []
    while not choices.over and len(damaged) < 4:
        column = choices.pick(COLUMNS)
        row = row._replace(**{column: _value(choices)})
        damaged.append(column)
    _check_rules(row, claim, now)
    verdict = decide(row, attempt(nonce=2, policy=EXTERNAL), now)
    if isinstance(verdict, Proceed):
        grant = verdict.grant
        assert type(grant.fence) is int
        assert grant.fence > row.fence or grant.nonce == row.nonce
        assert not settled or _may_begin_anew(row, damaged), (damaged, row)
    if isinstance(verdict, Replay):
        assert verdict.answer == answer_of(row)
        assert settled
        assert verdict.answer == OK, "an answer that was never given"
    if isinstance(verdict, Unreadable):
        assert verdict.reason in ("corrupt", "recipe", "steps")
    _check_headers(data)


def _row(claim: Claim, state: State | None) -> tuple[bool, Record]:
    """A real record in a state (None: released by its holder), and whether it had an effect."""
    starts = State.CLAIMED if state is State.CLAIMED else State.PROCESSING
    claim = claim._replace(terms=claim.terms._replace(starts=starts))
    grant = first_grant(claim, START_US)
    row = grant_row(None, claim, grant)
    if state in (State.CLAIMED, State.PROCESSING):
        return False, row
    reply, written = settle_row(row, settlement(grant, state or State.PROCESSING), START_US + 1000)
    assert written is not None, reply
    return state in (State.SUCCEEDED, State.FAILED_REPLAYABLE), written


def _value(choices: Choices) -> Any:
    """What a column may hold after a flipped bit or a statement by hand: any type that a database has."""
    match choices.number() % 6:
        case 0:
            return choices.number(choices.number() % 9)
        case 1:
            return choices.piece()
        case 2:
            return choices.piece().decode("latin-1")
        case 3:
            return None
        case 4:
            return -choices.number()
        case _:
            return choices.number() / 3


def _may_begin_anew(row: Record, damaged: list[str]) -> bool:
    return row.settled_at is None or not UNNOTICED.isdisjoint(damaged) or row.after_expiry == 2 or len(damaged) > 1


def _check_rules(row: Record, claim: Claim, now: int) -> None:
    """No rule raises on it, and none writes over what cannot be read."""
    sound = not isinstance(decide(row, claim, now), Unreadable)
    named = (claim.id, row.fence, row.nonce)
    for state in State:
        settle_row(row, Settlement(*named, state, OK, AnswerKind.KEPT), now)
    renew_row(row, Renewal(*named), now)
    mark_row(row, Renewal(*named))
    abandon_row(row, row.nonce, now)
    lapse_row(row, now)
    for happened in (True, False):
        resolve_row(
            row, Resolution(claim.id, row.fence, happened, Answer(200, (), b""), "ops", "why", forced=True), now
        )
    state_of(row)
    if sound:
        matches(row, Find(lapsed=True), now)
        describe(row, now)


def _check_headers(block: bytes) -> None:
    pairs = unpack_headers(block)
    if pairs is not None:
        assert pack_headers(pairs) == block
