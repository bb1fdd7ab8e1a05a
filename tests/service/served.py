"""The real service in processes of its own, a client, and waiting without sleeping."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

DEADLINE_SECONDS = 60.0
LOOK_SECONDS = 0.05


def await_true(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Look until it is so, or fail with what was waited for."""
    never = threading.Event()
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"waited {seconds:g} s for {what}"
        never.wait(LOOK_SECONDS)


@dataclass(frozen=True)
class Answered:
    """What a client saw; status 0 is a connection that was cut."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotency-replayed") == "true"


class Served:
    """A running service."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, url: str) -> None:
        self.process = process
        self.folder = folder
        self.url = url
        self.store = f"sqlite:///{folder / 'semel.db'}"
        self.workers: list[int] = []
        self.serving: dict[str, Any] = {}
        self._lines: Queue[bytes] = Queue()
        self.reader = threading.Thread(target=self._read, name="supervisor-output")
        self.reader.start()

    def events(self, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read what the supervisor says until an event is the one that is wanted."""
        ends = time.monotonic() + DEADLINE_SECONDS
        while True:
            line = self._lines.get(timeout=max(ends - time.monotonic(), 0))
            assert line, self.log()
            event: dict[str, Any] = json.loads(line)
            self.workers = event.get("pids", self.workers)
            if until(event):
                return event

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._lines.put(line)
        self._lines.put(b"")

    def log(self) -> str:
        return (self.folder / "service.log").read_text("utf-8", "replace")

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = "alice",  # the service's own demonstration
        key: str | None = None,
        raw: bytes | None = None,
        timeout: float = DEADLINE_SECONDS,
        content_type: str = "application/json",
    ) -> Answered:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        headers = {"Content-Type": content_type}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if key is not None:
            headers["Idempotency-Key"] = key
        sent = raw if raw is not None else None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            return Answered(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        except (OSError, http.client.HTTPException):
            return Answered(0)
        finally:
            connection.close()

    def post(self, path: str, body: Any, key: str | None = None, **options: Any) -> Answered:
        return self.request("POST", path, body, key=key, **options)

    def get(self, path: str, **options: Any) -> Answered:
        return self.request("GET", path, **options)

    def ready(self) -> bool:
        return self.get("/healthz").status == 200


@contextmanager
def serving(
    folder: Path,
    *arguments: str,
    demo: bool = True,
    workers: int = 1,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Served]:
    """`semel serve` on a free loopback port; ended by its own process id."""
    told = {
        **os.environ,
        "SEMEL_URL": f"sqlite:///{folder / 'semel.db'}",
        "SEMEL_DEMO": "1" if demo else "0",
        "SEMEL_WORKERS": str(workers),
        **environment,
    }
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "semel.cli", "serve", "--json", "--host", "127.0.0.1", "--port", "0", *arguments],
            env=told,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        served = Served(process, folder, "")
        try:
            served.serving = served.events(lambda event: event["event"] == "serving")
            served.url = served.serving["url"]
            await_true(lambda: served.ready() or process.poll() is not None, "the first worker")
            assert process.poll() is None, served.log()
            yield served
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(DEADLINE_SECONDS)
            finally:
                process.kill()
                process.wait()
                served.reader.join(DEADLINE_SECONDS)
