"""Makes a store and its driver from a URL. Nothing is opened here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from semel.articles import name_type
from semel.errors import ConfigurationError, UrlError
from semel.stores.backend import Backend

GROUP: Final = "semel.stores"
_OTHERS: Final = f"a store of another package is found by its entry point in the group {GROUP!r}: install that package"
_EXAMPLE: Final = "for example sqlite:///semel.db (a file here), sqlite:////var/lib/semel.db (absolute) or memory://"


def connect_backend(url: str) -> Backend:
    """Make the backend that a URL names.

    ``memory://`` lives and dies with the process. ``sqlite:///PATH`` is a file; its options are
    ``?synchronous=FULL|NORMAL|EXTRA`` (FULL by default) and ``?busy_seconds=5``. ``postgresql://USER@HOST/DATABASE``
    is a server, through psycopg (``postgresql+psycopg://`` says the same); ``postgresql+asyncpg://`` lets asyncpg
    perform on event loops. Beside libpq's own options it takes ``?schema=``, ``?connections_max=8``,
    ``?patience_seconds=5`` and ``?prepared=no`` (behind PgBouncer). ``redis://USER:PASSWORD@HOST:PORT/DATABASE`` is
    Redis or Valkey (``rediss://`` with TLS, ``redis+unix:///PATH`` a socket), ``redis+cluster://HOST:PORT,HOST:PORT``
    a cluster, ``redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DATABASE`` the primary that Sentinels name; its options
    are ``?prefix=semel``, ``?wait_replicas=0``, ``?wait_seconds=1``, ``?connections_max=8`` and
    ``?patience_seconds=5`` (docs/redis.md). ``mysql://USER:PASSWORD@HOST:PORT/DATABASE`` (or ``mariadb://``) is a
    MariaDB server, through PyMySQL in threads and asyncmy on event loops; its options are ``?connections_max=8``,
    ``?patience_seconds=5``, ``?socket=/PATH``, ``?tls=yes`` and ``?tls_ca=/PATH`` (docs/mariadb.md). Every server
    takes ``?persistence=none``: EXTERNAL commands may run where its settings make it forget (docs/stores.md); on
    ``memory://`` it silences the warning that each process has its own.

    Another package's store is found by its entry point of the group ``semel.stores``: a function of the URL that
    returns a :class:`~semel.stores.backend.Backend`.

    Raises:
        UrlError: the scheme or an option is unknown, or the path is missing; the message names the remedy.

    >>> connect_backend("memory://").name
    'memory'
    >>> connect_backend("sqlit:///x.db")
    Traceback (most recent call last):
        ...
    semel.errors.UrlError: unknown store 'sqlit'; did you mean 'sqlite'?
    """
    if not isinstance(url, str) or "://" not in url:
        raise UrlError(f"a store URL has the form scheme://…, {_EXAMPLE}")
    try:
        parts = urlsplit(url)
    except ValueError as error:  # brackets without an IPv6 address, and hosts that Unicode normalisation would change
        raise UrlError(
            f"the host of the store URL cannot be understood ({type(error).__name__}): write an IPv6 address in "
            "brackets, and [ and ] in a password as %5B and %5D"
        ) from None
    parts = parts._replace(scheme=_ALIASES.get(parts.scheme, parts.scheme))
    make = _SCHEMES.get(parts.scheme)
    if make is None:
        return _of_a_package(parts.scheme, url)
    options = _options(parts.query)
    if not all(map(_can_be_resolved, parts.netloc.rpartition("@")[2].split(","))):
        raise UrlError("a host of the store URL is no name: at most 63 characters, and one at least, between two dots")
    backend = make(parts, options)
    if options:
        raise UrlError(_unknown_option(sorted(options)[0], parts.scheme))
    return replace(backend, url=url)


def _can_be_resolved(place: str) -> bool:
    """Whether the resolver accepts a host; its own error is not a store's, and would reach the caller unwrapped."""
    host = place if place.startswith("[") else place.partition(":")[0]
    try:
        host.encode("idna")
    except UnicodeError:
        return host.lower().startswith("%2f")  # the folder of a socket
    return True


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in options:
            raise UrlError(f"the option {name!r} is in the store URL twice; give it once")
        options[name] = value
    return options


def _unknown_option(name: str, scheme: str) -> str:
    known = OPTIONS[scheme]
    near = difflib.get_close_matches(name, known, n=1) or [each for each in known if len(name) > 2 and name in each]
    hint = f"did you mean {near[0]!r}?" if near else f"{scheme}:// takes {', '.join(known) or 'none'}"
    return f"unknown option {name!r} in the store URL; {hint}"


def pop_accepts_loss(options: dict[str, str]) -> bool:
    """Take the option that accepts that the server may forget EXTERNAL commands. Raises UrlError."""
    persistence = options.pop("persistence", "required")
    if persistence not in ("required", "none"):
        raise UrlError(f"persistence must be required or none; it is {persistence!r}")
    return persistence == "none"


def _of_a_package(scheme: str, url: str) -> Backend:
    for entry in entry_points(group=GROUP, name=scheme):
        try:
            make = entry.load()
        except (ImportError, AttributeError) as error:
            package = entry.dist.name if entry.dist is not None else entry.value
            message = f"the store {scheme!r} of the package {package} cannot be loaded ({entry.value}): {error}"
            raise ConfigurationError(f"{message}; install its dependencies, or another version of it") from error
        backend = make(url)
        if not isinstance(backend, Backend):
            raise ConfigurationError(
                f"the store {scheme!r} ({entry.value}) returned {name_type(backend)} instead of a Backend; "
                "its entry point must be a function of the URL that returns a semel.stores.backend.Backend"
            )
        return replace(backend, url=url)
    raise UrlError(f"unknown store {scheme!r}{_suggest_store(scheme)}")


def _suggest_store(scheme: str) -> str:
    """Suggest the scheme closest to an unknown one; all known schemes if none is close."""
    if scheme in _HINTS:
        return f": {_HINTS[scheme]}"
    known = sorted({*_SCHEMES, *entry_points(group=GROUP).names})
    base, plus, library = scheme.partition("+")
    if plus and base in _SCHEMES:
        takes = [each.partition("+")[2] for each in known if each.startswith(f"{base}+")]
        near = [f"{base}+{each}" for each in difflib.get_close_matches(library, takes, n=1)]
        return f"; did you mean {near[0]!r}?" if near else f": Semel has no driver {library!r} for it; write {base}://"
    near = difflib.get_close_matches(scheme, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}; {_OTHERS}"


def _mariadb(url: SplitResult, options: dict[str, str]) -> Backend:
    from semel.stores.mariadb.url import mariadb_url

    return mariadb_url(url, options)


def _memory(url: SplitResult, options: dict[str, str]) -> Backend:
    from semel.stores.memory.driver import LocalDriver
    from semel.stores.memory.store import MemoryStore

    if url.path.strip("/") or url.netloc:
        raise UrlError("memory:// takes no path: it lives and dies with the process")
    return Backend("memory", MemoryStore(), LocalDriver(), accepts_loss=pop_accepts_loss(options))


def _postgres(url: SplitResult, options: dict[str, str]) -> Backend:
    from semel.stores.postgres.url import postgres_url

    return postgres_url(url, options)


def _redis(url: SplitResult, options: dict[str, str]) -> Backend:
    from semel.stores.redis.url import redis_url

    return redis_url(url, options)


def _sqlite(url: SplitResult, options: dict[str, str]) -> Backend:
    from semel.stores.sqlite.url import sqlite_url

    return sqlite_url(url, options)


def seconds_of(name: str, text: str) -> float:
    """Read an option of a store URL that is a number of seconds.

    Raises UrlError where it is none, or not from 0 to 3600.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise UrlError(f"{name} must be a number of seconds from 0 to 3600; it is {text!r}")
    return value


_SCHEMES: Final[Mapping[str, Callable[[SplitResult, dict[str, str]], Backend]]] = {
    **dict.fromkeys(("mariadb", "mariadb+asyncmy", "mariadb+pymysql"), _mariadb),
    **dict.fromkeys(("mysql", "mysql+asyncmy", "mysql+pymysql"), _mariadb),
    "memory": _memory,
    "postgresql": _postgres,
    "postgresql+asyncpg": _postgres,
    **dict.fromkeys(("redis", "rediss", "redis+cluster", "rediss+cluster", "redis+unix"), _redis),
    **dict.fromkeys(("redis+sentinel", "rediss+sentinel"), _redis),
    "sqlite": _sqlite,
}

# As SQLAlchemy spells it, and as the DATABASE_URL of most hosts does.
_ALIASES: Final[Mapping[str, str]] = {"postgresql+psycopg": "postgresql", "postgres": "postgresql"}
_HINTS: Final[Mapping[str, str]] = {
    "postgresql+psycopg2": "Semel runs on psycopg 3; write postgresql://",
    "postgres+psycopg2": "Semel runs on psycopg 3; write postgresql://",
    "postgresql+psycopg3": "it is what postgresql:// runs on; write postgresql://",
    "valkey": "Valkey speaks Redis' protocol; write redis://",
    "valkeys": "Valkey speaks Redis' protocol; write rediss://",
}

_POOL: Final = ("connections_max", "patience_seconds", "persistence")
_REDIS: Final = ("prefix", "wait_replicas", "wait_seconds", *_POOL)
_TLS: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_MARIADB: Final = ("charset", "socket", "tls", "tls_ca", "unix_socket", *_POOL)
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys([scheme for scheme in _SCHEMES if scheme.startswith(("mariadb", "mysql"))], _MARIADB),
    "memory": ("persistence",),
    **dict.fromkeys(("postgresql", "postgresql+asyncpg"), ("prepared", "schema", *_POOL)),
    **dict.fromkeys(("redis", "redis+cluster"), _REDIS),
    **dict.fromkeys(("rediss", "rediss+cluster"), (*_TLS, *_REDIS)),
    "redis+sentinel": ("sentinel_auth", *_REDIS),
    "rediss+sentinel": ("sentinel_auth", *_TLS, *_REDIS),
    "redis+unix": ("db", *_REDIS),
    "sqlite": ("busy_seconds", "synchronous"),
}
"""The options that each scheme takes after the question mark; PostgreSQL also takes libpq's."""
