"""Webhooks: each event is a POST, signed as Standard Webhooks describes, through httpx.

The sink looks up the receiver's address itself, and refuses private, local and reserved ones before it sends anything:
a URL from a customer must not reach into your network. It follows no redirects.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import httpcore
import httpx

from semel.errors import UrlError
from semel.outbox.event import Event
from semel.outbox.flow import WEBHOOK_OUTAGE_SECONDS_MAX, WEBHOOK_WAITS
from semel.outbox.rules import DISABLED, GONE
from semel.outbox.sinks.base import Refused, Reply, Unreached, ascii_headers, error_text, is_gone

VARIABLE: Final = "SEMEL_WEBHOOK_SECRET"
SECRET_BYTES_MIN: Final = 24
SECRETS_MAX: Final = 2
SECONDS: Final = 10.0
AT_ONCE: Final = 20
REPLY_BYTES_MAX: Final = 64 * 1024
RETRY_AFTER_SECONDS_MAX: Final = 86_400
# An event's headers with these names do not describe the HTTP request, and are left out.
_OF_HTTP: Final = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect")
)
# the receiver is overloaded: an outage, however long, parks nothing
_AWAY: Final = frozenset({408, 425, 429, 502, 503, 504})


class AddressRefused(Exception):
    """The receiver's name resolves to an address that must not be called."""


def signature(secret: bytes, id: str, timestamp: int, body: bytes) -> str:
    """Return the ``webhook-signature`` of a message.

    >>> signature(b"x" * 24, "msg_1", 0, b"{}")
    'v1,GpXfUH2odabvKW53xjjM0IYZ+QtNVtAD51tJy/vmlJc='
    """
    digest = hmac.digest(secret, f"{id}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


def secrets_of(text: str, where: str = f"${VARIABLE}") -> tuple[bytes, ...]:
    """Decode one secret, or two separated by a space during a rotation. Raises UrlError, naming ``where``.

    >>> [len(secret) for secret in secrets_of("whsec_" + "A" * 32 + " whsec_" + "B" * 32)]
    [24, 24]
    """
    written = text.split()
    if not 1 <= len(written) <= SECRETS_MAX:
        raise UrlError(f"{where} must be one secret, or two separated by a space during a rotation")
    return tuple(secret_of(each, where) for each in written)


def secret_of(text: str, where: str = f"${VARIABLE}") -> bytes:
    """Decode a secret in its written form: ``whsec_`` and base64. Raises UrlError."""
    try:
        raw = base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) < SECRET_BYTES_MIN:
        raise UrlError(f"{where} is 'whsec_' and base64 of at least {SECRET_BYTES_MIN} random bytes")
    return raw


class WebhookSink:
    """Posts events to one receiver. Retries a refused event for three days; 410 Gone disables the endpoint.

    Parameters: ``url`` https://, or http:// if ``private`` is True; ``secret`` signs them, or several secrets during a
    rotation: a receiver accepts a message if any signature matches; ``private`` allows a receiver in a private network
    or on this machine.
    """

    disables: Final = "sink"
    refused_waits: Final = WEBHOOK_WAITS
    outage_seconds_max: Final = WEBHOOK_OUTAGE_SECONDS_MAX

    def __init__(
        self, url: str, secret: bytes | Sequence[bytes], *, private: bool = False, seconds: float = SECONDS
    ) -> None:
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"  # its path may be a secret
        self.identity = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # only stored as a digest
        self._url = url
        self._secrets = (secret,) if isinstance(secret, bytes) else tuple(secret)
        self._private = private
        self._seconds = seconds
        self._client: httpx.AsyncClient | None = None
        self._places = asyncio.Semaphore(AT_ONCE)

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=_Guarded(private=self._private),
                timeout=self._seconds,
                follow_redirects=False,
                trust_env=False,
            )
        return self._client

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        """Post events, at most 20 at once, and stop once the receiver has answered 410."""
        client = self._open()
        gone: list[Reply] = []
        return list(await asyncio.gather(*(self._post_unless(client, event, gone) for event in events)))

    async def _post_unless(self, client: httpx.AsyncClient, event: Event, gone: list[Reply]) -> Reply:
        async with self._places:
            if gone:
                return Refused(f"{DISABLED}: it has just answered 410 Gone", for_good=True)
            reply = await self._post(client, event)
            if is_gone(reply):
                gone.append(reply)
            return reply

    async def _post(self, client: httpx.AsyncClient, event: Event) -> Reply:
        now = int(time.time())
        headers = {
            **{name: value for name, value in ascii_headers(event).items() if name not in _OF_HTTP},
            "semel-topic": event.topic,
            "webhook-id": event.id,
            "webhook-timestamp": str(now),
            "webhook-signature": " ".join(signature(each, event.id, now, event.payload) for each in self._secrets),
            "idempotency-key": f'"{event.id}"',
            "user-agent": "semel",
        }
        sent = [(name.encode(), value.encode()) for name, value in headers.items()]
        try:
            post = client.stream("POST", self._url, content=event.payload, headers=sent)
            async with asyncio.timeout(self._seconds), post as reply:
                await _read_some(reply)
        except AddressRefused as error:  # the receiver's fault, not the event's
            return Unreached(str(error))
        except (httpx.InvalidURL, UnicodeError) as error:  # likewise: its host is not a name
            return Unreached(error_text(error))
        except httpx.LocalProtocolError as error:  # HTTP cannot carry it: the event's own fault
            return Refused(error_text(error))
        except (httpx.HTTPError, httpcore.NetworkError, OSError, TimeoutError) as error:
            return Unreached(error_text(error))
        return _meaning(reply.status_code, _retry_after(reply.headers.get("retry-after"), time.time()))

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


