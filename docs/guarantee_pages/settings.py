"""What each store keeps under each setting, held to what the nemeses found."""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from guarantee_pages.capabilities import STORES
from guarantee_pages.markdown import table
from guarantee_pages.named_tests import ROOT, link_to


class Cell(NamedTuple):
    """What becomes of what was acknowledged, and what shows it; nothing where it rests on others' word.

    ``played`` are lines of ``tests/nemeses/lines.py``, by their words: what came of each must be what the cell says.
    """

    says: str
    tests: tuple[str, ...] = ()
    played: tuple[str, ...] = ()


class Setting(NamedTuple):
    """A store under one setting: a name of ``STORES``, the setting, and a cell for each of ``EVENTS``."""

    store: str
    setting: str
    cells: tuple[Cell, ...]


EVENTS: Final = (
    "your process dies",
    "the server's process dies",
    "its host loses power",
    "a standby or replica takes over",
    "it is full",
)
_NEMESES: Final = "tests/nemeses/test_nemeses.py"
_KILLS: Final = "tests/nemeses/test_kills.py::test_two_hundred_kills_violate_nothing"
_NONE: Final = Cell("–")
_KEPT: Final = Cell("kept", (_KILLS,))
_DISK: Final = Cell("kept, if the disk keeps what it confirmed")
_NOT_STARTED: Final = "EXTERNAL does not start"
_REDIS_FULL: Final = Cell(
    "claims are refused, settlements accepted",
    ("tests/redis/test_bad_servers.py::test_a_full_server_refuses_claims_and_takes_settlements",),
)
_REDIS_OVER: Final = Cell(
    "**lost**: writes that had not arrived; not promised",
    played=(
        "replica promoted, cut off redis external always",
        "sentinel failover, cut off redis external",
        "cluster failover, cut off redis external",
    ),
)
SETTINGS: Final = (
    Setting("memory", "", (Cell("**lost**, everything", ("the_store_is_what_it_declares",)), *[_NONE] * 4)),
    Setting(
        "SQLite",
        "`synchronous=FULL` (default)",
        (
            Cell("kept", ("tests/crash/test_kill.py::test_kills",)),
            _NONE,
            _DISK,
            _NONE,
            Cell(
                "new commands are refused",
                ("tests/crash/test_files.py::test_a_full_disk_refuses_commands_and_runs_none_twice",),
            ),
        ),
    ),
    Setting(
        "SQLite",
        "`synchronous=NORMAL`",
        (Cell("kept"), _NONE, Cell("**lost**: the last commits"), _NONE, Cell("new commands are refused")),
    ),
    Setting(
        "PostgreSQL",
        "defaults; a synchronous standby, if there is one",
        (
            _KEPT,
            Cell(
                "kept",
                played=(
                    "server killed postgresql external",
                    "immediate stop postgresql atomic",
                    "backend killed asyncpg external",
                ),
            ),
            _DISK,
            Cell(
                "kept",
                played=("synchronous standby postgresql external", "synchronous standby, cut off postgresql atomic"),
            ),
            Cell(
                "new commands are refused",
                played=(
                    "full disk postgresql external",
                    "full disk postgresql atomic",
                    "full disk postgresql external log",
                    "full disk postgresql atomic log",
                ),
            ),
        ),
    ),
    Setting(
        "PostgreSQL",
        "an asynchronous standby",
        (
            Cell("kept"),
            Cell("kept"),
            _DISK,
            Cell(
                "**lost**: writes that had not arrived",
                played=(
                    "asynchronous standby, cut off postgresql external",
                    "asynchronous standby, cut off postgresql atomic",
                ),
            ),
            Cell("new commands are refused"),
        ),
    ),
    Setting(
        "PostgreSQL",
        "`synchronous_commit = off`",
        (
            Cell("kept"),
            Cell(
                f"**lost**: the last commits; {_NOT_STARTED}",
                ("tests/cli/test_doctor_servers.py::test_a_role_with_asynchronous_commits_counts_as_not_durable",),
            ),
            Cell("**lost**: the last commits"),
            Cell("**lost**: writes that had not arrived"),
            Cell("new commands are refused"),
        ),
    ),
    Setting(
        "MariaDB",
        "`innodb_flush_log_at_trx_commit=1` (default)",
        (
            _KEPT,
            Cell(
                "kept",
                ("tests/mariadb/test_faults.py::test_a_killed_server_returns_with_all_acknowledged_writes",),
                played=("server killed mariadb atomic",),
            ),
            _DISK,
            Cell("**lost**: writes that had not arrived; not tested"),
            Cell("new commands are refused", played=("full disk mariadb external", "full disk mariadb atomic")),
        ),
    ),
    Setting(
        "MariaDB",
        "`=2`",
        (
            Cell("kept"),
            Cell("kept"),
            Cell("**lost**: the last second"),
            Cell("**lost**: writes that had not arrived"),
            Cell("new commands are refused"),
        ),
    ),
    Setting(
        "MariaDB",
        "`=0`",
        (
            Cell("kept"),
            Cell(
                f"**lost**: the last second; {_NOT_STARTED}",
                ("tests/mariadb/test_global_settings.py::test_settings_are_read_from_the_server",),
            ),
            Cell("**lost**: the last second"),
            Cell("**lost**: writes that had not arrived"),
            Cell("new commands are refused"),
        ),
    ),
    Setting(
        "Redis, Valkey",
        "`appendonly yes`, `appendfsync always`",
        (
            _KEPT,
            Cell(
                "kept",
                ("tests/redis/test_bad_servers.py::test_a_server_that_was_killed_remembers_what_it_wrote",),
                played=("server killed redis external always",),
            ),
            _DISK,
            _REDIS_OVER,
            _REDIS_FULL,
        ),
    ),
    Setting(
        "Redis, Valkey",
        "`appendonly yes`, `appendfsync everysec`",
        (
            Cell("kept"),
            Cell(
                "kept; **lost**: up to two seconds, where the disk is so slow that the flush before has not ended",
                played=("server killed redis idempotent everysec",),
            ),
            Cell("**lost**: the last second or two"),
            _REDIS_OVER,
            _REDIS_FULL,
        ),
    ),
    Setting(
        "Redis, Valkey",
        "`appendonly no`",
        (
            Cell("kept"),
            Cell(
                f"**lost**, everything; {_NOT_STARTED}",
                ("tests/redis/test_settings.py::test_a_server_that_forgets_is_refused_for_external_operations",),
                played=("server killed redis external none",),
            ),
            Cell("**lost**, everything"),
            _REDIS_OVER,
            _REDIS_FULL,
        ),
    ),
    Setting(
        "Redis, Valkey",
        "`wait_replicas` in the URL, as many as there are",
        (
            Cell("kept"),
            Cell("depends on `appendfsync`"),
            Cell("depends on `appendfsync`"),
            Cell(
                "not promised, though nothing was lost here",
                played=(
                    "sentinel failover, cut off redis external wait 2",
                    "cluster failover, cut off redis idempotent wait 1",
                    "cluster failover, cut off redis external wait 1",
                ),
            ),
            _REDIS_FULL,
        ),
    ),
    Setting(
        "Redis, Valkey",
        "`maxmemory` and a policy that evicts",
        (
            Cell("kept"),
            Cell("depends on `appendfsync`"),
            Cell("depends on `appendfsync`"),
            _REDIS_OVER,
            Cell(
                f"**lost**: the evicted records; {_NOT_STARTED}",
                ("tests/redis/test_settings.py::test_eviction_forgets_and_a_replica_is_unusable",),
            ),
        ),
    ),
)


