"""The random bits of nonces and operation ids: drawn for many attempts at once, and never taken twice."""

from __future__ import annotations

import os
from uuid import UUID

from semel.core.identity import uuid7
from semel.engine.state import RandomBits

DRAWS = 300  # more than are drawn at once


def take(bits: RandomBits) -> tuple[bytes, bytes]:
    return next(bits.left, None) or bits.draw()


def test_no_bits_are_taken_twice() -> None:
    bits = RandomBits()
    taken = [take(bits) for _ in range(DRAWS)]
    assert len({nonce for nonce, _ in taken}) == len({tail for _, tail in taken}) == DRAWS
    assert {len(nonce) for nonce, _ in taken} == {16}
    made = [UUID(bytes=uuid7(1_700_000_000_000, tail)) for _, tail in taken]
    assert {(each.version, each.variant) for each in made} == {(7, "specified in RFC 4122")}


def test_a_forked_child_takes_none_of_its_parents_bits() -> None:
    bits = RandomBits()
    take(bits)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, take(bits)[0])
        os._exit(0)
    os.close(writer)
    theirs = os.read(reader, 16)
    os.close(reader)
    assert os.waitpid(child, 0)[1] == 0
    assert len(theirs) == 16
    assert theirs not in {take(bits)[0] for _ in range(DRAWS)}
