"""A shop on one store, its processes, and a view from outside: the provider's ledger, the business rows, the events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from semel import Engine
from tests.docs.pages import ROOT
from tests.examples.serving import END_SECONDS, Program, python
from tests.examples.shop import TABLES, outside
from tests.servers.ports import free_port
from tests.servers.postgres import postgres, schema
from tests.service.served import Answered, await_true
from verification.subjects.postgres import empty_schema

LEASE_SECONDS = 1.0  # as short as leases may be
DEADLINE_SECONDS = 2.0
PROVIDER_SECONDS = 0.5
UNKNOWN = "IDEMPOTENCY_OUTCOME_UNKNOWN"


class Nursery:
    """Forks shops."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            python("-m", "tests.examples.nursery"), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, told: dict[str, Any]) -> int:
        """The process id of a new shop."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        pid: int = json.loads(self._process.stdout.readline())["pid"]
        return pid

    def close(self) -> None:
        self._process.communicate(timeout=END_SECONDS)


@dataclass
class Ground:
    """One store, and what happens on it."""

    url: str
    nursery: Nursery
    provider: Program
    log: Path
    port: int = field(default_factory=free_port)
    key: str = field(
        default_factory=lambda: str(uuid4())
    )  # all tests share the provider: derived keys must not collide
    pids: list[int] = field(default_factory=list)

    def start(self, doom: str | None = None) -> int:
        """A shop; ``doom`` names the point at which it dies."""
        pid = self._fork(doom, looks=False)
        await_true(lambda: self.is_over(pid) or self._request("GET", "/").status == 404, "the shop to open", 20)
        return pid

    def look(self, doom: str | None = None) -> int:
        """A reconciler, which asks once about each payment that is due."""
        return self._fork(doom, looks=True)

    def _fork(self, doom: str | None, *, looks: bool) -> int:
        told = {
            "url": self.url,
            "port": self.port,
            "provider": self.provider.url,
            "provider_seconds": PROVIDER_SECONDS,
            "lease_seconds": LEASE_SECONDS,
            "deadline_seconds": DEADLINE_SECONDS,
            "doom": doom,
            "looks": looks,
            "log": str(self.log),
        }
        self.pids.append(self.nursery.start(told))
        return self.pids[-1]

    @property
    def settled(self) -> int:
        """How many payments reconcilers have settled, by their own words."""
        said = self.log.read_text("utf-8", "replace")
        return sum(int(line.split()[1]) for line in said.splitlines() if line.startswith("settled "))

    def is_over(self, pid: int) -> bool:
        """Whether this process is no more."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    def await_end(self, pid: int) -> None:
        await_true(lambda: self.is_over(pid), "the shop to end")

    def kill(self, pid: int) -> None:
        """Kill the process without warning, as power loss would."""
        if not self.is_over(pid):
            os.kill(pid, signal.SIGKILL)
        self.await_end(pid)

    def _request(self, method: str, path: str, body: Any = None, key: str | None = None) -> Answered:
        return Program([], self.log.parent, port=self.port).request(method, path, body, key)

    def post(self, path: str, body: Any) -> Answered:
        """The command; status 0 is a connection that was cut."""
        return self._request("POST", path, body, self.key)

    def until_final(self, path: str, body: Any) -> Answered:
        """Retry with the same key until the answer says how the command ended, or that its outcome is unknown."""
        seen: list[Answered] = []

        def final() -> bool:
            seen.append(self.post(path, body))
            return seen[-1].status == 201 or (seen[-1].status == 409 and seen[-1].json["code"] == UNKNOWN)

        await_true(final, "a final answer")
        return seen[-1]

    # --- the view from outside ---

    def charges(self, amount: int) -> int:
        """How often the provider has charged this amount: each test has one of its own."""
        return sum(line["amount"] == amount for line in self.provider.get("/charges"))

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query of the database."""
        return outside(self.url, text)


@contextmanager
def ground(kind: str, nursery: Nursery, provider: Program, folder: Path) -> Iterator[Ground]:
    """A new, migrated store with the shop's tables."""
    if kind == "sqlite":
        url = f"sqlite:///{folder / 'shop.db'}"
    else:
        own = f"{schema()}_examples"
        empty_schema(postgres(), own)
        url = f"{postgres()}?schema={own}"
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    for table in TABLES:
        outside(url, table)
    made = Ground(url, nursery, provider, folder / "shop.log")
    try:
        yield made
    finally:
        for pid in made.pids:
            made.kill(pid)
