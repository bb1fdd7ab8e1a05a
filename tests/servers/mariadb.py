"""MariaDB from the system's packages: one server per run, a database for each test process."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pymysql

from semel.stores.mariadb.protocol import MariadbServer
from tests.servers.needed import needs, program
from tests.servers.running import Running, free_port, launch, own, share_server, unprivileged_user

MARK: Final = needs("mariadb")
USER: Final = "mysql"  # the server refuses to run as root


def mariadb() -> MariadbServer:
    """This run's server, and the name of a database that this process alone uses."""
    return at(share_server("mariadb", lambda folder: start(folder)))


def at(server: Running, **changed: Any) -> MariadbServer:
    """How to connect to a server."""
    return replace(MariadbServer("127.0.0.1", server.port, "root", f"semel_{os.getpid()}"), **changed)


def url(server: MariadbServer, options: str = "") -> str:
    """The same as a URL."""
    return f"mysql://{server.user}:{server.password}@{server.host}:{server.port}/{server.database}{options}"


def start(folder: Path, *settings: str) -> Running:
    """Make a data folder in ``folder`` and start a server on it. ``settings`` such as ``max_allowed_packet=1M``."""
    folder.chmod(0o755)
    own(folder, USER)
    install(folder)
    return resume(folder, free_port(), *settings)


def install(folder: Path) -> None:
    """Make a data folder in ``folder``."""
    server = program("mariadb")
    user = [f"--user={USER}"] if unprivileged_user(USER) is not None else []
    subprocess.run(
        [
            *("mariadb-install-db", "--no-defaults", *user, f"--datadir={folder / 'data'}", "--skip-test-db"),
            *("--auth-root-authentication-method=normal", f"--basedir={_base(server)}"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )


def resume(folder: Path, port: int, *settings: str) -> Running:
    """Start a server on a data folder that exists, after a crash or a stop."""
    user = [f"--user={USER}"] if unprivileged_user(USER) is not None else []
    command = [
        *(str(program("mariadb")), "--no-defaults", *user, f"--datadir={folder / 'data'}", "--bind-address=127.0.0.1"),
        *(f"--port={port}", f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}", "--skip-name-resolve"),
        f"--tmpdir={folder / 'data'}",  # of its own: two servers give their temporary tables the same names
        *("--max-connections=300", "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=1"),
        *(
            "--innodb-flush-method=nosync",
            "--skip-innodb-doublewrite",
        ),  # no test pulls the plug: what was written is there
        *(f"--{setting}" for setting in settings),
    ]

    def ready() -> bool:
        try:
            with connect(port):
                return True
        except pymysql.Error:
            return False

    return launch(command, folder, port, ready)


def connect(port: int, **options: Any) -> pymysql.Connection[Any]:
    """A connection of a test's own, which waits for no table for ever."""
    wait = "SET SESSION lock_wait_timeout = 20, innodb_lock_wait_timeout = 20"
    return pymysql.connect(
        host="127.0.0.1", port=port, user="root", autocommit=True, init_command=wait, ssl_disabled=True, **options
    )


def _base(server: Path) -> Path:
    return server.parent.parent


_SHOWN: Final[dict[tuple[int, str, str], str]] = {}


def make_table(server: MariadbServer, name: str, columns: str) -> None:
    """An empty InnoDB table of the application's own in the server's database; made again only if it is another one.

    A table without transactions that an earlier test has left is dropped.
    """
    place = (server.port, server.database, f"{name} {columns}")
    with connect(server.port, database=server.database) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS log, plain")
        cursor.execute(f"SHOW TABLES LIKE '{name}'")
        if cursor.fetchone() is not None and place in _SHOWN:
            cursor.execute(f"SHOW CREATE TABLE {name}")
            if cursor.fetchone()[1] == _SHOWN[place]:
                cursor.execute(f"DELETE FROM {name}")
                return
        cursor.execute(f"CREATE OR REPLACE TABLE {name} ({columns}) ENGINE = InnoDB")
        cursor.execute(f"SHOW CREATE TABLE {name}")
        _SHOWN[place] = cursor.fetchone()[1]
