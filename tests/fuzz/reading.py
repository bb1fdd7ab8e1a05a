"""Turns the bytes of one fuzz input into choices, the same ones on every run and under every driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Takes choices from the front of `data`; once it is used up, every choice is the first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, size: int = 1) -> int:
        """A whole number of `size` bytes, unsigned."""
        return int.from_bytes(self._take(size), "big")

    def pick(self, from_: Sequence[T]) -> T:
        """Choose one of at most 256 things."""
        return from_[self.number() % len(from_)]

    def piece(self) -> bytes:
        """Up to 255 bytes, their number read first."""
        return self._take(self.number())

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        return self._take(len(self._data))

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self._at >= len(self._data)

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken


def pieces_of(data: bytes) -> list[bytes]:
    """The same bytes in pieces whose sizes follow from the bytes: for readers that must not care."""
    pieces, at = [], 0
    while at < len(data):
        size = 1 + data[at] % 7 if len(data) < 200 else 1 + data[at] * 3
        pieces.append(data[at : at + size])
        at += size
    return pieces
