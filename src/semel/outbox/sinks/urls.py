"""Sinks by URL. Connects nothing, and imports only the client that the URL needs."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from semel.addresses import is_host
from semel.errors import ConfigurationError, UrlError
from semel.extras import install_command
from semel.outbox.sinks.base import Sink
from semel.outbox.sinks.function import function_sink

Make = Callable[[SplitResult, dict[str, str]], Sink]

# scheme -> module, the client that it imports, and the extra that brings it
_HOMES: Final[Mapping[str, tuple[str, str, str]]] = {
    **dict.fromkeys(("nats", "tls"), ("nats", "nats", "nats")),
    **dict.fromkeys(("amqp", "amqps"), ("rabbitmq", "aio_pika", "rabbitmq")),
    "kafka": ("kafka", "aiokafka", "kafka"),
    **dict.fromkeys(("redis", "rediss"), ("redis", "redis", "redis")),
    "sqs": ("sqs", "boto3", "sqs"),
    **dict.fromkeys(("http", "https"), ("webhook", "httpx", "webhooks")),
}
SCHEMES: Final = (*_HOMES, "python")


def _is_address(address: str) -> bool:
    try:
        host = urlsplit(f"//{address}").hostname
    except ValueError:
        return False
    return not host or is_host(host)


def connect_sink(url: str) -> Sink:
    """Return the sink that a URL names: nats://, tls://, amqp(s)://, kafka://, redis(s)://, sqs://, https://,
    python:MODULE:FUNCTION.

    Raises UrlError, naming what is wrong with it, and ConfigurationError where its client is not installed.

    >>> connect_sink("python:builtins:print").name
    'python:builtins:print'
    >>> connect_sink("nat://localhost")
    Traceback (most recent call last):
        ...
    semel.errors.UrlError: unknown sink 'nat'; did you mean 'nats'?
    """
    if url.startswith("python:"):
        return function_sink(url)
    try:
        parts = urlsplit(url)
        _ = parts.port if "," not in parts.netloc else None
    except ValueError:  # hide the cause: its text may hold a part of the password
        raise UrlError(
            "the sink's URL cannot be understood: write SCHEME://HOST:PORT, an IPv6 address in [ ], and percent-encode "
            "'/', '?', '#', '@' and ':' in its user and password"
        ) from None
    if not all(_is_address(each) for each in parts.netloc.rpartition("@")[2].split(",")) or not url.isprintable():
        raise UrlError("the host of the sink's URL is no name; write SCHEME://HOST:PORT, an IPv6 address in [ ]")
    home = _HOMES.get(parts.scheme)
    if home is None or "://" not in url:
        said = parts.scheme or url.rpartition("@")[2]
        near = difflib.get_close_matches(said, SCHEMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(SCHEMES)}"
        raise UrlError(f"unknown sink {said!r}; {hint}")
    module, library, extra = home
    try:
        make: Make = getattr(import_module(f"semel.outbox.sinks.{module}"), f"{module}_sink")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == library:
            raise ConfigurationError(
                f"a sink on {parts.scheme}:// needs {library}; install it: {install_command(extra)}"
            ) from None
        raise
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in options:
            raise UrlError(f"the option {name!r} is in the sink's URL twice; give it once")
        options[name] = value
    sink = make(parts, options)
    if options:
        raise UrlError(f"unknown option {sorted(options)[0]!r} in the sink's URL {parts.scheme}://…")
    return sink
