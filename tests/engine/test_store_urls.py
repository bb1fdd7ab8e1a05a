"""Store URLs as newcomers spell them: common spellings work, and an error message suggests the right one."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from semel import Engine
from semel.errors import StoreUnavailable, UrlError
from semel.extras import install_command
from semel.stores.mariadb.errors import MariadbRefused
from semel.stores.mariadb.errors import store_error as mariadb_error
from semel.stores.postgres.errors import cannot_connect, store_error
from semel.stores.urls import connect_backend


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
        (
            "sqlite+aiosqlite:///x.db",
            r"unknown store 'sqlite\+aiosqlite': Semel has no driver 'aiosqlite' for it; write",
        ),
        ("postgresql+pg8000://h/shop", "write postgresql://$"),
        ("postgresql+psycopg3://h/shop", "write postgresql://$"),
        ("mysql+mysqldb://h/shop", r"did you mean 'mysql\+pymysql'\?"),
        ("redis+clustre://h", r"did you mean 'redis\+cluster'\?"),
        ("valkey://h", "write redis://$"),
        ("postgresql://app@::1:5432/shop", r"write an IPv6 address in brackets: postgresql://app@\[::1\]:5432/app"),
        ("postgresql://app@[::1:5432/shop", "write an IPv6 address in brackets"),
        ("postgresql://app@h/sh%FFop", "libpq cannot read the store URL"),
        ("postgresql://a%FFpp@h/shop", "libpq cannot read the store URL"),
        ("postgresql+asyncpg://h/shop?ssl=require", "such as sslmode=require"),
        ("mysql://app@h:0/shop", "the port of the store URL must be a number from 1 to 65535"),
        ("postgresql://app@a..b/shop", "a host of the store URL is no name: at most 63 characters"),
        ("postgresql+asyncpg://app@" + "a" * 64 + "/shop", "a host of the store URL is no name"),
        ("redis://a..b", "a host of the store URL is no name"),
        ("redis+cluster://a:1,b..c:2", "a host of the store URL is no name"),
        ("mariadb://app@..:3306/shop", "a host of the store URL is no name"),
    ],
)
def test_a_refused_url_names_the_remedy(url: str, said: str) -> None:
    with pytest.raises(UrlError, match=said):
        connect_backend(url)


@pytest.mark.parametrize("option", ["sslmode=foo", "target_session_attrs=foo", "keepalives=x", "service=nobody"])
def test_a_libpq_configuration_error_is_not_reported_as_an_outage(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = Engine.connect(f"postgresql://app@127.0.0.1:{silent.getsockname()[1]}/shop?{option}")
        with closing(engine), pytest.raises(StoreUnavailable, match="an option of the URL is wrong"):
            engine.open()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server does not support SSL, but SSL was required", "sslmode and sslrootcert"),
        ('root certificate file "/nowhere" does not exist', "sslmode and sslrootcert"),
        ("server is in hot standby mode", "target_session_attrs"),
        ("session is read-only", "target_session_attrs"),
        ('FATAL:  unrecognized configuration parameter "foo"', "an option of the URL is wrong"),
        ('FATAL:  permission denied for database "shop"', "GRANT CONNECT"),
        ('permission denied for database "shop"', "GRANT CONNECT"),
        ('FATAL:  database "SSL" does not exist', "the database does not exist"),
        ("Connection refused", "check that the server runs"),
    ],
)
def test_a_connection_that_postgresql_refuses_names_the_remedy(text: str, said: str) -> None:
    assert said in str(cannot_connect(text)).rpartition("(")[2]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (store_error("42501", "permission denied for schema public"), "GRANT USAGE, CREATE on it"),
        (
            store_error("42501", "permission denied for table semel_record"),
            "grant it SELECT, INSERT, UPDATE",
        ),
        (store_error("3F000", "no schema has been selected to create in"), "CREATE SCHEMA"),
        (store_error("42P07", 'relation "semel_record" already exists'), "restore them all"),
        (mariadb_error(MariadbRefused(1142, "CREATE command denied to user")), "GRANT CREATE, ALTER, INDEX"),
        (mariadb_error(MariadbRefused(1142, "SELECT command denied to user")), "GRANT SELECT, INSERT, UPDATE, DELETE"),
    ],
)
def test_the_missing_right_is_named(error: Exception, said: str) -> None:
    assert said in str(error)


@pytest.mark.parametrize("written", ["-c%20search_path%3Dshop", "-c+search_path%3Dshop"])
def test_a_space_in_a_libpq_option_reaches_libpq(written: str) -> None:
    """It knows no plus for a space."""
    driver: Any = connect_backend(f"postgresql://app@h/shop?options={written}").driver
    assert conninfo_to_dict(driver.server.conninfo)["options"] == "-c search_path=shop"


@pytest.mark.parametrize("own", ["", "&schema=records"])
def test_settings_of_the_url_apply_to_every_connection(own: str) -> None:
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
        ("postgresql+asyncpg://h/shop", "psycopg", install_command("asyncpg")),
        ("postgresql+psycopg://h/shop", "psycopg", install_command("postgresql")),
        ("mariadb://h/shop", "pymysql", f"mariadb:// needs PyMySQL and asyncmy; run: {install_command('mariadb')}"),
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
