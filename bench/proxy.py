"""What `semel proxy` costs, beside a plain reverse proxy of the same framework and nginx: ``python -m bench.proxy``.

One service, bare, on uvicorn; before it, in interleaved rounds: nothing, nginx, a reverse proxy of Semel's own parts
without operations (``front``), and ``semel proxy`` with fresh keys and with keys whose answers it has.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench import machine
from bench.load import Plan, Report
from bench.processes import ROOT, BenchError, Server, load, serving
from bench.setup import Setup
from bench.subjects import PATH, Mode

WAYS: Final = ("direct", "nginx", "front", "proxy-fresh", "proxy-replay")
_RUNNING: Final = re.compile(rb"running on http://127.0.0.1:(\d+)")
_CONFIG: Final = f'caller = "none"\n[[operation]]\nname = "pay"\npath = "{PATH}"\n'
_NGINX: Final = """\
pid {folder}/nginx.pid; error_log stderr error; worker_processes 1; events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        keepalive_requests 1000000;
        location / {{ proxy_pass http://127.0.0.1:{upstream}; }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One way in all rounds: requests a second, latencies in ms, and its rate beside ``front``'s of the same round."""

    way: str
    per_second: float
    p50_ms: float
    p99_ms: float
    of_front: float


def figures(rounds: Sequence[Mapping[str, Report]]) -> list[Figure]:
    """Medians over the rounds, in the order of ``WAYS``."""
    found = []
    for way in WAYS:
        reports = [each[way] for each in rounds if way in each]
        if reports:
            shares = [_rate(each[way]) / _rate(each["front"]) for each in rounds if way in each]
            found.append(
                Figure(
                    way,
                    median(map(_rate, reports)),
                    median(each.p50_ms for each in reports),
                    median(each.p99_ms for each in reports),
                    median(shares),
                )
            )
    return found


def _rate(report: Report) -> float:
    return report.requests / report.seconds


@contextmanager
def start_announced(command: Sequence[str]) -> Iterator[Server]:
    """A command that serves with uvicorn, which says where it listens."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stderr is not None
        try:
            said = b""
            while (found := _RUNNING.search(said)) is None:
                line = process.stderr.readline()
                if not line:
                    raise BenchError(f"{command[2]} did not start; it said: {said.decode('utf-8', 'replace')}")
                said += line
            yield Server(int(found[1]), process.pid)
        finally:
            process.terminate()
            process.stderr.read()


@contextmanager
def nginx(program: str, folder: Path, upstream: int) -> Iterator[Server]:
    """nginx with one worker and its defaults."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = folder / "nginx.conf"
    file.write_text(_NGINX.format(folder=folder, port=port, upstream=upstream))
    with subprocess.Popen([program, "-p", str(folder), "-c", str(file), "-g", "daemon off;"]) as process:
        try:
            _await_port(port, process)
            yield Server(port, process.pid)
        finally:
            process.terminate()


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise BenchError("nginx did not start; see its words above")


def measure(store: str | None, connections: int, seconds: float, rounds: int) -> list[Figure]:
    """Start everything, and measure each way once a round."""
    with tempfile.TemporaryDirectory(prefix="semel-bench-") as place, ExitStack() as stack:
        folder = Path(place)
        folder.chmod(0o755)
        url = store or f"sqlite:///{folder}/semel.db"
        subprocess.run(
            [sys.executable, "-m", "semel.cli", "migrate", "--url", url], check=True, stdout=subprocess.DEVNULL
        )
        (folder / "operations.toml").write_text(_CONFIG)
        service = stack.enter_context(serving(Setup(module="bench.bare")))
        servers = {"direct": service}
        program = shutil.which("nginx")
        if program is None:
            print("bench: left out: nginx is not installed", file=sys.stderr)
        else:
            servers["nginx"] = stack.enter_context(nginx(program, folder, service.port))
        servers["front"] = stack.enter_context(
            start_announced([sys.executable, "-m", "bench.front", str(service.port)])
        )
        origin = f"http://127.0.0.1:{service.port}"
        config = ["--config", str(folder / "operations.toml"), "--upstream", origin, "--store", url, "--port", "0"]
        proxy = stack.enter_context(start_announced([sys.executable, "-m", "semel.cli", "proxy", *config]))
        servers |= {"proxy-fresh": proxy, "proxy-replay": proxy}
        done = []
        for number in range(rounds):
            reports = {}
            for place_in_round, (way, server) in enumerate(servers.items()):
                replays = way == "proxy-replay"
                plan = Plan(
                    port=server.port,
                    server=server.pid,
                    connections=connections,
                    mode=Mode.REPLAY if replays else Mode.FRESH,
                    seed=number * len(WAYS) + place_in_round,
                    seconds=seconds,
                    warmup_seconds=min(0.3, seconds),
                    marked=way.startswith("proxy"),
                )
                reports[way] = load(plan)
            done.append(reports)
            print(f"bench: round {number + 1} of {rounds}", file=sys.stderr)
        return figures(done)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.proxy", description=__doc__, allow_abbrev=False)
    parser.add_argument("--store", metavar="URL", help="default: a SQLite file, synchronous=FULL")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement (default 1)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(arguments)
    busy = machine.load_average()
    try:
        found = measure(given.store, given.connections, given.seconds, given.rounds)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    loads = f"{busy} at the start, {machine.load_average()} at the end"
    if given.json:
        rows = [{name: getattr(each, name) for name in Figure.__slots__} for each in found]
        print(json.dumps({"load": loads, "ways": rows}))
        return 0
    print(f"{given.connections} connections, load {loads}\n")
    print("| before the service | requests/s | of front | p50 / p99 ms |\n| --- | --- | --- | --- |")
    for each in found:
        print(f"| {each.way} | {each.per_second:,.0f} | {each.of_front:.2f} | {each.p50_ms:.2f} / {each.p99_ms:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
