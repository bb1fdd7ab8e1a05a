"""Every pair of a store's verbs in every situation of a record, and triples: each verb is atomic, on both stores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from semel.core.contract import Store
from semel.core.model import Proceed
from semel.stores.memory.store import MemoryStore
from semel.stores.sqlite.store import SQL
from semel.testing import verbs
from semel.testing.interleave import MemoryWorld, SqliteWorld, World
from semel.testing.verbs import SITUATIONS, VERBS, NotAtomic, check, check_all
from verification.explore.replacing import replace_everywhere, text_replaced

WORLDS = pytest.mark.parametrize("make", [MemoryWorld, SqliteWorld], ids=["memory", "sqlite"])


@WORLDS
@pytest.mark.no_cover  # the same lines in every order; the conformance cases measure them
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_every_pair_of_verbs_is_atomic(make: Callable[[], World], situation: verbs.Situation) -> None:
    counted = check_all(make, (case for case in verbs.pairs() if case[0] is situation))
    assert counted.cases == len(VERBS) * (len(VERBS) + 1) // 2
    assert counted.interleavings >= 2 * counted.cases
    print(f"{situation.name}: {counted.cases} pairs, {counted.interleavings} interleavings")


def test_no_method_of_the_contract_is_left_out() -> None:
    """A new verb of a store is paired with every other, or its line says why it need not be."""
    contract = {name for name, value in vars(Store).items() if callable(value) and not name.startswith("_")}
    assert contract == verbs.USES.keys() | verbs.NOT_PAIRED.keys()
    assert not verbs.USES.keys() & verbs.NOT_PAIRED.keys()
    assert {name for names in verbs.USES.values() for name in names} == VERBS.keys()
    paired = {names for _, names in verbs.pairs()}
    assert all((a, b) in paired or (b, a) in paired for a in VERBS for b in VERBS)


class Noting:
    """The memory store, and which of its methods were called."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self._store = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        self.called.add(name)
        return getattr(self._store, name)


@pytest.mark.parametrize("method", verbs.USES)
def test_a_verb_calls_its_method(method: str) -> None:
    [verdict] = MemoryWorld().do(partial(MemoryStore().claim, (verbs.MINE,)))
    assert isinstance(verdict, Proceed)
    for name in verbs.USES[method]:
        store, world = Noting(), MemoryWorld()
        world.do(VERBS[name](store, verdict.grant))
        assert method in store.called, name


@pytest.mark.parametrize(
    "names",
    [
        ("claim", "claim by a third", "settle succeeded"),
        ("claim", "settle succeeded", "lapse"),
        ("claim", "renew", "abandon"),
        ("claim", "settle succeeded", "resolve did not"),
        ("claim", "claim by a third", "purge"),
        ("settle succeeded", "renew", "lapse"),
    ],
    ids=" and ".join,
)
def test_the_dangerous_triples_of_verbs_are_tested(names: tuple[str, ...]) -> None:
    assert any(sorted(names) == sorted(case[1]) for case in verbs.triples())


@WORLDS
@pytest.mark.no_cover
@pytest.mark.parametrize("name", verbs.TRIPLE_SITUATIONS)
def test_three_verbs_at_once_are_atomic(make: Callable[[], World], name: str) -> None:
    counted = check_all(make, (case for case in verbs.triples() if case[0].name == name))
    assert counted.cases == 56
    assert counted.interleavings >= 6 * counted.cases
    print(f"{name}: {counted.cases} triples, {counted.interleavings} interleavings")


def test_a_stale_time_makes_no_difference() -> None:
    """With the asking for the time as a step of its own: the writers that meet most often."""
    for situation in SITUATIONS:
        for names in (
            ("claim", "claim"),
            ("claim", "settle succeeded"),
            ("claim", "purge"),
            ("resolve did not", "renew"),
        ):
            check(partial(SqliteWorld, fine=True), situation, names)


def test_a_non_atomic_claim_is_detected() -> None:
    """Without the conflict being told, two are granted what one may have."""
    statement = SQL["insert_claim"]
    with (
        text_replaced(
            statement, "ON CONFLICT (id) DO NOTHING", "ON CONFLICT (id) DO UPDATE SET nonce = excluded.nonce"
        ),
        pytest.raises(NotAtomic, match="claim and claim by a third, from 'never seen'"),
    ):
        check(SqliteWorld, SITUATIONS[0], ("claim", "claim by a third"))


def test_a_non_atomic_write_is_detected() -> None:
    """Without naming the version that was read, one writer undoes another's write."""
    passage = " AND state = ?\n    AND lease_until = ? AND answer_kind = ? AND doubt IS ?"
    unguarded = " AND ifnull(?, ifnull(?, ifnull(?, ifnull(?, 1)))) IS NOT NULL"
    with text_replaced(SQL["write_record"], passage, unguarded), pytest.raises(NotAtomic):
        check_all(SqliteWorld, (case for case in verbs.pairs() if case[0].name == "UNKNOWN"))


def test_a_purge_that_forgets_what_was_granted_anew_is_detected() -> None:
    """Without naming the end that was read, it deletes a record whose handler is running: the next claim runs again."""
    passage = " AND forget_after = ?"
    found = r"claim and purge, from 'tombstone over, key new'"
    with (
        text_replaced(SQL["forget"], passage, " AND ? IS NOT NULL"),
        pytest.raises(NotAtomic, match=found),
    ):
        check_all(SqliteWorld, (case for case in verbs.pairs() if case[0].name == "tombstone over, key new"))


def test_the_check_compares_held_grants_too() -> None:
    with (
        replace_everywhere("semel.core.settle:abandon_row", lambda original: lambda row, nonce, now: None),
        replace_everywhere("semel.core.settle:renew_row", lambda original: lambda row, renewal, now: row),
    ):
        assert check(MemoryWorld, SITUATIONS[1], ("renew", "abandon")) == 2  # wrong, and atomic all the same
