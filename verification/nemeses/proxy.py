"""A TCP proxy before any server: it loses replies and requests, stops passing anything on, and changes its target.

It knows no protocol. What a client sends in one go is a request; it is lost before the server hears of it, or its
reply is swallowed and the connection ended. What was sent while nothing passed arrives late, as on a real network. It
runs in its own process, so that its user may fork.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from verification.soak.worker import Line, Worker

LOOPBACK: Final = "127.0.0.1"
CHUNK_BYTES: Final = 1 << 20
# How the loss of a request is counted: the first of these words that it holds, or "other". Prepared statements travel
# by name alone.
WORDS: Final = re.compile(rb"COMMIT|EVALSHA|UPDATE|INSERT|WAIT", re.IGNORECASE)


class Proxy:
    """A proxy on a free port of this machine.

    Parameters: ``target`` the port, on this machine, of the server; ``seed`` chooses what is lost.

    Use it as a context, or close it: its process ends with it. It forks, so its creator must have no threads.
    """

    def __init__(self, target: int, *, seed: int = 0) -> None:
        listener = socket.create_server((LOOPBACK, 0), backlog=200)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.port: int = listener.getsockname()[1]

        def work(line: Line) -> None:
            ours.close()
            asyncio.run(_Passing(target, random.Random(seed)).serve(listener, theirs))

        self._worker = Worker(work)
        listener.close()
        theirs.close()
        self._control = ours

    def lose(self, replies: float, requests: float = 0.0) -> None:
        """From now on lose this share (0 to 1) of the replies and of the requests."""
        self._say(f"lose {replies} {requests}")

    def stop(self) -> None:
        """Pass nothing on any more; connections stay open, and new ones are accepted."""
        self._say("stop")

    def go_on(self) -> None:
        """Pass on what was held back, and everything again."""
        self._say("pass")

    def aim(self, target: int) -> None:
        """End all connections; new ones go to this port."""
        self._say(f"aim {target}")

    def count_lost(self) -> Counter[str]:
        """Count what was lost so far: ``reply`` and ``request``, and each with its word of ``WORDS``."""
        return Counter({word: int(count) for word, count in (each.split("=") for each in self._say("count").split())})

    def close(self) -> None:
        """End it."""
        self._control.close()
        self._worker.kill()
        self._worker.close()

    def _say(self, words: str) -> str:
        self._control.send(words.encode())
        return self._control.recv(CHUNK_BYTES).decode().removeprefix("done").strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class _Talk:
    """One client's connection."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    deaf: bool = False  # the next reply is swallowed, and then all is over

    def end(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()


@dataclass(slots=True)
class _Passing:
    target: int
    rng: random.Random
    replies: float = 0.0
    requests: float = 0.0
    passing: asyncio.Event = field(default_factory=asyncio.Event)
    lost: Counter[str] = field(default_factory=Counter)
    open: dict[int, _Talk] = field(default_factory=dict)

    async def serve(self, listener: socket.socket, control: socket.socket) -> None:
        self.passing.set()
        control.setblocking(False)
        loop = asyncio.get_running_loop()
        async with await asyncio.start_server(self._talk, sock=listener, limit=CHUNK_BYTES):
            while words := (await loop.sock_recv(control, CHUNK_BYTES)).decode().split():
                await loop.sock_sendall(control, f"done {self._obey(words)}".encode())

    def _obey(self, words: list[str]) -> str:
        match words:
            case ["lose", replies, requests]:
                self.replies, self.requests = float(replies), float(requests)
            case ["stop"]:
                self.passing.clear()
            case ["pass"]:
                self.passing.set()
            case ["aim", target]:
                self.target = int(target)
                for talk in list(self.open.values()):
                    talk.end()
            case ["count"]:
                return " ".join(f"{name}={count}" for name, count in self.lost.items())
            case _:
                raise AssertionError(words)
        return ""

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.passing.wait()
        try:
            answers, server = await asyncio.open_connection(LOOPBACK, self.target, limit=CHUNK_BYTES)
        except OSError:
            writer.transport.abort()
            return
        talk = _Talk(writer, server)
        self.open[id(talk)] = talk
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._requests(reader, talk))
                both.create_task(self._answers(answers, talk))
        finally:
            del self.open[id(talk)]

    async def _requests(self, reader: asyncio.StreamReader, talk: _Talk) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self.passing.wait()
                chance = self.rng.random()
                if chance < self.replies:
                    talk.deaf = True
                    self._count("reply", data)
                elif chance < self.replies + self.requests:
                    self._count("request", data)
                    break
                talk.server.write(data)
                await talk.server.drain()
        talk.end()

    async def _answers(self, answers: asyncio.StreamReader, talk: _Talk) -> None:
        with suppress(OSError):
            while data := await answers.read(CHUNK_BYTES):
                await self.passing.wait()
                if talk.deaf:
                    break
                talk.client.write(data)
                await talk.client.drain()
        talk.end()

    def _count(self, what: str, data: bytes) -> None:
        found = WORDS.findall(data)
        self.lost[what] += 1
        self.lost[f"{what}:{found[-1].decode().upper() if found else 'other'}"] += 1
