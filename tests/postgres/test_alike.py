"""Batches whose rows have most columns in common, and batches whose rows have not: both write the same records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from semel import Answer
from semel.core.decide import first_grant
from semel.core.model import (
    Allowance,
    Claim,
    KeyReused,
    Proceed,
    Record,
    Replay,
    Settled,
    Settlement,
    State,
    Superseded,
)
from semel.stores.postgres.alike import CLAIMS_OWN, SETTLEMENTS_OWN, claims_alike, settlements_alike
from semel.stores.postgres.rows import CLAIM_ALIKE, CLAIM_IN_TERMS, SETTLE_ALIKE, SQL
from semel.stores.sql.statements import Statement
from semel.testing.attempts import IDEMPOTENT, OK, attempt, scope, settlement
from tests.engine.shells import MADE, command
from tests.postgres.conftest import Fellow, Writes

KEPT_BY = ("id", "key_hash", "fingerprint", "nonce", "operation_id", "fence", "created_at", "first_started_at")
TIMES = ("lease_until", "deadline_at", "dedup_until", "settled_at", "answer_until", "forget_after")
ODD = r"a\0b\\ é"  # a caller whose name is written otherwise than it reads


def claim_all(fellow: Fellow, claims: Sequence[Claim]) -> list[Any]:
    return list(fellow.performs("claim", lambda: fellow.engine.store.claim(claims)))


def settle_all(fellow: Fellow, settlements: Sequence[Settlement]) -> list[Any]:
    return list(fellow.performs("settle", lambda: fellow.engine.store.settle(settlements)))


def records(fellow: Fellow, claims: Sequence[Claim]) -> list[Record]:
    return list(fellow.performs("read", lambda: fellow.engine.store.read([claim.id for claim in claims])))


def common_values(row: Record) -> dict[str, Any]:
    """What the records of like commands have in common, with their times since the claim."""
    since = {name: getattr(row, name) and getattr(row, name) - row.created_at for name in TIMES[:3]}
    return {**{name: value for name, value in row._asdict().items() if name not in (*KEPT_BY, *TIMES)}, **since}


def arrays(statement: Statement) -> int:
    """How many of its values are a row's own."""
    unnest = statement.text.partition("unnest(")[2]
    return unnest.partition(")")[0].count("[]")


def test_six_columns_of_a_claim_and_five_of_a_settlement_differ_by_row() -> None:
    """What travels once is no array: most of what a batch cost its process was to write down the same many times."""
    assert (arrays(SQL["claim"]), arrays(CLAIM_ALIKE), len(CLAIMS_OWN)) == (20, 6, 6)
    assert (arrays(SQL["settle"]), arrays(SETTLE_ALIKE), len(SETTLEMENTS_OWN)) == (14, 5, 5)
    assert [arrays(CLAIM_IN_TERMS), CLAIM_ALIKE.name, CLAIM_IN_TERMS.name] == [9, "claim_alike", "claim_in_terms"]
    assert set(CLAIM_ALIKE.distinct) == set(CLAIM_IN_TERMS.distinct) == set(SQL["claim"].distinct)
    assert set(SETTLE_ALIKE.distinct) == set(SQL["settle"].distinct)


LIKE = [attempt(f"k{number}", request=number) for number in range(3)]
OTHERS = {
    "tenant": (attempt("x", within=scope(tenant="other")), True),
    "caller": (attempt("x", within=scope(caller="bob")), True),
    "operation": (attempt("x", within=scope("refund")), True),
    "recipe": (attempt("x", recipe="2.tests"), False),
    "terms": (attempt("x", policy=IDEMPOTENT), False),
    "holder": (attempt("x")._replace(holder="another:1"), False),
    "quota": (attempt("x")._replace(quota=Allowance(b"q" * 16, 1, 1_000_000, None, None)), False),
}


@pytest.mark.parametrize("differs", OTHERS)
def test_claims_with_different_terms_are_not_batched_as_alike(differs: str) -> None:
    """Those of other callers and operations are, in the names of each."""
    other, in_terms = OTHERS[differs]
    found = claims_alike(LIKE, None)
    assert found is not None
    assert found[0]
    mixed = claims_alike([*LIKE, other], None)
    assert (mixed is not None) is in_terms
    assert mixed is None or not mixed[0]


