"""The doubts of steps: ``step:charge`` names the step whose outcome was lost."""

from __future__ import annotations

from typing import Final

DOUBT: Final = "step:"
UNREADABLE: Final = "steps-unreadable"  # the list itself is unreadable: which steps have finished is unknown


def names_a_step(doubt: str | None) -> bool:
    """Whether a doubt names a step.

    >>> names_a_step("step:charge"), names_a_step("lapsed"), names_a_step(None)
    (True, False, False)
    """
    return doubt is not None and doubt.startswith(DOUBT)


def step_of(doubt: str | None) -> str | None:
    """Return the step that a doubt names, for display; None for any other doubt, or a damaged one.

    >>> step_of("step:charge#1"), step_of("lapsed")
    ('charge#1', None)
    """
    return doubt.removeprefix(DOUBT) if isinstance(doubt, str) and names_a_step(doubt) else None
