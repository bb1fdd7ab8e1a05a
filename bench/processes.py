"""The bench's children: servers and load generators, each ended by its own handle and never left behind."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.load import Plan, Report
from bench.subjects import COUNTS_PATH, Mode

ROOT: Final = Path(__file__).resolve().parents[1]
END_SECONDS: Final = 5.0


class BenchError(Exception):
    """The bench cannot go on; what it has measured so far would mislead."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Counts:
    """What a counted server has done since it started. ``commits`` is None for a store that knows none."""

    store_calls: int
    commits: int | None


@contextmanager
def serving(store_url: str | None, *, counted: bool = False) -> Iterator[Server]:
    """A server on a free port of the loopback interface; None is the bare application."""
    arguments = [] if store_url is None else ["--store", store_url]
    with _child("bench.server", *arguments, *(["--counted"] if counted else [])) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise BenchError(f"the server of {store_url or 'the bare application'} did not start; see its words above")
        yield Server(json.loads(line)["port"], process.pid)


def counts(server: Server) -> Counts:
    """Ask a counted server for its counts."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=END_SECONDS)
    try:
        connection.request("GET", COUNTS_PATH)
        return Counts(**json.loads(connection.getresponse().read()))
    finally:
        connection.close()


def load(plan: Plan) -> Report:
    """Run one load generator to its end and check what it was answered.

    Raises BenchError: an answer was not 2xx, or was a replay where it must not be, or was none where it must.
    """
    words = json.dumps({**asdict(plan), "mode": plan.mode.value})
    with _child("bench.load", words) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        if process.wait() != 0:
            raise BenchError("the load generator failed; see its words above")
    report = Report(**json.loads(said))
    if report.wrong:
        first = report.wrong.partition("\r\n")[0]
        raise BenchError(f"after {report.requests} right answers came a wrong one: {first}")
    replays = report.requests if plan.mode is Mode.REPLAY else 0
    if report.replayed != replays:
        raise BenchError(f"{report.replayed} of {report.requests} answers were replays; it should be {replays}")
    if not report.requests:
        raise BenchError("not a single answer came in the given time")
    return report


@contextmanager
def _child(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python child in a session of its own: Ctrl-C reaches the bench alone, which ends its children itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
        process.stdin.close()
        process.wait(END_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
