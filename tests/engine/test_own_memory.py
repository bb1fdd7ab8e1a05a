"""A store that lives and dies with its process says so where more is declared, and may be refused."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import AsyncEngine, Engine, Policy
from semel.errors import ConfigurationError
from tests.engine.shells import Mode

EXTERNAL = Policy(effects="external")


def open_engine(mode: Mode, url: str, *operations: tuple[str, Policy], **options: Any) -> Any:
    """An engine of either kind, on which these were declared before it was opened."""
    engine: Any = (AsyncEngine if mode == "async" else Engine).connect(url, **options)
    for name, policy in operations:
        engine.core.needs.declare(name, policy)
    if isinstance(engine, AsyncEngine):
        asyncio.run(engine.open())
    else:
        engine.open()
    return engine


@pytest.mark.parametrize("effects", ["external", "idempotent"])
def test_memory_warns_once_where_an_operation_is_declared(
    effects: str, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "semel"):
        engine = open_engine(mode, "memory://", ("pay", Policy.of(effects=effects)), ("refund", EXTERNAL))
        engine.core.needs.declare("later", EXTERNAL)
    [line] = caplog.messages
    assert "'pay' is declared on it: a retry runs again if it reaches another worker process" in line
    assert "memory://?persistence=none" in line


def test_memory_warns_where_it_is_declared_after_the_opening(mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    engine = open_engine(mode, "memory://")
    assert caplog.messages == []
    engine.core.needs.declare("later", EXTERNAL)
    assert len(caplog.messages) == 1


def test_persistence_none_silences_the_warning(mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    open_engine(mode, "memory://?persistence=none", ("pay", EXTERNAL))
    assert caplog.messages == []


def test_a_sqlite_file_causes_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    open_engine("sync", url, ("pay", EXTERNAL), require_durable=True).close()
    assert caplog.messages == []


@pytest.mark.parametrize("url", ["memory://", "memory://?persistence=none"])
def test_memory_is_refused_where_the_store_must_be_durable(mode: Mode, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"require_durable=True, and memory keeps its records in this process"):
        open_engine(mode, url, require_durable=True)
