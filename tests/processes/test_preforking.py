"""gunicorn with ``--preload``: engines made before the fork, even used before it; nothing crosses (decision 0019).

The workers of one master work on one file, are killed, and are replaced on SIGHUP, under load.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.crash.work import Folder
from tests.processes.servers import Load, check_shop, open_files, shop_server
from tests.service.served import await_true

KEYS = 25
KINDS = ("external", "idempotent", "atomic")
COMMAND = (
    "gunicorn",
    "--preload",
    "--workers",
    "3",
    "--bind",
    "127.0.0.1:{port}",
    "--graceful-timeout",
    "10",
    "--no-control-socket",
)
SERVERS = {
    "uvicorn-worker": ("-k", "uvicorn_worker.UvicornWorker", "tests.processes.shop:app"),
    "asgi": ("-k", "asgi", "tests.processes.shop:app"),
    "sync": ("-k", "sync", "tests.processes.shop:wsgi"),
    "gthread": ("-k", "gthread", "--threads", "4", "tests.processes.shop:wsgi"),
}


@pytest.mark.parametrize(
    ("kind", "used", "disturbance"),
    [
        ("uvicorn-worker", False, "kill"),
        ("uvicorn-worker", True, "reload"),
        ("asgi", True, "kill"),
        ("sync", True, "kill"),
        ("gthread", False, "reload"),
        ("gthread", True, "kill"),
    ],
)
def test_preloaded_workers_answer_once_under_kills_and_restarts(
    kind: str, used: bool, disturbance: str, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    with shop_server(folder, *COMMAND, *SERVERS[kind], used=used) as (process, send):
        load = Load(send, KINDS, KEYS)

        def disturb(load: Load) -> None:
            former = set(load.pids())
            if disturbance == "kill":
                os.kill(min(former), signal.SIGKILL)
            else:
                process.send_signal(signal.SIGHUP)
            new = 1 if disturbance == "kill" else 2
            await_true(lambda: len(set(load.pids()) - former) >= new, "new workers to answer")

        load.run(disturb)
        print(f"{kind} {disturbance}: {dict(load.statuses)}, {len(load.told)} commands, {len(load.unknown())} unknown")
        check_shop(folder, load)
        assert process.pid not in load.pids()
        assert open_files(process.pid, folder) == []  # the master's were closed before it forked
        assert all(open_files(pid, folder) for pid in load.pids()[-1:])
        if disturbance == "reload":
            assert load.unknown() == set()
