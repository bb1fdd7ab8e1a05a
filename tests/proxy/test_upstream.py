"""What passes through the proxy without protection: it ends where the service stops reading, and with the proxy."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from semel.proxy.configuration import UpstreamOrigin
from semel.proxy.upstream import Cut, Upstream, answer_headers, request_headers

SCOPE = {"type": "http", "method": "PUT", "path": "/file", "headers": [(b"transfer-encoding", b"chunked")]}


async def pass_request(
    receive: Callable[[], Awaitable[dict[str, Any]]], idle_seconds: float, then: Callable[[Upstream], Awaitable[None]]
) -> tuple[int, str]:
    """Status and code of a request to a service that takes connections, and neither reads nor answers."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        upstream = Upstream(UpstreamOrigin("http", "127.0.0.1", silent.getsockname()[1]), {}, idle_seconds=idle_seconds)
        async with asyncio.timeout(60):
            await asyncio.gather(upstream(SCOPE, receive, send), then(upstream))
    assert not upstream.passing
    return status_of(sent)


def status_of(sent: list[Any]) -> tuple[int, str]:
    return sent[0]["status"], json.loads(sent[1]["body"])["code"]


def test_an_upload_ends_where_the_service_stops_reading() -> None:
    async def endless() -> dict[str, Any]:
        return {"type": "http.request", "body": bytes(1 << 20), "more_body": True}

    async def nothing(_: Upstream) -> None:
        pass

    assert asyncio.run(pass_request(endless, 0.3, nothing)) == (504, "IDEMPOTENCY_UPSTREAM_TIMEOUT")


def test_a_client_that_stops_in_its_upload_holds_no_connection_for_ever() -> None:
    pieces = [{"type": "http.request", "body": b"a", "more_body": True}]

    async def stalls() -> dict[str, Any]:
        if not pieces:
            await asyncio.Event().wait()
        return pieces.pop()

    async def nothing(_: Upstream) -> None:
        pass

    assert asyncio.run(pass_request(stalls, 0.3, nothing)) == (504, "IDEMPOTENCY_UPSTREAM_TIMEOUT")


def test_a_client_that_stops_reading_holds_no_connection_for_ever() -> None:
    async def story() -> None:
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npiece")
            await reader.read()
            writer.close()
            ended.set()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, asyncio.timeout(60):
            origin = UpstreamOrigin("http", "127.0.0.1", server.sockets[0].getsockname()[1])
            scope = {"type": "http", "method": "GET", "path": "/file", "headers": []}
            with pytest.raises(Cut):
                await Upstream(origin, {}, idle_seconds=0.3)(scope, receive, send)
            await ended.wait()

    asyncio.run(story())


def test_other_requests_are_cut_when_the_proxy_ends() -> None:
    begun = asyncio.Event()

    async def receive() -> dict[str, Any]:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def end(upstream: Upstream) -> None:
        await begun.wait()
        for task in upstream.passing:
            task.cancel()

    assert asyncio.run(pass_request(receive, 300, end)) == (502, "IDEMPOTENCY_UPSTREAM_BROKE_OFF")


def certificate(folder: Path) -> Path:
    """A self-signed certificate for 127.0.0.1, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "certificate.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(*form))
    return file


@pytest.mark.parametrize("trusted", [True, False])
def test_a_service_whose_certificate_is_not_trusted_is_sent_nothing(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen, sent = certificate(tmp_path), [], []
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(file))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def run() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return await asyncio.Future()

        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(file)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        async with server:
            upstream = Upstream(UpstreamOrigin("https", "127.0.0.1", server.sockets[0].getsockname()[1]), {})
            await upstream({"type": "http", "method": "GET", "path": "/", "headers": []}, receive, send)

    asyncio.run(run())
    if trusted:
        assert (sent[0]["status"], len(seen)) == (200, 1)
    else:
        assert (status_of(sent), seen) == ((502, "IDEMPOTENCY_UPSTREAM_UNREACHABLE"), [])


def test_the_key_goes_on_and_headers_of_one_connection_do_not() -> None:
    ours = [(b"connection", b"close, X-Mine"), (b"x-mine", b"1"), (b"keep-alive", b"timeout=5"), (b"te", b"trailers")]
    scope = {"type": "http", "headers": [(b"host", b"shop.test"), (b"idempotency-key", b"order-1"), *ours]}
    sent = request_headers(scope, "127.0.0.1:1")
    assert (b"idempotency-key", b"order-1") in sent
    assert {b"x-mine", b"keep-alive", b"te", b"connection"}.isdisjoint(name for name, _ in sent)
    answered = answer_headers([*ours, (b"Content-Type", b"text/plain")], b"http://127.0.0.1:1")
    assert answered == [(b"content-type", b"text/plain")]
