"""Cases of quotas: which claims take a place, which are refused, and when a place is free again.

A store without quotas lacks this capability, and claims as if there were no quota.
"""

from __future__ import annotations

import random

from semel.core.model import Allowance, Claim, Proceed, QuotaExceeded, Replay, State, Verdict
from semel.quota import OPEN_RETRY_US, SLICES, UNKNOWN_RETRY_US
from semel.testing.attempts import EXTERNAL, attempt, bits
from semel.testing.bench import Bench

SLICE_US = 3_000_000  # of a window of a minute
WINDOW_US = SLICES * SLICE_US


def make_counted_claim(
    key: str,
    *,
    new_keys: int | None = 3,
    open_max: int | None = None,
    unknown_max: int | None = None,
    caller: str = "alice",
    nonce: int = 1,
    request: int = 0,
) -> Claim:
    """Make a claim whose new record is counted."""
    allowance = Allowance(bits("quota", caller), new_keys, SLICE_US, open_max, unknown_max)
    return attempt(key, nonce=nonce, request=request, policy=EXTERNAL)._replace(quota=allowance)


def _is_counting(bench: Bench) -> bool:
    if bench.store.capabilities.counts_new_keys:
        return True
    assert all(isinstance(bench.claim(make_counted_claim(str(number), new_keys=1)), Proceed) for number in range(3))
    return False


def only_new_keys_take_a_place(bench: Bench) -> None:
    """While the quota is used up, a retry is answered and a mismatch refused; a refused claim writes nothing."""
    if not _is_counting(bench):
        return
    first = bench.grant(make_counted_claim("0"))
    bench.settle(first)
    for _ in range(5):
        assert isinstance(bench.claim(make_counted_claim("0", nonce=2)), Replay)
    bench.grant(make_counted_claim("1"))
    bench.grant(make_counted_claim("2"))
    refused = bench.claim(make_counted_claim("3"))
    assert isinstance(refused, QuotaExceeded)
    assert refused.limit == "new_keys"
    assert bench.do(lambda: bench.store.read((make_counted_claim("3").id,))) == [None]
    assert isinstance(bench.claim(make_counted_claim("0", nonce=3)), Replay)
    assert not isinstance(bench.claim(make_counted_claim("1", nonce=2, request=1)), QuotaExceeded)
    assert isinstance(bench.claim(make_counted_claim("3", caller="bob")), Proceed)
    assert isinstance(bench.claim(attempt("4")), Proceed)


def a_batch_gets_the_places_that_are_left(bench: Bench) -> None:
    """As many new keys of a batch are granted as there is room for; another caller's keys are not affected."""
    if not _is_counting(bench):
        return
    bench.grant(make_counted_claim("first"))
    claims = [make_counted_claim(str(number)) for number in range(5)] + [
        make_counted_claim(f"b{n}", caller="bob") for n in range(2)
    ]
    claims.append(attempt("uncounted"))
    verdicts = bench.do(lambda: bench.store.claim(claims))
    assert [isinstance(verdict, Proceed) for verdict in verdicts[5:]] == [True, True, True]
    assert sorted(type(verdict).__name__ for verdict in verdicts[:5]) == ["Proceed"] * 2 + ["QuotaExceeded"] * 3
    again = bench.do(lambda: bench.store.claim([claim._replace(nonce=bits("again")) for claim in claims[:5]]))
    assert [isinstance(verdict, QuotaExceeded) for verdict in again] == [
        isinstance(verdict, QuotaExceeded) for verdict in verdicts[:5]
    ]


def a_place_is_free_after_the_window_and_a_slice(bench: Bench) -> None:
    """Not earlier, wherever in a slice it was taken; the verdict has the waiting time."""
    if not _is_counting(bench):
        return
    bench.clock.set(WINDOW_US * 1000 + SLICE_US - 1)
    for number in range(3):
        bench.grant(make_counted_claim(str(number)))
    refused = bench.claim(make_counted_claim("late"))
    assert isinstance(refused, QuotaExceeded)
    assert WINDOW_US - SLICE_US <= refused.retry_us <= WINDOW_US + SLICE_US
    bench.clock.advance(refused.retry_us - 1)
    assert isinstance(bench.claim(make_counted_claim("late")), QuotaExceeded)
    bench.clock.advance(1)
    assert isinstance(bench.claim(make_counted_claim("late")), Proceed)


