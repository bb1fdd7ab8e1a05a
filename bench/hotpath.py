"""What one request costs in Python alone: uvicorn's own protocol and the bench's application, without a socket.

``python -m bench.hotpath`` sends batches of requests through uvicorn's HTTP parser, the application and uvicorn's
writer, from 32 connections on one loop in this process; the network, and whoever sends, is left out. It counts the
CPU time of the process and alternates: bare, fresh, replay. Other work on the machine makes that time longer, for it
shares caches and cores, so the fastest round of each says more than the median. ``--count`` counts the bytecodes of a
request instead, by package: nothing that else runs on the machine changes them. ``--form`` takes the shop of
``bench.shop`` in one of its forms, such as ATOMIC, or by hand without Semel.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import itertools
import pstats
import statistics
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

import uvloop
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from bench import bare
from bench.load import REPLAYED_KEYS
from bench.payments import payment_handlers
from bench.setup import App, Setup
from bench.subjects import KEY_TEMPLATE, PATH, REQUEST_BODY

T = TypeVar("T")
CONNECTIONS: Final = 32
BATCH = 3200  # tests make it smaller
ROUNDS: Final = 15
WARMUP_ROUNDS: Final = 2
PROTECTED: Final = "bench.protected"
FORMS: Final = {
    "protected": PROTECTED,
    "atomic": "bench.atomic",
    "commits": "bench.commits",
    "by-hand": "bench.by_hand",
}
_REPLAYED: Final = b"\r\nidempotency-replayed: true"
_REQUEST: Final = (
    b"POST %b HTTP/1.1\r\nhost: 127.0.0.1:8080\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"idempotency-key: %%b\r\naccept: */*\r\n\r\n%b"
) % (PATH.encode(), len(REQUEST_BODY), REQUEST_BODY)


class Wire:
    """What uvicorn takes for a transport: each whole answer calls for the next request, at the end of the tick."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._loop = asyncio.get_running_loop()
        self._head = b""
        self.protocol: HttpToolsProtocol

    def write(self, data: bytes) -> None:
        """Take a part of an answer: uvicorn writes its head, then its body."""
        if not self._head:
            self._head = data
            return
        self._batch.take(self._head)
        self._head = b""
        self._loop.call_soon(self.next)

    def next(self) -> None:
        """The next request of this connection."""
        request = next(self._batch.requests, None)
        if request is None:
            self._batch.note_end()
        else:
            self.protocol.data_received(request)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Addresses, of which there are none."""
        return default

    def is_closing(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """The application failed."""
        self._batch.fail("the connection was closed")

    def set_write_buffer_limits(self, **_: int) -> None:
        """Nothing is buffered."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    resume_reading = pause_reading


class Batch:
    """Requests that are answered once: how many were, and how many of them were replays."""

    def __init__(self, requests: Sequence[bytes], connections: int) -> None:
        self.requests = iter(requests)
        self.answered = 0
        self.replayed = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open = connections

    def take(self, head: bytes) -> None:
        """Take one answer's head."""
        if not head.startswith(b"HTTP/1.1 2"):
            self.fail(head[:200].decode("latin-1"))
        self.answered += 1
        self.replayed += _REPLAYED in head

    def note_end(self) -> None:
        """Note that one connection has nothing more to send."""
        self._open -= 1
        if not self._open and not self.over.done():
            self.over.set_result(None)

    def fail(self, words: str) -> None:
        """Something was wrong."""
        if not self.over.done():
            self.over.set_exception(RuntimeError(words))


@dataclass(frozen=True, slots=True)
class Served:
    """One application behind uvicorn's protocol."""

    config: Config
    state: ServerState = field(default_factory=ServerState)
    connections: int = CONNECTIONS

    async def cpu_us(self, requests: Sequence[bytes], replays: int, profile: cProfile.Profile | None = None) -> float:
        """Microseconds of CPU per request. Raises RuntimeError: an answer was not what it must be."""
        batch = Batch(requests, self.connections)
        wires = [self._connect(Wire(batch)) for _ in range(self.connections)]
        gc.collect()
        if profile is not None:
            profile.enable()
        started = time.process_time()
        for wire in wires:
            wire.next()
        await batch.over
        spent = time.process_time() - started
        if profile is not None:
            profile.disable()
        for wire in wires:
            wire.protocol.connection_lost(RuntimeError("the batch is over"))
            wire.protocol._unset_keepalive_if_required()  # else its timer would outlive the batch
        if (batch.answered, batch.replayed) != (len(requests), replays):
            raise RuntimeError(f"{batch.answered} answers, {batch.replayed} replays; not {len(requests)}, {replays}")
        return spent / len(requests) * 1e6

    def _connect(self, wire: Wire) -> Wire:
        wire.protocol = HttpToolsProtocol(self.config, self.state, {})
        wire.protocol.connection_made(wire)  # type: ignore[arg-type]  # as much of a transport as uvicorn asks for
        return wire


def serve(app: App, connections: int = CONNECTIONS) -> Served:
    """Behind uvicorn, as the bench's servers are."""
    config = Config(app, loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="warning")
    config.load()
    return Served(config, connections=connections)


def keys(seed: int, numbers: Iterator[int]) -> list[bytes]:
    """A batch of requests."""
    return [_REQUEST % (KEY_TEMPLATE % (seed, number)) for number in itertools.islice(numbers, BATCH)]


