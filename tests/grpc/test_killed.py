"""A server is killed around the commit: a retry to the next one leaves one effect, with any answer to the client."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pytest
from google.rpc.error_details_pb2 import RequestInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode as Code

from semel import Engine
from tests.grpc.killed import METHOD

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def running(url: str, where: str, file: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.grpc.killed", url, where, str(file)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def send(file: Path) -> tuple[Code, str]:
    with grpc.insecure_channel(f"127.0.0.1:{int(file.read_text())}") as channel:
        stub = channel.unary_unary(METHOD, RequestInfo.SerializeToString, Status.FromString)
        call = stub.future(RequestInfo(), metadata=(("idempotency-key", "one-key-of-alice"),), timeout=20)
        code = call.code()
        return code, call.result().message if code is Code.OK else ""


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_server_that_dies_around_the_commit_leaves_one_effect(tmp_path: Path, where: str) -> None:
    database, port = tmp_path / "shop.db", tmp_path / "port"
    url = f"sqlite:///{database}"
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    rows = sqlite3.connect(database)
    rows.execute("CREATE TABLE effect (n integer)")
    with running(url, where, port) as process:
        assert send(port)[0] is Code.UNAVAILABLE
        assert process.wait(20) == -signal.SIGKILL
    with running(url, "never", port):
        assert [send(port) for _ in range(2)] == [(Code.OK, "paid")] * 2
    assert rows.execute("SELECT count(*) FROM effect").fetchone() == (1,)
    rows.close()
