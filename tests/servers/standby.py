"""A standby of a PostgreSQL server: copied while that runs, streaming from it, promoted when it is gone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg

from tests.servers.postgres import USER, _as_user, conninfo, programs, resume
from tests.servers.redis import eventually
from tests.servers.running import Running, free_port, own

NAME = "standby"


def start(folder: Path, primary: Running, *, through: int | None = None) -> Running:
    """Copy a primary and follow it: by its own port, or ``through`` that of a proxy before it."""
    folder.mkdir()
    folder.chmod(0o755)
    own(folder, USER)
    bin = programs()
    subprocess.run(
        [
            *(bin / "pg_basebackup", "-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"),
            *("-D", folder / "data", "--checkpoint=fast", "--no-sync", "--write-recovery-conf"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        **_as_user(),
    )
    source = f"host=127.0.0.1 port={through or primary.port} user=postgres application_name={NAME}"
    standby = resume(folder, free_port(), f"primary_conninfo={source}")
    eventually(lambda: _state(primary) is not None)
    return standby


def demand(primary: Running) -> None:
    """From now on the primary confirms no commit that the standby does not have."""
    with psycopg.connect(conninfo(primary), autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{NAME}'")
        connection.execute("SELECT pg_reload_conf()")
    eventually(lambda: _state(primary) == "sync")


def promote(standby: Running) -> None:
    """Make it a primary; returns when it takes writes."""
    with psycopg.connect(conninfo(standby), autocommit=True) as connection:
        row = connection.execute("SELECT pg_promote(wait_seconds => 30)").fetchone()
    assert row == (True,)


def _state(primary: Running) -> str | None:
    with psycopg.connect(conninfo(primary), autocommit=True) as connection:
        row = connection.execute("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'").fetchone()
    return None if row is None else str(row[0])
