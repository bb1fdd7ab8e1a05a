"""A Redis store with its driver, from a URL."""

from __future__ import annotations

import os
import re
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from semel.errors import ConfigurationError, UrlError
from semel.extras import install_command
from semel.stores.backend import Backend
from semel.stores.clock import Clock

CONNECTIONS_MOST: Final = 1000
PORT: Final = 6379
SENTINEL_PORT: Final = 26379
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_SERVICE: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_EXAMPLE: Final = "for example redis://localhost:6379/0 or redis+cluster://10.0.0.1:7000,10.0.0.2:7000"
_SENTINEL: Final = "redis+sentinel://HOST:26379,HOST:26379/SERVICE/DATABASE"


def redis_url(url: SplitResult, options: dict[str, str]) -> Backend:
    """Make the backend of a Redis URL. Removes the options that it knows from ``options``.

    Raises:
        UrlError: a part cannot be understood. No message holds the password.
        ConfigurationError: the client library is not installed.
    """
    from semel.stores.urls import pop_accepts_loss, seconds_of

    patience = seconds_of("patience_seconds", options.pop("patience_seconds", "5"))
    if patience == 0:
        raise UrlError("patience_seconds must be more than 0: how long a call may wait for its answer")
    wait = seconds_of("wait_seconds", options.pop("wait_seconds", "1"))
    if not 0 < wait < patience:
        raise UrlError(
            f"wait_seconds must be more than 0 and less than patience_seconds ({patience:g}); it is {wait:g}"
        )
    prefix = options.pop("prefix", "semel")
    if _PREFIX.fullmatch(prefix) is None:
        raise UrlError(f"prefix must be 1 to 40 letters, digits, '_', '.' or '-'; it is {prefix!r}")
    cluster, tls, socket = "cluster" in url.scheme, url.scheme.startswith("rediss"), url.scheme == "redis+unix"
    given: dict[str, Any] = {name: _place(name, options.pop(name)) for name in _TLS_OPTIONS if tls and name in options}
    service = ""
    if "sentinel" in url.scheme:
        service, url = _service(url)
    nodes = ((_socket_path(url), 0),) if socket else _nodes(url)
    return redis_backend(
        nodes,
        cluster=cluster,
        service=service,
        sentinel_auth=bool(service) and _sentinel_auth(options),
        tls=tls,
        options={**given, **_user(url), "db": _database(url, options, cluster=cluster, socket=socket)},
        prefix=prefix,
        connections_max=_whole("connections_max", options.pop("connections_max", "8"), 1, CONNECTIONS_MOST),
        patience_seconds=patience,
        wait_replicas=_whole("wait_replicas", options.pop("wait_replicas", "0"), 0, 100),
        wait_seconds=wait,
        accepts_loss=pop_accepts_loss(options),
    )


def redis_backend(
    nodes: tuple[tuple[str, int], ...],
    *,
    cluster: bool = False,
    service: str = "",
    sentinel_auth: bool = False,
    tls: bool = False,
    options: dict[str, Any] | None = None,
    prefix: str = "semel",
    clock: Clock | None = None,
    connections_max: int = 8,
    patience_seconds: float = 5.0,
    wait_replicas: int = 0,
    wait_seconds: float = 1.0,
    accepts_loss: bool = False,
) -> Backend:
    """Make the backend of a Redis or Valkey server, of a cluster, or of the primary that Sentinels name.

    Parameters: ``nodes`` host and port of the server, of some nodes of a ``cluster``, or of the Sentinels of
    ``service`` (port 0: the path of a socket); ``prefix`` of every key; ``wait_replicas`` how many replicas must have
    each claim and settlement, within ``wait_seconds``; ``accepts_loss`` whether EXTERNAL commands may run on a server
    that forgets; the others as in :class:`semel.stores.redis.driver.RedisServer`.

    Raises ConfigurationError where the client library is not installed.
    """
    from semel.stores.redis.store import RedisStore

    try:
        from semel.stores.redis.driver import RedisDriver, RedisServer
    except ImportError as error:
        raise ConfigurationError(f"redis:// needs redis-py; run: {install_command('redis')}") from error
    from semel.stores.redis.routes import Node, RouteTerms

    server = RedisServer(
        tuple(Node(*node) for node in nodes),
        cluster,
        tls,
        options or {},
        connections_max,
        patience_seconds,
        RouteTerms(wait_replicas, wait_seconds, clock),
        service,
        sentinel_auth,
    )
    store = RedisStore(prefix, wait_replicas=wait_replicas, accepts_loss=accepts_loss, cluster=cluster)
    driver = RedisDriver(server)
    lane = (lambda id: driver.lane(store.keys.record(id))) if cluster else None
    return Backend("redis", store, driver, accepts_loss=accepts_loss, lane=lane)


def _nodes(url: SplitResult) -> tuple[tuple[str, int], ...]:
    places = url.netloc.rpartition("@")[2].split(",")
    sentinels = "sentinel" in url.scheme
    if len(places) > 1 and "cluster" not in url.scheme and not sentinels:
        raise UrlError("several servers are for redis+cluster:// and redis+sentinel:// only")
    return tuple(_node(place, SENTINEL_PORT if sentinels else PORT) for place in places)


def _node(place: str, usual: int) -> tuple[str, int]:
    host, colon, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    if not colon:
        host, port = host or port, str(usual)
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UrlError(f"the server in a Redis URL is host:port, {_EXAMPLE}")
    return host.strip("[]"), int(port)


def _place(name: str, path: str) -> str:
    """Return a path of certificates or a key. For a missing file redis-py would only report an unreachable server."""
    if not os.path.exists(path):
        raise UrlError(f"{name} must name an existing file; there is no {path!r}")
    return path


def _service(url: SplitResult) -> tuple[str, SplitResult]:
    """Return the name that the Sentinels know the servers by, and the URL without it."""
    name, _, database = url.path.strip("/").partition("/")
    if _SERVICE.fullmatch(name) is None:
        raise UrlError(f"the path of this URL begins with the name that the Sentinels monitor: {_SENTINEL}")
    return name, url._replace(path=f"/{database}")


def _sentinel_auth(options: dict[str, str]) -> bool:
    """Whether the Sentinels ask for the same user and password as the servers."""
    given = options.pop("sentinel_auth", "none")
    if given not in ("none", "same"):
        raise UrlError(f"sentinel_auth must be none or same (as the servers'); it is {given!r}")
    return given == "same"


def _user(url: SplitResult) -> dict[str, str]:
    user, at, _ = url.netloc.rpartition("@")
    if not at:
        return {}
    name, colon, password = user.partition(":")
    found = {"username": unquote(name)} if name else {}
    return found | ({"password": unquote(password)} if colon else {})


def _socket_path(url: SplitResult) -> str:
    if url.netloc.rpartition("@")[2] or len(url.path) < 2:
        raise UrlError("redis+unix:// needs the absolute path of a socket: redis+unix:///run/redis.sock")
    return unquote(url.path)


def _database(url: SplitResult, options: dict[str, str], *, cluster: bool, socket: bool) -> int:
    text = options.pop("db", "0") if socket else url.path.strip("/") or "0"
    if not text.isascii() or not text.isdigit():
        raise UrlError(f"the path of a Redis URL is the number of a database, {_EXAMPLE}")
    if cluster and int(text):
        raise UrlError("a cluster has one database: leave the path of the URL empty")
    return int(text)


def _whole(name: str, text: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise UrlError(f"{name} must be a number from {least} to {most}; it is {text!r}")
    return int(text)
