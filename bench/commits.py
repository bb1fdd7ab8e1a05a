"""The shop whose payments are not ATOMIC: the claim, the row and the answer are three commits."""

from bench.shop import build

__all__ = ["build"]
