"""Which tests start processes or compute for long, and in which order a run's workers begin them.

A test mostly waits, so that a run has more workers than cores. Those below start servers, workers and killers of their
own, and depend on how soon these are scheduled: at most one for each core runs at a time, beside tests that wait. Of
those that mostly wait for their own processes, as many more run beside them: otherwise a core would wait with them.
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
# Of these the processor works for less than two fifths of the time: they wait for a lease, a pause, a server or a page.
WAITING: Final = (
    *(
        "tests/browser/*",
        "tests/conform/test_semel.py*",
        "tests/examples/test_faults.py*",
        "tests/grpc/test_killed.py*",
    ),
    *("tests/inbox/*", "tests/outside/test_limits.py*", "tests/processes/test_every_await.py*"),
    *("tests/processes/test_heartbeat.py*", "tests/reconcile/test_killed.py*", "tests/redis/*"),
    *("tests/service/test_crashes.py*", "tests/service/test_prometheus.py*", "tests/steps/*", "tests/web/*"),
    *("tests/worker/*", "tests/*/test_idle_*.py*"),
)


class Named(Protocol):
    """A collected test, as far as its place in the run depends on it."""

    @property
    def nodeid(self) -> str: ...


T = TypeVar("T", bound=Named)


def seats() -> int:
    """How many busy tests run at a time: as many as there are cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seat_of(name: str) -> str | None:
    """The kind of seat that a test waits for: one of the busy ones, of those that wait, or None.

    >>> seat_of("tests/nemeses/test_kills.py::test_it"), seat_of("tests/steps/test_kills.py::test_it[sqlite]")
    ('busy', 'waiting')
    >>> seat_of("tests/steps/test_steps.py::test_it") is None
    True
    """
    if not any(fnmatch(name, pattern) for pattern in BUSY):
        return None
    return "waiting" if any(fnmatch(name, pattern) for pattern in WAITING) else "busy"


def begin_first(items: Sequence[T], workers: int) -> list[T]:
    """The tests in the order in which a run begins them; each module stays whole.

    Each worker gets an equal part of the list, one after another, and takes from the end of others' parts when its own
    is done. So the tests that take a seat are put at the beginning of every other part, the busy ones at two thirds of
    these: then no worker waits for a seat while there is other work, and the longest tests do not make up the end of
    the run.
    """
    modules: dict[str, list[T]] = {}
    for item in items:
        modules.setdefault(item.nodeid.split("::")[0], []).append(item)
    longest = [name for name in modules if any(fnmatch(name, pattern) for pattern in LONGEST)]
    kinds = {name: seat_of(name) for name in modules}
    busy = longest + [name for name in modules if kinds[name] == "busy" and name not in longest]
    waiting = [name for name in modules if kinds[name] == "waiting"]
    calm = [item for name in modules if kinds[name] is None for item in modules[name]]
    parts = max(1, (workers + 1) // 2)
    apart = parts // 3
    groups = [busy[part :: parts - apart] for part in range(parts - apart)]
    groups += [waiting[part::apart] for part in range(apart)]
    if not apart:
        groups = [(busy + waiting)[part::parts] for part in range(parts)]
    heads = [[item for name in group for item in modules[name]] for group in groups]
    size, ordered = max(1, len(items) // max(1, workers)), list[T]()
    for part, head in enumerate(heads):
        fill = part * size * 2 - len(ordered)
        ordered += calm[: max(0, fill)]
        calm = calm[max(0, fill) :]
        ordered += head
    return ordered + calm
