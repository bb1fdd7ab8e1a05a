"""What a server is told: by hiredis and by what is written out here, of batches and of one, byte for byte the same."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest

from semel.core.decide import first_grant
from semel.core.model import AnswerKind, Claim, State
from semel.stores.redis import packing as redis_packing
from semel.stores.redis.batches import tell_claims, tell_settlements
from semel.stores.redis.packing import pack, pack_in_python
from semel.testing.attempts import EXTERNAL, IDEMPOTENT, OK, attempt, scope, settlement

SEED = 20261121
COMMANDS: list[tuple[Any, ...]] = [
    ("GET", b"key"),
    ("EVALSHA", "a" * 40, 1, b"{semel:00}:r:00", b"", -5, 0, 2**53),
    ("SET", b"\r\n$1\r\n*", b"\x00\xff" * 300, "PX", 1),
    ("WAIT", 1, 1000),
    ("SCRIPT", "LOAD", "return 'Ä'".encode()),
]


def test_hiredis_and_our_code_pack_the_same_bytes() -> None:
    random_bytes = random.Random(SEED)
    many = [
        ("EVALSHA", *(random_bytes.randbytes(random_bytes.randrange(80)) for _ in range(random_bytes.randrange(1, 22))))
        for _ in range(200)
    ]
    assert importlib.import_module("hiredis").pack_command is not None  # else both ways are one
    assert pack(COMMANDS) == pack_in_python(COMMANDS)
    assert pack(many) == pack_in_python(many)
    assert pack([]) == b""


@pytest.mark.parametrize("found", [None, "older"])
def test_without_hiredis_our_code_packs_commands(found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> object:
        if found is None:
            raise ImportError(name)
        return object()  # a hiredis that cannot pack yet

    redis_packing._pack_command.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(importlib, "import_module", import_module)
        assert redis_packing._pack_command() is None
        assert pack(COMMANDS) == pack_in_python(COMMANDS)
    redis_packing._pack_command.cache_clear()


def one_by_one(tell: Callable[[Sequence[Any]], Iterable[bytes]], requests: Sequence[Any]) -> list[bytes]:
    """What a script is told of a batch, were each of its requests a batch by itself."""
    return [told for request in requests for told in tell([request])]


def claims() -> list[Claim]:
    """Alike and not: other keys, callers, recipes, terms, holders."""
    places = [scope(), scope(), scope("100 %b", tenant="é", caller=""), scope(caller="bob")]
    policies = [EXTERNAL, EXTERNAL, IDEMPOTENT, EXTERNAL]
    return [
        attempt(f"k{number}", nonce=number // 2, within=place, policy=policy, recipe=recipe, starts=starts)
        for number, (place, policy, recipe, starts) in enumerate(
            product(places, policies, ("1.tests", "%d"), (State.PROCESSING, State.CLAIMED))
        )
    ]


@pytest.mark.parametrize("marker", [None, b"m"])
def test_a_batch_of_claims_says_of_each_what_it_says_alone(marker: bytes | None) -> None:
    many = claims()
    alike = [attempt(f"{number}")._replace(holder="h") for number in range(9)]
    for batch in (many, alike, [*alike, many[-1]]):
        told, names = tell_claims(batch, marker)
        assert list(told) == one_by_one(lambda each: tell_claims(each, marker)[0], batch)
        assert names == [name for claim in batch for name in tell_claims([claim], marker)[1]]


def test_a_batch_of_settlements_says_of_each_what_it_says_in_a_mixed_one() -> None:
    first = settlement(first_grant(attempt(), 1_000))
    others = [
        first._replace(answer=OK._replace(body=b"%d" * 400), id=b"o" * 16),
        first._replace(answer=OK._replace(status=409), state=State.FAILED_REPLAYABLE),
        first._replace(answer=OK._replace(headers=())),
        first._replace(answer_kind=AnswerKind.NOT_KEPT),
        first._replace(resource_type="order", resource_id="é%"),
        first._replace(answer=None, answer_kind=AnswerKind.NONE),
    ]
    for other in others:
        mixed = [list(tell_settlements([each, others[-2]])) for each in (first, other)]
        assert list(tell_settlements([first, other])) == [said for told in mixed for said in told[:2]]
        assert list(tell_settlements([other])) == mixed[1][:2]
