"""What every suite shares: the run's real servers, which the main process begins and ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.servers.needed import LeftOut
from tests.servers.running import begin_run, end_run

_RUN = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeftOut())
    if not hasattr(config, "workerinput"):  # the one that outlives the workers
        os.environ["SEMEL_TEST_OWNER"] = str(os.getpid())
        config.stash[_RUN] = begin_run()


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_RUN, None)
    if folder is not None:
        end_run(folder)
