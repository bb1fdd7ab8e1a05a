"""HTTP/1.1 over plain sockets: it controls every byte of a request, even invalid ones, and follows no redirect."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from semel.addresses import split_http_url

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
LEFTOVER_SECONDS: Final = 1.0
_STATUS: Final = re.compile(r"[1-9][0-9]{2}").fullmatch
_LENGTH: Final = re.compile(r"[0-9]{1,15}").fullmatch
_CHUNK_SIZE: Final = re.compile(r"[0-9A-Fa-f]{1,12}").fullmatch
Header = tuple[str, bytes]


class WireError(Exception):
    """The peer violates HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of requests. ``base`` is the prefix of every request's path."""

    scheme: str
    host: str
    port: int
    base: str
    tls: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == {"http": 80, "https": 443}[self.scheme] else f"{name}:{self.port}"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, or in ``trouble`` the reason that there is none."""

    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    trouble: str = ""
    framing: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def ok(self) -> bool:
        """Whether it is a 2xx."""
        return 200 <= self.status < 300

    def header(self, name: str) -> str | None:
        """Return the value of the first header with this name."""
        return next((value for found, value in self.headers if found.lower() == name.lower()), None)

    @property
    def media_type(self) -> str:
        """The Content-Type without its parameters."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    def text(self) -> str:
        """Describe the reply for a finding: its status, or its trouble."""
        return f"HTTP {self.status}" if self.status else f"no answer ({self.trouble})"


def parse_target(url: str, ca_file: str = "") -> Target:
    """Parse a URL into a target. Raises ValueError, with the remedy."""
    try:
        parts = split_http_url(url)
    except ValueError as error:
        raise ValueError(f"URL is invalid: {error}") from None
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(
            "URL must be the API's base, such as http://127.0.0.1:8000 or https://host/api, without an account, a "
            "query and a fragment; give credentials as headers of [callers.first]"
        )
    tls = None
    if parts.scheme == "https":
        try:
            tls = ssl.create_default_context(cafile=ca_file or None)
        except (OSError, ssl.SSLError):
            raise ValueError(f"tls.ca_file {ca_file!r} cannot be read: give a PEM file") from None
    return Target(parts.scheme, parts.hostname or "", parts.port or (443 if tls else 80), parts.path.rstrip("/"), tls)


async def is_private(target: Target) -> bool:
    """Return whether every address of the host is loopback or private. Raises OSError if it has no address."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = {ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found}
    return all(each.is_loopback or (each.is_private and not each.is_unspecified) for each in addresses)


def encode(
    target: Target,
    method: str,
    path: str,
    headers: Sequence[Header],
    body: bytes,
    *,
    chunked: bool = False,
    close: bool = True,
    claimed: int | None = None,
) -> bytes:
    """Encode a request as bytes. ``claimed`` is a false Content-Length."""
    lines = [f"{method} {target.base}{path} HTTP/1.1".encode(), b"Host: " + target.authority.encode()]
    lines += [name.encode() + b": " + value for name, value in headers]
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
        middle = max(len(body) // 2, 1)
        pieces = [piece for piece in (body[:middle], body[middle:]) if piece]
        sent = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        length = len(body) if claimed is None else claimed
        if length or method in ("POST", "PUT", "PATCH"):
            lines.append(b"Content-Length: %d" % length)
        sent = body
    if close:
        lines.append(b"Connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n" + sent


class Connection:
    """One connection, as a context manager that opens and closes it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Connection:
        tls = self._target.tls
        name = self._target.host if tls else None
        self._reader, self._writer = await asyncio.open_connection(
            self._target.host, self._target.port, ssl=tls, server_hostname=name
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await self._writer.wait_closed()

    async def write(self, data: bytes) -> None:
        """Send bytes. Ignore a connection that the peer has closed: it may have answered, and we read that next."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def some(self) -> bytes:
        """Return the first received byte."""
        return await self._reader.read(1)

    def reset(self) -> None:
        """Reset the connection with RST, as a failing network does."""
        raw = self._writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def read(self, method: str = "POST") -> Reply:
        """Read one answer. Raises WireError, OSError, asyncio.IncompleteReadError."""
        while True:
            status, headers = await self._head()
            if status >= 200:
                break
        found = [(name.lower(), value) for name, value in headers]
        lengths = [value for name, value in found if name == "content-length"]
        coded = any(name == "transfer-encoding" and "chunked" in value.lower() for name, value in found)
        framing = ""
        if len(set(lengths)) > 1 or (lengths and coded):
            framing = "the answer has Transfer-Encoding and Content-Length, or two lengths"
        if method == "HEAD" or status in (204, 304):
            body = b""
        elif coded:
            body = await self._chunks()
        elif lengths:
            if _LENGTH(lengths[0]) is None or int(lengths[0]) > ANSWER_BYTES_MAX:
                raise WireError(f"Content-Length {lengths[0][:20]!r} cannot be read")
            body = await self._reader.readexactly(int(lengths[0]))
        else:
            body = await self._reader.read(ANSWER_BYTES_MAX)
        return Reply(status, tuple(headers), body, framing=framing)

    async def leftover(self) -> bytes:
        """Return bytes that follow an answer (at most 64), or none if the peer closes or stays silent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEFTOVER_SECONDS):
                return await self._reader.read(64)
        return b""

    async def _head(self) -> tuple[int, list[tuple[str, str]]]:
        line = await self._line()
        parts = line.split(" ", 2)
        if not parts[0].startswith("HTTP/1.") or len(parts) < 2 or _STATUS(parts[1]) is None:
            raise WireError(f"no HTTP answer: it begins with {line[:40]!r}" if line else "the connection was closed")
        headers: list[tuple[str, str]] = []
        while line := await self._line():
            name, _, value = line.partition(":")
            headers.append((name.strip(), value.strip()))
            if len(headers) > 200:
                raise WireError("more than 200 headers")
        return int(parts[1]), headers

    async def _line(self) -> str:
        try:
            return (await self._reader.readuntil(b"\n")).rstrip(b"\r\n").decode("latin-1")
        except asyncio.LimitOverrunError:
            raise WireError("a line of the answer's head is too long") from None

    async def _chunks(self) -> bytes:
        pieces: list[bytes] = []
        while True:
            text = (await self._line()).partition(";")[0].strip()
            if _CHUNK_SIZE(text) is None:
                raise WireError(f"a chunk has no size: {text[:20]!r}")
            size = int(text, 16)
            if size == 0:
                while await self._line():
                    pass
                return b"".join(pieces)
            if size > ANSWER_BYTES_MAX:
                raise WireError("a chunk is too long")
            pieces.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)


async def exchange(target: Target, data: bytes, method: str, timeout_seconds: float) -> Reply:
    """Send one request on a new connection. The peer's errors do not raise: they become the reply's trouble."""
    begun = time.monotonic()
    try:
        async with asyncio.timeout(timeout_seconds), Connection(target) as connection:
            await connection.write(data)
            reply = await connection.read(method)
    except TimeoutError:
        return Reply(trouble=f"nothing within {timeout_seconds:g} s")
    except (OSError, WireError, asyncio.IncompleteReadError) as error:
        return Reply(trouble=explain(error))
    return Reply(reply.status, reply.headers, reply.body, framing=reply.framing, seconds=time.monotonic() - begun)


def explain(error: BaseException) -> str:
    """Describe a network failure in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, asyncio.IncompleteReadError):
        return "the answer was cut off" if error.partial else "the connection was closed without an answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return "the host's name has no address"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "the connection was reset"
    return str(error) or type(error).__name__
