"""OpenTelemetry: an observer that turns events into metrics and spans. It uses only the API; you choose the SDK.

It needs the library opentelemetry-api: ``pip install 'semel[opentelemetry]'``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from semel import __version__
from semel.errors import ConfigurationError
from semel.exporters.series import BUCKETS, CALLER_KEYS, SERIES, Bounds, Series, TopCallers, label_text
from semel.extras import install_command
from semel.stores.process import begin_in_children

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        Span,
        SpanContext,
        Status,
        StatusCode,
        TraceFlags,
        TracerProvider,
        set_span_in_context,
    )
except ImportError as error:  # pip installs the right version with the extra
    raise ConfigurationError(
        f"metrics and spans need opentelemetry-api; run: {install_command('opentelemetry')}"
    ) from error

CALLERS: Final = 50
REMEMBERED_MAX: Final = 10_000  # spans that are open, and first executions to link to
_TROUBLE: Final = frozenset({"Unprovable", "Superseded", "OutcomeUnknown"})


class OpenTelemetry:
    """An observer whose events are OpenTelemetry metrics and spans: ``Engine.connect(url, observer=OpenTelemetry())``.

    The metrics are those of :class:`~semel.exporters.prometheus.Prometheus`, by their names with dots, with the same
    bounds: 100 operations, 50 callers (``callers``; the first ones that were seen), the rest ``other``.

    Each attempt is a span ``semel.command`` in the caller's trace: from grant to settlement if it was granted, else at
    the moment of its verdict. A granted attempt has a second span, ``semel.execution``, in a trace whose id *is* the
    operation id, linked to the first. A replay's span links to that trace, whichever process ran the first execution,
    and to the first execution's own span if it ran in this process. No attribute has a key.

    Parameters: ``meter_provider`` and ``tracer_provider``, the global ones by default.

    Raises ConfigurationError where opentelemetry-api is not installed, or ``callers`` is out of range.

    >>> OpenTelemetry().event("replays", 1, {"operation": "pay"}, {})
    """

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
        *,
        callers: int = CALLERS,
    ) -> None:
        meter = metrics.get_meter("semel", __version__, meter_provider)
        self._tracer = trace.get_tracer("semel", __version__, tracer_provider)
        self._bounds = Bounds()
        self._callers = TopCallers(callers, replaces=False)
        self._record: dict[Series, Callable[..., None]] = {
            series: _instrument(meter, series) for series in (*SERIES.values(), CALLER_KEYS)
        }
        self._open: OrderedDict[str, tuple[Span, Span]] = OrderedDict()
        self._first: OrderedDict[str, SpanContext] = OrderedDict()
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start without the lock held: at construction, and in a forked child."""
        self._lock = threading.Lock()

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        """Record one event of an engine."""
        series = SERIES.get(name)
        if series is None:  # an event of a newer Semel
            return
        values = [self._bounds.value(*each) for each in labels.items()]
        if name == "mismatches":
            values.append(self._caller(detail))
        self._record[series](value, dict(zip(series.labels, values, strict=True)))
        if name == "claims":
            if labels["verdict"] == "Proceed":
                self._record[CALLER_KEYS](1, {"caller": self._caller(detail)})
            self._on_attempt(labels, detail)
        elif name == "settlements":
            self._on_settled(labels["outcome"], detail)

    def _caller(self, detail: Mapping[str, str]) -> str:
        return self._callers.see(detail.get("caller", ""))[0]

    # --- spans ------------------------------------------------------------------------------------

    def _on_attempt(self, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        verdict, id = labels["verdict"], detail.get("operation_id")
        attributes = {
            "semel.operation": label_text(labels["operation"]),
            "semel.outcome": verdict,
            **{f"semel.{name}": label_text(value) for name, value in detail.items()},
        }
        if verdict != "Proceed" or id is None:
            span = self._tracer.start_span("semel.command", attributes=attributes, links=self._links(id))
            if verdict in _TROUBLE:
                span.set_status(Status(StatusCode.ERROR, verdict))
            span.end()
            return
        span = self._tracer.start_span("semel.command", attributes=attributes, links=[Link(execution_context(id))])
        context = span.get_span_context()
        parent = set_span_in_context(NonRecordingSpan(execution_context(id, context.trace_flags)))
        execution = self._tracer.start_span(
            "semel.execution", context=parent, attributes=attributes, links=[Link(context)]
        )
        with self._lock:
            former = self._open.pop(id, None)  # the former holder's, if the execution was taken over
            self._open[id] = span, execution
            if len(self._open) > REMEMBERED_MAX and former is None:
                _, former = self._open.popitem(last=False)
            self._first[id] = context
            if len(self._first) > REMEMBERED_MAX:
                self._first.popitem(last=False)
        for each in former or ():
            each.end()

    def _on_settled(self, outcome: str, detail: Mapping[str, str]) -> None:
        with self._lock:
            spans = self._open.pop(detail.get("operation_id", ""), ())
        for span in spans:
            span.set_attribute("semel.outcome", outcome)
            if "state" in detail:
                span.set_attribute("semel.state", detail["state"])
            if outcome in _TROUBLE:
                span.set_status(Status(StatusCode.ERROR, outcome))
            span.end()

    def _links(self, id: str | None) -> list[Link]:
        if id is None:
            return []
        first = self._first.get(id)
        return [*([] if first is None else [Link(first)]), Link(execution_context(id))]


def execution_context(operation_id: str, flags: int = TraceFlags.SAMPLED) -> SpanContext:
    """Return the trace context of an operation's first execution, in any process: the trace id is the operation id.

    >>> f"{execution_context('0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55').trace_id:032x}"
    '0199e0c47d3a7a529f0e6f2f4e1f6a55'
    """
    number = UUID(operation_id).int
    return SpanContext(number, number & 0xFFFF_FFFF_FFFF_FFFF, is_remote=True, trace_flags=TraceFlags(flags))


def _instrument(meter: Any, series: Series) -> Callable[..., None]:
    record: Callable[..., None]
    if series.kind == "counter":
        record = meter.create_counter(series.dotted, description=series.help).add
    elif series.kind == "gauge":
        record = meter.create_gauge(series.dotted, description=series.help).set
    else:
        record = meter.create_histogram(
            series.dotted, "s", series.help, explicit_bucket_boundaries_advisory=BUCKETS
        ).record
    return record
