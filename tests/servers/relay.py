"""A TCP relay before a server, which reads requests and, on demand, loses replies.

It counts round trips from the wire. A client may ask several things before it waits (a pipeline), so while round
trips are counted an answer is held back until the client has fallen silent: everything it sends until then is one trip.
How a stream of bytes falls into messages is the protocol's: ``POSTGRES``, ``MARIADB``, ``REDIS``.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal, NamedTuple

Loss = Literal["request", "reply", "both"]
Trip = tuple[str, ...]  # the statements of one round trip

STARTUP: Final = 0x00030000  # protocol 3.x; smaller numbers' neighbours ask for encryption or cancel
SILENCE_SECONDS: Final = 0.03
CHUNK_BYTES: Final = 65536
DEMANDS: Final = {b"Q", b"S", b"H"}  # Query, Sync, Flush
MARIADB_QUERY: Final = 3


class Message(NamedTuple):
    """What a client sent in one piece: the bytes, the statements, and whether it is passed on at once or waits.

    "waits": for the message that ends the round trip; "passes": on, and nothing is counted; "ends": a round trip.
    """

    data: bytes
    texts: list[str]
    then: Literal["waits", "passes", "ends"]


class Reading:
    """A client's bytes. Raises ConnectionError where they end."""

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self._receive = receive
        self._rest = b""

    def some(self) -> bytes:
        """Read the available bytes, at least one."""
        taken, self._rest = self._rest, b""
        if not taken:
            taken = self._receive(CHUNK_BYTES)
        if not taken:
            raise ConnectionError
        return taken

    def exactly(self, size: int) -> bytes:
        """So many."""
        parts = [self.some()] if size else []
        while (length := sum(map(len, parts))) < size:
            parts.append(self.some())
        data = b"".join(parts)
        self._rest = data[size:] if size < length else b""
        return data[:size]


Protocol = Callable[[Reading], Iterator[Message]]


def POSTGRES(said: Reading) -> Iterator[Message]:
    """https://www.postgresql.org/docs/current/protocol-message-formats.html"""
    names: dict[bytes, str] = {}
    while True:
        size = said.exactly(4)
        opening = said.exactly(int.from_bytes(size, "big") - 4)
        yield Message(size + opening, [], "passes")
        if int.from_bytes(opening[:4], "big") & 0xFFFF0000 == STARTUP:
            break
    while True:
        kind, length = said.exactly(1), said.exactly(4)
        body = said.exactly(int.from_bytes(length, "big") - 4)
        then: Literal["waits", "passes", "ends"] = "waits"
        if kind in DEMANDS:
            then = "ends"
        elif kind in (b"X", b"p"):
            then = "passes"
        yield Message(kind + length + body, _postgres_texts(kind, body, names), then)


def _postgres_texts(kind: bytes, body: bytes, names: dict[bytes, str]) -> list[str]:
    if kind == b"Q":
        return [_line(body.rstrip(b"\0"))]
    if kind == b"P":
        name, text, _ = body.split(b"\0", 2)
        names[name] = _line(text)
        return []
    if kind == b"B":
        _, name, _ = body.split(b"\0", 2)
        return [names.get(name, "?")]
    return []


def MARIADB(said: Reading) -> Iterator[Message]:
    """A command is the first packet of a sequence, and its first byte says which; https://mariadb.com/kb/en/0-packet/"""
    while True:
        head = said.exactly(4)
        body = said.exactly(int.from_bytes(head[:3], "little"))
        query = head[3] == 0 and body[:1] == bytes([MARIADB_QUERY])
        yield Message(head + body, [_line(body[1:])] if query else [], "ends" if query else "passes")


def REDIS(said: Reading) -> Iterator[Message]:
    """Everything until the server's reply is one round trip: the relay need not know where a command ends."""
    while True:
        data = said.some()
        yield Message(data, [data.decode(errors="replace")], "ends")


class Relay:
    """Relays ``port`` to a port of its own until it is closed; ``protocol`` is what its clients speak."""

    def __init__(self, port: int, protocol: Protocol = POSTGRES) -> None:
        self._server = ("127.0.0.1", port)
        self.protocol = protocol
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
        connection ends. "both": it stays open, and neither side receives anything.
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
        self._lost: Loss | None = None
        self._heard = threading.Event()
        self._answered = True

    def answer(self) -> None:
        """Pass on what the server sends."""
        with suppress(OSError):
            while data := self._server.recv(CHUNK_BYTES):
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
        """Pass on what the client sends, one round trip at a time."""
        texts: list[str] = []
        held = b""
        for message in self._relay.protocol(Reading(self._receive)):
            held += message.data
            texts += message.texts
            if message.then == "waits":
                continue
            if message.then == "ends":
                trip = tuple(texts)
                self._relay.count(trip, new=self._answered)
                self._answered = False
                self._lost = self._lost or self._relay.loses(trip)
                if self._lost == "request":
                    return
                texts.clear()
            if not self._relay.hanging:
                self._server.sendall(held)
            held = b""

    def _receive(self, size: int) -> bytes:
        data = self._client.recv(size)
        self._heard.set()
        return data


@contextmanager
def relay(port: int, protocol: Protocol) -> Iterator[Relay]:
    """A relay to the server at ``port``."""
    made = Relay(port, protocol)
    try:
        yield made
    finally:
        made.close()


def _line(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split())


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        each.close()
