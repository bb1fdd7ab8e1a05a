"""Which tests occupy the processor by themselves, and in which order a run's workers begin them.

A test mostly waits, so that a run has more workers than cores. Those below start servers, workers and killers of their
own, and depend on how soon these are scheduled: at most one for each core runs at a time, beside tests that wait.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Final, Protocol, TypeVar

LONGEST: Final = (
    *("tests/nemeses/*", "tests/simulate/test_coverage.py*", "tests/docs/test_site.py*"),
    "tests/explore/test_explore.py*",
)
BUSY: Final = (
    *LONGEST,
    *("tests/browser/*", "tests/console/test_browser.py*", "tests/crash/*", "tests/examples/*", "tests/exporters/*"),
    *("tests/deploy/*", "tests/frameworks/*", "tests/gateway/test_proxies.py*", "tests/history/*", "tests/outside/*"),
    *("tests/processes/*", "tests/proxy/*", "tests/service/*", "tests/upgrading/*", "tests/worker/*"),
    *("tests/client/test_chaos.py*", "tests/conform/test_semel.py*", "tests/conform/test_run.py*"),
    *("tests/inbox/test_celery.py*", "tests/inbox/test_dramatiq.py*", "tests/inbox/test_brokers.py*"),
    *("tests/redis/test_cluster.py*", "tests/redis/test_replicas.py*", "tests/redis/test_sentinel.py*"),
    *("tests/*/test_kill*.py*", "tests/*/test_*killed.py*", "tests/*/test_races.py*", "tests/*/test_*soak.py*"),
    *("tests/steps/test_takeover.py*", "tests/steps/test_worker_completes.py*", "tests/web/test_slow_clients.py*"),
    *("tests/*/test_idle_*.py*", "tests/*/test_interrupt*.py*", "tests/engine/test_forks.py*"),
)


class Named(Protocol):
    """A collected test, as far as its place in the run depends on it."""

    @property
    def nodeid(self) -> str: ...


T = TypeVar("T", bound=Named)


def seats() -> int:
    """How many busy tests run at a time: as many as there are cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_busy(name: str) -> bool:
    """Whether a test occupies the processor with processes of its own, or with a long computation.

    >>> is_busy("tests/steps/test_kills.py::test_it[sqlite]"), is_busy("tests/steps/test_steps.py::test_it")
    (True, False)
    """
    return any(fnmatch(name, pattern) for pattern in BUSY)


def begin_first(items: Sequence[T], workers: int) -> list[T]:
    """The tests in the order in which a run begins them; each module stays whole.

    Each worker gets an equal part of the list, one after another, and takes from the end of others' parts when its own
    is done. So the busy tests are put at the beginning of every other part: then nobody waits for a seat while there is
    other work, and the longest are not what everybody waits for at the end.
    """
    modules: dict[str, list[T]] = {}
    for item in items:
        modules.setdefault(item.nodeid.split("::")[0], []).append(item)
    longest = [name for name in modules if any(fnmatch(name, pattern) for pattern in LONGEST)]
    busy = [name for name in modules if is_busy(name) and name not in longest]
    calm = [item for name in modules if name not in busy and name not in longest for item in modules[name]]
    parts = max(1, (workers + 1) // 2)
    heads = [[item for name in (longest + busy)[part::parts] for item in modules[name]] for part in range(parts)]
    size, ordered = max(1, len(items) // max(1, workers)), list[T]()
    for part, head in enumerate(heads):
        fill = part * size * 2 - len(ordered)
        ordered += calm[: max(0, fill)]
        calm = calm[max(0, fill) :]
        ordered += head
    return ordered + calm
