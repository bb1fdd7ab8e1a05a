"""The stage of `semel demo`: the real service in its own processes, a client over HTTP, an operator's shell."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from semel.admin.failures import CommandFailed
from semel.admin.words import Json
from semel.reference.provider import Charge, Provider

CLIENT_SECONDS: Final = 30.0
OPERATOR_SECONDS: Final = 30.0
END_SECONDS: Final = 20.0
START_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.1
WORKERS: Final = 2


@dataclass(frozen=True, slots=True)
class SeenAnswer:
    """A client's view: an answer, or (status 0) a broken connection."""

    status: int
    replayed: bool
    body: str

    @property
    def document(self) -> dict[str, Any]:
        """Return the body as JSON; empty where there is none."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def text(self) -> str:
        """Describe the answer in one line."""
        if not self.status:
            return "the connection was cut; no answer"
        code = self.document.get("code")
        shown = f"{code}" if code else self.body
        return f"{self.status} {shown}{'  (replayed)' if self.replayed else ''}"


class DemoClient:
    """A client of the demo. Thread-safe: each request has its own connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._address = (parts.hostname, parts.port)

    def post(self, path: str, key: str, body: Json) -> SeenAnswer:
        """Send a command with its key."""
        return self._request("POST", path, {"Idempotency-Key": key}, json.dumps(body))

    def get(self, path: str, **query: str) -> SeenAnswer:
        """Send a query."""
        return self._request("GET", f"{path}?{urlencode(query, quote_via=quote)}" if query else path, {}, None)

    def _request(self, method: str, path: str, headers: dict[str, str], body: str | None) -> SeenAnswer:
        connection = http.client.HTTPConnection(*self._address, timeout=CLIENT_SECONDS)
        sent = {"Authorization": "Bearer alice", "Content-Type": "application/json", **headers}
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            return SeenAnswer(answer.status, answer.getheader("Idempotency-Replayed") == "true", text)
        except (OSError, http.client.HTTPException):
            return SeenAnswer(0, False, "")
        finally:
            connection.close()


class Operator:
    """An operator with a shell: runs the real `semel` command."""

    def __init__(self, url: str) -> None:
        self._url = url

    def run(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run one command. Returns its exit code and its JSON document."""
        done = subprocess.run(  # noqa: S603  # our own interpreter and module
            [sys.executable, "-m", "semel.cli", *arguments, "--json", "--url", self._url],
            capture_output=True,
            text=True,
            timeout=OPERATOR_SECONDS,
            check=False,
        )
        document: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
        return done.returncode, document


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything the story needs."""

    url: str
    store: str
    folder: Path
    client: DemoClient
    operator: Operator
    provider: Provider

    def charges(self) -> list[Charge]:
        """Read the charges in the provider's own ledger."""
        return self.provider.charges()


@contextmanager
def open_stage(folder: Path) -> Iterator[Stage]:
    """Start the service on a free loopback port with its files in a folder; end it by its own process id."""
    store = f"sqlite:///{quote(str(folder / 'demo.db'))}"
    log = (folder / "service.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "semel.cli", "serve", "--json", "--host", "127.0.0.1", "--port", "0"],
        env={**os.environ, "SEMEL_URL": store, "SEMEL_DEMO": "1", "SEMEL_WORKERS": str(WORKERS)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline() or "{}").get("url")
        if url is None:
            process.wait(END_SECONDS)
            raise _not_started(folder / "service.log")
        client = DemoClient(url)
        _await_service(client, process, folder / "service.log")
        yield Stage(url, store, folder, client, Operator(store), Provider(folder / "demo.db.provider.jsonl"))
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
        log.close()


def _await_service(client: DemoClient, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the first worker answers; the port, open already, queues requests. Raises CommandFailed."""
    ends = time.monotonic() + START_SECONDS
    while client.get("/healthz").status != 200:
        if process.poll() is not None or time.monotonic() >= ends:
            raise _not_started(log)
        time.sleep(LOOK_SECONDS)


def _not_started(log: Path) -> CommandFailed:
    lines = log.read_text("utf-8", "replace").strip().splitlines() or ["it printed nothing"]
    return CommandFailed(f"the service did not start: {lines[-1].removeprefix('semel: ')}")
