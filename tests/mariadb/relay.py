"""A TCP relay before a MariaDB server: it counts round trips, and loses a request, an answer or everything on demand.

A command is the first packet of a sequence, and its first byte says which (3: a query); whatever follows until the
next one is its answer: https://mariadb.com/kb/en/0-packet/.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Literal

Loss = Literal["request", "reply", "both"]
QUERY = 3


class Relay:
    """Relays ``port`` to a port of its own until it is closed."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.trips: list[str] = []
        self.hanging = False  # swallows all that comes and says nothing
        self._losing: tuple[Loss, str] | None = None
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def lose(self, loss: Loss, word: str) -> None:
        """Lose the next query that contains ``word``, once.

        "request": the server never hears of it. "reply": it does, and the client never hears of that. Either way the
        connection ends. "both": it stays open, and nobody ever hears anything.
        """
        self._losing = (loss, word)

    def cut(self) -> None:
        """End every connection."""
        with self._lock:
            cut, self._open = self._open, []
        for each in cut:
            _end(each)

    def close(self) -> None:
        """End it."""
        _end(self._listener)
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    self._open.append(client)
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._server)
        except OSError:
            _end(client)
            return
        with self._lock:
            self._open.append(server)
        lost = threading.Event()
        back = threading.Thread(target=self._answer, args=(client, server, lost), daemon=True)
        back.start()
        with suppress(OSError):
            self._ask(client, server, lost)
        _end(client)
        _end(server)
        back.join(10)

    def _answer(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if lost.is_set():
                    break
                if not self.hanging:
                    client.sendall(data)
        _end(client)

    def _ask(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        while True:
            head = _read(client, 4)
            body = _read(client, int.from_bytes(head[:3], "little"))
            loss: Loss | None = None
            if head[3] == 0 and body[:1] == bytes([QUERY]):
                text = " ".join(body[1:].decode(errors="replace").split())
                self.trips.append(text)
                with self._lock:
                    if self._losing is not None and self._losing[1] in text:
                        loss, self._losing = self._losing[0], None
            if loss == "request":
                return
            if loss == "reply":
                lost.set()
            if not self.hanging and loss != "both":
                server.sendall(head + body)


def _read(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = client.recv(size - len(data))
        if not more:
            raise ConnectionError
        data += more
    return data


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        each.close()
