"""A Redis store with its driver, from a URL."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlencode

from semel.drivers.clock import Clock
from semel.engine.backend import Backend
from semel.errors import ConfigurationError, UrlError

_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{1,40}")
CONNECTIONS_MOST: Final = 1000


def redis_url(url: SplitResult, options: dict[str, str]) -> Backend:
    """The backend of a ``redis://`` or ``rediss://`` URL. Takes what it knows out of ``options``.

    Raises:
        UrlError: an option cannot be understood.
        ConfigurationError: the client library is not installed.
    """
    from semel.engine.connect import seconds_of

    patience = seconds_of("patience_seconds", options.pop("patience_seconds", "5"))
    if patience == 0:
        raise UrlError("patience_seconds must be more than 0: how long a call may wait for its answer")
    most = _whole("connections_max", options.pop("connections_max", "8"), 1, CONNECTIONS_MOST)
    replicas = _whole("wait_replicas", options.pop("wait_replicas", "0"), 0, 100)
    seconds = seconds_of("wait_seconds", options.pop("wait_seconds", "1"))
    prefix = options.pop("prefix", "semel")
    if _PREFIX.fullmatch(prefix) is None:
        raise UrlError(f"prefix must be 1 to 40 letters, digits, '_', '.' or '-'; it is {prefix!r}")
    if url.path.strip("/") and not url.path.strip("/").isdigit():
        raise UrlError(f"the path of a Redis URL is the number of a database, not {url.path!r}")
    rest = urlencode(options)
    options.clear()  # the others are redis-py's
    return redis_backend(
        url._replace(query=rest).geturl(),
        prefix=prefix,
        connections_max=most,
        patience_seconds=patience,
        wait_replicas=replicas,
        wait_seconds=seconds,
    )


def redis_backend(
    url: str,
    *,
    prefix: str = "semel",
    clock: Clock | None = None,
    connections_max: int = 8,
    patience_seconds: float = 5.0,
    wait_replicas: int = 0,
    wait_seconds: float = 1.0,
) -> Backend:
    """The backend of a Redis or Valkey server.

    Parameters: ``url`` as redis-py takes it; ``prefix`` of every key; the others as in
    :class:`semel.drivers.redis.Server`.

    Raises ConfigurationError where the client library is not installed.
    """
    from semel.stores.redis import RedisStore

    try:
        from semel.drivers.redis import RedisDriver, Server
    except ImportError as error:
        raise ConfigurationError("redis:// needs redis-py; run: pip install 'semel[redis]'") from error
    server = Server(url, connections_max, patience_seconds, wait_replicas, wait_seconds, clock)
    return Backend("redis", RedisStore(prefix), RedisDriver(server))


def _whole(name: str, text: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise UrlError(f"{name} must be a number from {least} to {most}; it is {text!r}")
    return int(text)
