"""A MariaDB store with its driver, from a URL."""

from __future__ import annotations

import re
import ssl
from dataclasses import replace
from typing import Final
from urllib.parse import SplitResult, unquote

from semel.errors import ConfigurationError, UrlError
from semel.extras import install_command
from semel.stores.backend import Backend
from semel.stores.mariadb.protocol import MariadbServer

SCHEMES: Final = tuple(f"{name}{library}" for name in ("mariadb", "mysql") for library in ("", "+pymysql", "+asyncmy"))
CONNECTIONS_MOST: Final = 1000
_EXAMPLE: Final = "for example mysql://app:password@localhost:3306/app"
_DATABASE: Final = re.compile(r"[^/\0]{1,64}")


def mariadb_url(url: SplitResult, options: dict[str, str]) -> Backend:
    """Make the backend of a ``mysql://`` or ``mariadb://`` URL. Removes the options that it knows from ``options``.

    Threads use PyMySQL and event loops asyncmy, whichever of them the scheme names: SQLAlchemy's URLs are understood.

    Raises:
        UrlError: a part or an option cannot be understood.
        ConfigurationError: the client libraries are not installed.
    """
    from semel.stores.urls import pop_accepts_loss, seconds_of

    patience = seconds_of("patience_seconds", options.pop("patience_seconds", "5"))
    if patience == 0:
        raise UrlError("patience_seconds must be more than 0: how long a call may wait for its answer")
    most = options.pop("connections_max", "8")
    if not most.isascii() or not most.isdigit() or not 1 <= int(most) <= CONNECTIONS_MOST:
        raise UrlError(f"connections_max must be a number from 1 to {CONNECTIONS_MOST}; it is {most!r}")
    options.pop("charset", None)  # SQLAlchemy's URLs name it; it is utf8mb4 in any case
    socket = options.pop("socket", None) or options.pop("unix_socket", None)
    database = unquote(url.path.removeprefix("/"))
    if _DATABASE.fullmatch(database) is None:
        raise UrlError(f"{url.scheme}:// needs the name of a database after the host, {_EXAMPLE}")
    try:
        port = 3306 if url.port is None else url.port
    except ValueError:
        port = 0
    if not port:
        raise UrlError(f"the port of the store URL must be a number from 1 to 65535, {_EXAMPLE}")
    if not url.hostname and socket is None:
        raise UrlError(f"{url.scheme}:// needs a server, {_EXAMPLE}")
    accepts_loss = pop_accepts_loss(options)
    backend = mariadb_backend(
        MariadbServer(
            host=url.hostname or "localhost",
            port=port,
            user=unquote(url.username or "root"),
            password=unquote(url.password or ""),
            database=database,
            socket=socket,
            tls=_tls(options.pop("tls", "no"), options.pop("tls_ca", None)),
            connections_max=int(most),
            patience_seconds=patience,
        ),
        url.scheme,
    )
    return replace(backend, accepts_loss=accepts_loss)


def _tls(wanted: str, ca: str | None) -> ssl.SSLContext | None:
    if wanted not in ("yes", "no"):
        raise UrlError(f"tls must be yes or no; it is {wanted!r}")
    if wanted == "no" and ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise UrlError(f"tls_ca must be a file of certificates; {ca!r} is none ({type(error).__name__})") from None


def mariadb_backend(server: MariadbServer, scheme: str = "mysql") -> Backend:
    """Make the backend of a MariaDB server; ``scheme`` names it as its URL did.

    Raises ConfigurationError where the client libraries are not installed.
    """
    from semel.stores.mariadb.store import MariadbStore

    try:
        from semel.stores.mariadb.asyncmy_transaction import AsyncmyUnitPool
        from semel.stores.mariadb.driver import MariadbDriver
        from semel.stores.mariadb.join import MariadbHome, join, join_async
        from semel.stores.mariadb.pymysql_transaction import PymysqlUnitPool
        from semel.stores.mariadb.transaction import is_conflict, is_stopped
    except ImportError as error:
        raise ConfigurationError(f"{scheme}:// needs PyMySQL and asyncmy; run: {install_command('mariadb')}") from error
    units, async_units = PymysqlUnitPool(server), AsyncmyUnitPool(server)
    store, driver = MariadbStore(), MariadbDriver(server, units, async_units)
    home = MariadbHome(store, driver, server)
    return Backend(
        "mariadb",
        store,
        driver,
        unit=units.begin,
        unit_async=async_units.begin,
        joins=lambda connection: join(connection, home),
        joins_async=lambda connection: join_async(connection, home),
        conflicts=is_conflict,
        stopped=is_stopped,
    )
