"""OpenTelemetry: the metrics by their names, a span for each attempt, and replays that lead to the first execution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy, Scope
from semel.errors import CommandError
from semel.exporters import opentelemetry
from semel.exporters.opentelemetry import OpenTelemetry, execution_context

KEY = "canary-8e03978e"


def command(key: str = KEY, caller: str = "alice", fingerprint: bytes = bytes(32)) -> Command:
    return Command(Scope("demo", caller, "pay"), key, fingerprint, "test", Policy())


def answer_paid(permit: Permit) -> Answer:
    return Answer(201, (), b"paid")


def failing(permit: Permit) -> Answer:
    raise ConnectionError("the provider hung up")


class Seen:
    """One process: what its SDK has collected."""

    def __init__(self, callers: int = 50) -> None:
        self.reader, self.exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.meters, self.tracers = MeterProvider([self.reader]), TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.observer = OpenTelemetry(self.meters, self.tracers, callers=callers)

    def spans(self, name: str) -> Sequence[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self) -> dict[tuple[str, ...], float]:
        """The values of all counters, by name and attributes."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            (metric.name, *(str(value) for _, value in sorted((point.attributes or {}).items()))): point.value
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
        }

    def close(self) -> None:
        self.meters.shutdown()
        self.tracers.shutdown()


@pytest.fixture
def recorder() -> Iterator[Seen]:
    found = Seen()
    yield found
    found.close()


def link_ids(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def test_a_replay_links_to_the_first_execution(recorder: Seen) -> None:
    with Engine.connect("memory://", observer=recorder.observer) as engine:
        with recorder.tracers.get_tracer("shop").start_as_current_span("POST /payments"):
            first_id = engine.run(command(), answer_paid).operation_id
        engine.run(command(), answer_paid)
    first, replay = recorder.spans("semel.command")
    [execution] = recorder.spans("semel.execution")
    assert first.parent is not None  # in the request's own trace
    assert link_ids(replay)[0] == ids(first)
    assert replay.links[1].context.trace_id == ids(execution)[0] == int(first_id.replace("-", ""), 16)
    assert link_ids(execution) == [ids(first)]
    wanted = {"semel.operation": "pay", "semel.outcome": "Replay", "semel.state": "SUCCEEDED"}
    assert dict(replay.attributes or {}).items() >= wanted.items()
    assert (first.attributes or {})["semel.outcome"] == "Succeeded"
    assert KEY not in str([span.to_json() for span in recorder.exporter.get_finished_spans()])


def test_a_replay_in_another_process_leads_to_the_first_execution(recorder: Seen, tmp_path: Path) -> None:
    url, other = f"sqlite:///{tmp_path}/semel.db", Seen()
    created = Engine.connect(url)
    created.migrate()
    created.close()
    with Engine.connect(url, observer=recorder.observer) as engine:
        engine.run(command(), answer_paid)
    with Engine.connect(url, observer=other.observer) as engine:
        engine.run(command(), answer_paid)
    [replay] = other.spans("semel.command")
    [execution] = recorder.spans("semel.execution")
    other.close()
    [link] = replay.links
    assert link.context.trace_id == ids(execution)[0]
    assert execution.parent is not None
    assert link.context.span_id == execution.parent.span_id


@pytest.mark.anyio
async def test_an_async_engine_s_attempts_are_spans(recorder: Seen, anyio_backend_name: str) -> None:
    async def pay(permit: Permit) -> Answer:
        return Answer(201, (), b"paid")

    async with AsyncEngine.connect("memory://", observer=recorder.observer) as engine:
        await engine.run(command(), pay)
        await engine.run(command(), pay)
    assert [(span.attributes or {})["semel.outcome"] for span in recorder.spans("semel.command")] == [
        "Succeeded",
        "Replay",
    ]


def test_an_unknown_outcome_is_an_error(recorder: Seen) -> None:
    with Engine.connect("memory://", observer=recorder.observer) as engine:
        with pytest.raises(ConnectionError):
            engine.run(command(), failing)
        with pytest.raises(CommandError):
            engine.run(command(), answer_paid)
    outcomes = [
        ((span.attributes or {})["semel.outcome"], span.status.is_ok) for span in recorder.spans("semel.command")
    ]
    assert outcomes == [("Unprovable", False), ("OutcomeUnknown", False)]


def test_the_metrics_have_the_names_with_dots(recorder: Seen) -> None:
    with Engine.connect("memory://", observer=recorder.observer) as engine:
        engine.run(command(), answer_paid)
        engine.run(command(), answer_paid)
        with suppress(CommandError):
            engine.run(command(fingerprint=b"x" * 32), answer_paid)
    found = recorder.points()
    verdicts = ("KeyReused", "Proceed", "Replay")
    claims = {key: value for key, value in found.items() if key[0] == "idempotency.claims.total"}
    assert claims == {("idempotency.claims.total", "pay", verdict): 1 for verdict in verdicts}
    assert found["idempotency.replays.total", "pay"] == 1
    assert found["idempotency.fingerprint_mismatch.total", "alice", "pay"] == 1
    assert found["semel.caller_keys.total", "alice"] == 1


def test_callers_are_bounded() -> None:
    seen = Seen(callers=2)
    with Engine.connect("memory://", observer=seen.observer) as engine:
        for number in range(10):
            engine.run(command(f"key-{number}", f"caller-{number}"), answer_paid)
    keys = {key[1]: value for key, value in seen.points().items() if key[0] == "semel.caller_keys.total"}
    assert keys == {"caller-0": 1, "caller-1": 1, "other": 8}
    seen.close()


def test_open_spans_are_ended_at_shutdown(recorder: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opentelemetry, "REMEMBERED_MAX", 3)
    for number in range(5):
        detail: dict[str, Any] = {"operation_id": f"0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a5{number}", "caller": "alice"}
        recorder.observer.event("claims", 1, {"operation": "pay", "verdict": "Proceed"}, detail)
    assert len(recorder.spans("semel.command")) == 2


def test_an_operation_s_trace_has_the_operation_s_id() -> None:
    context = execution_context("0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55")
    assert context.is_valid
    assert f"{context.trace_id:032x}" == "0199e0c47d3a7a529f0e6f2f4e1f6a55"
