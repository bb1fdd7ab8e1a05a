"""Prometheus: an observer that counts an engine's events, and gauges of the store's state with bounded reads.

``Prometheus()`` is given to the engine as its observer; ``.asgi()`` and ``.wsgi()`` are the page that Prometheus reads.
It needs the library prometheus-client: ``pip install 'semel[prometheus]'``.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from semel.admin.census import Census, read_census
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, SchemaError, StoreError
from semel.exporters.series import BUCKETS, CALLER_KEYS, PURGED_AT, SERIES, Bounds, Series, TopCallers
from semel.extras import install_command
from semel.stores.process import begin_in_children

try:
    from prometheus_client import (
        REGISTRY,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        make_wsgi_app,
        start_http_server,
    )
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import Metric
    from prometheus_client.multiprocess import MultiProcessCollector
    from prometheus_client.registry import Collector
except ImportError as error:  # pip installs the right version with the extra
    raise ConfigurationError(f"metrics need prometheus-client; run: {install_command('prometheus')}") from error

CALLERS: Final = 50
CACHED_MAX: Final = 5_000  # label sets whose cell is cached
CENSUS_SECONDS: Final = 10.0
_ALL: Final = (*SERIES.values(), CALLER_KEYS, PURGED_AT)

Cell = Callable[[float], None]


class SampleSink(Protocol):
    """Where to store values: in this process, or in files shared by all processes of a host."""

    def cell(self, series: Series, labels: tuple[str, ...]) -> Cell:
        """The cell for the values of one label set."""

    def forget(self, series: Series, label: str, value: str) -> None:
        """Drop the label sets in which a label has this value."""


class Prometheus:
    """An observer whose events are Prometheus series: ``Engine.connect(url, observer=Prometheus())``.

    No label ever has a key. Every label is bounded: 100 operations, 50 callers (``callers``), the rest ``other``.

    Parameters: ``registry`` to register with (the library's own by default, which other ``/metrics`` pages show as
    well); ``callers`` how many callers have their own label, 0 to 1,000; ``store`` a sync
    :class:`~semel.engine.sync_engine.Engine` or a store's URL: a scrape then reads its state as well, within bounds and
    at most every ``store_seconds``.

    With ``PROMETHEUS_MULTIPROC_DIR`` all processes of a host write to files in that folder, and a scrape of any of them
    sums them up. ``registry`` is then one of its own, unless you give yours; the first ``callers`` of each process keep
    their label.

    Raises ConfigurationError where the registry has Semel's series already, or prometheus-client is not installed.

    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> metrics = Prometheus(CollectorRegistry())
    >>> metrics.event("replays", 1, {"operation": "pay"}, {})
    >>> b'idempotency_replays_total{operation="pay"} 1.0' in generate_latest(metrics.registry)
    True
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        callers: int = CALLERS,
        store: Engine | str | None = None,
        store_seconds: float = CENSUS_SECONDS,
    ) -> None:
        shared = bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
        self._bounds = Bounds()
        self._callers = {series.name: TopCallers(callers, replaces=not shared) for series in _of_callers()}
        self._cells: dict[tuple[str, ...], Cell] = {}
        self._sink: SampleSink = _Shared() if shared else _Local()
        if registry is None:
            registry = CollectorRegistry() if shared else REGISTRY
            if shared:
                MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        self.registry = registry
        self._own: Engine | None = None
        try:
            if isinstance(self._sink, _Local):
                registry.register(self._sink)
            if store is not None:
                if isinstance(store, str):
                    store = self._own = Engine.connect(store)
                registry.register(StoreGauges(store, store_seconds))
        except ValueError as error:
            raise ConfigurationError(
                "this registry has Semel's series already: make one Prometheus() for the process, and give it to all "
                "engines"
            ) from error
        self._purged_at = self._sink.cell(PURGED_AT, ())

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        """Count one event of an engine."""
        if name == "mismatches":
            self._of_caller(SERIES[name], (labels["operation"],), detail)
            return
        cell = self._cells.get((name, *labels.values())) or self._cell(name, labels)
        if type(cell) is _Sum:  # the most frequent kind: saves a call
            with cell.lock:
                cell.total += value
        else:
            cell(value)
        if name == "claims":
            if labels["verdict"] == "Proceed":
                self._of_caller(CALLER_KEYS, (), detail)
        elif name == "records":  # the event of a reaper at the end of a purge
            self._purged_at(time.time())

    def _cell(self, name: str, labels: Mapping[str, str]) -> Cell:
        series = SERIES.get(name)
        if series is None:  # an event of a newer Semel
            return _ignore
        cell = self._sink.cell(series, tuple(self._bounds.value(*each) for each in labels.items()))
        if len(self._cells) < CACHED_MAX:
            self._cells[(name, *labels.values())] = cell
        return cell

    def _of_caller(self, series: Series, before: tuple[str, ...], detail: Mapping[str, str]) -> None:
        caller, gone = self._callers[series.name].see(detail.get("caller", ""))
        if gone is not None:
            self._sink.forget(series, "caller", gone)
            for key in [key for key in list(self._cells) if key[0] == series.name and key[-1] == gone]:
                self._cells.pop(key, None)
        key = (series.name, *before, caller)
        cell = self._cells.get(key)
        if cell is None:
            bounded = tuple(self._bounds.value("operation", each) for each in before)
            cell = self._sink.cell(series, (*bounded, caller))
            if len(self._cells) < CACHED_MAX:
                self._cells[key] = cell
        cell(1)

    def close(self) -> None:
        """Close a store that was opened by its URL. Counts remain."""
        if self._own is not None:
            self._own.close()

    def asgi(self) -> Callable[..., Awaitable[None]]:
        """Return an ASGI application that answers with the series. Mount it at ``/metrics``, behind your firewall.

        Reading the store does not block the event loop.
        """
        registry = self.registry

        async def metrics(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                raise RuntimeError("the page of metrics answers HTTP requests; mount it under a path")
            accepts = [value for name, value in scope["headers"] if name == b"accept"]
            encode, content_type = choose_encoder(b",".join(accepts).decode("latin-1"))
            body = await asyncio.to_thread(encode, registry)
            headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

        return metrics

    def wsgi(self) -> Callable[..., Any]:
        """Return prometheus-client's WSGI application, which answers with the series."""
        app: Callable[..., Any] = make_wsgi_app(self.registry)
        return app

    @contextmanager
    def serve(self, host: str = "127.0.0.1", port: int = 9464) -> Iterator[int]:
        """Serve the series on a separate port in a thread; yields the port. 0: any free port.

        Raises ConfigurationError where it cannot listen on the port.
        """
        try:
            server, thread = start_http_server(port, host, self.registry)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"the page of metrics cannot be served on {host}:{port}: {error}") from error
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def own_registry() -> CollectorRegistry | None:
    """Return a registry for one exporter; None where processes share files, and :class:`Prometheus` makes its own."""
    return None if os.environ.get("PROMETHEUS_MULTIPROC_DIR") else CollectorRegistry()


