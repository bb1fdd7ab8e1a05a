"""A Prometheus server from the system's packages, which scrapes one page every second."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from semel.cli.commands.serve.metrics import read_shipped
from tests.servers.needed import program
from tests.servers.running import Running, free_port, launch


def start(folder: Path, target: str) -> Running:
    """Start one with the rules that Semel ships; ``target`` is the host and port of the page /metrics."""
    (folder / "semel.rules.yml").write_text(read_shipped("rules"))
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["semel.rules.yml"],
        "scrape_configs": [{"job_name": "shop", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    port = free_port()
    command = [
        *(str(program("prometheus").with_name("prometheus")), "--config.file=prometheus.yml"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
    ]

    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    return launch(command, folder, port, ready)


def ask(server: Running, what: str) -> Any:
    """Return what the server's HTTP API answers, such as to ``query?query=up``."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/api/v1/{what}", timeout=30) as answer:
        return json.load(answer)["data"]


def query(server: Running, expression: str) -> list[dict[str, Any]]:
    """The samples of an expression now, each with its labels as ``metric`` and its ``value``."""
    found: list[dict[str, Any]] = ask(server, f"query?query={quote(expression)}")["result"]
    return found
