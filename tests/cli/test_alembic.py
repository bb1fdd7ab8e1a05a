"""The recipe of docs/upgrading.md: what `semel migrate --sql` prints, run by a revision of the real Alembic."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from alembic import command as alembic
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext

from semel import Engine
from semel.cli.main import main
from tests.cli import test_migrate_sql as empty
from tests.docs.pages import DOCS, blocks
from tests.docs.running import file_of
from tests.engine.shells import MADE, command
from tests.servers import mariadb, postgres
from verification.subjects.postgres import empty_schema

SHOP = "import sqlalchemy\nmetadata = sqlalchemy.MetaData()\n"


def on_sqlite(folder: Path) -> tuple[str, str]:
    url, _ = empty.on_sqlite(folder)
    return url, url


def on_postgres(folder: Path) -> tuple[str, str]:
    empty.on_postgres(folder)
    url = f"{postgres.postgres()}?options=-csearch_path%3D{postgres.schema()}"
    return url, url.replace("postgresql:", "postgresql+psycopg:")


def on_postgres_in_two_schemas(folder: Path) -> tuple[str, str]:
    """Semel's tables in one schema, the application's and Alembic's in another."""
    url, _ = empty.on_postgres(folder)
    empty_schema(postgres.postgres(), f"{postgres.schema()}_shop")
    of_sqlalchemy = f"{postgres.postgres()}?options=-csearch_path%3D{postgres.schema()}_shop"
    return url, of_sqlalchemy.replace("postgresql:", "postgresql+psycopg:")


def on_mariadb(folder: Path) -> tuple[str, str]:
    url, _ = empty.on_mariadb(folder)
    return url, url.replace("mariadb:", "mysql+pymysql:")


@pytest.fixture
def recipe() -> dict[str, str]:
    """The files that the page shows, by their names."""
    page = blocks((DOCS / "upgrading.md").read_text("utf-8"))
    return {name: block.text for block in page if (name := file_of(block)) is not None}


@pytest.mark.parametrize(
    "make", [on_sqlite, on_postgres, on_postgres_in_two_schemas, pytest.param(on_mariadb, marks=mariadb.MARK)]
)
def test_a_revision_creates_semels_tables_and_autogenerate_ignores_them(
    make: Callable[[Path], tuple[str, str]],
    recipe: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, of_sqlalchemy = make(tmp_path)
    versions = tmp_path / "migrations" / "versions"
    versions.mkdir(parents=True)
    assert main(["migrate", "--sql", "--url", url]) == 0
    (versions / "semel_0_1_0.sql").write_text(capsys.readouterr().out, "utf-8")
    (versions / "semel_0_1_0.py").write_text(recipe["semel_0_1_0.py"], "utf-8")
    (versions.parent / "env.py").write_text(recipe["env.py"], "utf-8")
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("shop", None)
    config = Config()
    config.set_main_option("script_location", str(versions.parent))
    config.set_main_option("sqlalchemy.url", of_sqlalchemy.replace("%", "%%"))
    alembic.upgrade(config, "head")
    sys.modules.pop("shop", None)
    alembic.check(config)  # fails where autogenerate would write anything
    sys.modules.pop("shop", None)
    capsys.readouterr()
    assert main(["migrate", "--url", url]) == 0
    assert "nothing to do" in capsys.readouterr().out
    with closing(Engine.connect(url)) as engine:
        engine.open()
        assert not engine.run(command(f"k-{os.getpid()}"), lambda permit: MADE).replayed
    if make is not on_postgres_in_two_schemas:  # what include_name is there for
        assert ("remove_table", "semel_record") in drops(of_sqlalchemy)


def drops(url: str) -> set[tuple[str, str]]:
    """What autogenerate would write without the recipe's ``include_name``."""
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), sqlalchemy.MetaData())
    engine.dispose()
    return {(each[0], each[1].name) for each in found if each[0] == "remove_table"}