async def _read_some(reply: httpx.Response) -> None:
    """Read a short answer, so that its connection can be reused; stop at a limit."""
    size = 0
    async for chunk in reply.aiter_raw():
        size += len(chunk)
        if size > REPLY_BYTES_MAX:
            return


def _retry_after(text: str | None, now: float) -> float:
    """Return the seconds that a receiver asks to wait, at most a day; 0 if it does not ask.

    >>> _retry_after("120", 0), _retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 0), _retry_after("soon", 0)
    (120.0, 60.0, 0.0)
    """
    given = (text or "").strip()
    if given.isascii() and given.isdecimal():
        return float(min(int(given[:9]), RETRY_AFTER_SECONDS_MAX))
    try:
        at = parsedate_to_datetime(given).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(0.0, at - now), float(RETRY_AFTER_SECONDS_MAX))


def _meaning(status: int, wait_seconds: float = 0.0) -> Reply:
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return Refused(f"the receiver answered {status}, a redirect; give the address that it leads to")
    if status in _AWAY:
        return Unreached(f"the receiver answered {status}", wait_seconds=wait_seconds)
    if status == 410:
        return Refused(f"{GONE} and is disabled: it wants no more events", for_good=True)
    return Refused(f"the receiver answered {status}", wait_seconds=wait_seconds)


class _Guarded(httpx.AsyncHTTPTransport):
    """httpx's transport, connecting only to the verified address, so that a DNS change cannot redirect it."""

    def __init__(self, *, private: bool) -> None:
        super().__init__()
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(), max_connections=AT_ONCE, network_backend=_Backend(private=private)
        )


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self, *, private: bool) -> None:
        self._private = private
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's own interface
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        address = await look_up(host, port, private=self._private)
        return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)

    async def connect_unix_socket(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        raise AddressRefused("a webhook cannot go to a Unix socket of this machine")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


async def look_up(host: str, port: int, *, private: bool) -> str:
    """Look up a host's address. Raises AddressRefused if any of its addresses is not public, and OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(each[4][0]).partition("%")[0] for each in found]
    for address in addresses:
        if not private and not is_public(address):
            raise AddressRefused(
                f"the receiver {host!r} has the address {address}, which is not a public one; allow it with "
                "?private=yes if the receiver is your own"
            )
    return addresses[0]


def is_public(address: str) -> bool:
    """Return whether an IP address is on the public internet.

    >>> is_public("93.184.216.34"), is_public("127.0.0.1"), is_public("::ffff:10.0.0.1"), is_public("169.254.169.254")
    (True, False, False, False)
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            ip = inner
    site_local = isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or site_local)


_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def webhook_sink(url: SplitResult, options: dict[str, str]) -> WebhookSink:
    """Return the sink of ``https://shop.example/hooks?private=yes``, signed with ``$SEMEL_WEBHOOK_SECRET``."""
    if not url.hostname:
        raise UrlError(f"{url.scheme}:// needs a host, such as https://shop.example/hooks")
    private = options.pop("private", "no")
    if private not in ("yes", "no"):
        raise UrlError(f"private= is yes or no; it is {private!r}")
    if url.scheme == "http" and private == "no":
        raise UrlError("a webhook goes to https://; http:// is for receivers of your own: add ?private=yes")
    secret = os.environ.get(VARIABLE)
    if not secret:
        raise UrlError(
            f"webhooks are signed: set ${VARIABLE} to 'whsec_' and base64 of at least {SECRET_BYTES_MIN} bytes"
        )
    return WebhookSink(url._replace(query="").geturl(), secrets_of(secret), private=private == "yes")
