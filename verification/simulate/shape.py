"""What a schedule looks like: the sizes and the trouble that are drawn from the seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from semel.core.model import Effects, Scope
from semel.errors import PolicyError
from semel.policy import Command, Policy
from verification.simulate.script import Script, draw_script, stepped_policies
from verification.simulate.world import World

ANSWER_SECONDS: Final = 30.0
TOMBSTONE_SECONDS: Final = 90.0
DEDUP_SECONDS: Final = 20.0
ATTEMPTS_MAX: Final = 2
LEASES: Final = (1.0, 3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which schedules are drawn. The default is what CI runs.

    Parameters: ``effects`` the declarations to choose from; ``trouble`` how likely a store call meets a fault
    of the network, at most, 0 to 1; ``sqlite`` the share of schedules on the real SQLite store, 0 to 1;
    ``large`` the share of schedules with more clients and workers; ``steps`` the share of schedules whose handlers have
    steps, which run on the real SQLite store; ``undeclared`` of these, in which every second worker is of a version
    that declares none.

    Raises PolicyError: a share that is none, or no effects at all.
    """

    effects: tuple[Effects, ...] = (Effects.EXTERNAL, Effects.EXTERNAL, Effects.IDEMPOTENT, Effects.ATOMIC)
    trouble: float = 0.35
    sqlite: float = 0.02
    large: float = 0.04
    steps: float = 0.0
    undeclared: float = 0.0

    def __post_init__(self) -> None:
        for name in ("trouble", "sqlite", "large", "steps", "undeclared"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise PolicyError(f"{name} is a share from 0 to 1; it is {value!r}")
        if not self.effects:
            raise PolicyError("effects must name at least one declaration, such as (Effects.EXTERNAL,)")


@dataclass(slots=True)
class Plan:
    """One schedule's sizes, drawn once at its beginning."""

    policy: Policy
    workers: int
    clients: int
    keys: int
    attempts: int
    trouble: float
    on_sqlite: bool
    idle_us: tuple[int, ...]
    handler_trouble: float
    crashes: dict[int, str] = field(default_factory=dict)  # the n-th store call of all -> what becomes of its worker
    reaps: int = 0
    jumps: tuple[int, ...] = ()
    drift: float = 0.0
    coalesces: bool = False
    resolves: bool = False
    script: Script = ()  # the steps of every handler, where they have any
    deduplicates: bool = True  # whether the downstream of steps does, by their derived keys
    completes: int = 0
    undeclared: Policy | None = None  # of every second worker, where its version declares no steps


def draw_plan(world: World, shape: Shape) -> Plan:
    """Draw the sizes of one schedule."""
    stepped = shape.steps > 0 and world.happens(shape.steps)  # no draw where there are none: seeds stay what they are
    effects = Effects.EXTERNAL if stepped else world.pick(shape.effects)
    large = world.happens(shape.large)
    calm = world.happens(0.2)
    plan = Plan(
        policy=world.pick(_stepped_policies() if stepped else policies(effects)),
        workers=world.between(2, 4 if large else 3),
        clients=world.between(4, 7) if large else world.between(1, 4),
        keys=world.between(1, 4) if large else 1 + world.happens(0.25),
        attempts=world.between(2, 5) if large else world.between(1, 4),
        trouble=0.0 if calm else world.pick((0.05, 0.15, 1.0)) * shape.trouble,
        on_sqlite=world.happens(shape.sqlite) or stepped,
        idle_us=tuple(world.between(21, 45) * 1_000_000 for _ in range(world.happens(0.15))),
        handler_trouble=world.pick((0.1, 0.5)),
    )
    if world.happens(0.05):
        plan.idle_us += (world.between(700, 900) * 1_000_000,)
    if not calm:
        for _ in range(world.between(0, 3)):
            plan.crashes[world.between(1, 14)] = world.pick(("crash before", "crash after", "pause", "pause"))
    plan.reaps = world.between(0, 4)
    plan.resolves = world.happens(0.5)
    if world.happens(0.2):
        plan.jumps = tuple(world.pick((-4, -1, 2, 10)) * 1_000_000 for _ in range(world.between(1, 3)))
    if world.happens(0.1):
        plan.drift = world.pick((-0.1, 0.1))
    plan.coalesces = world.happens(0.25)
    world.shuffles = world.happens(0.25)
    if stepped:
        plan.script = draw_script(world)
        plan.handler_trouble = world.pick((0.3, 0.9))
        plan.deduplicates = world.happens(0.5)
        plan.completes = world.between(0, 4) if plan.policy.resumable else 0
        if shape.undeclared > 0 and world.happens(shape.undeclared):
            plan.undeclared = replace(plan.policy, steps=False, resumable=False)
    return plan


def _stepped_policies() -> tuple[Policy, ...]:
    return stepped_policies(LEASES, ANSWER_SECONDS, TOMBSTONE_SECONDS, DEDUP_SECONDS)


@cache
def policies(effects: Effects) -> tuple[Policy, ...]:
    """The policies that commands of these effects are run under."""
    made = []
    for lease in LEASES:
        common = {
            "effects": effects,
            "lease_seconds": lease,
            "deadline_seconds": lease * 3,
            "answer_seconds": ANSWER_SECONDS,
            "tombstone_seconds": TOMBSTONE_SECONDS,
            "dedup_for_seconds": DEDUP_SECONDS,
            "attempts_max": ATTEMPTS_MAX,
        }
        made.append(Policy.of(**common))
        if effects is Effects.EXTERNAL:
            made.append(Policy.of(**common, after_expiry="new"))
            made.append(Policy.of(**common, marks_effects=True))
            made.append(Policy.of(**common, on_error="replay", definite_5xx={503}))
        elif effects is Effects.IDEMPOTENT:
            made.append(Policy.of(**common, after_expiry="new"))
    return tuple(made)


@cache
def command(key: int, payload: int, policy: Policy) -> Command:
    """A command. Keys 0 and 1 are one key in the scopes of two callers; key 2 is another key of the first."""
    scope = Scope("acme", "bob" if key == 1 else "alice", "pay")
    request = bytes([payload]) if policy.resumable else None
    return Command(scope, f"key-{key // 2}", bytes([payload]) * 32, "1.simulated", policy, request=request)
