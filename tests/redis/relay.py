"""A TCP relay before a Redis server: it counts round trips, and loses on demand what is said."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Relay:
    """Relays its own ``port`` to a server's, until the block ends."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.trips = 0  # how often a client spoke after the server had
        self.swallow: bytes | None = None  # the next request that holds this is the last that its connection hears of
        self.hanging = False  # nothing is passed on, and nothing is closed
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def cut(self) -> None:
        """End every connection."""
        for each in self._open:
            _end(each)

    def close(self) -> None:
        """End it all, and wait for it."""
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
        self.cut()

    def _begin(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                talk = _Talk()
                self._begin(self._requests, client, server, talk)
                self._begin(self._replies, client, server, talk)

    def _requests(self, client: socket.socket, server: socket.socket, talk: _Talk) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 20):
                if self.hanging:
                    continue
                if self.swallow is not None and self.swallow in data:
                    self.swallow, talk.deaf = None, True
                if talk.server_spoke:
                    self.trips += 1
                    talk.server_spoke = False
                server.sendall(data)
        _end(server)

    def _replies(self, client: socket.socket, server: socket.socket, talk: _Talk) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 20):
                talk.server_spoke = True
                if talk.deaf:
                    break
                client.sendall(data)
        _end(client)


class _Talk:
    """One connection's state."""

    def __init__(self) -> None:
        self.server_spoke = True
        self.deaf = False


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextmanager
def relay(port: int) -> Iterator[Relay]:
    """A relay to the server at ``port``."""
    made = Relay(port)
    try:
        yield made
    finally:
        made.close()
