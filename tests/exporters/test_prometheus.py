"""The Prometheus exporter: every event has a series, every label is bounded, no key, and nothing stops a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from starlette.testclient import TestClient

from semel import Answer, Command, Engine, Permit, Policy, Scope
from semel.errors import ConfigurationError
from semel.exporters.prometheus import Prometheus
from semel.exporters.series import SERIES, TopCallers
from semel.telemetry import EVENTS
from tests.exporters.shop import samples


def command(key: str, caller: str = "alice", operation: str = "pay", fingerprint: bytes = bytes(32)) -> Command:
    return Command(Scope("demo", caller, operation), key, fingerprint, "test", Policy())


def pay(permit: Permit) -> Answer:
    return Answer(201, (), b"paid")


def page(metrics: Prometheus) -> str:
    return generate_latest(metrics.registry).decode()


def value(metrics: Prometheus, name: str, **labels: str) -> float:
    return samples(page(metrics))[name, tuple(sorted(labels.items()))]


def test_every_event_has_a_series() -> None:
    assert set(SERIES) == set(EVENTS)
    metrics = Prometheus(CollectorRegistry())
    for name, labels in EVENTS.items():
        metrics.event(name, 2, dict.fromkeys(labels, "x"), {"caller": "alice"})
    found = {name for name, _ in samples(page(metrics))}
    for name, series in SERIES.items():
        assert {series.name, f"{series.name}_sum"} & found, name


def test_the_seven_series_have_the_names_and_labels_of_the_specification() -> None:
    wanted = {
        "idempotency_claims_total": ("operation", "outcome"),
        "idempotency_replays_total": ("operation",),
        "idempotency_fingerprint_mismatch_total": ("operation", "caller"),
        "idempotency_in_progress_total": ("operation",),
        "idempotency_unknown_total": ("operation", "doubt"),
        "idempotency_expired_total": ("operation",),
    }
    assert wanted.items() <= {series.name: series.labels for series in SERIES.values()}.items()
    with Engine.connect("memory://") as store:
        store.claim(command("key-1"))
        metrics = Prometheus(CollectorRegistry(), store=store)
        assert value(metrics, "idempotency_records_active", operation="pay") == 1


def test_ten_thousand_callers_make_few_series() -> None:
    metrics = Prometheus(CollectorRegistry())
    with Engine.connect("memory://", observer=metrics) as engine:
        for number in range(2_000):
            engine.claim(command(f"key-{number}", f"caller-{number}"))
    for number in range(10_000):
        labels = {"operation": f"operation-{number}"}
        metrics.event("mismatches", 1, {"operation": f"operation-{number % 3}"}, {"caller": f"caller-{number}"})
        metrics.event("replays", 1, labels, {})
    lines = [line for line in page(metrics).splitlines() if not line.startswith("#")]
    assert len([line for line in lines if "caller=" in line]) <= 3 * 51 + 51
    replays = [line for line in lines if line.startswith("idempotency_replays_total")]
    assert len(replays) == 100  # of 101, as another operation was there before them
    assert sum(float(line.split()[-1]) for line in replays) == 10_000
    assert len([line for line in lines if "idempotency_replays" not in line]) < 300


def test_a_frequent_caller_takes_a_label_among_thousands_of_rare_ones() -> None:
    top = TopCallers(5)
    for number in range(3_000):
        top.see(f"rare-{number}")
        if number > 1_000 and number % 2:
            top.see("mallory")
    assert top.see("mallory")[0] == "mallory"


def test_a_caller_that_loses_its_label_has_no_series() -> None:
    metrics = Prometheus(CollectorRegistry(), callers=1)
    for caller in ("alice", "bob", "bob"):
        metrics.event("claims", 1, {"operation": "pay", "verdict": "Proceed"}, {"caller": caller})
    callers = {dict(labels)["caller"] for name, labels in samples(page(metrics)) if name == "semel_caller_keys_total"}
    assert callers == {"bob", "other"}


@pytest.mark.parametrize("callers", [-1, 1001, True, 2.5])
def test_an_invalid_number_of_callers_is_refused(callers: int) -> None:
    with pytest.raises(ConfigurationError, match="callers must be a whole number from 0 to 1000"):
        Prometheus(CollectorRegistry(), callers=callers)


@pytest.mark.parametrize("name", ["al\nice", 'al"ice', "al\\ice", "al\x1bice", "\ud800", "a" * 5000], ids=repr)
def test_odd_names_do_not_break_the_page(name: str) -> None:
    metrics = Prometheus(CollectorRegistry())
    metrics.event("mismatches", 1, {"operation": name}, {"caller": name})
    metrics.event("store_errors", 1, {"verb": name, "error": name}, {})
    assert len([line for line in page(metrics).splitlines() if not line.startswith("#")]) == 2


def test_no_key_is_on_the_page() -> None:
    metrics = Prometheus(CollectorRegistry())
    with Engine.connect("memory://", observer=metrics) as engine:
        engine.run(command("canary-8e03978e"), pay)
        engine.run(command("canary-8e03978e"), pay)
    assert value(metrics, "idempotency_replays_total", operation="pay") == 1
    assert "canary" not in page(metrics)


def test_a_registry_accepts_one_exporter() -> None:
    registry = CollectorRegistry()
    Prometheus(registry)
    with pytest.raises(ConfigurationError, match=r"make one Prometheus\(\) for the process"):
        Prometheus(registry)


def test_events_of_a_newer_semel_are_left_out() -> None:
    metrics = Prometheus(CollectorRegistry())
    metrics.event("brand_new", 1, {"operation": "pay"}, {})
    assert "brand_new" not in page(metrics)


def test_a_failing_exporter_stops_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Prometheus(CollectorRegistry())
    monkeypatch.setattr(metrics, "_cells", None)
    with Engine.connect("memory://", observer=metrics) as engine:
        assert engine.run(command("key-1"), pay).answer.body == b"paid"


def test_a_store_that_does_not_answer_is_reported_and_the_page_is_whole(tmp_path: Path) -> None:
    metrics = Prometheus(CollectorRegistry(), store=f"sqlite:///{tmp_path}/none/semel.db")
    metrics.event("replays", 1, {"operation": "pay"}, {})
    assert value(metrics, "semel_store_up") == 0
    assert value(metrics, "idempotency_replays_total", operation="pay") == 1
    metrics.close()


def test_a_scrape_soon_after_another_reads_nothing() -> None:
    with Engine.connect("memory://") as store:
        metrics = Prometheus(CollectorRegistry(), store=store, store_seconds=3600)
        page(metrics)
        store.claim(command("key-1"))
        assert not [name for name, _ in samples(page(metrics)) if name == "idempotency_records_active"]


def test_the_pages_answer_over_asgi_and_wsgi() -> None:
    metrics = Prometheus(CollectorRegistry())
    metrics.event("replays", 1, {"operation": "pay"}, {})
    client = TestClient(metrics.asgi())
    answer = client.get("/", headers={"Accept": "text/plain"})
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'idempotency_replays_total{operation="pay"} 1.0' in answer.text
    assert client.head("/").text == ""
    began: list[str] = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "QUERY_STRING": ""}
    body = b"".join(metrics.wsgi()(environ, lambda status, headers: began.append(status)))
    assert began == ["200 OK"]
    assert b"idempotency_replays_total" in body


WORKER = """
import os, sys
from semel import Answer, Command, Engine, Policy, Scope
from semel.exporters.prometheus import Prometheus
metrics = Prometheus(store=sys.argv[1])
with Engine.connect(sys.argv[1], observer=metrics) as engine:
    for number in range(3):
        command = Command(Scope("demo", "alice", "pay"), f"key-{sys.argv[2]}-{number}", bytes(32), "test", Policy())
        engine.run(command, lambda permit: Answer(201, (), b"paid"))
    engine.claim(Command(Scope("demo", "alice", "pay"), f"open-{sys.argv[2]}", bytes(32), "test", Policy()))
    metrics.event("records", 7, {"state": "SUCCEEDED"}, {})
    metrics.event("store_call_seconds", 0.01, {"verb": "canary"}, {})
    if sys.argv[2] == "2":
        from prometheus_client import generate_latest
        print(generate_latest(metrics.registry).decode())
    sys.stdout.flush()
    os._exit(0)
"""


def test_two_processes_are_summed_up_and_gauges_are_not_doubled(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    created = Engine.connect(url)
    created.migrate()
    created.close()
    (tmp_path / "shared").mkdir()
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "shared")}
    for number in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", WORKER, url, number],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    found = samples(done.stdout)
    assert found["idempotency_claims_total", (("operation", "pay"), ("outcome", "Proceed"))] == 8
    assert found["semel_caller_keys_total", (("caller", "alice"),)] == 8
    assert found["semel_records", (("state", "SUCCEEDED"),)] == 7
    assert found["idempotency_records_active", (("operation", "pay"),)] == 2
    assert found["semel_store_call_seconds_count", (("verb", "canary"),)] == 2
    assert ("semel_purge_timestamp_seconds", ()) in found
