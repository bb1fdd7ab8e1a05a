"""The examples as their readers start them: real processes on ports of their own, killed and started again."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.docs.pages import ROOT
from tests.servers.ports import free_port
from tests.service.served import Answered, await_true

REQUEST_SECONDS = 20.0
END_SECONDS = 20.0
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass
class Program:
    """One program of an example, in its own process. Its output is in ``folder``/log."""

    command: list[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    at: Path | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    def start(self, environment: Mapping[str, str] = NOTHING) -> None:
        """Start it, for the first time or again."""
        assert self._process is None or self._process.poll() is not None
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.at or self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if self.port:
            await_true(lambda: self.ended or self.answers, f"{self.command}", 30)
            assert not self.ended, self.log

    @property
    def answers(self) -> bool:
        """Whether it serves: by HTTP, or, where it is a gRPC server, with the first frame of HTTP/2."""
        if not any(".grpc." in word for word in self.command):
            return self.request("GET", "/").status == 404
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), REQUEST_SECONDS) as connection:
            return connection.recv(1) != b""
        return False

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def wait(self) -> int:
        """Wait until it has ended."""
        assert self._process is not None
        return self._process.wait(END_SECONDS)

    def kill(self) -> None:
        """Kill the program without warning, as power loss would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the program, and wait for it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_SECONDS)
            finally:
                self._process.kill()
                self._process.wait()

    def request(self, method: str, path: str, body: Any = None, key: str | None = None, **headers: str) -> Answered:
        """Ask it; status 0 is a connection that was cut."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_SECONDS)
        sent = {"Authorization": "Bearer alice", "Content-Type": "application/json", **headers}
        if key is not None:
            sent["Idempotency-Key"] = key
        try:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            return Answered(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        except (OSError, http.client.HTTPException):
            return Answered(0)
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """A question, and the document that answers it."""
        answer = self.request("GET", path)
        assert answer.status == 200, (answer, self.log)
        return answer.json

    def post(self, path: str, body: Any, key: str | None = None, **headers: str) -> Answered:
        return self.request("POST", path, body, key, **headers)


def python(*arguments: str) -> list[str]:
    """A command line of this interpreter."""
    return [sys.executable, *arguments]


@contextmanager
def running(folder: Path, *arguments: str, environment: Mapping[str, str] = NOTHING) -> Iterator[Program]:
    """A program without a port: ``python -m ...``; ended by its process id."""
    folder.mkdir(exist_ok=True)
    program = Program(python("-m", *arguments), folder, environment)
    try:
        program.start()
        yield program
    finally:
        program.stop()


@contextmanager
def serving(
    folder: Path,
    app: str | list[str],
    environment: Mapping[str, str] = NOTHING,
    *,
    port: int = 0,
    at: Path | None = None,
) -> Iterator[Program]:
    """An application under uvicorn, or the words of the command that serves it, as its README starts it.

    Parameters: ``folder`` for its output; ``port`` (none: a free one); ``at`` where it starts (none: ``folder``).
    """
    folder.mkdir(exist_ok=True)
    port = port or free_port()
    words = ["uvicorn", app, "--port", str(port), "--log-level", "warning"] if isinstance(app, str) else app
    module = {"semel": "semel.cli"}.get(words[0], words[0])
    if words[0] == "node":
        command = words
    else:
        command = python(*words[1:]) if words[0] == "python" else python("-m", module, *words[1:])
    program = Program(command, folder, environment, port, at)
    try:
        program.start()
        yield program
    finally:
        program.stop()


def semel(folder: Path, *arguments: str) -> str:
    """The command line, as an operator runs it; what it printed."""
    done = subprocess.run(
        python("-m", "semel.cli", *arguments), cwd=folder, capture_output=True, text=True, timeout=END_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
