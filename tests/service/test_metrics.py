"""The reference service's page of metrics: one port, any worker answers for all, and nothing else is there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen
from uuid import uuid4

import pytest

from semel.reference.settings import Settings, SettingsError
from tests.service.served import DEADLINE_SECONDS, await_true, serving
from tests.service.test_app import PAYMENT

CANARY = f"canary-{uuid4().hex}"


def read(url: str) -> str:
    with urlopen(url, timeout=DEADLINE_SECONDS) as answer:
        return str(answer.read(), "utf-8")


def claims(page: str, outcome: str) -> float:
    found = re.search(rf'idempotency_claims_total{{operation="payments.create",outcome="{outcome}"}} (\S+)', page)
    return 0.0 if found is None else float(found[1])


def test_any_worker_reports_metrics_of_all_including_dead_ones(tmp_path: Path) -> None:
    with serving(tmp_path, workers=2, environment={"SEMEL_METRICS": "127.0.0.1:0"}) as service:
        url = str(service.serving["metrics"])
        assert service.get("/metrics").status == 404  # not where the world reaches it
        for _ in range(3):
            assert service.post("/payments", PAYMENT, CANARY).status == 201
        page = read(url)
        assert (claims(page, "Proceed"), claims(page, "Replay")) == (1, 2)
        assert 'idempotency_replays_total{operation="payments.create"} 2.0' in page
        assert "semel_store_up 1.0" in page
        assert CANARY not in page
        with pytest.raises(HTTPError, match="404"):
            read(url.removesuffix("metrics"))
        service.events(lambda event: len(event.get("pids", [])) == 2)
        os.kill(service.workers[0], signal.SIGKILL)
        await_true(service.ready, "the other worker")
        assert claims(read(url), "Replay") == 2


@pytest.mark.parametrize("given", ["x", "127.0.0.1:", "70000", "-1"])
def test_an_invalid_address_is_named(given: str) -> None:
    with pytest.raises(SettingsError, match="SEMEL_METRICS must be a port"):
        Settings.read({"SEMEL_METRICS": given})
    assert Settings.read({"SEMEL_METRICS": "[::1]:9464"}).metrics == ("::1", 9464)


def test_an_unavailable_port_is_named(tmp_path: Path) -> None:
    told = {**os.environ, "SEMEL_URL": f"sqlite:///{tmp_path}/semel.db", "SEMEL_METRICS": "192.0.2.1:9464"}
    command = [sys.executable, "-m", "semel.cli", "serve", "--port", "0"]
    ended = subprocess.run(command, env=told, capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    assert ended.returncode == 2
    assert b"SEMEL_METRICS: cannot listen on 192.0.2.1:9464" in ended.stderr
