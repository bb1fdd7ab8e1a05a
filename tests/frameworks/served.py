"""One framework's application behind a real server, and a client of it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.ports import free_port
from tests.service.served import Answered, await_true

# A worker that is forked at the moment of SIGTERM may miss it: its master ends it after the graceful time-out, 30 s by
# default, which is as long as these tests wait.
GUNICORN = (
    *("gunicorn", "--workers", "2", "--threads", "4", "--no-control-socket", "--graceful-timeout", "10"),
    *("--bind", "127.0.0.1:{port}"),
)


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "SHOP_FOLDER": str(folder), **more}


@dataclass
class Served:
    """The project behind one server."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes]

    def ask(
        self, path: str, body: Any = None, *, key: str | None = None, caller: str = "alice", method: str = "POST"
    ) -> Answered:
        headers = {"Authorization": f"Bearer {caller}", "Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, None if method == "GET" else json.dumps(body or {}), headers)
            got = connection.getresponse()
            return Answered(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
        except (OSError, http.client.HTTPException):
            return Answered(0)
        finally:
            connection.close()

    def until_final(self, path: str, body: Any, key: str) -> Answered:
        """A client that retries while the command is running."""
        answers: list[Answered] = []

        def is_final() -> bool:
            answers.append(self.ask(path, body, key=key))
            return answers[-1].status not in (0, 409, 503)

        await_true(is_final, "a final answer")
        return answers[-1]

    def effects(self) -> list[str]:
        found: list[str] = self.ask("/effects", method="GET").json
        return found


@contextmanager
def serving(folder: Path, *command: str, loses_its_worker: bool = False) -> Iterator[Served]:
    """One server. One that ``loses_its_worker`` to SIGKILL is killed as well: hypercorn's parent process may wait for
    ever for a lock that its worker held."""
    port = free_port()
    arguments = [sys.executable, "-W", "error", "-m", *(each.format(port=port) for each in command)]
    with (folder / f"{command[0]}.log").open("ab") as log:
        process = subprocess.Popen(arguments, env=environment(folder), stdout=log, stderr=log)
    served = Served(port, folder, process)
    try:
        await_true(lambda: served.ask("/effects", method="GET").status == 200, f"{command[0]} to answer")
        yield served
    finally:
        process.kill() if loses_its_worker else process.terminate()
        process.wait(30)
