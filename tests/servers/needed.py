"""Tests that want a server which comes in no wheel: ``@needs("mariadb")``.

Where that server is not installed they are left out, and named at the end of the run. Where none may be missing
(``CI`` or ``SEMEL_ALL_SERVERS=1`` is set) they are run all the same, and fail with the remedy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.servers.running import binary

REMEDY: Final = "Install what is missing with: sudo scripts/install-servers"
SYSTEM: Final = ("/usr/sbin", "/usr/local/sbin", "/sbin", "/usr/lib/postgresql/15/bin")  # seldom on a user's PATH

PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "caddy": ("caddy",),
    "chromium": ("chromium", "chromium-browser"),
    "disk": ("mount",),  # one of its own, small enough to be filled
    "haproxy": ("haproxy",),
    "mariadb": ("mariadbd",),
    "nginx": ("nginx",),
    "pgbouncer": ("pgbouncer",),
    "postgresql-15": ("/usr/lib/postgresql/15/bin/postgres",),
    "prometheus": ("promtool",),
    "pubsub-emulator": ("/usr/lib/google-cloud-sdk/platform/pubsub-emulator/bin/cloud-pubsub-emulator",),
    "rabbitmq": ("/usr/lib/rabbitmq/bin/rabbitmq-server",),
    "redis": ("redis-server",),
    "systemd": ("systemd-analyze",),
}
"""The programs of each server, one of which is enough. Its environment variable is ``SEMEL_TEST_<NAME>``."""

AS_ROOT: Final = frozenset({"disk"})


def needs(server: str) -> pytest.MarkDecorator:
    """Mark a test, a module (``pytestmark = needs(…)``) or a parameter (``marks=needs(…)``) that wants a server."""
    assert server in PROGRAMS, f"name the programs of {server} in tests/servers/needed.py"
    return pytest.mark.needs(server)


def program(server: str) -> Path:
    """The server's program: what the environment names, else the system's. Fails with the remedy."""
    names = [found for name in PROGRAMS[server] if (found := _which(name))]
    return binary(_variable(server), None, names or list(PROGRAMS[server]), REMEDY)


def is_here(server: str) -> bool:
    """Whether it can be started."""
    if server in AS_ROOT and os.getuid() != 0:
        return False
    return _variable(server) in os.environ or any(_which(name) for name in PROGRAMS[server])


def none_may_be_missing() -> bool:
    """Whether a missing server is a failure here."""
    return any(os.environ.get(name, "") not in ("", "0", "false") for name in ("CI", "SEMEL_ALL_SERVERS"))


def _variable(server: str) -> str:
    return f"SEMEL_TEST_{server.upper().replace('-', '_')}"


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *SYSTEM]))


class LeftOut:
    """The part of a run that leaves tests out and says so; registered by the suite's conftest."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = {}  # server -> node ids

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "needs(server): wants a server that comes in no wheel")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if none_may_be_missing():
            return
        left = []
        for item in items:
            missing = [mark.args[0] for mark in item.iter_markers("needs") if not is_here(mark.args[0])]
            for server in missing:
                self.tests.setdefault(server, []).append(item.nodeid)
            if missing:
                left.append(item)
        if left:
            items[:] = [item for item in items if item not in left]
            config.hook.pytest_deselected(items=left)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:  # a worker tells the process that prints
            output["left_out"] = self.tests

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.tests.update(getattr(node, "workeroutput", {}).get("left_out", {}))  # all workers collect the same

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.tests:
            return
        terminalreporter.section("left out: their server is not installed", yellow=True)
        for server, tests in sorted(self.tests.items()):
            files: dict[str, int] = {}
            for test in tests:
                file = test.partition("::")[0]
                files[file] = files.get(file, 0) + 1
            for file, count in sorted(files.items()):
                terminalreporter.line(f"{server}: {count} of {file}")
        terminalreporter.line(REMEDY)
