"""A real HTTP proxy that breaks what passes through it: each POST meets the next fault of its schedule.

It also keeps what the server answered to each key, as it was before the line broke.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

FAULTS: Final = (
    "pass",
    "request lost",
    "request reset",
    "half request",
    "reply lost",
    "reply reset",
    "half answer",
    "half head",
    "late",
    "twice",
    "502",
    "503",
    "504 after the effect",
    "429",
    "408",
)
_STATUS: Final = {
    "502": b"502 Bad Gateway",
    "503": b"503 Service Unavailable",
    "429": b"429 Too Many",
    "408": b"408 Late",
}


class BreakingProxy:
    """Listens on a free port before the service at ``url``; ``fault_of(key)`` is the fault of the next request."""

    def __init__(self, url: str, fault_of: Callable[[str], str], late_seconds: float) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = (parts.hostname, parts.port)
        self._fault_of = fault_of
        self._late_seconds = late_seconds
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.answers: dict[str, list[tuple[int, bytes]]] = defaultdict(list)  # by key, in the server's order
        self.met: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()
        self._never = threading.Event()
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """End it, and all its connections with it."""
        self._never.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(10)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.settimeout(20)
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while not self._never.is_set() and self._one(client):
                pass

    def _one(self, client: socket.socket) -> bool:
        """Relay one request; False where the connection ends."""
        request = _message(client)
        if request is None:
            return False
        key = _field(request, b"idempotency-key")
        fault = self._fault_of(key) if request.startswith(b"POST") else "pass"
        with self._lock:
            self.met[fault] += 1
        if fault == "request reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if fault in ("request lost", "request reset"):
            return False
        if fault in _STATUS:
            client.sendall(b"HTTP/1.1 " + _STATUS[fault] + b"\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n")
            return True
        if fault == "half request":
            self._ask(key, request[: len(request) - 3])
            return False
        reply = self._ask(key, request)
        if fault == "twice" and reply is not None:
            reply = self._ask(key, request)
        if reply is None or fault == "reply lost":
            return False
        if fault == "reply reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if fault == "504 after the effect":
            client.sendall(b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\n\r\n")
            return True
        if fault == "late":
            self._never.wait(self._late_seconds)
        if fault == "half answer":
            reply = reply[: reply.index(b"\r\n\r\n") + 6]
        elif fault == "half head":
            reply = reply[:20]
        client.sendall(reply)
        return fault not in ("half answer", "half head")

    def _ask(self, key: str, request: bytes) -> bytes | None:
        """The server's whole reply; None where it gave none."""
        try:
            with socket.create_connection(self._server, timeout=20) as server:
                server.sendall(request)
                if _field(request, b"content-length") != str(len(request.partition(b"\r\n\r\n")[2])):
                    server.shutdown(socket.SHUT_WR)
                reply = _message(server)
        except OSError:
            return None
        if reply is not None and key:
            with self._lock:
                self.answers[key].append((int(reply[9:12]), reply.partition(b"\r\n\r\n")[2]))
        return reply


def _message(stream: socket.socket) -> bytes | None:
    """A request or reply, whole; None where the stream ends before."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = stream.recv(65536)
        if not part:
            return None
        data += part
    head = data.index(b"\r\n\r\n") + 4
    size = head + int(_field(data, b"content-length") or 0)
    while len(data) < size:
        part = stream.recv(65536)
        if not part:
            return None
        data += part
    return data


def _field(message: bytes, name: bytes) -> str:
    for line in message.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
        found, _, text = line.partition(b":")
        if found.lower() == name:
            return text.strip().decode().strip('"')
    return "0" if name == b"content-length" else ""


@contextmanager
def breaking(url: str, fault_of: Callable[[str], str], late_seconds: float) -> Iterator[BreakingProxy]:
    """A proxy before the service, for a block."""
    proxy = BreakingProxy(url, fault_of, late_seconds)
    try:
        yield proxy
    finally:
        proxy.close()
