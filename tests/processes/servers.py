"""Real servers under load: started, asked twice for everything, disturbed meanwhile, judged by what they did."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.processes import ROOT, pause
from tests.crash.work import Folder
from tests.servers.ports import free_port
from tests.service.served import await_true

END_SECONDS = 20.0
REQUEST_SECONDS = 20.0
LOAD_SECONDS = 45.0
UNKNOWN = "IDEMPOTENCY_OUTCOME_UNKNOWN"


@dataclass(frozen=True)
class Told:
    """The answer of a client; status 0 is a connection that was cut."""

    status: int
    body: bytes = b""
    retry_after: str | None = None
    replayed: bool = False

    @property
    def code(self) -> str | None:
        """The problem's code, where it is one."""
        return json.loads(self.body).get("code") if self.status >= 400 and self.body.startswith(b"{") else None

    @property
    def final(self) -> bool:
        """Whether asking again makes no difference."""
        return self.status == 201 or self.code == UNKNOWN


Send = Callable[[str, str], Told]


def sender(port: int, headers: dict[str, str], body_of: Callable[[str], bytes]) -> Send:
    """How to ask for a kind of command under a key, on its own connection."""

    def send(kind: str, key: str) -> Told:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)
        try:
            connection.request("POST", f"/{kind}", body_of(kind), {**headers, "Idempotency-Key": key})
            got = connection.getresponse()
            replayed = got.getheader("idempotency-replayed") == "true"
            return Told(got.status, got.read(), got.getheader("retry-after"), replayed)
        except (OSError, http.client.HTTPException):
            return Told(0)
        finally:
            connection.close()

    return send


@dataclass
class Load:
    """Clients that ask for every command twice at the same time, and again until they learn how it ended.

    There are ``keys`` commands of each kind, and more until the disturbance is over.
    """

    send: Send
    kinds: tuple[str, ...]
    keys: int
    statuses: Counter[int] = field(default_factory=Counter)
    refused: list[Told] = field(default_factory=list)
    told: dict[tuple[str, str], list[Told]] = field(default_factory=lambda: defaultdict(list))
    done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _failed: list[str] = field(default_factory=list)

    def run(self, disturb: Callable[[Load], None] | None = None, clients: int = 6) -> None:
        """Ask for everything; ``disturb`` is called in the middle, beside it."""
        over = threading.Event()
        queue = self._work(over)
        threads = [threading.Thread(target=self._client, args=(queue,)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            if disturb is not None:
                await_true(lambda: self.done > self.keys or bool(self._failed), "the load to be under way")
                disturb(self)
        finally:
            over.set()
            for thread in threads:
                thread.join(LOAD_SECONDS)
        assert self._failed == []
        assert {len(said) for said in self.told.values()} == {2}, self.statuses

    def _work(self, over: threading.Event) -> Iterator[tuple[str, str]]:
        number = 0
        while number < self.keys or not over.is_set():
            for kind in self.kinds:
                yield from [(kind, f"{kind}-{number}")] * 2
            number += 1

    def _client(self, queue: Iterator[tuple[str, str]]) -> None:
        ends = time.monotonic() + LOAD_SECONDS
        while True:
            with self._lock:
                asked = next(queue, None)
            if asked is None:
                return
            while True:
                said = self.send(*asked)
                with self._lock:
                    self.statuses[said.status] += 1
                    if said.status >= 500:
                        self.refused.append(said)
                if said.final:
                    break
                if time.monotonic() > ends:
                    self._failed.append(f"{asked}: {said}")
                    return
                pause(0.03 + random.random() * 0.03)
            with self._lock:
                self.told[asked].append(said)
                self.done += 1

    def pids(self) -> list[int]:
        """The workers that have answered so far: the shop's answers end with it."""
        with self._lock:
            said = [told.body for some in self.told.values() for told in some if told.status == 201]
        return sorted({int(body.rsplit(b":", 1)[1]) for body in said})

    def unknown(self) -> set[str]:
        """Keys whose outcome cannot be proven: the worker was killed in the middle."""
        return {key for (_, key), said in self.told.items() if any(one.status != 201 for one in said)}

    def check_answers(self) -> None:
        """Every duplicate got the same answer, the store's refusals have Retry-After, and all effects stay."""
        wrong = [one for one in self.refused if one.status != 503 or one.retry_after is None]
        assert not wrong, wrong
        for (kind, key), said in self.told.items():
            answers = {one.body for one in said if one.status == 201}
            assert len(answers) <= 1, (key, said)
            if key in self.unknown():
                assert kind == "external" or kind == "payments", (key, said)
                continue
            [answer] = answers
            again = self.send(kind, key)
            for _ in range(50):  # a former worker may still be ending, and takes a connection with it
                if again.status:
                    break
                again = self.send(kind, key)
            assert (again.status, again.body, again.replayed) == (201, answer, True), (key, again)


def check_shop(folder: Folder, load: Load) -> None:
    """One effect each: the ledger of the provider, the derived keys of the one that deduplicates, the business rows."""
    load.check_answers()
    effects, derived, business = folder.effects_by_key(), folder.derived_keys(), folder.business()
    for kind, key in load.told:
        if kind == "atomic":
            assert business[key] == 1, key
        elif kind == "idempotent":
            assert len(derived[key]) == 1, key
        else:
            assert effects[key] == 1 or (key in load.unknown() and effects[key] == 0), (key, effects[key])
    assert folder.sql("PRAGMA integrity_check") == [("ok",)]


def open_files(pid: int, folder: Folder) -> list[str]:
    """The store's files that a process has open."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue  # closed meanwhile
        if path.startswith(str(folder.database)):
            found.append(path)
    return found


@contextmanager
def shop_server(folder: Folder, *command: str, used: bool = False) -> Iterator[tuple[subprocess.Popen[bytes], Send]]:
    """A server of the shop on a free loopback port (``{port}`` in the command), ended by its own process id."""
    folder.create()
    port = free_port()
    environment = {**os.environ, "SHOP_FOLDER": str(folder.path)} | ({"SHOP_USED": "1"} if used else {})
    log_path = Path(folder.path) / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *(word.replace("{port}", str(port)) for word in command)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        send = sender(port, {}, lambda kind: b"{}")
        try:
            await_true(lambda: send("here", "k").status == 200 or process.poll() is not None, "the server")
            assert process.poll() is None, log_path.read_text()
            yield process, send
        except BaseException:
            print(log_path.read_text(errors="replace"))  # what the server had to say about it
            raise
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its own group: it and its workers
                process.wait()
                raise
