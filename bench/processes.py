"""The bench's children: servers and load generators, each ended by its own handle and never left behind."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.load import Plan, Report
from bench.setup import Setup
from bench.subjects import COUNTS_PATH, KEY_TEMPLATE, PATH, REQUEST_BODY, Mode

ROOT: Final = Path(__file__).resolve().parents[1]
END_SECONDS: Final = 5.0
_EXCEPTION: Final = re.compile(r"[\w.]+(Error|Exception): ")


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


class Child:
    """A Python child in its own session: Ctrl-C reaches the bench alone, which ends its children itself.

    Parameters: ``python`` its interpreter; ``log`` where its stderr goes, by default to ours; ``program`` that runs
    ``module`` in place of Python; ``environment`` beside ours.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        python: str = sys.executable,
        log: Path | None = None,
        program: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        errors = None if log is None else log.open("ab")
        try:
            self._process = subprocess.Popen(
                [*([program] if program is not None else [python, "-m"]), module, *arguments],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                start_new_session=True,
            )
        finally:
            if errors is not None:
                errors.close()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.stdout = self._process.stdout
        self.pid = self._process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self.end()

    def wait(self) -> int:
        """Wait for it to end, and return its exit code."""
        return self._process.wait()

    def end(self) -> None:
        """Close its stdin, which asks it to end; kill it where it does not. Nothing where it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_SECONDS)
        except (subprocess.TimeoutExpired, OSError):
            pass
        finally:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            self.stdout.close()


def start(setup: Setup, *, python: str = sys.executable, log: Path | None = None) -> tuple[Child, Server]:
    """A server on a free port of the loopback interface.

    Raises BenchError: it did not start; its output is on stderr, or in ``log``.
    """
    child = Child("bench.server", setup.to_json(), python=python, log=log)
    try:
        line = child.stdout.readline()
        if not line:
            where = "see its words above" if log is None else f"it said: {_last_words(log)}"
            raise BenchError(f"the server of {setup.module} on {setup.store or 'no store'} did not start; {where}")
        return child, Server(json.loads(line)["port"], child.pid)
    except BaseException:
        child.end()
        raise


def _last_words(log: Path) -> str:
    """The last exception's first line, or else the last line."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    raised = [line for line in lines if _EXCEPTION.match(line)]
    return (raised or lines or ["nothing"])[-1]


@contextmanager
def serving(setup: Setup, *, python: str = sys.executable, log: Path | None = None) -> Iterator[Server]:
    """A server for the length of a block."""
    child, server = start(setup, python=python, log=log)
    try:
        yield server
    finally:
        child.end()


def counts(server: Server) -> Counts:
    """Ask a counted server for its counts."""
    return Counts(**json.loads(_request(server, "GET", COUNTS_PATH)))


def payments_made(server: Server, seed: int) -> int:
    """How often the handler has run, this time included: the number in the answer to a key of its own."""
    key = (KEY_TEMPLATE % (seed, 0)).decode()
    headers = {"idempotency-key": key, "content-type": "application/json"}
    payment = json.loads(_request(server, "POST", PATH, REQUEST_BODY, headers))
    return int(payment["paymentId"].removeprefix("pay_"))


def _request(
    server: Server, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=END_SECONDS)
    try:
        connection.request(method, path, body, headers or {})
        return connection.getresponse().read()
    finally:
        connection.close()


def load(plan: Plan) -> Report:
    """Run one load generator to its end and check what it was answered.

    Raises BenchError: an answer was not 2xx, or was a replay where it must not be, or was none where it must.
    """
    words = json.dumps({**asdict(plan), "mode": plan.mode.value})
    generator = Child("bench.load", words)
    try:
        said = generator.stdout.read()
        if generator.wait() != 0:
            raise BenchError("the load generator failed; see its words above")
    finally:
        generator.end()
    report = Report(**json.loads(said))
    if report.wrong:
        first = report.wrong.partition("\r\n")[0]
        raise BenchError(f"after {report.requests} right answers came a wrong one: {first}")
    replays = report.requests if plan.mode is Mode.REPLAY else 0
    if plan.marked and report.replayed != replays:
        raise BenchError(f"{report.replayed} of {report.requests} answers were replays; it should be {replays}")
    if not report.requests:
        raise BenchError("not a single answer came in the given time")
    return report
