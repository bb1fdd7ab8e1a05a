"""What goes wrong, server by server. Each scenario starts servers of its own, and is a process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psycopg
import pymysql
import redis

from tests.nemeses import full_disk, galera_nodes, redis_failover
from tests.nemeses.processes import children, crash, end, server_of
from tests.nemeses.scripts import read_arguments, tell
from tests.servers import mariadb, postgres, standby
from tests.servers import redis as valkey
from tests.servers.running import ENVIRONMENT, Running, stop
from verification.nemeses.proxy import Proxy
from verification.nemeses.stage import Stage, Verdict
from verification.soak.command import LEASE_SECONDS
from verification.soak.ground import Ground, ground, migrate
from verification.soak.worker import pause

AWAY_SECONDS: Final = 0.2
LOSING_SECONDS: Final = 2.5
REPLIES_MIN: Final = 5
PARTITION_SECONDS: Final = LEASE_SECONDS + 1.0
ALWAYS: Final = ("appendonly yes", "appendfsync always")


class Server:
    """A server of one scenario, behind a proxy or not, and what is done to it."""

    def __init__(self, store: str, folder: Path, setting: str) -> None:
        self.store = store
        self.folder = folder
        self.home = folder / "server"
        self.home.mkdir()
        self.setting = setting
        match store:
            case "postgresql" | "asyncpg" if setting == "log":
                self.settings: tuple[str, ...] = full_disk.GROWING_LOG
                log = full_disk.log_of(folder) / "files"
                log.mkdir()
                self.running = postgres.start(self.home, *self.settings, log=log)
            case "postgresql" | "asyncpg":
                self.settings = ()
                self.running = postgres.start(self.home)
            case "mariadb":
                self.running = mariadb.start(self.home)
            case _:
                self.settings = (
                    ALWAYS if setting == "always" else (f"appendonly {'no' if setting == 'none' else 'yes'}",)
                )
                self.running = valkey.start(self.home, *self.settings)
        self.forgets = store == "redis" and setting == "none"
        self.options = "?persistence=none" if self.forgets else ""

    def url(self, port: int | None = None) -> str:
        """How to reach it, by its own port or by a proxy's."""
        port = port or self.running.port
        match self.store:
            case "postgresql":
                return f"postgresql://postgres@127.0.0.1:{port}/postgres"
            case "asyncpg":
                return f"postgresql+asyncpg://postgres@127.0.0.1:{port}/postgres"
            case "mariadb":
                return f"mysql://root@127.0.0.1:{port}/semel"
            case _:
                return f"redis://127.0.0.1:{port}/0{self.options}"

    def crash(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it without its knowing."""
        crash(self.running.pid, how)

    def resume(self) -> None:
        """Start it again on what it has left."""
        port = self.running.port
        match self.store:
            case "postgresql" | "asyncpg":
                (self.home / "data" / "postmaster.pid").unlink(missing_ok=True)
                self.running = postgres.resume(self.home, port, *self.settings)
            case "mariadb":
                self.running = mariadb.resume(self.home, port)
            case _:
                self.running = valkey.start(self.home, *self.settings, port=port)


def server_killed(stage: Stage, server: Server, how: signal.Signals = signal.SIGKILL) -> Verdict:
    """Kill all processes of the server at once, then start it again on its folder."""

    def nemesis() -> None:
        server.crash(how)
        pause(AWAY_SECONDS)
        server.resume()
        if server.forgets:
            migrate(stage.ground.url)  # its identity is gone as well: an operator would begin again

    return stage.play(nemesis)


def backend_killed(stage: Stage, server: Server) -> Verdict:
    """Kill one process that serves a worker: PostgreSQL ends all of them, and recovers."""

    def nemesis() -> None:
        postmaster = server_of(server.running.pid)
        before = set(children(postmaster))
        with psycopg.connect(postgres.conninfo(server.running), autocommit=True) as connection:
            row = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'semel'").fetchone()
        assert row is not None
        end([row[0]])
        valkey.eventually(lambda: not before & set(children(postmaster)) and _answers(server.running))

    return stage.play(nemesis)


def _answers(running: Running) -> bool:
    try:
        with psycopg.connect(postgres.conninfo(running), connect_timeout=2):
            return True
    except psycopg.OperationalError:
        return False


def connections_killed(stage: Stage, server: Server) -> Verdict:
    """An operator ends every connection of Semel, some times."""

    def nemesis() -> None:
        for _ in range(5):
            with closing(mariadb.connect(server.running.port)) as connection:
                cursor = connection.cursor()
                cursor.execute("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db <> ''")
                for (id,) in cursor.fetchall():
                    with suppress(pymysql.OperationalError):  # it has ended
                        cursor.execute(f"KILL {id}")
            pause(0.1)

    return stage.play(nemesis)


def enough(store: str, lost: Mapping[str, int]) -> bool:
    """Whether so much was lost that it shows something; asyncpg names no COMMIT on the wire."""
    word = "reply:EVALSHA" if store == "redis" else "reply:COMMIT"
    return lost.get("reply", 0) >= REPLIES_MIN and (store == "asyncpg" or lost.get(word, 0) > 0)


def lost_replies(folder: Path, server: Server, effects: str, seed: int) -> Verdict:
    """A network that swallows every twentieth reply, and now and then a request; each ends its connection."""
    with Proxy(server.running.port, seed=seed) as proxy:
        place = ground(server.url(), folder, seed)
        through = ground(server.url(proxy.port), folder, seed).url

        def nemesis() -> None:
            proxy.lose(0.05, 0.01)
            pause(LOSING_SECONDS)
            valkey.eventually(lambda: enough(server.store, proxy.count_lost()))  # a busy machine says less in that time
            proxy.lose(0.0)

        verdict = Stage(folder, place, effects, seed=seed, urls=[through] * 2).play(nemesis)
        verdict.more["lost"] = dict(proxy.count_lost())
    return verdict


def partition(folder: Path, server: Server, effects: str, seed: int) -> Verdict:
    """Two of four workers receive nothing from the server for longer than a lease; their requests arrive afterwards."""
    with Proxy(server.running.port, seed=seed) as proxy:
        place = ground(server.url(), folder, seed)
        through = ground(server.url(proxy.port), folder, seed).url

        def nemesis() -> None:
            proxy.stop()
            pause(PARTITION_SECONDS)
            proxy.go_on()

        return Stage(folder, place, effects, seed=seed, urls=[through, through, place.url, place.url]).play(nemesis)


def failover(folder: Path, server: Server, effects: str, seed: int, *, synchronous: bool, lag: bool) -> Verdict:
    """The primary is killed, its standby promoted; ``lag``: the standby was cut off shortly before."""
    with Proxy(server.running.port) as wire, Proxy(server.running.port) as front:
        follower = standby.start(server.folder / "standby", server.running, through=wire.port)
        if synchronous:
            standby.demand(server.running)

        def nemesis() -> None:
            if lag:
                wire.stop()
                pause(0.7)
            server.crash()
            standby.promote(follower)
            front.aim(follower.port)

        try:
            return Stage(folder, ground(server.url(front.port), folder, seed), effects, seed=seed).play(nemesis)
        finally:
            stop(follower)


def replica_promoted(folder: Path, server: Server, effects: str, seed: int) -> Verdict:
    """The primary dies shortly after its replica was cut off from it, and the replica takes over."""
    with Proxy(server.running.port) as wire, Proxy(server.running.port) as front:
        replica = valkey.start(server.folder / "replica", *server.settings, f"replicaof 127.0.0.1 {wire.port}")

        def say(*words: str) -> Any:
            with redis.Redis(port=replica.port) as client:
                return client.execute_command(*words)

        def nemesis() -> None:
            wire.stop()
            pause(0.7)
            server.crash()
            say("REPLICAOF", "NO", "ONE")
            front.aim(replica.port)

        try:
            valkey.eventually(lambda: b"connected" in say("ROLE"))
            return Stage(folder, ground(server.url(front.port), folder, seed), effects, seed=seed).play(nemesis)
        finally:
            stop(replica)


def main() -> None:
    options: dict[str, Any] = read_arguments()
    folder, name, effects, seed = Path(options["folder"]), options["name"], options["effects"], options["seed"]
    os.environ.setdefault("SEMEL_TEST_OWNER", str(os.getpid()))
    # The servers refuse root, and their users may not enter a folder of pytest's; the histories stay there.
    with TemporaryDirectory(prefix="nemesis-", dir=os.environ.get(ENVIRONMENT), ignore_cleanup_errors=True) as home:
        Path(home).chmod(0o755)
        setting = options.get("setting", "")
        if name in OF_SEVERAL:
            verdict = OF_SEVERAL[name](folder, Path(home), effects, setting, seed)
        else:
            full = name in full_disk.SCENARIOS
            with full_disk.disk(Path(home), options["store"], setting) if full else nullcontext():
                server = Server(options["store"], Path(home), setting)
                try:
                    verdict = SCENARIOS[name](folder, server, effects, seed)
                finally:
                    stop(server.running)
    tell(verdict.words())


def _on_stage(scenario: Callable[[Stage, Server], Verdict]) -> Callable[[Path, Server, str, int], Verdict]:
    def play(folder: Path, server: Server, effects: str, seed: int) -> Verdict:
        place: Ground = ground(server.url(), folder, seed)
        return scenario(Stage(folder, place, effects, seed=seed), server)

    return play


SCENARIOS: Final[dict[str, Callable[[Path, Server, str, int], Verdict]]] = {
    "server killed": _on_stage(server_killed),
    "immediate stop": _on_stage(lambda stage, server: server_killed(stage, server, signal.SIGQUIT)),
    "backend killed": _on_stage(backend_killed),
    "connections killed": _on_stage(connections_killed),
    "lost replies": lost_replies,
    "partition": partition,
    "replica promoted, cut off": replica_promoted,
    **full_disk.SCENARIOS,
    "synchronous standby": lambda *given: failover(*given, synchronous=True, lag=False),
    "synchronous standby, cut off": lambda *given: failover(*given, synchronous=True, lag=True),
    "asynchronous standby, cut off": lambda *given: failover(*given, synchronous=False, lag=True),
}

OF_SEVERAL: Final = {**redis_failover.SCENARIOS, **galera_nodes.SCENARIOS}  # they start their servers themselves


if __name__ == "__main__":
    main()
