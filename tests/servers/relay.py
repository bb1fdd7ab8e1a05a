"""A TCP relay before a PostgreSQL server, which reads what clients say and loses, on demand, what is said to them.

It counts round trips from the wire. A client may ask several things before it waits (a pipeline), so while round
trips are counted an answer is held back until the client has fallen silent: whatever it says until then is one of them.
Messages: https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Loss = Literal["request", "reply", "both"]
Trip = tuple[str, ...]  # the statements of one round trip

STARTUP = 0x00030000  # protocol 3.x; smaller numbers' neighbours ask for encryption or cancel
SILENCE_SECONDS = 0.03
DEMANDS = {b"Q", b"S", b"H"}  # Query, Sync, Flush


class Relay:
    """Relays ``port`` to a port of its own until it is closed."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.trips: list[Trip] = []
        self.connections = 0
        self.losing: tuple[Loss, Callable[[Trip], bool]] | None = None
        self.holding = False
        self.hanging = False  # swallows all that comes and says nothing
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def conninfo(self, database: str = "postgres") -> str:
        """How to connect through it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def lose(self, loss: Loss, word: str) -> None:
        """Lose the next round trip that says ``word``, once.

        "request": the server never hears of it. "reply": it does, and the client never hears of that. Either way the
        connection ends. "both": it stays open, and nobody ever hears anything.
        """
        self.losing = (loss, lambda trip: any(word in text for text in trip))

    @contextmanager
    def counting(self) -> Iterator[list[Trip]]:
        """The round trips of a block."""
        seen: list[Trip] = []
        self.trips = seen
        self.holding = True
        yield seen
        self.holding = False

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
                    self.connections += 1
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
        line = _Line(self, client, server)
        back = threading.Thread(target=line.answer, daemon=True)
        back.start()
        with suppress(OSError):
            line.ask()
        _end(client)
        _end(server)
        back.join(10)

    def count(self, trip: Trip, *, new: bool) -> None:
        """Count a round trip, or what travels with the last one."""
        if new or not self.trips:
            self.trips.append(trip)
        else:
            self.trips[-1] += trip

    def loses(self, trip: Trip) -> Loss | None:
        """Whether this round trip is the one to lose."""
        with self._lock:
            if self.losing is None or not self.losing[1](trip):
                return None
            loss, self.losing = self.losing[0], None
            return loss


class _Line:
    """One client's connection, in both directions."""

    def __init__(self, relay: Relay, client: socket.socket, server: socket.socket) -> None:
        self._relay = relay
        self._client = client
        self._server = server
        self._rest = b""
        self._lost: Loss | None = None
        self._names: dict[bytes, str] = {}
        self._heard = threading.Event()
        self._answered = True

    def answer(self) -> None:
        """What the server says."""
        with suppress(OSError):
            while data := self._server.recv(65536):
                if self._lost == "reply":
                    break
                if self._relay.holding:
                    self._heard.clear()
                    while self._heard.wait(SILENCE_SECONDS):
                        self._heard.clear()
                self._answered = True
                if self._lost != "both" and not self._relay.hanging:
                    self._client.sendall(data)
        _end(self._client)

    def ask(self) -> None:
        """What the client says, a round trip at a time."""
        while True:
            size = int.from_bytes(self._read(4), "big")
            opening = self._read(size - 4)
            self._server.sendall(size.to_bytes(4, "big") + opening)
            if int.from_bytes(opening[:4], "big") & 0xFFFF0000 == STARTUP:
                break
        texts: list[str] = []
        held = b""
        while True:
            kind = self._read(1)
            length = self._read(4)
            body = self._read(int.from_bytes(length, "big") - 4)
            held += kind + length + body
            texts += self._said(kind, body)
            if kind in DEMANDS:
                trip = tuple(texts)
                self._relay.count(trip, new=self._answered)
                self._answered = False
                self._lost = self._lost or self._relay.loses(trip)
                if self._lost == "request":
                    return
                texts.clear()
            elif kind not in (b"X", b"p"):
                continue
            if not self._relay.hanging:
                self._server.sendall(held)
            held = b""

    def _said(self, kind: bytes, body: bytes) -> list[str]:
        if kind == b"Q":
            return [_line(body.rstrip(b"\0"))]
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._names[name] = _line(text)
            return []
        if kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            return [self._names.get(name, "?")]
        return []

    def _read(self, size: int) -> bytes:
        while len(self._rest) < size:
            data = self._client.recv(65536)
            if not data:
                raise ConnectionError
            self._heard.set()
            self._rest += data
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


def _line(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split())


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        each.close()
