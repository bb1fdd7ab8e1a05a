"""Runs the catalogue on one subject: starts it, asks it whether keys are required, tests it, and ends it."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from bench.conform.handlers import EFFECTS
from bench.conform.subjects import NODE_MODULES, Subject, node_file
from bench.processes import BenchError, Child
from bench.setup import Setup
from semel.conform import CannotRun, Case, Report, Selection, conform, parse_case
from semel.conform.case import EffectCount
from tests.conform.test_semel import CASE as SERVICE_CASE
from tests.servers.ports import free_port
from tests.service.served import serving

SHOP: Final = Path(__file__).with_name("shop.toml")
_only: tuple[str, ...] = ()  # tests choose a few checks
_PROBE: Final = json.dumps({"item": "probe", "count": 1})


def examine(subject: Subject, profile: str, folder: Path, urls: Mapping[str, str]) -> Report | CannotRun:
    """Return one subject's report, or why it cannot be tested.

    Parameters: ``folder`` for its store and its effects; ``urls`` of the stores' servers, by kind.
    """
    folder.mkdir()
    url = {"memory": "memory://", "sqlite": f"sqlite:///{folder / 'store.db'}", **urls}[subject.store]
    if subject.kind == "service":
        with serving(folder) as service:
            return _run_conform(service.url, parse_case(SERVICE_CASE), profile)
    with _shop(subject, folder, url) as (base, hooks):
        case = replace(
            _case(subject), effects=EffectCount(file=str(folder / EFFECTS)), hooks=hooks, key_required=_refuses(base)
        )
        if hooks and subject.lease_seconds is not None:
            case = replace(case, lease_seconds=subject.lease_seconds)
        return _run_conform(base, case, profile)


def _run_conform(url: str, case: Case, profile: str) -> Report | CannotRun:
    try:
        return asyncio.run(conform(url, case, Selection(profile, only=_only)))
    except CannotRun as reason:
        return reason


def _case(subject: Subject) -> Case:
    case = parse_case(SHOP.read_text("utf-8") + '[effects]\nfile = "."\n')
    requests = {name: request for name, request in case.requests.items() if name not in subject.left_out}
    return replace(case, requests=requests)


def _refuses(base: str) -> bool:
    """Whether a request without a key is refused: otherwise keys are optional in this package's default settings."""
    connection = http.client.HTTPConnection(base.removeprefix("http://"), timeout=10)
    try:
        connection.request("POST", "/orders", _PROBE, {"Content-Type": "application/json", "X-User": "alice"})
        return connection.getresponse().status >= 400
    except OSError:
        return True
    finally:
        connection.close()


@contextmanager
def _shop(subject: Subject, folder: Path, url: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The shop under a package: its URL, and the hooks that kill and restart it where its store outlives it."""
    port, log = free_port(), folder / "server.log"
    children: list[Child] = []

    def start() -> None:
        if subject.kind == "node":
            words = [url, str(port), str(folder)]
            node = {"NODE_PATH": str(NODE_MODULES)}
            child = Child(str(node_file(subject)), *words, log=log, program="node", environment=node)
        else:
            lease = subject.lease_seconds
            setup = Setup(
                module=subject.module,
                store=url,
                book=str(folder),
                lease_seconds=lease,
                callers=True,
                shop=True,
                port=port,
            )
            child = Child("bench.server", setup.to_json(), log=log, python=subject.python or sys.executable)
        children.append(child)
        if not child.stdout.readline():
            child.end()
            raise BenchError(f"{subject.name} did not start; see {log}: {log.read_text('utf-8', 'replace')[-500:]}")

    class Hooks(BaseHTTPRequestHandler):
        """Kills and restarts the shop."""

        def do_POST(self) -> None:
            if self.path == "/kill":
                children[-1].kill()
            else:
                start()
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    start()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hooks) as hooks:
        listening = threading.Thread(target=hooks.serve_forever, kwargs={"poll_interval": 0.05})
        listening.start()
        control = f"http://127.0.0.1:{hooks.server_port}"
        durable = subject.store != "memory" and subject.lease_seconds is not None
        try:
            yield (
                f"http://127.0.0.1:{port}",
                {name: f"{control}/{name}" for name in ("kill", "restart")} if durable else {},
            )
        finally:
            hooks.shutdown()
            listening.join()
            children[-1].end()
