"""A seed is a schedule: the same one everywhere, to the byte."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter

from semel.core.model import Effects
from verification.simulate import Shape, replay

SEEDS = range(300)
PRINT_DIGEST = """
import hashlib
from verification.simulate import replay
print(hashlib.sha256("\\n".join("\\n".join(replay(seed).trace) for seed in range(300)).encode()).hexdigest())
"""


def test_the_same_seed_is_the_same_schedule() -> None:
    for seed in SEEDS:
        first, again = replay(seed), replay(seed)
        assert first.trace == again.trace
        assert first.coverage == again.coverage


def test_other_seeds_are_other_schedules() -> None:
    assert len({replay(seed).trace for seed in SEEDS}) == len(SEEDS)


def test_a_schedule_does_not_depend_on_the_order_of_hashes() -> None:
    here = hashlib.sha256("\n".join("\n".join(replay(seed).trace) for seed in SEEDS).encode()).hexdigest()
    for hash_seed in ("0", "1", "4242"):
        ended = subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ended.stdout.strip() == here, f"PYTHONHASHSEED={hash_seed}"


def test_schedules_are_as_eventful_as_they_are_meant_to_be() -> None:
    words = ("CRASHES", "is paused", "its clock", "twice", "lost reply", "late request", "EFFECT", "resolve:")
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        trace = "\n".join(replay(seed).trace)
        seen.update(word for word in words if word in trace)
    assert min(seen.values()) >= 10, seen
    assert set(seen) == set(words)


def test_a_shape_restricts_the_schedules() -> None:
    shape = Shape(effects=(Effects.IDEMPOTENT,), sqlite=1.0, trouble=0.0)
    for seed in range(20):
        head = replay(seed, shape=shape).trace[0]
        assert "IDEMPOTENT" in head
        assert "on_sqlite=True" in head
        assert "trouble=0.0" in head