def in_no_window_are_more_keys_granted_than_the_quota(bench: Bench) -> None:
    """Three hundred attempts at random times: no window has more, and none is refused while there is room."""
    if not _is_counting(bench):
        return
    pick = random.Random(7)  # noqa: S311 - the same attempts each time
    granted: list[int] = []
    for number in range(300):
        bench.clock.advance(pick.randrange(SLICE_US // 2))
        verdict = bench.claim(make_counted_claim(str(number), new_keys=10))
        if isinstance(verdict, Proceed):
            granted.append(bench.clock())
        else:
            assert isinstance(verdict, QuotaExceeded)
            recent = [at for at in granted if at > bench.clock() - WINDOW_US - SLICE_US]
            assert len(recent) >= 10  # none is refused while there is room
    for at in granted:
        assert sum(at <= other < at + WINDOW_US for other in granted) <= 10
    assert len(granted) > 30


def a_clock_set_back_frees_nothing(bench: Bench) -> None:
    """Neither by a little nor by a day; and no claim is refused until the clock has caught up."""
    if not _is_counting(bench):
        return
    for number in range(3):
        bench.grant(make_counted_claim(str(number)))
    now = bench.clock()
    for back in (SLICE_US, WINDOW_US * 1440):
        bench.clock.set(now - back)
        assert isinstance(bench.claim(make_counted_claim("late")), QuotaExceeded)
    bench.clock.set(now + SLICE_US)
    refused = bench.claim(make_counted_claim("late"))
    assert isinstance(refused, QuotaExceeded)
    bench.clock.set(now - WINDOW_US * 1440)
    told = bench.claim(make_counted_claim("late"))
    assert isinstance(told, QuotaExceeded)
    assert told.retry_us <= WINDOW_US + SLICE_US


def another_window_keeps_what_was_counted(bench: Bench) -> None:
    """A quota with a changed window counts the places taken under the former one."""
    if not _is_counting(bench):
        return
    for number in range(3):
        bench.grant(make_counted_claim(str(number)))
    late = make_counted_claim("late")
    assert late.quota is not None
    longer = late._replace(quota=late.quota._replace(slice_us=10 * SLICE_US))
    assert isinstance(bench.claim(longer), QuotaExceeded)
    assert isinstance(bench.claim(longer._replace(quota=late.quota._replace(slice_us=SLICE_US, new_keys=4))), Proceed)


def unfinished_commands_are_bounded(bench: Bench) -> None:
    """A place is free once one of them is settled with any outcome but UNKNOWN."""
    if not _is_counting(bench):
        return

    def claim(key: str) -> Verdict:
        return bench.claim(make_counted_claim(key, new_keys=None, open_max=2))

    first = claim("0")
    assert isinstance(first, Proceed)
    assert isinstance(claim("1"), Proceed)
    assert claim("2") == QuotaExceeded("open_at_once", OPEN_RETRY_US)
    bench.settle(first.grant)
    third = claim("2")
    assert isinstance(third, Proceed)
    assert claim("3") == QuotaExceeded("open_at_once", OPEN_RETRY_US)
    bench.settle(third.grant, State.FAILED_NOT_REPLAYABLE)
    assert isinstance(claim("3"), Proceed)


def unknown_outcomes_are_bounded(bench: Bench) -> None:
    """At the limit, unknown outcomes block new keys until they are settled."""
    if not _is_counting(bench):
        return

    def claim(key: str) -> Verdict:
        return bench.claim(make_counted_claim(key, new_keys=None, open_max=5, unknown_max=2))

    grants = []
    for number in range(2):
        verdict = claim(str(number))
        assert isinstance(verdict, Proceed)
        grants.append(verdict.grant)
        bench.settle(verdict.grant, State.UNKNOWN, doubt="error")
    assert claim("2") == QuotaExceeded("unknown_at_once", UNKNOWN_RETRY_US)
    bench.clock.advance(100 * WINDOW_US)
    bench.do(bench.store.forget_quotas)
    assert claim("2") == QuotaExceeded("unknown_at_once", UNKNOWN_RETRY_US)
    bench.resolve(grants[0])
    assert isinstance(claim("2"), Proceed)


def a_record_that_is_granted_again_takes_no_place(bench: Bench) -> None:
    """A command without effect runs again under its key although the quota is used up."""
    if not _is_counting(bench):
        return
    bench.settle(bench.grant(make_counted_claim("0")), State.FAILED_NOT_REPLAYABLE)
    bench.grant(make_counted_claim("1"))
    bench.grant(make_counted_claim("2"))
    assert isinstance(bench.claim(make_counted_claim("3")), QuotaExceeded)
    assert isinstance(bench.claim(make_counted_claim("0", nonce=2)), Proceed)


def what_no_longer_counts_is_forgotten(bench: Bench) -> None:
    """A purge drops the counts of callers without a claim for a window; then they start from zero."""
    if not _is_counting(bench):
        return
    for number in range(3):
        bench.settle(bench.grant(make_counted_claim(str(number), open_max=5)))
    bench.do(bench.store.forget_quotas)
    assert isinstance(bench.claim(make_counted_claim("late", open_max=5)), QuotaExceeded)
    bench.clock.advance(2 * WINDOW_US)
    bench.do(bench.store.forget_quotas)
    assert isinstance(bench.claim(make_counted_claim("late", open_max=5)), Proceed)


ALL = (
    only_new_keys_take_a_place,
    a_batch_gets_the_places_that_are_left,
    a_place_is_free_after_the_window_and_a_slice,
    in_no_window_are_more_keys_granted_than_the_quota,
    a_clock_set_back_frees_nothing,
    another_window_keeps_what_was_counted,
    unfinished_commands_are_bounded,
    unknown_outcomes_are_bounded,
    a_record_that_is_granted_again_takes_no_place,
    what_no_longer_counts_is_forgotten,
)
