"""What a handler with steps does: a script of two or three of them, the same for every run of a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from semel.policy import Policy
from verification.simulate.world import World

Kind = Literal["plain", "repeatable", "local"]
STEP_ATTEMPTS_MAX: Final = 4
_SCRIPTS: Final[tuple[tuple[Kind, ...], ...]] = (
    ("plain", "repeatable"),
    ("repeatable", "plain"),
    ("plain", "plain"),
    ("plain", "local"),
    ("local", "plain"),
    ("plain", "repeatable", "local"),
    ("local", "plain", "repeatable"),
    ("repeatable", "local", "plain"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One step of a script. ``plain``: it may not be repeated; ``local``: its writes commit with its record."""

    name: str
    kind: Kind

    @property
    def repeats(self) -> bool:
        """Whether it is declared with ``repeat=True``."""
        return self.kind == "repeatable"


Script = tuple[Part, ...]


def draw_script(world: World) -> Script:
    """The steps of one schedule's handler."""
    return tuple(Part(f"{'abc'[place]}-{kind}", kind) for place, kind in enumerate(world.pick(_SCRIPTS)))


@cache
def stepped_policies(
    leases: tuple[float, ...], answer_seconds: float, tombstone_seconds: float, dedup_for_seconds: float
) -> tuple[Policy, ...]:
    """The policies that handlers with steps are run under: with their client alone, and resumable."""
    made = []
    for lease in leases:
        for resumable in (False, True):
            made.append(
                Policy.of(
                    effects="external",
                    steps=True,
                    resumable=resumable,
                    lease_seconds=lease,
                    deadline_seconds=lease * 3,
                    answer_seconds=answer_seconds,
                    tombstone_seconds=tombstone_seconds,
                    dedup_for_seconds=dedup_for_seconds,
                    attempts_max=STEP_ATTEMPTS_MAX,
                )
            )
    return tuple(made)
