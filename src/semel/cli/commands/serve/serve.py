"""`semel serve`: the reference service under its supervisor."""

from __future__ import annotations

import argparse
from dataclasses import replace
from importlib.util import find_spec
from typing import Final

from semel.admin.failures import CommandFailed
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.open_store import url_of
from semel.cli.terminal import Output
from semel.extras import install_command
from semel.reference.settings import WORKERS_MAX, Settings

LIBRARIES: Final = ("fastapi", "fastapi_offline", "uvicorn")  # orjson only makes the service faster


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "serve",
        "migrate the store and serve the reference service",
        "semel serve\nSEMEL_DEMO=1 semel serve --port 9000 --workers 2\nsemel serve --no-supervisor",
        "A small supervisor owns the port and restarts workers that die; on SIGHUP it replaces them one by one, "
        "without a gap. Also read from the environment: HOST, PORT, SEMEL_URL, SEMEL_WORKERS, SEMEL_DEMO, "
        "SEMEL_METRICS, SEMEL_ID_SECRET_FILE.",
    )
    parser.add_argument("--host", help="where to listen (default: $HOST, or else 127.0.0.1)")
    parser.add_argument("--port", type=whole_number(0, 65535), help="default: $PORT, or else 8080; 0: any free port")
    parser.add_argument(
        "--workers", type=whole_number(1, WORKERS_MAX), help="how many processes (default: $SEMEL_WORKERS, or else 1)"
    )
    parser.add_argument(
        "--no-supervisor", action="store_true", help="serve in this process, which is not restarted when it ends"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Serve until SIGTERM or SIGINT."""
    given = {name: getattr(options, name) for name in ("host", "port", "workers")}
    settings = replace(
        Settings.read(), url=url_of(options), **{name: value for name, value in given.items() if value is not None}
    )
    check_installed()
    from semel.reference.supervisor import serve

    return serve(settings, out, supervised=not options.no_supervisor)


def check_installed() -> None:
    """Report missing libraries before starting anything: they come with an extra."""
    for name in LIBRARIES:
        if find_spec(name) is None:
            library = name.replace("_", "-")
            raise CommandFailed(f"the service needs {library}; install it: {install_command('service')}")
