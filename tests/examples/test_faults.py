"""A process dies at every point of a command's way (F-30 to F-47): payments and orders, real processes, SIGKILL.

Each row names the fault, where the process dies, and what must be true afterwards. The client asks again with the same
key until the answer says how its command ended; a reconciler finds out what is unknown.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semel import State
from tests.examples.ground import UNKNOWN, Ground, Nursery, ground
from tests.examples.serving import Program, serving
from tests.service.served import Answered, await_true

STORES = ("sqlite", "postgres")


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with serving(tmp_path_factory.mktemp("provider"), "examples.payments.provider:app") as made:
        yield made


@pytest.fixture(params=STORES)
def shop(request: pytest.FixtureRequest, nursery: Nursery, provider: Program, tmp_path: Path) -> Iterator[Ground]:
    with ground(request.param, nursery, provider, tmp_path) as made:
        yield made


@dataclass(frozen=True)
class Fault:
    """One row: the fault, the point, and whether it runs again or is unknown; ``charged``: once it is unknown."""

    name: str
    doom: str
    unknown: bool = False
    charged: int = 0
    replayed: bool | None = None  # None: either, as the store may have it or not

    def __str__(self) -> str:
        return self.name


def amounts() -> Iterator[int]:
    """An amount for each test of this process, so that the provider's ledger tells them apart."""
    number = os.getpid() * 10_000
    while True:
        number += 1
        yield number


AMOUNTS = amounts()

PAYMENTS = [
    Fault("F-30 before the claim", "at:request:1", replayed=False),
    Fault("F-31 claim sent, not answered", "during:claim:1", replayed=False),
    Fault("F-32 claimed, the handler not started", "after:claim:1", replayed=False),
    Fault("F-35 before the start of the charge is durable", "before:write_steps:1", replayed=False),
    Fault("F-36 the start is durable, the call not made", "after:write_steps:1", unknown=True),
    Fault("F-37 the call answered, nothing of it stored", "after:charge:1", unknown=True, charged=1),
    Fault("F-38 the settlement sent, not answered", "during:settle:1"),
    Fault("F-39 settled, the answer not sent", "after:settle:1", replayed=True),
    Fault("F-40 half of the answer sent", "at:half-answer:1", replayed=True),
    Fault("F-45 while the body is read", "at:body:1", replayed=False),
]
ORDERS = [
    Fault("F-31 claim sent, not answered", "during:unit-claim:1", replayed=False),
    Fault("F-33 in the transaction, before the effect", "after:unit-claim:1", replayed=False),
    Fault("F-34 after the effect, before the commit", "before:commit:1", replayed=False),
    Fault("F-38 COMMIT sent, not answered", "during:commit:1"),
    Fault("F-39 committed, the answer not sent", "after:commit:1", replayed=True),
    Fault("F-40 half of the answer sent", "at:half-answer:1", replayed=True),
]


def found_out(shop: Ground, path: str, body: Any) -> Answered:
    """Reconcilers look until the payment is settled; returns what the client then gets."""

    def is_settled() -> bool:
        shop.await_end(shop.look())
        return shop.settled == 1

    await_true(is_settled, "the reconciler to find out")
    return shop.until_final(path, body)


def dies(shop: Ground, doom: str, path: str, body: Any) -> None:
    """A shop is asked, and dies of it; another one opens."""
    pid = shop.start(doom)
    assert shop.post(path, body).status == 0
    shop.await_end(pid)
    shop.start()


@pytest.mark.parametrize("fault", PAYMENTS, ids=str)
def test_a_payment_is_charged_once_after_each_fault(shop: Ground, fault: Fault) -> None:
    amount = next(AMOUNTS)
    body = {"amount": amount, "card": "tok_good"}
    dies(shop, fault.doom, "/payments", body)
    seen = shop.until_final("/payments", body)
    if fault.unknown:
        assert (seen.status, seen.json["code"]) == (409, UNKNOWN)
        assert shop.charges(amount) == fault.charged
        seen = found_out(shop, "/payments", body)
    elif fault.replayed is not None:
        assert seen.replayed == fault.replayed
    assert seen.status == 201
    assert shop.charges(amount) == 1
    assert shop.rows("SELECT amount, charge FROM payments") == [(amount, seen.json["charge"])]


