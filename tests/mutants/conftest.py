"""Mutants run the same lines over and over: the simulator's fixture keeps a coverage tool out of that."""

from tests.simulate.conftest import untraced

__all__ = ["untraced"]
