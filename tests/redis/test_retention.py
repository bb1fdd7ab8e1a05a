"""Nothing that is open has a time to live; what is settled has the longest of its retentions, and is tidied up."""

from __future__ import annotations

from functools import partial

import pytest
from redis import Redis

from semel.core.flow import ask
from semel.core.model import Find, Grant, Proceed, Purged, State
from semel.core.timing import PURGE_GRACE_US
from semel.stores.redis.scripts import Calls
from semel.stores.redis.store import RedisStore
from semel.testing.attempts import EXTERNAL, IDEMPOTENT, attempt, renewal
from semel.testing.bench import Bench, Mode, bench
from tests.servers import redis as servers
from verification.subjects.redis import redis_subject

DAY_US = 86_400_000_000
FOR_EVER = -1


@pytest.fixture
def on_valkey(mode: Mode) -> object:
    prefix = servers.prefix()
    with bench(lambda clock: redis_subject("127.0.0.1", servers.valkey(), prefix, clock), mode) as ready:
        yield ready


def lives(bench: Bench, client: Redis, grant: Grant) -> list[int]:
    """How long the record and its operation's key live, in milliseconds."""
    store = bench.store
    assert isinstance(store, RedisStore)
    names = (store.keys.record(grant.id), store.keys.operation(grant.id, grant.operation_id.hex().encode()))
    return [int(client.pttl(name)) for name in names]


def test_no_ttl_before_the_settlement(on_valkey: Bench, client: Redis) -> None:
    """Claimed, renewed, marked, given back, UNKNOWN, granted anew: none of these may vanish by itself."""
    grant = on_valkey.grant()
    assert lives(on_valkey, client, grant) == [FOR_EVER, FOR_EVER]
    assert on_valkey.renew(grant)
    assert on_valkey.mark_not_kept(grant)
    assert lives(on_valkey, client, grant) == [FOR_EVER, FOR_EVER]
    back = on_valkey.grant(attempt("back", policy=IDEMPOTENT))
    on_valkey.settle(back, State.PROCESSING)
    on_valkey.settle(grant, State.UNKNOWN)
    assert lives(on_valkey, client, grant) + lives(on_valkey, client, back) == [FOR_EVER] * 4
    released = on_valkey.grant(attempt("released"))
    on_valkey.settle(released, State.FAILED_NOT_REPLAYABLE)
    assert FOR_EVER not in lives(on_valkey, client, released)
    again = on_valkey.grant(attempt("released", nonce=2))
    assert lives(on_valkey, client, again) == [FOR_EVER, FOR_EVER]


def test_the_settlement_starts_the_clock(on_valkey: Bench, client: Redis) -> None:
    """By whatever way it comes: the quick script, the rules, an operator."""
    ends = [on_valkey.grant(attempt(key)) for key in ("quick", "by rule", "by hand")]
    on_valkey.clock.advance(DAY_US)  # since the claim, which counts for nothing
    on_valkey.settle(ends[0])
    on_valkey.settle(ends[1], State.FAILED_NOT_REPLAYABLE)
    on_valkey.settle(ends[2], State.UNKNOWN)
    on_valkey.resolve(ends[2], forced=True)
    wanted = (max(EXTERNAL.terms.answer_us, EXTERNAL.terms.tombstone_us) + PURGE_GRACE_US) // 1000
    for grant in ends:
        for left in lives(on_valkey, client, grant):
            assert wanted - 60_000 < left <= wanted


def test_the_index_entry_of_an_expired_record_is_removed(on_valkey: Bench, client: Redis) -> None:
    """A record that is gone is not listed, its places go with the purge, and it can be claimed meanwhile."""
    store = on_valkey.store
    assert isinstance(store, RedisStore)
    grants = [on_valkey.grant(attempt(str(number))) for number in range(4)]
    for grant in (grants[0], grants[3]):
        on_valkey.settle(grant)
    for grant in (grants[0], grants[1], grants[3]):
        client.delete(store.keys.record(grant.id))
    on_valkey.clock.advance(EXTERNAL.terms.lease_us)
    assert [row.id for row in on_valkey.do(lambda: store.find(Find())).records] == [grants[2].id]
    assert [row.id for row in on_valkey.lapse()] == [grants[2].id]
    assert isinstance(on_valkey.claim(attempt("0", nonce=2)), Proceed)
    assert on_valkey.do(partial(store.purge, None, 10)) == Purged(3, 0, 1, None)
    assert on_valkey.do(partial(store.purge, None, 10)) == Purged(2, 0, 0, None)


def test_the_index_entry_of_a_recreated_record_stays(on_valkey: Bench) -> None:
    """A purge that saw a record gone, or in another version, does not drop the one that is there."""
    store = on_valkey.store
    assert isinstance(store, RedisStore)
    grant = on_valkey.grant()
    former = on_valkey.row()
    on_valkey.settle(grant)
    for seen in (None, former):
        call = store._rows.forget_call(grant.id, seen)
        assert on_valkey.do(lambda call=call: ask(Calls((call,)))) == [0]  # type: ignore[misc]
    assert on_valkey.row().state == State.SUCCEEDED
    assert len(on_valkey.do(lambda: store.find(Find())).records) == 1


def test_retryable_records_do_not_hide_unknown_ones(on_valkey: Bench) -> None:
    """Lapsed leases that no reaper marks must not stand at the head of its line for ever."""
    for number in range(12):
        on_valkey.grant(attempt(f"again {number}", policy=IDEMPOTENT))
        on_valkey.settle(on_valkey.grant(attempt(f"given back {number}", policy=IDEMPOTENT)), State.PROCESSING)
        on_valkey.grant(attempt(f"queued {number}", starts=State.CLAIMED))
    on_valkey.clock.advance(1)
    late = [on_valkey.grant(attempt(f"late {number}")) for number in range(3)]
    on_valkey.clock.advance(IDEMPOTENT.terms.lease_us)
    assert {row.id for row in on_valkey.lapse(3)} == {grant.id for grant in late}
    on_valkey.clock.advance(IDEMPOTENT.terms.dedup_us)
    found = [row for _ in range(10) for row in on_valkey.lapse(3)]
    assert {row.doubt for row in found} == {"dedup-over"}
    assert len(found) == 24  # twelve that lapsed, twelve that were given back


def test_a_renewal_moves_when_a_lapse_is_due(on_valkey: Bench) -> None:
    grant = on_valkey.grant()
    for _ in range(3):
        on_valkey.clock.advance(EXTERNAL.terms.lease_us - 1)
        assert on_valkey.lapse() == []
        assert on_valkey.do(lambda: on_valkey.store.renew((renewal(grant),))) == [True]
    on_valkey.clock.advance(EXTERNAL.terms.lease_us)
    assert [row.id for row in on_valkey.lapse()] == [grant.id]