def test_claims_write_the_same_rows_alone_and_in_any_batch(make_fellow: Callable[..., Fellow]) -> None:
    fellow, odd = make_fellow(), scope(caller=ODD)
    alone, *alike, in_terms, mixed = [attempt(f"k{number}", request=number, within=odd) for number in range(6)]
    found = claim_all(fellow, [alone]) + claim_all(fellow, alike)
    found += claim_all(fellow, [in_terms, attempt("other", within=scope(caller="bob"))])
    found += claim_all(fellow, [mixed, attempt("another", policy=IDEMPOTENT)])
    assert {type(verdict) for verdict in found} == {Proceed}
    written = [alone, *alike, in_terms, mixed]
    rows = records(fellow, written)
    assert all(row.caller == ODD for row in rows)
    assert [common_values(row) for row in rows] == [common_values(rows[0])] * 6
    for row, claim in zip(rows, written, strict=True):
        assert all(getattr(row, name) == getattr(claim, name) for name in KEPT_BY[:5])


def test_settlements_write_the_same_rows_alone_and_in_any_batch(make_fellow: Callable[..., Fellow]) -> None:
    fellow = make_fellow()
    claims = [attempt(f"k{number}", request=number) for number in range(6)]
    grants = [verdict.grant for verdict in claim_all(fellow, claims)]
    settlements = [settlement(grant) for grant in grants]
    settlements[5] = settlement(grants[5], answer=Answer(200, (), b""))
    assert settlements_alike(settlements[1:4]) is not None
    assert settlements_alike(settlements[4:]) is None
    assert (
        settle_all(fellow, settlements[:1]) + settle_all(fellow, settlements[1:4]) + settle_all(fellow, settlements[4:])
        == [Settled()] * 6
    )
    rows = records(fellow, claims)
    assert [common_values(row) for row in rows[:5]] == [common_values(rows[0])] * 5
    assert (rows[5].status, rows[5].headers, rows[5].body) == (200, b"", b"")
    verdicts = claim_all(fellow, claims)
    assert [type(verdict) for verdict in verdicts] == [Replay] * 6
    assert [verdict.answer for verdict in verdicts] == [OK] * 5 + [Answer(200, (), b"")]


@pytest.mark.parametrize(
    "other",
    [
        {"answer": None},
        {"state": State.FAILED_REPLAYABLE},
        {"doubt": "timeout"},
        {"error_code": "declined"},
        {"business_ref": "order-1"},
        {"resource_type": "payment"},
        {"resource_id": "1"},
        {"answer": OK._replace(status=202)},
        {"answer": OK._replace(headers=())},
    ],
    ids=lambda other: next(iter(other)),
)
def test_settlements_with_different_common_columns_are_not_batched_as_alike(other: dict[str, Any]) -> None:
    settlements = [settlement(first_grant(claim, 1)) for claim in LIKE]
    assert settlements_alike(settlements) is not None
    assert settlements_alike([*settlements, settlements[0]._replace(id=b"x" * 16, **other)]) is None


def test_each_of_equal_settlements_gets_its_own_result(make_fellow: Callable[..., Fellow]) -> None:
    """One has another holder's fence, one comes twice, one has no record: the others are settled."""
    fellow = make_fellow()
    claims = [attempt(f"k{number}", request=number) for number in range(4)]
    settlements = [settlement(verdict.grant) for verdict in claim_all(fellow, claims)]
    stale = settlements[1]._replace(fence=settlements[1].fence - 1)
    gone = settlements[2]._replace(id=b"g" * 16)
    assert settle_all(fellow, [settlements[0], stale, gone, settlements[3]]) == [
        Settled(),
        Superseded(State.PROCESSING),
        Superseded(None),
        Settled(),
    ]
    assert [type(reply) for reply in settle_all(fellow, [settlements[1], settlements[1], settlements[2]])][0::2] == [
        Settled,
        Settled,
    ]
    assert [row.state for row in records(fellow, claims)] == [State.SUCCEEDED] * 4


def test_a_request_that_was_recorded_under_a_former_recipe_is_replayed(make_fellow: Callable[..., Fellow]) -> None:
    """An ordinary claim in a batch meets it in other terms, and is made again in those."""
    fellow = make_fellow()
    former = command("k")

    async def pay(permit: Any, db: Writes) -> Answer:
        return MADE

    assert not fellow.run(former, pay).replayed
    now = replace(former, recipe="2.tests", fingerprint=b"f" * 32, under={former.recipe: former.fingerprint}.get)
    assert fellow.run(now, pay).replayed
    reused = fellow.tell(claim_of(fellow, replace(now, under=None)))
    assert type(reused) is not KeyReused  # another recipe, which says nothing of the request


async def claim_of(fellow: Fellow, what: Any) -> Any:
    met = fellow.engine.claim(what)
    return met if fellow.runner is None else await met
