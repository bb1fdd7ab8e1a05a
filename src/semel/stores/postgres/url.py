"""A PostgreSQL store with its driver, from a URL."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlencode

from semel.errors import ConfigurationError, UrlError
from semel.extras import install_command
from semel.stores.backend import Backend
from semel.stores.clock import Clock

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_BARE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_YES: Final = {"yes": True, "no": False}
_OWN: Final = ("connections_max", "patience_seconds", "prepared", "schema")
CONNECTIONS_MOST: Final = 1000


def _needs(*, asyncpg: bool) -> ConfigurationError:
    if asyncpg:
        named, extra = "postgresql+asyncpg:// needs asyncpg and psycopg 3", "asyncpg"
    else:
        named, extra = "postgresql:// needs psycopg 3", "postgresql"
    return ConfigurationError(f"{named}; run: {install_command(extra)}")


def postgres_url(url: SplitResult, options: dict[str, str]) -> Backend:
    """Make the backend of a ``postgresql://`` or ``postgresql+asyncpg://`` URL. Removes the options that it knows.

    Raises:
        UrlError: an option cannot be understood.
        ConfigurationError: the client library is not installed.
    """
    from semel.stores.urls import pop_accepts_loss, seconds_of

    if url.netloc.count("@") > 1 or _BARE_PERCENT.search(url.netloc):  # libpq would quote a part of the password
        raise UrlError("the store URL has an @ or a % too many before its server: in a password write them %40 and %25")
    patience = seconds_of("patience_seconds", options.pop("patience_seconds", "5"))
    if patience == 0:
        raise UrlError("patience_seconds must be more than 0: how long a call may wait for its answer")
    most = options.pop("connections_max", "8")
    if not most.isascii() or not most.isdigit() or not 1 <= int(most) <= CONNECTIONS_MOST:
        raise UrlError(f"connections_max must be a number from 1 to {CONNECTIONS_MOST}; it is {most!r}")
    accepts_loss = pop_accepts_loss(options)
    prepared = options.pop("prepared", "yes")
    if prepared not in _YES:
        raise UrlError(f"prepared must be yes or no; it is {prepared!r}")
    schema = options.pop("schema", None)
    if schema is not None and _SCHEMA.fullmatch(schema) is None:
        raise UrlError(f"schema must be a lower-case name of letters, digits and _; it is {schema!r}")
    if schema is not None and not _YES[prepared]:
        raise UrlError(
            "schema= and prepared=no exclude each other: behind a pooler, set the role's search_path instead"
        )
    if not url.netloc and "host" not in options and not url.path.strip("/"):
        raise UrlError("postgresql:// needs a server, for example postgresql://app@localhost/app")
    _check_ports(url)
    _check_libpq(options)
    rest = urlencode(options, quote_via=quote)  # libpq knows no plus for a space
    options.clear()  # the others are libpq's: it refuses what it does not know when it connects
    plain = url._replace(scheme="postgresql", query=rest).geturl()
    plain = plain if "//" in plain else plain.replace("postgresql:", "postgresql://", 1)
    _check_whole(plain)
    backend = postgres_backend(
        plain,
        asyncpg=url.scheme == "postgresql+asyncpg",
        schema=schema,
        prepared=_YES[prepared],
        connections_max=int(most),
        patience_seconds=patience,
    )
    return replace(backend, accepts_loss=accepts_loss)


def _check_ports(url: SplitResult) -> None:
    """Refuse an invalid port of any host; libpq would look it up as the name of a service."""
    for place in url.netloc.rpartition("@")[2].split(","):
        if place.count(":") > 1 and not place.startswith("["):
            raise UrlError("write an IPv6 address in brackets: postgresql://app@[::1]:5432/app")
        port = place.rpartition(":")[2] if ":" in place.rpartition("]")[2] else ""
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise UrlError("the port of the store URL must be a number from 1 to 65535; in a password write : as %3A")


def _check_libpq(options: dict[str, str]) -> None:
    """Refuse an option unknown to libpq here, before it looks like an unreachable server."""
    try:
        from semel.stores.postgres.psycopg.libpq import options as libpq_options
    except ImportError:
        return  # the backend reports it, with the remedy, when it is made
    known = {*libpq_options(), "persistence", *_OWN}
    for name in sorted(options):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"Semel's own are {', '.join(_OWN)}; the others libpq's"
            raise UrlError(f"unknown option {name!r} in the store URL; {hint}")
    if options.get("ssl", "true") != "true":
        raise UrlError("ssl can only be true in a PostgreSQL URL; all else is libpq's sslmode, such as sslmode=require")


def _check_whole(plain: str) -> None:
    """Refuse a URL that libpq cannot read, without libpq's message, which quotes the URL."""
    try:
        from semel.stores.postgres.psycopg.libpq import understands
    except ImportError:
        return  # as above
    if not understands(plain):
        raise UrlError(
            "libpq cannot read the store URL: write @ : / ? # % and spaces of its user and password percent-encoded "
            "(%40 %3A %2F %3F %23 %25 %20), for example postgresql://app@localhost/app"
        )


def postgres_backend(
    conninfo: str, *, asyncpg: bool = False, schema: str | None = None, clock: Clock | None = None, **options: Any
) -> Backend:
    """Make the backend of a PostgreSQL server.

    Parameters: ``conninfo`` a libpq connection string or ``postgresql://`` URL; ``asyncpg`` whether that library
    performs on event loops (threads always use psycopg); ``schema``, ``clock`` and ``options`` as in
    :class:`semel.stores.postgres.psycopg.driver.PostgresServer`.

    Raises ConfigurationError where the client library is not installed.
    """
    from semel.stores.postgres.store import PostgresStore

    try:
        from semel.stores.postgres.psycopg.driver import PostgresServer, PsycopgDriver
    except ImportError as error:
        raise _needs(asyncpg=asyncpg) from error
    from semel.outbox.postgres_listen import PostgresListener
    from semel.stores.postgres.errors import is_conflict, is_stopped
    from semel.stores.postgres.join import PostgresHome
    from semel.stores.postgres.join_target import join, join_async
    from semel.stores.postgres.psycopg.transaction import PsycopgUnitPool
    from semel.stores.postgres.psycopg.transaction_async import AsyncPsycopgUnitPool

    def with_joins(backend: Backend) -> Backend:
        home = PostgresHome(backend.store, backend.driver, server)
        return replace(
            backend,
            joins=lambda connection: join(connection, home),
            joins_async=lambda connection: join_async(connection, home),
            conflicts=is_conflict,
            stopped=is_stopped,
            listens=lambda hear: PostgresListener(server, hear),
        )

    server = PostgresServer(conninfo, schema=schema, clock=clock, **options)
    store, units = PostgresStore(), PsycopgUnitPool(server)
    if not asyncpg:
        async_units = AsyncPsycopgUnitPool(server)
        driver = PsycopgDriver(server, units, async_units)
        return with_joins(Backend("postgresql", store, driver, unit=units.begin, unit_async=async_units.begin))
    try:
        from semel.stores.postgres.asyncpg.driver import AsyncpgDriver
        from semel.stores.postgres.asyncpg.transaction import AsyncpgUnitPool
    except ImportError as error:
        raise _needs(asyncpg=True) from error
    asyncpg_units = AsyncpgUnitPool(server)
    pooled = AsyncpgDriver(server, PsycopgDriver(server, units), asyncpg_units)
    return with_joins(Backend("postgresql", store, pooled, unit=units.begin, unit_async=asyncpg_units.begin))
