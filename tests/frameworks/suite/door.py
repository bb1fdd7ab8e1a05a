"""The two doors of a shop: its framework's real server, over HTTP, and its framework's own test client."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.frameworks.suite.adapters import Adapter
from tests.service.served import Answered, await_true

ALICE: Final = "alice"
RUNNING: Final = (0, 409, 425, 503)  # a client tries again


def fresh() -> str:
    """A key, or a name of something, that is only this test's."""
    return uuid.uuid4().hex


def join_headers(lines: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by their names in lower case; several lines of one name are joined, as HTTP has it."""
    found: dict[str, str] = {}
    for name, value in lines:
        found[name.lower()] = f"{found[name.lower()]}, {value}" if name.lower() in found else value
    return found


class Door:
    """A way into one shop, whose effects are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answered:
        raise NotImplementedError

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        key: str | None = None,
        caller: str | None = ALICE,
        content_type: str = "application/json",
        **headers: str,
    ) -> Answered:
        """Send one request. ``body`` is JSON, or bytes; ``headers`` have underscores for hyphens."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if caller is not None:
            given["Authorization"] = f"Bearer {caller}"
        if key is not None:
            given["Idempotency-Key"] = key
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        if method != "GET":
            given |= {"Content-Type": content_type, "Content-Length": str(len(sent))}
        return self.send(method, path, given, sent)

    def get(self, path: str, **how: Any) -> Answered:
        return self.ask(path, method="GET", **how)

    def until_final(self, path: str, body: Any, key: str) -> Answered:
        """Retry as a client does while the command runs or its server is down."""
        answers: list[Answered] = []

        def is_final() -> bool:
            answers.append(self.ask(path, body, key=key))
            return answers[-1].status not in RUNNING

        await_true(is_final, "a final answer")
        return answers[-1]

    def status(self, key: str) -> Any:
        """Return what the shop answers the caller of a key about its status."""
        found = self.get(f"/operations?key={key}")
        if found.status in (301, 307, 308, 404) and found.headers.get("content-type") != "application/problem+json":
            found = self.get(f"/operations/?key={key}")  # where Django serves it
        return found.json

    def state(self, key: str) -> str | None:
        """The state of a key's command; None where there is no record of it."""
        return self.status(key).get("state")  # type: ignore[no-any-return]

    def effects(self, what: str) -> int:
        """How often this has happened: outside of the store, and in the rows of ATOMIC commands."""
        noted = self.folder / "effects"
        lines = noted.read_text().splitlines() if noted.exists() else []
        with closing(sqlite3.connect(self.folder / "shop.db")) as db:
            [(rows,)] = db.execute("SELECT count(*) FROM effect WHERE what = ?", (what,)).fetchall()
        return lines.count(what) + int(rows)


class Server(Door):
    """The real server."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder)
        self.port = port

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answered:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, dict(headers))
            got = connection.getresponse()
            return Answered(got.status, join_headers(got.getheaders()), got.read())
        except (OSError, http.client.HTTPException):
            return Answered(0)
        finally:
            connection.close()


class Client(Door):
    """The framework's own test client, in the host's process."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        super().__init__(folder)
        self._process = process

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answered:
        told = self.tell(method=method, path=path, headers=dict(headers), body=base64.b64encode(body).decode())
        return Answered(told["status"], join_headers(told["headers"]), base64.b64decode(told["body"]))

    def document(self, kind: str) -> Any:
        """The shop's OpenAPI document: its "own", or the one of the "command"."""
        return self.tell(document=kind)["document"]

    def tell(self, **asked: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the shop's process has ended: {(self.folder.parent / 'log').read_text()[-2000:]}"
        return json.loads(line)


@dataclass(frozen=True)
class Shop:
    """One adapter's shop, open at both doors."""

    adapter: Adapter
    server: Server
    client: Client

    def door(self, name: str) -> Door:
        return self.server if name == "server" else self.client


@contextmanager
def open_shop(adapter: Adapter, folder: Path) -> Iterator[Shop]:
    """The shop, until the block ends."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener, (folder / "log").open("wb") as log:
        command = [sys.executable, "-W", "error", "-m", "tests.frameworks.suite.host"]
        process = subprocess.Popen(
            [*command, str(adapter), str(folder), str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=[listener.fileno()],
            env=dict(os.environ),
        )
        port = listener.getsockname()[1]
    with process:
        client = Client(folder / "client", process)
        client.tell(ready=True)  # the folders and the tables are there
        yield Shop(adapter, Server(folder / "server", port), client)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0, (folder / "log").read_text()[-2000:]
