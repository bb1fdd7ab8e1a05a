"""The doubts that steps leave: ``step:charge`` says in which one the outcome was lost."""

from __future__ import annotations

from typing import Final

DOUBT: Final = "step:"


def names_a_step(doubt: str | None) -> bool:
    """Whether a doubt is that of a step.

    >>> names_a_step("step:charge"), names_a_step("lapsed"), names_a_step(None)
    (True, False, False)
    """
    return doubt is not None and doubt.startswith(DOUBT)
