"""A seeded mutator: inputs spliced from seeds, tokens and plain bytes, thousands in a second; and a plain shrinker."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

CHANGES_MAX = 5


def splice(seeds: Sequence[bytes], tokens: Sequence[bytes], seed: int, count: int) -> Iterator[bytes]:
    """`count` inputs that follow from `seed` alone.

    >>> list(spliced([b"ab"], [b"-"], 1, 2)) == list(spliced([b"ab"], [b"-"], 1, 2))
    True
    """
    choose = random.Random(seed)
    for _ in range(count):
        data = choose.choice(seeds) if choose.random() < 0.7 else b""
        for _ in range(choose.randrange(1, CHANGES_MAX + 1)):
            data = _change(data, choose, seeds, tokens)
        yield data


def _change(data: bytes, choose: random.Random, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    at = choose.randrange(len(data) + 1)
    match choose.randrange(6):
        case 0 | 1:
            return data[:at] + choose.choice(tokens) + data[at:]
        case 2:
            return data[:at] + bytes([choose.randrange(256)]) + data[at + choose.randrange(2) :]
        case 3:
            return data[:at] + data[at + choose.randrange(1, 9) :]
        case 4 if at < len(data):
            return data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :]
        case _:
            other = choose.choice(seeds)
            start = choose.randrange(len(other) + 1)
            return data[:at] + other[start : start + choose.randrange(1, 64)] + data[at:]


def smallest(data: bytes, fails: Callable[[bytes], bool]) -> bytes:
    """A smaller input that still fails: pieces are left out, large ones first, as long as that helps.

    >>> smallest(b"xxx!yy", lambda data: b"!" in data)
    b'!'
    """
    size = max(1, len(data) // 2)
    while True:
        for at in range(0, len(data), size):
            if fails(less := data[:at] + data[at + size :]):
                data = less
                break
        else:
            if size == 1:
                return data
            size //= 2
