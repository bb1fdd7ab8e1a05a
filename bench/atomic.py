"""The shop whose payments are ATOMIC: claim, row and answer in one commit."""

from bench.shop import build

__all__ = ["build"]
