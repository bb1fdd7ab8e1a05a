"""A store that is emptied or replaced under an open engine: that process does not run a command again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, Engine, Policy
from semel.core.contract import Identity
from semel.engine.state import Core
from semel.errors import IdentityMismatch, StoreUnavailable
from tests.engine.drivers import sqlite
from tests.engine.shells import MADE, Mode, Shell, command

EFFECTS = ["external", "idempotent", "atomic"]


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("anew", [True, False])
def test_a_replaced_sqlite_file_refuses_commands(mode: Mode, effects: str, anew: bool, tmp_path: Path) -> None:
    """The open connections would go on with the former file, which no other process finds any more."""
    path, policy, ran = tmp_path / "semel.db", Policy.of(effects=effects), list[str]()

    def run(shell: Shell, key: str) -> Any:
        def handler(permit: Any) -> Answer:
            ran.append(key)
            return MADE

        return shell.run(command(key, policy=policy), handler)

    with closing(Shell(mode, sqlite(path))) as shell:
        shell.open()
        run(shell, "first")
        files = list(tmp_path.glob("semel.db*"))  # with the write-ahead log: a file that was moved alone is damaged
        for file in files:
            file.rename(tmp_path / f"aside-{file.name}")
        if anew:
            with closing(Shell("sync", sqlite(path))) as other:
                other.open()
                run(other, "elsewhere")
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="deleted or replaced"):
                run(shell, "elsewhere")
        assert ran == ["first", *(["elsewhere"] if anew else [])]
        for left in tmp_path.glob("semel.db*"):
            left.unlink()
        for file in files:
            (tmp_path / f"aside-{file.name}").rename(file)
        run(shell, "next")  # it is back


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_engine_that_is_opened_again_finds_the_store_it_had(mode: Mode, tmp_path: Path) -> None:
    path = tmp_path / "semel.db"
    shell = Shell(mode, sqlite(path))
    shell.open()
    shell.open_again()
    path.unlink()
    with closing(Engine(sqlite(path))) as other:
        other.migrate()
    shell._end(shell.engine.close())
    with pytest.raises(IdentityMismatch, match="emptied or replaced"):
        shell.open_again()
    shell.close()


def test_a_store_in_a_new_epoch_is_accepted() -> None:
    """An operator has declared that its records may be lost."""
    core = Core(None, None, 10, 10)
    _, check = core.first_identity()
    core.check_identity(Identity("one", 3, 1, 1, check))
    with pytest.raises(IdentityMismatch):
        core.check_identity(Identity("other", 3, 1, 1, check))
    core.check_identity(Identity("other", 3, 2, 1, check))
    core.check_identity(Identity("other", 3, 2, 1, check))
