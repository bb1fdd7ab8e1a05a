"""A batch of claims is one statement and a batch of answers another: they write what the rules say of each record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from semel import Answer
from semel.core.decide import first_grant
from semel.core.model import (
    AlreadyMine,
    Claim,
    InProgress,
    Proceed,
    Record,
    Replay,
    Scope,
    Settled,
    Settlement,
    State,
    Superseded,
)
from semel.core.settle import settle_row
from semel.errors import IdentityMismatch
from semel.stores.mariadb.errors import LOCK_WAIT_TIMEOUT, MariadbRefused
from semel.stores.mariadb.protocol import FRAME, converse
from semel.stores.mariadb.rows import TOGETHER_BYTES_MAX
from semel.stores.mariadb.store import MariadbStore
from semel.stores.memory.store import grant_row
from semel.testing.attempts import ATOMIC, OK, attempt, settlement
from tests.mariadb.conftest import Fellow, Outside
from tests.servers.mariadb import MARK

COUNT = 8
CLAIMS = [attempt(f"k{number}", nonce=number)._replace(holder="host") for number in range(COUNT)]
TERMS = CLAIMS[0].terms
LONGER = TERMS._replace(lease_us=TERMS.lease_us * 2, attempts_max=TERMS.attempts_max + 1, starts=State.CLAIMED)
# Batches by what differs in them. Names hold what a quotation mark, a width or an empty column might change.
BATCHES = {
    "nothing": CLAIMS,
    "names": [claim._replace(scope=Scope(f"t{n}", "'\\%s:now", "é " * n)) for n, claim in enumerate(CLAIMS)],
    "callers, beside empty names": [claim._replace(scope=Scope("", f"{n} ", "")) for n, claim in enumerate(CLAIMS)],
    "terms": [CLAIMS[0], *(claim._replace(terms=LONGER) for claim in CLAIMS[1:])],
    "recipes": [claim._replace(recipe=f"{n}.tests") for n, claim in enumerate(CLAIMS)],
    "holders": [claim._replace(holder="h" * n * 100) for n, claim in enumerate(CLAIMS)],
}
ANSWERS = {
    "nothing": [OK] * COUNT,
    "bodies": [OK._replace(body=b"\x00'%s" * n) for n in range(COUNT)],
    "statuses and headers": [Answer(200 + n, ((b"n", b"%d" % n),) * n, b"") for n in range(COUNT)],
    "nothing, and large": [OK._replace(body=bytes(TOGETHER_BYTES_MAX // (COUNT - 1)))] * COUNT,
}


def claim(fellow: Fellow, claims: Sequence[Claim] = CLAIMS) -> list[Any]:
    return list(fellow.performs("claim", lambda: fellow.engine.store.claim(claims)))


def settle(fellow: Fellow, settlements: Sequence[Settlement]) -> list[Any]:
    return list(fellow.performs("settle", lambda: fellow.engine.store.settle(settlements)))


def read(fellow: Fellow, claims: Sequence[Claim] = CLAIMS) -> list[Record]:
    return list(fellow.performs("read", lambda: fellow.engine.store.read([claim.id for claim in claims])))


@MARK
class TestOnServer:
    @pytest.mark.parametrize("differing", BATCHES)
    def test_a_batch_of_claims_writes_the_rows_of_the_rules(self, differing: str, fellow: Fellow) -> None:
        claims = BATCHES[differing]
        verdicts = claim(fellow, claims)
        rows = read(fellow, claims)
        now = rows[0].created_at
        assert verdicts == [Proceed(first_grant(claim, now)) for claim in claims]
        assert rows == [grant_row(None, claim, first_grant(claim, now)) for claim in claims]
        assert claim(fellow, claims) == verdicts  # said twice, as after a lost reply

    @pytest.mark.parametrize("differing", ANSWERS)
    def test_a_batch_of_settlements_writes_the_rows_of_the_rules(self, differing: str, fellow: Fellow) -> None:
        granted = [verdict.grant for verdict in claim(fellow)]
        before = read(fellow)
        said = [settlement(grant, answer=answer) for grant, answer in zip(granted, ANSWERS[differing], strict=True)]
        said[3] = said[3]._replace(business_ref="é'", error_code="")
        if differing != "nothing":
            said[5] = said[5]._replace(state=State.FAILED_REPLAYABLE)
        assert settle(fellow, said) == [Settled()] * COUNT
        after = read(fellow)
        assert all(row.settled_at for row in after)
        assert after == [
            settle_row(row, each, written.settled_at or 0)[1]
            for row, each, written in zip(before, said, after, strict=True)
        ]
        assert [verdict.answer for verdict in claim(fellow)] == ANSWERS[differing]
        assert settle(fellow, said) == [AlreadyMine()] * COUNT

    def test_a_key_that_is_known_gets_its_own_verdict_in_a_batch(self, fellow: Fellow) -> None:
        [first, second] = claim(fellow, CLAIMS[:2])
        settle(fellow, [settlement(first.grant)])
        verdicts = claim(fellow, [attempt("k0"), attempt("k1", nonce=99), *CLAIMS[2:]])
        assert [type(verdict) for verdict in verdicts] == [Replay, InProgress, *[Proceed] * (COUNT - 2)]
        assert read(fellow)[1].nonce == second.grant.nonce

    def test_a_superseded_settlement_does_not_stop_the_rest_of_its_batch(
        self, fellow: Fellow, outside: Outside
    ) -> None:
        said = [settlement(verdict.grant) for verdict in claim(fellow)]
        outside.fetch(f"UPDATE semel_record SET fence = fence + 1 WHERE id = x'{CLAIMS[4].id.hex()}'")
        replies = settle(fellow, said)
        assert replies == [*[Settled()] * 4, Superseded(State.PROCESSING), *[Settled()] * 3]
        assert [row.state for row in read(fellow)].count(State.SUCCEEDED) == COUNT - 1

    @pytest.mark.parametrize("policy", ["external", "atomic"])
    def test_a_key_that_another_transaction_holds_keeps_none_of_the_others(
        self, policy: str, fellow: Fellow, outside: Outside
    ) -> None:
        """An ATOMIC command of it is running: its record is not committed, and its lock is held for as long."""
        claim(fellow, CLAIMS[:1])
        cursor = outside.connection.cursor()
        cursor.execute("START TRANSACTION")
        cursor.execute("UPDATE semel_record SET holder = 'unit' WHERE id = %s", [CLAIMS[0].id])
        claims = CLAIMS if policy == "external" else [each._replace(terms=ATOMIC.terms) for each in CLAIMS]
        verdicts = claim(fellow, claims)
        assert [type(verdict) for verdict in verdicts] == [InProgress, *[Proceed] * (COUNT - 1)]
        cursor.execute("ROLLBACK")
        assert claim(fellow, claims)[1:] == verdicts[1:]

    def test_a_batch_in_another_store_writes_nothing(self, fellow: Fellow, outside: Outside) -> None:
        fellow.performs("identity", fellow.engine.store.identity)
        outside.fetch("UPDATE semel_meta SET store_id = 'another'")
        with pytest.raises(IdentityMismatch):
            claim(fellow)
        assert outside.fetch("SELECT count(*) FROM semel_record") == [(0,)]


def test_a_batch_is_one_text() -> None:
    text = next(converse(lambda: MariadbStore().claim(CLAIMS), None, 10_000_000))
    assert (text.count("INSERT INTO semel_record"), text.count("TRANSACTION")) == (1, 0)
    said = [settlement(first_grant(claim, 1)) for claim in CLAIMS]
    text = next(converse(lambda: MariadbStore().settle(said), None, 10_000_000))
    assert (text.count("UPDATE semel_record"), text.count("COMMIT")) == (1, 1)


def test_a_batch_that_fits_into_no_packet_is_divided() -> None:
    whole = next(converse(lambda: MariadbStore().claim(CLAIMS), None, 10_000_000))
    half = next(converse(lambda: MariadbStore().claim(CLAIMS), None, len(whole)))
    assert half.count(f"x'{CLAIMS[0].nonce.hex()}'") + half.count(f"x'{CLAIMS[1].nonce.hex()}'") <= 2
    assert len(half) + FRAME <= len(whole)
    said = [settlement(first_grant(claim, 1)) for claim in CLAIMS]
    whole = next(converse(lambda: MariadbStore().settle(said), None, 10_000_000))
    parts = next(converse(lambda: MariadbStore().settle(said), None, len(whole)))
    assert "BEGIN NOT ATOMIC" in whole
    assert parts.startswith(("UPDATE", "START TRANSACTION"))
    assert len(parts) + FRAME <= len(whole)


def test_settlements_that_time_out_on_a_lock_are_rolled_back_before_the_retry() -> None:
    said = [settlement(first_grant(claim, 1)) for claim in CLAIMS]
    talk = converse(lambda: MariadbStore().settle(said), None, 10_000_000)
    assert "BEGIN NOT ATOMIC" in next(talk)
    assert talk.throw(MariadbRefused(LOCK_WAIT_TIMEOUT, "")) == "ROLLBACK"
    with pytest.raises(MariadbRefused):
        talk.send([0])
