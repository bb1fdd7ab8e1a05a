"""`semel worker`: the processes behind the commands, in one: relay, reaper, completers and reconcilers."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, redirect_stdout, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from semel.admin.failures import UsageFailed
from semel.cli.arguments import Commands, Parser, add_command, host_and_port, seconds, whole_number
from semel.cli.exits import Exit
from semel.cli.loading import error_text, load_reconciler, set_up_django
from semel.cli.open_store import require_shared, source_of_url, url_of
from semel.cli.terminal import Output
from semel.engine.async_engine import AsyncEngine
from semel.errors import ConfigurationError, SemelError, UrlError
from semel.extras import install_command
from semel.outbox.flow import TRIES_MAX
from semel.outbox.receivers import SLICE_SECONDS, Receivers, read_receivers
from semel.outbox.sinks.base import Sink
from semel.outbox.sinks.urls import SCHEMES, connect_sink
from semel.outbox.worker import BATCH, LEASE_SECONDS, Relay
from semel.reconciliation.worker import Reconciling
from semel.reference.settings import id_secret
from semel.resuming.process import Completing, add_complete, completing, load_application, note_failures
from semel.retention.worker import Reaper
from semel.stores.backend import hide_password
from semel.telemetry import Both, Logging, Observer
from semel.workers.health import READY, HealthServer
from semel.workers.turns import look_together

if TYPE_CHECKING:
    from semel.exporters.prometheus import Prometheus

TELL_SECONDS: Final = 10.0
ONCE_WAITS_SECONDS: Final = LEASE_SECONDS + 1.0  # a killed relay holds its partitions until its lease expires
_LATER: Final = (
    "semel: what waits is not due: it was refused before, or is behind such an event or a parked one of its aggregate; "
    "the sink was not asked for it now; semel events shows each reason, and a later run tries again"
)
_HELD: Final = "semel: a running worker will publish them; if there is none, run this again"


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "worker",
        "publish events, finish abandoned commands, mark lapsed ones, purge expired records",
        "semel worker --sink nats://127.0.0.1:4222\n"
        "semel worker --sink 'amqp://guest:guest@127.0.0.1:5672/?declare=quorum'\n"
        "semel worker --sink python:shop.events:deliver --once --json\n"
        "semel worker --receivers receivers.toml\n"
        "semel worker --complete shop.main:app\n"
        "semel worker --complete shop.jobs --no-reaper --url postgresql://semel@db/shop\n"
        "semel worker --metrics 0.0.0.0:9464 --health 0.0.0.0:8081 --url postgresql://semel@db/shop",
        "Without --sink it only reaps. Several workers can share one store. SIGTERM and Ctrl-C end it after the "
        "current batch. Webhooks are signed with $SEMEL_WEBHOOK_SECRET.",
    )
    parser.add_argument(
        "--sink",
        metavar="URL",
        default=os.environ.get("SEMEL_SINK") or None,
        help=f"where to publish events: {'://, '.join(SCHEMES[:-1])}://, python:MODULE:F (default: $SEMEL_SINK, where "
        "a password in it is not in the list of processes)",
    )
    parser.add_argument(
        "--receivers",
        metavar="FILE",
        help="in place of --sink: webhooks to several receivers, each with its topics and its secret (TOML)",
    )
    parser.add_argument(
        "--reconcile",
        metavar="MODULE:NAME",
        action="append",
        default=[],
        help="your own reconciler, which determines the outcome of UNKNOWN commands; may be repeated",
    )
    add_complete(parser)
    parser.add_argument(
        "--once",
        action="store_true",
        help="publish and reap once, then end; waits up to 11 s for the partitions of a killed relay",
    )
    parser.add_argument("--no-reaper", action="store_true", help="leave lapsed and expired records to another process")
    parser.add_argument(
        "--batch", type=whole_number(1, 10_000), default=BATCH, help=f"events to read at once (default {BATCH})"
    )
    parser.add_argument(
        "--tries",
        type=whole_number(1, 1000),
        default=TRIES_MAX,
        help=f"how often to try a refused event before it is parked (default {TRIES_MAX})",
    )
    parser.add_argument(
        "--parked",
        choices=("hold", "skip"),
        default="hold",
        help="whether a parked event blocks later ones of its aggregate (default), or is skipped",
    )
    parser.add_argument(
        "--keep",
        type=seconds(0, 10**8),
        default=86_400.0,
        help="seconds to keep published events (default 86400)",
    )
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        type=host_and_port,
        help="serve metrics of this worker and its store to Prometheus there (host: 127.0.0.1)",
    )
    parser.add_argument(
        "--health",
        metavar="[HOST:]PORT",
        type=host_and_port,
        help="answer GET /livez and /readyz there, for a supervisor's probes (HOST: 127.0.0.1)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Work until SIGTERM, or once."""
    if options.receivers is not None and options.sink is not None:
        raise UsageFailed("--receivers and --sink (or $SEMEL_SINK) exclude each other: a relay has one sink")
    relays = options.sink is not None or options.receivers is not None
    if not relays and options.no_reaper and not options.reconcile and options.complete is None:
        raise UsageFailed("--no-reaper without --sink leaves nothing to do; give a --sink, or let it reap")
    if options.metrics is not None and options.once:
        raise UsageFailed("--metrics needs a worker that keeps running; leave out --once, or --metrics")
    if options.health is not None and options.once:
        raise UsageFailed("--health needs a worker that keeps running; leave out --once, or --health")
    if options.sink is not None and options.sink.startswith("python:") and "" not in sys.path:
        sys.path.insert(0, "")  # as with `python -m`: the function is in the folder where the worker starts
    if options.reconcile or (options.sink or "").startswith("python:"):
        set_up_django()  # before the event loop: inside it Django's ORM refuses to work
    if options.complete is None:
        return asyncio.run(_work(options, None, out))
    with redirect_stdout(sys.stderr):  # keep the application's own output out of the worker's
        return asyncio.run(_work(options, load_application(options.complete), out))