def _of_callers() -> Iterator[Series]:
    yield from (series for series in _ALL if "caller" in series.labels)


def _ignore(value: float) -> None:
    return None


class _Sum:
    """A counter of this process."""

    __slots__ = ("lock", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.begin_process()

    def begin_process(self) -> None:
        """Start without the lock held: at construction, and in a forked child."""
        self.lock = threading.Lock()

    def __call__(self, value: float) -> None:
        with self.lock:
            self.total += value


class _Last:
    """A gauge of this process; None: it was never set."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total: float | None = None

    def begin_process(self) -> None:
        """Do nothing: a gauge has no lock."""

    def __call__(self, value: float) -> None:
        self.total = value


class _Buckets:
    """A histogram of this process."""

    __slots__ = ("_lock", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0
        self.begin_process()

    def begin_process(self) -> None:
        """Start without the lock held: at construction, and in a forked child."""
        self._lock = threading.Lock()

    def __call__(self, value: float) -> None:
        place = bisect_left(BUCKETS, value)
        with self._lock:
            self.counts[place] += 1
            self.total += value

    def read_buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return cumulative buckets, as Prometheus expects them, and the sum."""
        with self._lock:
            counts, total = list(self.counts), self.total
        below, found = 0, []
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
            below += count
            found.append((bound, float(below)))
        return found, total


_MADE: Final[Mapping[str, Callable[[], _Sum | _Last | _Buckets]]] = {
    "counter": _Sum,
    "gauge": _Last,
    "histogram": _Buckets,
}


class _Local(Collector):
    """Values of this process. prometheus-client's own metrics would take twice as long for each event."""

    def __init__(self) -> None:
        self._cells: dict[Series, dict[tuple[str, ...], _Sum | _Last | _Buckets]] = {series: {} for series in _ALL}
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start without a lock held: at construction, and in a forked child."""
        self._lock = threading.Lock()
        for cells in self._cells.values():
            for cell in cells.values():
                cell.begin_process()

    def cell(self, series: Series, labels: tuple[str, ...]) -> Cell:
        made = _MADE[series.kind]
        with self._lock:
            return self._cells[series].setdefault(labels, made())

    def forget(self, series: Series, label: str, value: str) -> None:
        place = series.labels.index(label)
        with self._lock:
            self._cells[series] = {key: kept for key, kept in self._cells[series].items() if key[place] != value}

    def describe(self) -> list[Metric]:
        """Describe the series without their values."""
        return [_family(series) for series in _ALL]

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            seen = [(series, list(cells.items())) for series, cells in self._cells.items()]
        for series, cells in seen:
            family = _family(series)
            for labels, kept in cells:
                if isinstance(kept, _Buckets):
                    buckets, total = kept.read_buckets()
                    family.add_metric(labels, buckets, total)
                elif kept.total is not None:
                    family.add_metric(labels, kept.total)
            yield family


def _family(series: Series) -> Any:
    kind = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    return kind[series.kind](series.name, series.help, labels=series.labels)


class _Shared:
    """Values of all processes of a host, by prometheus-client's files."""

    def __init__(self) -> None:
        self._metrics: dict[Series, Any] = {series: self._metric(series) for series in _ALL}

    def _metric(self, series: Series) -> Counter | Gauge | Histogram:
        if series.kind == "counter":
            return Counter(series.name, series.help, series.labels, registry=None)
        if series.kind == "gauge":  # all processes report the same store: the newest value counts, not the sum
            return Gauge(series.name, series.help, series.labels, registry=None, multiprocess_mode="mostrecent")
        return Histogram(series.name, series.help, series.labels, registry=None, buckets=BUCKETS)

    def cell(self, series: Series, labels: tuple[str, ...]) -> Cell:
        if series is PURGED_AT:
            return self._set_purged_at  # set by the first purge: a process without one must not report 0
        metric = self._metrics[series]
        child = metric.labels(*labels) if series.labels else metric
        cell: Cell = getattr(child, {"counter": "inc", "gauge": "set", "histogram": "observe"}[series.kind])
        return cell

    def _set_purged_at(self, value: float) -> None:
        self._metrics[PURGED_AT].set(value)

    def forget(self, series: Series, label: str, value: str) -> None:
        return None  # the files cannot drop series, so TopCallers replaces no caller here


# --- the store's own state ------------------------------------------------------------------------

_STORE: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "semel_store_up": ("1: the store answered the last look at it", ()),
    "idempotency_records_active": ("Open records, of those that were read", ("operation",)),
    "semel_records_lapsed": ("Open records whose lease is over, of those that were read", ("operation",)),
    "semel_records_unknown": ("UNKNOWN records, of those that were read", ("operation", "doubt")),
    "semel_oldest_open_seconds": ("Age of the oldest open record that was read", ("operation",)),
    "semel_oldest_unknown_seconds": ("Age of the oldest UNKNOWN record that was read", ("operation", "doubt")),
    "semel_new_records_per_second": ("New records a second, over the newest that were read", ()),
    "semel_census_records": ("How many records were read for these gauges", ()),
    "semel_census_truncated": ("1: more records need attention than were read", ()),
}


