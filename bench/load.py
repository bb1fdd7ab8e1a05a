"""The load generator, a process of its own: keep-alive connections, one request in flight on each.

It reads of an answer what it must (status, length, whether it is a replay) and nothing else, so that the server
is the bottleneck; its own share of a core is part of what it reports, and a report says when that was too much.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import sys
import time
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, cast

import uvloop

from bench.subjects import KEY_TEMPLATE, PATH, REQUEST_BODY, Mode

REPLAYED_KEYS: Final = 256
REQUESTS_MAX: Final = 2_000_000
PRIMING_SECONDS_MAX: Final = 60.0
GRACE_SECONDS: Final = 10.0  # for the answers that are still out when the time is over
_OK: Final = b"HTTP/1.1 2"
_LENGTH: Final = b"\r\ncontent-length: "
_CHUNKED: Final = b"\r\ntransfer-encoding: chunked"
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"  # in none of the payments
_REPLAYED: Final = b"\r\nidempotency-replayed: true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to send. ``seed`` makes the keys; ``primes`` sends the keys of a replay once before the clock runs.

    It ends after ``seconds`` or ``requests_max`` requests, whichever is first. ``server`` is the process whose CPU
    is read. ``marked`` says whether replays carry the header that Semel marks them with; where they do not, they
    are not counted.
    """

    port: int
    server: int
    connections: int
    mode: Mode
    seed: int
    seconds: float
    warmup_seconds: float = 0.0
    requests_max: int = REQUESTS_MAX
    primes: bool = True
    path: str = PATH
    marked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came back. ``wrong`` is the first answer that was not 2xx, or empty."""

    requests: int
    replayed: int
    seconds: float
    p50_ms: float
    p99_ms: float
    generator_share: float  # of one core
    server_cpu_seconds: float | None
    wrong: str


class Phase:
    """One stretch of sending: until its numbers are used up, or it is stopped, or an answer is wrong."""

    def __init__(self, template: bytes, numbers: Iterator[int]) -> None:
        self.latencies = array("d")
        self.replayed = 0
        self.wrong = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._template = template
        self._numbers = numbers
        self._busy = 0
        self._stopped = False

    def begin(self, connections: list[Connection]) -> None:
        """Send the first request of every connection."""
        self._busy = len(connections)
        for connection in connections:
            connection.begin(self)

    def next_request(self) -> bytes | None:
        """The next request, or None where there is none: then the connection is idle."""
        number = None if self._stopped else next(self._numbers, None)
        if number is not None:
            return self._template % number
        self._busy -= 1
        if not self._busy and not self.ended.done():
            self.ended.set_result(None)
        return None

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True

    def fail(self, answer: bytes) -> None:
        """An answer was wrong: there is no point in going on."""
        self.wrong = self.wrong or answer[:300] or b"(the connection was closed)"
        self._stopped = True
        if not self.ended.done():
            self.ended.set_result(None)


class Connection(asyncio.Protocol):
    """One keep-alive connection. All its speed is in ``data_received``."""

    def __init__(self) -> None:
        self._phase: Phase | None = None
        self._rest = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to send."""
        stream = cast("asyncio.Transport", transport)  # uvloop's transports do not say that they are some
        self.close = stream.close
        self._write = stream.write

    def begin(self, phase: Phase) -> None:
        """Send the first request of a phase."""
        self._phase = phase
        self._send(phase, time.perf_counter())

    def data_received(self, data: bytes) -> None:
        """Take an answer, or a part of one, and send the next request."""
        if self._rest:
            data = self._rest + data
        end = end_of_answer(data)
        if end is None:
            self._rest = data
            return
        phase = self._phase
        if phase is None:
            return
        if end != len(data) or not data.startswith(_OK):
            phase.fail(data)
            return
        self._rest = b""
        now = time.perf_counter()
        phase.latencies.append(now - self._sent)
        if _REPLAYED in data:
            phase.replayed += 1
        self._send(phase, now)

    def connection_lost(self, exc: Exception | None) -> None:
        """Only the client closes a connection."""
        if self._phase is not None:
            self._phase.fail(self._rest)

    def _send(self, phase: Phase, now: float) -> None:
        request = phase.next_request()
        if request is None:
            self._phase = None
        else:
            self._sent = now
            self._write(request)


