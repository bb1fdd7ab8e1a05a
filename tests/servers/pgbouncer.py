"""PgBouncer from the system, in transaction pooling before this run's PostgreSQL, with few connections to it."""

from __future__ import annotations

from pathlib import Path

import psycopg

from tests.servers import postgres
from tests.servers.needed import program
from tests.servers.running import Running, free_port, launch, own, share_server

SETTINGS = """[databases]
* = host=127.0.0.1 port={server} auth_user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users.txt
auth_query = SELECT usename, passwd FROM pg_shadow WHERE usename = $1
pool_mode = transaction
default_pool_size = 3
max_client_conn = 500
server_round_robin = 1
"""


def pgbouncer() -> str:
    """The connection string of this run's pooler, without a user: ``conninfo.format(user=…)``."""
    server = postgres.postgres().rpartition(":")[2].partition("/")[0]
    running = share_server("pgbouncer", lambda folder: start(folder, int(server)))
    return f"postgresql://{{user}}@127.0.0.1:{running.port}/postgres"


def start(folder: Path, server: int) -> Running:
    """Start a pooler before the PostgreSQL on this port."""
    port = free_port()
    folder.chmod(0o755)
    own(folder, postgres.USER)
    settings = folder / "pgbouncer.ini"
    settings.write_text(SETTINGS.format(server=server, port=port, folder=folder))
    (folder / "users.txt").write_text('"postgres" ""\n')

    def ready() -> bool:
        try:
            with psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres", prepare_threshold=None):
                return True
        except psycopg.OperationalError:
            return False

    return launch([str(program("pgbouncer")), str(settings)], folder, port, ready, user=postgres.USER)