@dataclass(frozen=True, slots=True)
class Subjects:
    """The bare application and the protected one, and what they are asked: by name, as in the table."""

    bare: Served
    semel: Served
    seed: int
    fresh: Iterator[int]
    again: Iterator[int]
    replays: bool = True

    def turns(self) -> Iterator[tuple[str, Served, list[bytes], int]]:
        """One batch of each: its name, who serves it, its requests, and how many of them are replays."""
        yield "bare", self.bare, keys(self.seed, self.again), 0
        yield "fresh", self.semel, keys(self.seed, self.fresh), 0
        if self.replays:
            yield "replay", self.semel, keys(self.seed, self.again), BATCH


async def prepare(url: str, module: str = PROTECTED, connections: int = CONNECTIONS) -> Subjects:
    """The subjects, with the answers of what will be replayed. Parameters: ``module`` a form of the bench's shop."""
    plain = serve(bare.build(Setup(module="bench.bare"), payment_handlers()), connections)
    semel = serve(import_module(module).build(Setup(module=module, store=url), payment_handlers()), connections)
    seed = time.time_ns() & 0xFFFFFFFF
    await semel.cpu_us([_REQUEST % (KEY_TEMPLATE % (seed, number)) for number in range(REPLAYED_KEYS)], 0)
    fresh, again = itertools.count(REPLAYED_KEYS), itertools.cycle(range(REPLAYED_KEYS))
    return Subjects(plain, semel, seed, fresh, again, replays=module != FORMS["by-hand"])


async def measure(
    url: str,
    rounds: int,
    profile: dict[str, cProfile.Profile],
    module: str = PROTECTED,
    connections: int = CONNECTIONS,
) -> dict[str, list[float]]:
    """Microseconds per request of each round, for bare, fresh and replay."""
    subjects = await prepare(url, module, connections)
    found: dict[str, list[float]] = {name: [] for name, *_ in subjects.turns()}
    for number in range(rounds + WARMUP_ROUNDS):
        for name, subject, requests, replays in subjects.turns():
            warm = number >= WARMUP_ROUNDS
            spent = await subject.cpu_us(requests, replays, profile.get(name) if warm else None)
            if warm:
                found[name].append(spent)
    return found


async def count(url: str, module: str = PROTECTED, connections: int = CONNECTIONS) -> dict[str, Counter[str]]:
    """Bytecodes per request by package, for bare, fresh and replay. What is written in C is not among them."""
    subjects = await prepare(url, module, connections)
    found: dict[str, Counter[str]] = {}
    for name, subject, requests, replays in subjects.turns():
        seen: Counter[str] = Counter()

        def trace(frame: FrameType, event: str, _: Any, seen: Counter[str] = seen) -> Any:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event == "opcode":
                seen[frame.f_code.co_filename] += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            await subject.cpu_us(requests, replays)
        finally:
            sys.settrace(before)
        found[name] = Counter()
        for file, number in seen.items():
            found[name][package(file)] += number
        for part in found[name]:
            found[name][part] = round(found[name][part] / len(requests))
    return found


def package(file: str) -> str:
    """Whose code it is, of Semel by the layer.

    >>> (
    ...     package("/x/site-packages/uvicorn/config.py"),
    ...     package("/x/src/semel/http/asgi/middleware.py"),
    ...     package("<string>"),
    ... )
    ('uvicorn', 'semel.http', 'python')
    """
    parts = Path(file).parts
    for place, part in enumerate(parts[:-1]):
        if part == "site-packages":
            return parts[place + 1].removesuffix(".py")
        if part == "semel":
            return ".".join(["semel", *parts[place + 1 : -1][:1]])
    return "bench" if "bench" in parts else "python"


def as_table(found: dict[str, Counter[str]]) -> str:
    """The counts, the largest first."""
    parts = sorted(set().union(*found.values()), key=lambda part: -sum(seen[part] for seen in found.values()))
    lines = [f"| {part} | " + " | ".join(f"{seen[part]:,}" for seen in found.values()) + " |" for part in parts]
    total = "| all | " + " | ".join(f"{sum(seen.values()):,}" for seen in found.values()) + " |"
    head = f"| bytecodes per request | {' | '.join(found)} |\n| --- |{' --- |' * len(found)}"
    return "\n".join([head, *lines, total])


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table; with ``--profile`` the functions that took most of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.hotpath", description=__doc__)
    parser.add_argument("--url", default="memory://?persistence=none", help="the store (default: %(default)s)")
    parser.add_argument(
        "--form", choices=FORMS, default="protected", help="what is measured (default: %(default)s); see bench.shop"
    )
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="how many (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each (default: %(default)s)")
    parser.add_argument("--profile", choices=("bare", "fresh", "replay"), help="show where this one's time goes")
    parser.add_argument("--count", action="store_true", help="count bytecodes per request instead, by package")
    options = parser.parse_args(arguments)
    if options.count:
        print(as_table(_run(count(options.url, FORMS[options.form], options.connections))))
        return
    profile = {options.profile: cProfile.Profile()} if options.profile else {}
    found = _run(measure(options.url, options.rounds, profile, FORMS[options.form], options.connections))
    base = min(found["bare"])
    print("| | CPU µs per request: fastest round | median | beyond bare | of bare |\n| --- | --- | --- | --- | --- |")
    for name, spent in found.items():
        low, middle = min(spent), statistics.median(spent)
        print(f"| {name} | {low:.1f} | {middle:.1f} | {low - base:.1f} | {base / low:.2f} |")
    for each in profile.values():
        pstats.Stats(each, stream=sys.stdout).sort_stats("tottime").print_stats(60)


if __name__ == "__main__":
    main()