_WORDS: Final[Mapping[str, str]] = {
    "lapsed": "lapsed commands made visible",
    "asked": "reconcilers asked",
    "settled": "settled by reconcilers",
    "gaveUp": "left to an operator",
    "completed": "executions completed",
    "failed": "runs that failed",
    "published": "events published",
    "parked": "events parked now",
    "waiting": "events waiting",
    "allParked": "events parked in all",
    "outage": "the sink cannot be reached",
    "heldElsewhere": "held by another relay",
}


class _Notes:
    """Prints errors of a running worker as lines on stderr; an error at start is printed once, at the end."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self.begun = False

    def log(self, level: int, msg: str, *args: object) -> None:
        if level >= 30 and self.begun:
            self._out.note(f"{_now()} semel: {msg % args}")


async def _work(options: argparse.Namespace, app: Any, out: Output) -> int:
    notes = _Notes(out)
    async with AsyncExitStack() as stack:
        ends = None
        if options.complete is not None:
            note_failures(asyncio.get_running_loop(), out.note)
            ends = await stack.enter_async_context(completing(app, options.complete))
        engine, metrics = _engine(options, ends, notes)
        await stack.enter_async_context(engine)
        for each in () if ends is None else ends.completers:
            if each.engine.backend.url == engine.backend.url:  # one database: this process reads it once
                look_together(engine.store, each.engine.store)
        notes.begun = True
        relay = None
        if options.sink is not None or options.receivers is not None:
            relay = Relay(
                engine,
                _sink(engine, options),
                batch=options.batch,
                tries_max=options.tries,
                hold=options.parked == "hold",
                keep_seconds=options.keep,
            )
        reaper = None if options.no_reaper else Reaper(engine)
        asks = [load_reconciler(text) for text in options.reconcile]
        reconciling = Reconciling(engine, asks) if asks else None
        if options.once:
            return await _once(relay, reaper, reconciling, ends, out)
        if metrics is not None:
            host, port = options.metrics
            stack.callback(metrics.close)
            port = stack.enter_context(metrics.serve(host, port))
            page = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
            _line(out, f"metrics: {page}", {"metrics": page})
        return await _until_told(engine, relay, reaper, reconciling, ends, options.health, out)


def _sink(engine: AsyncEngine, options: argparse.Namespace) -> Sink:
    """Return the sink to publish to."""
    if options.receivers is None:
        try:
            return connect_sink(options.sink)
        except UrlError as error:
            raise UsageFailed(f"--sink (or $SEMEL_SINK): {error}") from None
        except SemelError:
            raise
        except (Exception, SystemExit) as error:
            if not options.sink.startswith("python:"):
                raise
            module = options.sink.split(":")[1]  # a user's own code may raise anything
            raise UsageFailed(f"--sink: {module} could not be imported: {error_text(error)}") from None
    try:
        found = read_receivers(options.receivers)
    except ModuleNotFoundError:
        raise ConfigurationError(f"--receivers needs httpx; install it: {install_command('webhooks')}") from None
    # --once waits for each receiver; otherwise the relay collects a slow one's answer later.
    seconds = max(each.seconds for each in found) + 1 if options.once else SLICE_SECONDS
    return Receivers(engine, found, wait_seconds=seconds)


def _engine(
    options: argparse.Namespace, ends: Completing | None, notes: _Notes
) -> tuple[AsyncEngine, Prometheus | None]:
    """Return the worker's own engine, and the observer that counts its events if metrics were requested.

    The engine is on --url, the environment's URL, or the store of the operations that the worker completes.
    """
    url, secret = url_of(options), id_secret()
    if ends is not None and source_of_url(options) == "default":
        url, secret = ends.engine.backend.url, ends.engine.core.id_secret
        if not url:
            raise UsageFailed("--url is missing: the application's engine was not made from a URL; name its store")
    observers: list[Observer] = [Logging(notes)]
    metrics = None
    if options.metrics is not None:
        from semel.exporters.prometheus import Prometheus, own_registry  # needs an extra

        metrics = Prometheus(own_registry(), store=url)
        observers.append(metrics)
    engine = AsyncEngine.connect(url, id_secret=secret, observer=Both(*observers))
    require_shared(engine.store, url)
    return engine, metrics


async def _once(
    relay: Relay | None, reaper: Reaper | None, reconciling: Reconciling | None, ends: Completing | None, out: Output
) -> int:
    done: dict[str, Any] = {}
    if reaper is not None:
        done["lapsed"] = await reaper.run_once()
    if reconciling is not None:
        round = await reconciling.run_once()
        done.update(asked=round.asked, settled=round.settled, gaveUp=round.gave_up)
    if ends is not None:
        for completer in ends.completers:
            await completer.run_once()
        done.update(completed=ends.completed, failed=ends.failed)
    if relay is not None:
        try:
            done["published"] = await relay.run_once(wait_seconds=ONCE_WAITS_SECONDS)
            depth = await relay.gauge()
            await relay.sweep()
        finally:
            await relay.sink.close()
        done.update(parked=relay.parked, waiting=depth.waiting, allParked=depth.parked, outage=relay.outage)
        done["heldElsewhere"] = relay.held_elsewhere
    out.document(done)
    for name, value in done.items():
        if value is not None and (value or name != "heldElsewhere"):
            out.say(f"{_WORDS[name]}: {'yes' if value is True else value}")
    if relay is not None and relay.held_elsewhere:
        out.note(f"semel: events wait in partitions that another relay still holds after the wait\n{_HELD}")
    elif relay is not None and relay.outage is None and done["waiting"]:
        out.note(_LATER)
    unpublished = relay is not None and (relay.outage is not None or relay.held_elsewhere)
    return Exit.REFUSED if unpublished or done.get("failed") else Exit.OK


async def _until_told(
    engine: AsyncEngine,
    relay: Relay | None,
    reaper: Reaper | None,
    reconciling: Reconciling | None,
    ends: Completing | None,
    health: tuple[str, int] | None,
    out: Output,
) -> int:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    named = (("relay", relay), ("reaper", reaper), ("reconcilers", reconciling), ("completer", ends))
    parts = [name for name, part in named if part is not None]
    where = "" if relay is None else f", to {relay.sink.name}"
    of = {} if ends is None else {"completes": ends.operations}
    _line(
        out, f"working: {' and '.join(parts)} on {hide_password(engine.backend.url)}{where}", {"working": parts, **of}
    )
    if ends is not None:
        _line(out, f"completing: {', '.join(ends.operations)} on {hide_password(ends.engine.backend.url)}")
    async with AsyncExitStack() as stack:
        if health is not None:
            served = stack.enter_context(_health(health, engine, parts))
            _line(out, f"health: http://{served.address}{READY}", {"health": served.address})
        running: list[asyncio.Task[None]] = []
        if reaper is not None:
            running.append(asyncio.create_task(reaper.run()))
            stack.callback(running[-1].cancel)
        if reconciling is not None:
            running.append(asyncio.create_task(reconciling.run()))
            stack.callback(running[-1].cancel)
        for completer in () if ends is None else ends.completers:
            running.append(asyncio.create_task(completer.run()))
            stack.callback(running[-1].cancel)  # a running execution finishes first
        if relay is not None:
            relaying = asyncio.create_task(relay.run())
            running.append(relaying)
        stop = asyncio.create_task(told.wait())
        before = done = 0
        while not stop.done():
            ended, _ = await asyncio.wait({stop, *running}, timeout=TELL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for each in ended - {stop}:
                each.result()  # an unexpected error ends the worker
            if relay is not None:
                before = _tell(relay, before, out)
            done = _tell_completed(ends, done, out)
        if relay is not None:
            relay.stop()
            await relaying
            _tell(relay, before, out)
    with suppress(asyncio.CancelledError):
        await asyncio.wait(set(running))
    _tell_completed(ends, done, out)
    _line(out, "ended", {"ended": True})
    return Exit.OK


def _health(where: tuple[str, int], engine: AsyncEngine, parts: list[str]) -> HealthServer:
    async def check() -> Mapping[str, Any]:
        await engine.perform("identity", engine.store.identity)
        return {"working": parts}

    try:
        return HealthServer(*where, check)
    except OSError as error:
        raise UsageFailed(f"--health {where[0]}:{where[1]}: {error.strerror or error}; name another port") from None


def _tell(relay: Relay, before: int, out: Output) -> int:
    if relay.outage is not None:
        _line(out, f"the sink cannot be reached: {relay.outage}; events wait", {"outage": relay.outage})
    if relay.published > before:
        _line(
            out,
            f"published {relay.published - before} events, {relay.published} in all, {relay.parked} parked",
            {"published": relay.published, "parked": relay.parked},
        )
    return relay.published


def _tell_completed(ends: Completing | None, before: int, out: Output) -> int:
    if ends is None or ends.completed == before:
        return before
    text = f"completed {ends.completed - before} executions, {ends.completed} in all, {ends.failed} runs failed"
    _line(out, text, {"completed": ends.completed, "failed": ends.failed})
    return ends.completed


def _line(out: Output, text: str, document: Mapping[str, Any] | None = None) -> None:
    if document is not None:
        out.document(document)
    out.say(f"{_now()} {text}")


def _now() -> str:
    """Return the time of a log line, in UTC."""
    return f"{datetime.now(UTC).isoformat(timespec='seconds').removesuffix('+00:00')}Z"
