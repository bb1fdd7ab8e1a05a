"""`semel metrics`: alert rules and a dashboard to begin with, and the store's gauges for a file of node_exporter."""

from __future__ import annotations

import argparse
import os
from importlib.resources import files
from typing import Final

from semel.admin.failures import CommandFailed
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.terminal import Output
from semel.cli.whole_file import add_output, check_output, write_output
from semel.errors import ConfigurationError

_SHIPPED: Final = {"rules": "semel.rules.yml", "dashboard": "semel-dashboard.json"}
KINDS: Final = (*_SHIPPED, "gauges")


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "metrics",
        "alert rules for Prometheus, a dashboard for Grafana, or the store's gauges as text",
        "semel metrics rules --output semel.rules.yml\n"
        "semel metrics dashboard --output semel-dashboard.json\n"
        "semel metrics gauges --url postgresql://semel@db/shop\n"
        "semel metrics gauges --output /var/lib/node_exporter/semel.prom --force",
        "Without --output it goes to stdout. The gauges read a bounded number of rows and need the extra prometheus. "
        "Edit the thresholds in the file.",
    )
    parser.add_argument("what", choices=KINDS, metavar=f"{{{','.join(KINDS)}}}", help="what to write")
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Write the rules, the dashboard or the gauges."""
    check_output(options)
    text = _gauges(options) if options.what == "gauges" else read_shipped(options.what)
    write_output(options, out, {"what": options.what}, text)
    if options.what == "gauges" and options.output is not None:
        os.chmod(options.output, 0o644)  # node_exporter runs as a different user; no gauge is secret
    return Exit.OK


def read_shipped(what: str) -> str:
    """Read a file that the package ships: ``rules`` or ``dashboard``.

    >>> read_shipped("rules").startswith("#")
    True
    """
    return files("semel.exporters").joinpath(_SHIPPED[what]).read_text("utf-8")


def _gauges(options: argparse.Namespace) -> str:
    try:
        from prometheus_client import CollectorRegistry, generate_latest

        from semel.exporters.prometheus import StoreGauges
    except (ImportError, ConfigurationError) as error:
        from semel.extras import install_command

        raise CommandFailed(f"the gauges need prometheus-client; run: {install_command('prometheus')}") from error
    with open_store(options) as engine:
        registry = CollectorRegistry()
        registry.register(StoreGauges(engine))
        return generate_latest(registry).decode("utf-8")
