"""Quotas of new keys: the limits for one caller, and the rule by which a claim takes a place.

Only a claim that would insert a record takes a place. Each store keeps one :class:`Usage` for each caller of a quota
and writes it with the record, so that all processes share it. PostgreSQL follows the same rule in SQL
(``stores/postgres/sql/quotas.sql``); the conformance suite compares the stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from semel.core.identity import name_id
from semel.core.model import OVER_STATES, Allowance, Effects, QuotaExceeded, Scope, State
from semel.errors import PolicyError

if TYPE_CHECKING:
    from semel.policy import Policy

SLICES: Final = 20  # of a window: keys older than a window and one slice no longer count
UNSEEN_US: Final = 60_000_000  # how long the commit of a record may take
COUNT_MAX: Final = 10_000_000
AT_ONCE_MAX: Final = 1_000  # the open records of one caller, all of which a new key's claim may have to read
SECONDS_MAX: Final = 31 * 86_400
OPEN_RETRY_US: Final = 5_000_000
UNKNOWN_RETRY_US: Final = 60_000_000
NEW_KEYS, OPEN, UNKNOWN = "new_keys", "open_at_once", "unknown_at_once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A limit on each caller's new keys: for an engine, or for one operation in its policy.

    Callers of different tenants are different. An engine's quota counts all of a caller's operations together, without
    those that have their own quota. A retry of a key that is on record is always served and takes no place.

    Parameters:
        new_keys: how many new keys each caller may bring in any ``per_seconds``, 1 to 10,000,000. A place is free again
            after the window and a twentieth of it.
        per_seconds: the window, 1 second to 31 days.
        open_at_once: how many of a caller's commands may be unfinished at once, 1 to 1,000. An ATOMIC command does not
            count: it leaves nothing unfinished in the store.
        unknown_at_once: how many of a caller's commands may have an unknown outcome before new ones are refused, 1 to
            1,000.
        callers: quotas of single callers, by name, in place of this one.

    Raises:
        PolicyError: nothing is limited, or a number is out of its range; the message names it.

    >>> Quota(new_keys=600, per_seconds=60, callers={"nightly-batch": Quota(new_keys=50_000, per_seconds=60)}).new_keys
    600
    >>> Quota(per_seconds=60)
    Traceback (most recent call last):
        ...
    semel.errors.PolicyError: a Quota limits nothing: give new_keys, open_at_once or unknown_at_once
    """

    new_keys: int | None = None
    per_seconds: float = 60
    open_at_once: int | None = None
    unknown_at_once: int | None = None
    callers: Mapping[str, Quota] = field(default_factory=dict)
    slice_us: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, most in ((NEW_KEYS, COUNT_MAX), (OPEN, AT_ONCE_MAX), (UNKNOWN, AT_ONCE_MAX)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= most):
                raise PolicyError(f"{name} must be a whole number from 1 to {most}; it is {value!r}")
        seconds = self.per_seconds
        if type(seconds) not in (int, float) or not 1 <= seconds <= SECONDS_MAX:
            raise PolicyError(f"per_seconds must be 1 to {SECONDS_MAX} seconds; it is {seconds!r}")
        if self.new_keys is None and self.open_at_once is None and self.unknown_at_once is None:
            raise PolicyError("a Quota limits nothing: give new_keys, open_at_once or unknown_at_once")
        if not isinstance(self.callers, Mapping):
            raise PolicyError(f"callers must map a caller's name to its Quota; it is {self.callers!r}")
        for caller, quota in self.callers.items():
            if not isinstance(caller, str) or not isinstance(quota, Quota) or quota.callers:
                raise PolicyError(f"callers must map a caller's name to a Quota without callers; see {caller!r}")
        object.__setattr__(self, "slice_us", -(-int(seconds * 1_000_000) // SLICES))

    def allowance(self, id: bytes, caller: str, *, atomic: bool) -> Allowance | None:
        """Return the limits for a caller's claim.

        Parameters: ``id`` 16 bytes; ``atomic`` whether it leaves nothing open in the store.
        """
        mine = self.callers.get(caller, self)
        if not atomic:
            return Allowance(id, mine.new_keys, mine.slice_us, mine.open_at_once, mine.unknown_at_once)
        return None if mine.new_keys is None else Allowance(id, mine.new_keys, mine.slice_us, None, None)


def allowance_of(policy: Policy, shared: Quota | None, scope: Scope, secret: bytes | None) -> Allowance | None:
    """Return the limits for a claim of this caller, from the operation's own quota or the engine's ``shared`` one.

    None: the claim's record is not counted.
    """
    quota = policy.quota or shared
    if quota is None:
        return None
    tenant, caller, operation = scope
    id = name_id(secret, b"semel.quota.1", tenant, caller, *(() if policy.quota is None else (operation,)))
    return quota.allowance(id, caller, atomic=policy.effects is Effects.ATOMIC)


def check_quota(quota: Any) -> Any:
    """Return the quota if it is a Quota or None. Raises PolicyError."""
    if quota is None or isinstance(quota, Quota):
        return quota
    raise PolicyError(f"quota must be a Quota, such as Quota(new_keys=600, per_seconds=60); it is {quota!r}")


class Usage(NamedTuple):
    """One caller's usage: new keys by slices of time, newest last, and the records that were open at the last look."""

    slice: int  # the number of the newest slice since 1970
    slice_us: int
    counts: tuple[int, ...]
    listed: tuple[tuple[bytes, int], ...] = ()  # record id, and when it was claimed


NOTHING_TAKEN: Final = (0,) * (SLICES + 1)
States = Mapping[bytes, int]
"""The states of the listed records that are visible in the store."""


def must_look(usage: Usage | None, allowance: Allowance) -> Sequence[bytes]:
    """Return the listed records whose states decide; none if there is room in any case."""
    if usage is None:
        return ()
    limits = [limit for limit in (allowance.open_max, allowance.unknown_max) if limit is not None]
    if not limits or len(usage.listed) < min(limits):
        return ()
    return [id for id, _ in usage.listed]


def take(
    usage: Usage | None, allowance: Allowance, id: bytes, states: States, now: int
) -> tuple[Usage | None, QuotaExceeded | None]:
    """Take a place for one new record, or say why there is none (then nothing is written).

    Parameters: ``states`` of what :func:`must_look` names; ``now`` store time in microseconds.
    """
    moved = _advance(usage, allowance, now)
    opens = unknowns = 0
    listed: tuple[tuple[bytes, int], ...] = ()
    if allowance.open_max is not None or allowance.unknown_max is not None:
        listed = moved.listed
        if usage is not None and must_look(usage, allowance):
            listed = tuple([each for each in listed if _is_open(each, states, now)])
            unknowns = sum(states.get(each) == State.UNKNOWN for each, _ in listed)
        opens = len(listed) - unknowns
        listed += ((id, now),)
    refused = refusal(moved.slice, moved.counts, allowance, opens, unknowns, now)
    if refused is not None:
        return None, refused
    return moved._replace(counts=(*moved.counts[:-1], moved.counts[-1] + 1), listed=listed), None


def _is_open(each: tuple[bytes, int], states: States, now: int) -> bool:
    state = states.get(each[0])
    if state is None:  # the record is not committed yet, or it is gone
        return each[1] > now - UNSEEN_US
    return state not in OVER_STATES


def _advance(usage: Usage | None, allowance: Allowance, now: int) -> Usage:
    """Return the usage at this time, without the slices that are over.

    A clock that goes back frees nothing. If it goes back by more than a window, the slices go back with it; otherwise
    claims would be refused until it has caught up. The same holds if the declared window has changed.
    """
    newest = now // allowance.slice_us
    if usage is None:
        return Usage(newest, allowance.slice_us, NOTHING_TAKEN)
    if usage.slice_us != allowance.slice_us or usage.slice > newest + len(NOTHING_TAKEN):
        return Usage(newest, allowance.slice_us, usage.counts, usage.listed)
    over = min(len(NOTHING_TAKEN), max(0, newest - usage.slice))
    counts = usage.counts[over:] + NOTHING_TAKEN[:over]
    return Usage(max(newest, usage.slice), usage.slice_us, counts, usage.listed)


def refusal(
    newest: int, counts: Sequence[int], allowance: Allowance, opens: int, unknowns: int, now: int
) -> QuotaExceeded | None:
    """Return why the quota is exhausted, and the time until it may have room; None if there is room."""
    if allowance.new_keys is not None and (used := sum(counts)) >= allowance.new_keys:
        leaves = 0
        while used >= allowance.new_keys and leaves < len(counts):
            used -= counts[leaves]
            leaves += 1
        free_at = (newest + leaves) * allowance.slice_us
        return QuotaExceeded(NEW_KEYS, max(1, min(free_at - now, len(counts) * allowance.slice_us)))
    if allowance.open_max is not None and opens >= allowance.open_max:
        return QuotaExceeded(OPEN, OPEN_RETRY_US)
    if allowance.unknown_max is not None and unknowns >= allowance.unknown_max:
        return QuotaExceeded(UNKNOWN, UNKNOWN_RETRY_US)
    return None


def is_over(usage: Usage, now: int, states: States) -> bool:
    """Return whether the usage is empty and can be deleted. Parameters: ``states`` of its listed records."""
    if now < (usage.slice + len(NOTHING_TAKEN)) * usage.slice_us:
        return False
    return not any(_is_open(each, states, now) for each in usage.listed)


# --- as a row ---------------------------------------------------------------------------------


def pack_counts(usage: Usage) -> str:
    """Pack the counts for a row.

    >>> unpack_counts(pack_counts(Usage(7, 3_000_000, (0, 2, 5)))) == (0, 2, 5)
    True
    """
    return ",".join(map(str, usage.counts))


def unpack_counts(text: str) -> tuple[int, ...]:
    """Unpack the counts of a row."""
    return tuple(map(int, text.split(",")))


_LISTED_BYTES: Final = 24


def pack_listed(usage: Usage) -> bytes:
    """Pack the listed records for a row: 16 bytes of id and 8 of time each.

    >>> unpack_listed(pack_listed(Usage(7, 3_000_000, (), ((bytes(16), 5),)))) == ((bytes(16), 5),)
    True
    """
    return b"".join([id + at.to_bytes(8, "big") for id, at in usage.listed])


def unpack_listed(packed: bytes) -> tuple[tuple[bytes, int], ...]:
    """Unpack the listed records of a row."""
    places = range(0, len(packed), _LISTED_BYTES)
    return tuple([(packed[at : at + 16], int.from_bytes(packed[at + 16 : at + _LISTED_BYTES], "big")) for at in places])
