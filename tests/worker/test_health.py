"""A worker's probes: alive while its loop turns, ready while its store answers."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import Engine
from semel.cli.main import main
from semel.errors import StoreUnavailable
from semel.workers.health import HealthServer


def ask(address: str, path: str, method: str = "GET") -> tuple[int, Any]:
    request = urllib.request.Request(f"http://{address}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            body = answer.read()
            return answer.status, json.loads(body) if body else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


async def sound() -> Mapping[str, Any]:
    return {"working": ["reaper"]}


async def away() -> Mapping[str, Any]:
    raise StoreUnavailable("postgresql://alice:secret@db.internal cannot be reached")


async def hangs() -> Mapping[str, Any]:
    await asyncio.Event().wait()
    return {}


async def serve_health(check: Any, path: str, method: str = "GET", **options: Any) -> tuple[int, Any]:
    with HealthServer("127.0.0.1", 0, check, **options) as health:
        return await asyncio.to_thread(ask, health.address, path, method)


def test_a_sound_worker_is_alive_and_ready() -> None:
    assert asyncio.run(serve_health(sound, "/livez")) == (200, {"status": "ok"})
    assert asyncio.run(serve_health(sound, "/readyz?verbose")) == (200, {"status": "ok", "working": ["reaper"]})
    assert asyncio.run(serve_health(sound, "/readyz", "HEAD")) == (200, None)


def test_without_its_store_a_worker_is_alive_not_ready_and_reveals_no_secret() -> None:
    assert asyncio.run(serve_health(away, "/livez")) == (200, {"status": "ok"})
    assert asyncio.run(serve_health(away, "/readyz")) == (503, {"status": "store", "error": "StoreUnavailable"})


def test_a_check_that_fails_in_any_way_is_not_ready() -> None:
    async def breaks() -> Mapping[str, Any]:
        raise RuntimeError("a defect")

    assert asyncio.run(serve_health(breaks, "/readyz")) == (503, {"status": "store", "error": "RuntimeError"})


def test_health_listens_on_ipv6_too() -> None:
    async def ask_livez() -> tuple[int, Any]:
        with HealthServer("::1", 0, sound) as health:
            return await asyncio.to_thread(ask, health.address, "/livez")

    assert asyncio.run(ask_livez()) == (200, {"status": "ok"})


def test_a_store_that_hangs_is_not_ready() -> None:
    status, document = asyncio.run(serve_health(hangs, "/readyz", answer_seconds=0.05))
    assert (status, document["status"]) == (503, "no answer")


def test_a_stalled_loop_is_not_alive() -> None:
    found: list[tuple[int, Any]] = []

    async def block_loop() -> None:
        with HealthServer("127.0.0.1", 0, sound, answer_seconds=0.05) as health:
            asking = threading.Thread(target=lambda: found.append(ask(health.address, "/livez")))
            asking.start()
            asking.join(30)  # on the loop's own thread: it turns no more

    asyncio.run(block_loop())
    assert [(status, document["status"]) for status, document in found] == [(503, "no answer")]


def test_other_paths_are_named() -> None:
    assert asyncio.run(serve_health(sound, "/metrics")) == (
        404,
        {"status": "not found", "paths": ["/livez", "/readyz"]},
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("x", "must be a port or HOST:PORT"),
        ("1.2.3.4:99999", "must be a port or HOST:PORT"),
        ("", "must be a port or HOST:PORT"),
    ],
)
def test_an_invalid_address_is_refused(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--health", given]) == 2
    assert "must be a port or HOST:PORT" in capsys.readouterr().err


def test_a_port_that_is_taken_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["worker", "--url", url, "--health", str(port)]) == 2
    assert f"--health 127.0.0.1:{port}: Address already in use; name another port" in capsys.readouterr().err


def test_a_worker_answers_its_probes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    command = [sys.executable, "-m", "semel.cli.main", "worker", "--url", url, "--health", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            address = next(json.loads(line)["health"] for line in process.stdout if "health" in line)
            assert ask(address, "/livez") == (200, {"status": "ok"})
            assert ask(address, "/readyz") == (200, {"status": "ok", "working": ["reaper"]})
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
