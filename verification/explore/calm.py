"""Invariants of a single record in every world: I7, and progress once all faults have stopped (I6).

Asked once for every record that differs, since nothing but the record and the time matters here.
"""

from __future__ import annotations

from typing import Final

from semel.core.command_flow import make_settlement
from semel.core.model import (
    InProgress,
    KeyReused,
    MovedOn,
    OutcomeUnknown,
    Proceed,
    Record,
    Replay,
    Resolution,
    Resolved,
    Settled,
    State,
    TooEarly,
    Unreadable,
)
from semel.core.outcomes import classify_answer
from semel.policy import Policy
from verification.explore import store
from verification.explore.world import Broken

_STRANGER: Final = 1 << 100  # a nonce that no worker has


def check_record(row: Record | None, now: int, policy: Policy) -> None:
    """I7 and I6 for one record at one time."""
    if row is not None:
        _other_requests_are_refused(row, now, policy)
    _everything_ends(row, now, policy)


def _other_requests_are_refused(row: Record, now: int, policy: Policy) -> None:
    verdict, after = store.claim(row, now, store.claim_of(_STRANGER, policy, request=1))
    if not isinstance(verdict, KeyReused) or after != row:
        raise Broken("I7", f"another payload under the same key was met with {type(verdict).__name__}")
    verdict, after = store.claim(row, now, store.claim_of(_STRANGER, policy, request=1, recipe="2.newer"))
    if not isinstance(verdict, Unreadable) or after != row:
        raise Broken("I7", f"a request under an unknown recipe was met with {type(verdict).__name__}")


def _everything_ends(row: Record | None, now: int, policy: Policy) -> None:
    """All workers have crashed, the lease is over, the reaper has run: one client comes and gets a final outcome."""
    if row is not None:
        now = max(now, row.lease_until)
        _, row = store.lapse(row, now)
    verdict, after = store.claim(row, now, store.claim_of(_STRANGER, policy))
    match verdict:
        case Proceed(grant):
            settlement = make_settlement(grant, classify_answer(store.answer_by(_STRANGER), policy, begun=True))
            reply, after = store.settle(after, now, settlement)
            again, _ = store.claim(after, now, store.claim_of(_STRANGER + 1, policy))
            if not isinstance(reply, Settled) or not isinstance(again, Replay):
                raise Broken("I6", "a granted command could not be settled and replayed")
        case InProgress():
            raise Broken("I6", "a key stays blocked past its lease")
        case OutcomeUnknown():
            if after is None or after.state != State.UNKNOWN:
                raise Broken("I6", "an unknown outcome is not visible to an operator")
            _can_be_resolved(after, now)
        case _:
            return


def _can_be_resolved(row: Record, now: int) -> None:
    """Once its handler's deadline is over; earlier it is refused with the time left, and no other process may write."""
    resolution = Resolution(row.id, row.fence, False, None, "olga", "asked the provider")
    reply, after = store.resolve(row, now, resolution)
    if now < row.deadline_at and (not isinstance(reply, TooEarly) or after != row):
        raise Broken("I4", "an operator settled a command whose handler may still be running")
    reply, after = store.resolve(row, max(now, row.deadline_at), resolution)
    if not isinstance(reply, Resolved) or after is None or after.fence <= row.fence:
        raise Broken("I6", "an operator cannot settle an unknown outcome")
    reply, again = store.resolve(after, max(now, row.deadline_at), resolution._replace(fence=after.fence))
    if not isinstance(reply, MovedOn) or again != after:
        raise Broken("I3", "an operator's settlement was overwritten by another")