def settings() -> str:
    """What each store under each setting keeps. Raises LookupError where a store's declaration says otherwise."""
    rows = []
    for found in SETTINGS:
        declared = STORES[found.store]
        if declared.survives_process_crash is not found.cells[0].says.startswith("kept"):
            raise LookupError(f"{found.store} declares something else about a process that dies")
        if declared.survives_server_crash and not any(
            each.cells[1].says.startswith(("kept", "–")) for each in SETTINGS if each.store == found.store
        ):
            raise LookupError(f"{found.store} declares to survive its server, and no setting here does")
        assert len(found.cells) == len(EVENTS)
        rows.append((f"**{found.store}** {found.setting}".strip(), *(format_cell(cell) for cell in found.cells)))
    return table(("acknowledged writes, when", *EVENTS), iter(rows))


def list_played() -> tuple[set[str], set[str]]:
    """List the nemeses that the suite runs, by their words: those that break nothing, and those that lose something."""
    sys.path.insert(0, str(ROOT))
    try:
        from tests.nemeses.lines import LOSING, SOUND
    finally:
        sys.path.remove(str(ROOT))
    return {str(line) for line in SOUND}, {str(line) for line in LOSING}


def _tests_playing(cell: Cell) -> list[str]:
    """The tests that run a cell's lines. Raises LookupError if the suite contradicts the cell."""
    sound, losing = list_played()
    lost = cell.says.startswith("**lost**")
    for name in cell.played:
        if name not in (losing if lost else sound):
            raise LookupError(f"{name!r} is not played, or something else comes of it than {cell.says!r}")
    test = "test_the_predicted_loss_is_found" if lost else "test_no_invariant_is_violated"
    return [f"{_NEMESES}::{test}"] if cell.played else []


def format_cell(cell: Cell) -> str:
    """A cell with a link to each of its tests: their names are long, and the table has six columns."""
    links = [link_to(name) for name in (*_tests_playing(cell), *cell.tests)]
    short = " ".join(f"[test]({link.rpartition('](')[2]}" for link in links)
    return f"{cell.says} {short}".strip()
