"""Store URLs as newcomers spell them: what is meant works, and what is refused is told what would do."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from semel.engine.connect import connect_backend
from semel.errors import UrlError


def test_sqlalchemys_name_of_psycopg_is_understood() -> None:
    backend = connect_backend("postgresql+psycopg://app@h/shop?connections_max=3")
    assert backend.name == "postgresql"
    assert backend.unit_async is not None


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+psycopg2://app@h/shop", r"unknown store 'postgresql\+psycopg2': Semel runs on psycopg 3; write"),
        ("postgres+psycopg2://app@h/shop", "write postgresql://"),
        ("sqlite:///x.db?sync=FULL", "unknown option 'sync' in the store URL; did you mean 'synchronous'"),
        ("sqlite:///x.db?busy=3", "did you mean 'busy_seconds'"),
        ("sqlite://:memory:", "forgets with the process: memory://$"),
        ("sqlite:///:memory:", "forgets with the process: memory://$"),
        ("sqlite://shop.db", "sqlite:// needs three slashes before the path: sqlite:///shop.db"),
    ],
)
def test_what_is_refused_is_told_what_would_do(url: str, said: str) -> None:
    with pytest.raises(UrlError, match=said):
        connect_backend(url)


@pytest.mark.parametrize("written", ["-c%20search_path%3Dshop", "-c+search_path%3Dshop"])
def test_a_space_in_an_option_of_libpqs_is_one_for_libpq(written: str) -> None:
    """It knows no plus for a space."""
    driver: Any = connect_backend(f"postgresql://app@h/shop?options={written}").driver
    assert conninfo_to_dict(driver.server.conninfo)["options"] == "-c search_path=shop"


@pytest.mark.parametrize("own", ["", "&schema=records"])
def test_settings_of_the_url_are_those_of_every_connection(own: str) -> None:
    """What Semel sets beside them comes after them, and does not take their place."""
    server: Any = connect_backend(f"postgresql://app@h/shop?options=-c%20work_mem%3D9MB{own}").driver.server
    assert server.options()["options"].startswith("-c work_mem=9MB -c ")
    made = make_conninfo(server.conninfo, options=server.plain_options().get("options"))
    assert str(conninfo_to_dict(made)["options"]).startswith("-c work_mem=9MB")


@pytest.mark.parametrize(
    ("url", "library", "said"),
    [
        (
            "postgresql+asyncpg://h/shop",
            "psycopg",
            "postgresql+asyncpg:// needs asyncpg and psycopg 3; run: pip instal",
        ),
        ("postgresql+asyncpg://h/shop", "psycopg", "pip install 'semel[asyncpg]'"),
        ("postgresql+psycopg://h/shop", "psycopg", "pip install 'semel[postgresql]'"),
        ("mariadb://h/shop", "pymysql", "mariadb:// needs PyMySQL and asyncmy; run: pip install 'semel[mariadb]'"),
        ("mysql://h/shop", "pymysql", "mysql:// needs PyMySQL and asyncmy"),
    ],
)
def test_the_extra_of_the_url_that_was_given_is_named(url: str, library: str, said: str) -> None:
    """In a process of its own, where the library cannot be imported."""
    program = f"import sys; sys.modules[{library!r}] = None; from semel.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "list", "--url", url], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
