"""`semel worker --metrics`: a page of the worker's own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest

from semel import Engine
from semel.cli.main import main
from tests.exporters.shop import samples

SECONDS_MAX = 60.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/semel.db"
    created = Engine.connect(url)
    created.migrate()
    created.close()
    return url


@pytest.fixture
def page(url: str) -> Iterator[str]:
    """The address of a running worker's page."""
    command = [sys.executable, "-m", "semel.cli", "worker", "--json", "--url", url, "--metrics", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stdout is not None
            yield next(document["metrics"] for document in map(json.loads, worker.stdout) if "metrics" in document)
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(SECONDS_MAX) == 0


def test_a_worker_answers_prometheus(page: str) -> None:
    with urlopen(page, timeout=SECONDS_MAX) as answer:
        found = samples(answer.read().decode())
    assert found["semel_store_up", ()] == 1
    assert found["semel_store_call_seconds_count", (("verb", "identity"),)] >= 1


def test_a_port_that_is_taken_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        code = main(["worker", "--url", url, "--metrics", str(port)])
    said = capsys.readouterr().err
    assert code == 2
    assert f"127.0.0.1:{port}" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--metrics", "http"], ["--metrics", "65536"], ["--metrics", "9464", "--once"]])
def test_an_invalid_address_is_refused(arguments: list[str], url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--url", url, *arguments]) == 2
    assert "--metrics" in capsys.readouterr().err
