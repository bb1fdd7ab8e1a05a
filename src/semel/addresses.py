"""The addresses of HTTP services, as people write them: a mistake is found before anything is sent or kept."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

_HOST_MAX: Final = 253
_LABEL: Final = re.compile(r"[a-z0-9_-]{1,63}", re.IGNORECASE).fullmatch
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]").search


def split_http_url(url: str) -> SplitResult:
    """The parts of an ``http://`` or ``https://`` URL whose host and port can be connected to.

    Parameters: ``url`` the whole URL. Its words are in no error, since it may hold a password.

    Raises ValueError, which says what is wrong and what to write.

    >>> split_http_url("http://[::1]:8080/payments").port
    8080
    >>> split_http_url("http://[")
    Traceback (most recent call last):
        ...
    ValueError: its host or port cannot be read: write http://HOST:PORT, an IPv6 address in [ ], ...
    """
    if _CONTROL(url):
        raise ValueError("it has a control character, such as the end of a line: leave it out")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(
            "its host or port cannot be read: write http://HOST:PORT, an IPv6 address in [ ], and percent-encode '/', "
            "'?', '#', '@' and ':' in a user or password"
        ) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it has no scheme and host: write the whole URL, such as https://shop.example/payments")
    if port == 0:
        raise ValueError("its port is 0: write one of 1 to 65535")
    if not is_host(parts.hostname):
        raise ValueError(
            "its host is no name: write letters, digits, '-', '_' and '.', at most 63 characters between two dots, or "
            "an IPv6 address in [ ]"
        )
    return parts


def is_host(host: str) -> bool:
    """Whether a host could be one: an IP address, or a name that a resolver takes.

    >>> [is_host(host) for host in ("shop_1.example.", "bücher.example", "::1", "[", "a b", "a..b", "a" * 64)]
    [True, True, True, False, False, False, False]
    """
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return True
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            return False
    name = host.removesuffix(".")
    return len(name) <= _HOST_MAX and all(_LABEL(label) for label in name.split("."))