@pytest.mark.parametrize("fault", ORDERS, ids=str)
def test_an_order_is_written_once_after_each_fault(shop: Ground, fault: Fault) -> None:
    dies(shop, fault.doom, "/orders", {"sku": "book"})
    seen = shop.until_final("/orders", {"sku": "book"})
    assert seen.status == 201
    if fault.replayed is not None:
        assert seen.replayed == fault.replayed
    assert shop.rows("SELECT id, sku FROM orders") == [(seen.json["id"], "book")]
    assert shop.rows("SELECT aggregateid, topic FROM semel_event") == [(seen.json["id"], "orders.placed")]


def test_f_36_killed_during_the_call(shop: Ground) -> None:
    """The provider has charged, and its answer is on its way for ever: the shop is killed while it waits."""
    amount = next(AMOUNTS)
    body = {"amount": amount, "card": "tok_slow"}
    pid = shop.start()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(shop.post, "/payments", body)
        await_true(lambda: shop.charges(amount) == 1, "the charge")
        shop.kill(pid)
        assert asked.result().status == 0
    shop.start()
    assert shop.until_final("/payments", body).json["code"] == UNKNOWN
    assert found_out(shop, "/payments", body).status == 201
    assert shop.charges(amount) == 1


def test_f_41_the_reaper_dies_between_marking_and_reporting(shop: Ground) -> None:
    amount = next(AMOUNTS)
    body = {"amount": amount, "card": "tok_good"}
    pid = shop.start("after:charge:1")
    assert shop.post("/payments", body).status == 0
    shop.await_end(pid)
    shop.await_end(shop.start("at:lapsed:1"))  # no client asks: its reaper finds the lapsed lease
    shop.start()
    assert shop.rows("SELECT state FROM semel_record") == [(int(State.UNKNOWN),)]
    assert found_out(shop, "/payments", body).status == 201
    assert shop.charges(amount) == 1


def test_f_42_the_reconciler_dies_between_asking_and_writing(shop: Ground) -> None:
    amount = next(AMOUNTS)
    body = {"amount": amount, "card": "tok_good"}
    dies(shop, "after:charge:1", "/payments", body)
    assert shop.until_final("/payments", body).json["code"] == UNKNOWN

    shop.await_end(shop.look("after:find:1"))
    assert shop.rows("SELECT count(*) FROM semel_audit") == [(0,)]
    seen = found_out(shop, "/payments", body)
    assert (seen.status, seen.replayed, shop.charges(amount)) == (201, True, 1)


def test_f_43_two_reconcilers_on_one_payment(shop: Ground) -> None:
    amount = next(AMOUNTS)
    body = {"amount": amount, "card": "tok_good"}
    dies(shop, "after:charge:1", "/payments", body)
    assert shop.until_final("/payments", body).json["code"] == UNKNOWN

    def is_settled() -> bool:
        for pid in [shop.look(), shop.look()]:
            shop.await_end(pid)
        return shop.settled > 0

    await_true(is_settled, "one of them to settle it")
    assert shop.settled == 1
    assert shop.rows("SELECT count(*) FROM semel_audit") == [(1,)]
    assert shop.until_final("/payments", body).status == 201
    assert shop.charges(amount) == 1


def test_f_44_a_command_that_kills_its_workers_is_not_run_for_ever(shop: Ground) -> None:
    for _ in range(2):  # attempts_max
        pid = shop.start()
        await_true(lambda: shop.post("/poison", {"sku": "x"}).status == 0, "the next attempt to be granted")
        shop.await_end(pid)
    shop.start()
    assert shop.until_final("/poison", {"sku": "x"}).json["code"] == UNKNOWN
    assert shop.rows("SELECT attempt FROM semel_record") == [(2,)]


def test_f_47_the_interpreter_ends_in_the_middle(shop: Ground) -> None:
    """SIGTERM while the provider is waited for: what was begun is settled or lost with its lease, never half."""
    amount = next(AMOUNTS)
    body = {"amount": amount, "card": "tok_slow"}
    pid = shop.start()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(shop.post, "/payments", body)
        await_true(lambda: shop.charges(amount) == 1, "the charge")
        os.kill(pid, signal.SIGTERM)
        assert asked.result().status == 504  # it was waited for, and reported its outcome
    shop.await_end(pid)
    shop.start()
    assert shop.post("/payments", body).json["code"] == UNKNOWN
    assert found_out(shop, "/payments", body).status == 201
    assert shop.charges(amount) == 1
