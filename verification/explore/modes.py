"""The modes that are explored: each Effects, with marks, with retention, with faults of every kind."""

from __future__ import annotations

from typing import Final

from semel.policy import Policy
from verification.explore.world import SPANS, Left, Mode, Part

_EXTERNAL: Final = Policy.of(effects="external", **SPANS)
_MARKS: Final = Policy.of(effects="external", marks_effects=True, **SPANS)
_NEW: Final = Policy.of(effects="external", after_expiry="new", **SPANS)
_IDEMPOTENT: Final = Policy.of(effects="idempotent", attempts_max=2, **SPANS)
_ATOMIC: Final = Policy.of(effects="atomic", **SPANS)
_STEPS: Final = Policy.of(effects="external", steps=True, **SPANS)
_CHARGE_MAIL: Final = (Part("charge", repeats=False), Part("mail", repeats=True))
_CHARGE_SHIP: Final = (Part("charge", repeats=False), Part("ship", repeats=False))

MODES: Final = (
    Mode(name="external", policy=_EXTERNAL, left=Left(crashes=2, losses=1, resolutions=1)),
    Mode(name="external-3", policy=_EXTERNAL, workers=3, left=Left(crashes=1, losses=1, resolutions=1)),
    Mode(name="marks", policy=_MARKS, left=Left(crashes=1, losses=1, resolutions=1)),
    Mode(name="expiry-new", policy=_NEW, left=Left(crashes=1, losses=1, resolutions=1)),
    Mode(name="clock-back", policy=_EXTERNAL, left=Left(crashes=1, losses=0, resolutions=1, clock_faults=1)),
    Mode(name="idempotent", policy=_IDEMPOTENT, left=Left(crashes=1, losses=0, resolutions=1)),
    Mode(name="idempotent-late", policy=_IDEMPOTENT, left=Left(crashes=0, losses=1, resolutions=0)),
    Mode(name="idempotent-3", policy=_IDEMPOTENT, workers=3, left=Left(crashes=0, losses=0, resolutions=0)),
    Mode(name="atomic", policy=_ATOMIC, left=Left(crashes=2, losses=2, resolutions=1, early_commits=1)),
    Mode(name="atomic-3", policy=_ATOMIC, workers=3, left=Left(crashes=1, losses=1, resolutions=1, early_commits=1)),
    Mode(name="steps", policy=_STEPS, script=_CHARGE_SHIP, renews=False, left=Left(1, 0, 1)),
    Mode(name="steps-renewed", policy=_STEPS, script=_CHARGE_MAIL, left=Left(0, 0, 1)),
    Mode(name="steps-repeated", policy=_STEPS, script=_CHARGE_MAIL, renews=False, left=Left(1, 0, 0)),
    Mode(name="steps-raising", policy=_STEPS, script=_CHARGE_SHIP, renews=False, left=Left(0, 0, 1, failures=1)),
    Mode(
        name="steps-undeclared",
        policy=_STEPS,
        script=_CHARGE_MAIL,
        renews=False,
        left=Left(1, 0, 0),
        undeclared=_EXTERNAL,
    ),
    Mode(name="steps-late", policy=_STEPS, script=_CHARGE_SHIP, renews=False, left=Left(0, 1, 0)),
)


def mode_named(name: str) -> Mode:
    """The mode of this name. Raises KeyError."""
    return {mode.name: mode for mode in MODES}[name]
