"""Grounds on servers: a schema of PostgreSQL, a database of MariaDB, a prefix of Redis, each of one round alone."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from semel.stores.backend import Backend
from semel.stores.urls import connect_backend
from verification.soak.ground import KINDS, ROWS, TABLE, Ground, Row, decode, migrate
from verification.soak.summary import SoakError

# A process that stops answering is waited for little longer than a lease: a soak has many of them.
PATIENCE: Final = {"patience_seconds": "2"}


def server_ground(url: str, name: str) -> Ground:
    """The ground of this name on the server of ``url``. Raises SoakError, ConfigurationError."""
    backend = connect_backend(url)
    match backend.name:
        case "postgresql":
            return PostgresGround(url, name)
        case "mariadb":
            return MariadbGround(url, name, backend)
        case "redis":
            return RedisGround(url, name, backend)
        case "sqlite":
            raise SoakError("--url is for servers: without it, each round has a SQLite file of its own")
        case other:
            raise SoakError(f"--url: a soak needs a store that several processes share, on a server; {other} is none")


def with_options(url: str, **options: str) -> str:
    """The same URL with these options. Raises SoakError where it names ``schema`` or ``prefix`` itself."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    taken = {"schema", "prefix", "prepared"} & given.keys() & {*options, "prepared"}
    if taken:
        raise SoakError(f"--url: leave {min(taken)}= out: each round has one of its own")
    return urlunsplit(parts._replace(query=urlencode({**PATIENCE, **given, **options})))


class PostgresGround:
    """A schema of its own."""

    kinds: tuple[str, ...] = KINDS

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.url = with_options(url, schema=name)
        parts = urlsplit(url)
        ours = {"patience_seconds", "connections_max"}
        libpq = [(option, value) for option, value in parse_qsl(parts.query) if option not in ours]
        self._conninfo = urlunsplit(parts._replace(scheme="postgresql", query=urlencode(libpq)))

    def _connect(self) -> Any:
        import psycopg

        settings = f"-c search_path={self.name} -c client_min_messages=warning -c lock_timeout=10s"
        return psycopg.connect(self._conninfo, autocommit=True, options=settings, connect_timeout=10)

    def prepare(self) -> None:
        """The schema and its tables."""
        self.drop()
        with self._connect() as connection:
            connection.execute(f"CREATE SCHEMA {self.name}")
            connection.execute(TABLE)
        migrate(self.url)

    def read_committed(self) -> list[Row]:
        """The rows of the business table."""
        with self._connect() as connection:
            return decode(connection.execute(ROWS).fetchall())

    def drop(self) -> None:
        """The schema and all in it."""
        with self._connect() as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {self.name} CASCADE")


class MariadbGround:
    """A database of its own."""

    kinds: tuple[str, ...] = KINDS

    def __init__(self, url: str, name: str, backend: Backend) -> None:
        self.name = name
        self.url = with_options(urlunsplit(urlsplit(url)._replace(path=f"/{name}")))
        self._options = {**backend.driver.server.options(), "database": None}

    def _connect(self, database: str | None = None) -> Any:
        import pymysql

        return closing(pymysql.connect(**{**self._options, "database": database, "autocommit": True}))

    def prepare(self) -> None:
        """The database and its tables."""
        self.drop()
        with self._connect() as connection:
            connection.cursor().execute(f"CREATE DATABASE `{self.name}`")
        with self._connect(self.name) as connection:
            connection.cursor().execute(TABLE + " ENGINE = InnoDB")
        migrate(self.url)

    def read_committed(self) -> list[Row]:
        """The rows of the business table."""
        with self._connect(self.name) as connection:
            cursor = connection.cursor()
            cursor.execute(ROWS)
            return decode(cursor.fetchall())

    def drop(self) -> None:
        """The database."""
        with self._connect() as connection:
            connection.cursor().execute(f"DROP DATABASE IF EXISTS `{self.name}`")


class RedisGround:
    """A prefix of its own. It has no transactions with business tables, so no ATOMIC commands."""

    kinds: tuple[str, ...] = ("external", "idempotent")

    def __init__(self, url: str, name: str, backend: Backend) -> None:
        self.name = name
        self.url = with_options(url, prefix=name)
        self._server = backend.driver.server

    def prepare(self) -> None:
        """Nothing but Semel's own key."""
        self.drop()
        migrate(self.url)

    def read_committed(self) -> list[Row]:
        """None: there is no business table."""
        return []

    def drop(self) -> None:
        """Every key of the prefix."""
        with self._client() as client:
            for pattern in (f"{self.name}:*", f"{{{self.name}:*"):
                for key in client.scan_iter(match=pattern, count=1000):
                    client.delete(key)

    def _client(self) -> Any:
        import redis
        from redis.sentinel import Sentinel

        server = self._server
        places = [(node.host, node.port) for node in server.nodes]
        if server.service:
            made: Any = Sentinel
            return made(places).master_for(server.service, ssl=server.tls, **server.options)
        if server.cluster:
            node: Any = redis.cluster.ClusterNode
            nodes = [node(*place) for place in places]
            return redis.RedisCluster(startup_nodes=nodes, ssl=server.tls, **_without(server.options, "db"))
        (host, port), *_ = places
        place = {"host": host, "port": port, "ssl": server.tls} if port else {"unix_socket_path": host}
        return redis.Redis(**place, **server.options)


def _without(options: dict[str, Any], name: str) -> dict[str, Any]:
    return {each: value for each, value in options.items() if each != name}


__all__ = ["MariadbGround", "PostgresGround", "RedisGround", "server_ground", "with_options"]