def end_of_answer(data: bytes) -> int | None:
    """Where the first answer ends; None while more is to come; -1 if the head does not say.

    >>> end_of_answer(b"HTTP/1.1 201 Created\\r\\ncontent-length: 2\\r\\n\\r\\nok")
    45
    >>> end_of_answer(b"HTTP/1.1 201 Created\\r\\ncontent-length: 2\\r\\n\\r\\no") is None
    True
    """
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return None
    fields = data[:head].lower()
    start = fields.find(_LENGTH)
    if start < 0:
        if _CHUNKED not in fields:
            return -1
        last = data.find(_LAST_CHUNK, head)
        return None if last < 0 else last + len(_LAST_CHUNK)
    start += len(_LENGTH)
    end = head + 4 + int(data[start : data.find(b"\r", start)])
    return end if len(data) >= end else None


def request_template(plan: Plan) -> bytes:
    """A whole request, but for the number in its key."""
    key = KEY_TEMPLATE.replace(b"%08x", b"%08x" % plan.seed)
    return (
        b"POST %b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"idempotency-key: %b\r\naccept: */*\r\n\r\n%b"
    ) % (plan.path.encode(), plan.port, len(REQUEST_BODY), key, REQUEST_BODY)


async def run(plan: Plan) -> Report:
    """Connect, prime, warm up, measure."""
    loop = asyncio.get_running_loop()
    template = request_template(plan)
    connections: list[Connection] = []
    for _ in range(plan.connections):
        _, connection = await loop.create_connection(Connection, "127.0.0.1", plan.port)
        connections.append(connection)
    try:
        if plan.mode is Mode.REPLAY and plan.primes:
            primed = await perform(Phase(template, iter(range(REPLAYED_KEYS))), connections, PRIMING_SECONDS_MAX)
            if len(primed.latencies) < REPLAYED_KEYS:
                primed.fail(b"(the keys of the replay were not all answered in time)")
                return report(primed, PRIMING_SECONDS_MAX, 0.0, None)
        numbers = itertools.count() if plan.mode is Mode.FRESH else itertools.cycle(range(REPLAYED_KEYS))
        if plan.warmup_seconds:
            warm = await perform(Phase(template, numbers), connections, plan.warmup_seconds)
            if warm.wrong:
                return report(warm, plan.warmup_seconds, 0.0, None)
        gc.collect()
        gc.disable()
        measured = Phase(template, itertools.islice(numbers, plan.requests_max))
        server, own, started = cpu_seconds(plan.server), time.process_time(), time.perf_counter()
        await perform(measured, connections, plan.seconds)
        seconds, own = time.perf_counter() - started, time.process_time() - own
        server_after = cpu_seconds(plan.server)
        return report(measured, seconds, own, None if server is None or server_after is None else server_after - server)
    finally:
        for connection in connections:
            connection.close()


async def perform(phase: Phase, connections: list[Connection], seconds: float) -> Phase:
    """Send for so long, then wait for the answers that are still out."""
    loop = asyncio.get_running_loop()
    timer = loop.call_later(seconds, phase.stop)
    try:
        phase.begin(connections)
        async with asyncio.timeout(seconds + GRACE_SECONDS):
            await phase.ended
    except TimeoutError:
        phase.fail(b"(no answer)")
    finally:
        timer.cancel()
    return phase


def report(phase: Phase, seconds: float, own: float, server: float | None) -> Report:
    """Return the report of a phase."""
    ordered = sorted(phase.latencies)
    return Report(
        requests=len(ordered),
        replayed=phase.replayed,
        seconds=seconds,
        p50_ms=percentile(ordered, 0.50) * 1000,
        p99_ms=percentile(ordered, 0.99) * 1000,
        generator_share=own / seconds,
        server_cpu_seconds=server,
        wrong=phase.wrong.decode("latin-1"),
    )


def percentile(ordered: list[float], share: float) -> float:
    """The value below which this share of an ordered list lies; 0 for an empty one.

    >>> percentile([1.0, 2.0, 3.0], 0.5)
    2.0
    """
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def cpu_seconds(pid: int) -> float | None:
    """What a process has used of its processors, all threads, user and system; None where /proc does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Read a plan from the command line, print the report."""
    said = json.loads(sys.argv[1])
    plan = Plan(**{**said, "mode": Mode(said["mode"])})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            report = runner.run(run(plan))
        except ConnectionRefusedError:
            raise SystemExit("bench: the server is gone") from None  # an interrupt has ended it first
    try:
        print(json.dumps(asdict(report)), flush=True)
    except BrokenPipeError:  # an interrupt has ended the reader first
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
        raise SystemExit("bench: the run is over; nothing reads its report") from None


if __name__ == "__main__":
    main()