class StoreGauges(Collector):
    """Gauges of a store's state, by a census: at most 1,000 rows are read, however many there are.

    Parameters: ``engine`` a sync engine; ``every_seconds``: an earlier scrape gets the last look again.
    """

    def __init__(self, engine: Engine, every_seconds: float = CENSUS_SECONDS) -> None:
        self._engine = engine
        self._every_seconds = every_seconds
        self._bounds = Bounds()
        self._seen: Census | None = None
        self._again_at = 0.0
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start without the lock held: at construction, and in a forked child."""
        self._lock = threading.Lock()

    def describe(self) -> list[Metric]:
        return [GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in _STORE.items()]

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            if time.monotonic() >= self._again_at:
                try:
                    self._seen = read_census(self._engine)
                except (StoreError, SchemaError):
                    self._seen = None
                self._again_at = time.monotonic() + self._every_seconds
            seen = self._seen
        values = {"semel_store_up": {(): 0.0}} if seen is None else self._values(seen)
        for name, (text, labels) in _STORE.items():
            family = GaugeMetricFamily(name, text, labels=labels)
            for key, value in values.get(name, {}).items():
                family.add_metric(key, value)
            yield family

    def _values(self, seen: Census) -> dict[str, dict[tuple[str, ...], float]]:
        found: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in _STORE}
        for record in seen.open:
            key = (self._bounds.value("operation", record.operation),)
            _add(found["idempotency_records_active"], key, 1)
            _raise(found["semel_oldest_open_seconds"], key, seen.age_seconds(record))
        for record in seen.lapsed:
            _add(found["semel_records_lapsed"], (self._bounds.value("operation", record.operation),), 1)
        for record in seen.unknown:
            operation = self._bounds.value("operation", record.operation)
            doubt = self._bounds.value("doubt", record.doubt or "lapsed")
            _add(found["semel_records_unknown"], (operation, doubt), 1)
            _raise(found["semel_oldest_unknown_seconds"], (operation, doubt), seen.age_seconds(record))
        found["semel_store_up"][()] = 1.0
        if seen.new_per_second is not None:
            found["semel_new_records_per_second"][()] = seen.new_per_second
        found["semel_census_records"][()] = float(len(seen.attention) + len(seen.newest))
        found["semel_census_truncated"][()] = float(seen.more)
        return found


def _add(values: dict[tuple[str, ...], float], key: tuple[str, ...], value: float) -> None:
    values[key] = values.get(key, 0.0) + value


def _raise(values: dict[tuple[str, ...], float], key: tuple[str, ...], value: float) -> None:
    values[key] = max(values.get(key, 0.0), value)
