"""`semel gateway`: a proxy's configuration, generated from the operations that an application declares."""

from __future__ import annotations

import argparse

from semel.admin.failures import UsageFailed
from semel.check.application import load_server
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit
from semel.cli.terminal import Output
from semel.cli.whole_file import add_output, check_output, write_output
from semel.errors import SemelError
from semel.gateway.configurations import WRITERS, Edge
from semel.gateway.guarded import find_guarded


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "gateway",
        "write the configuration of a proxy in front of an application, from its declared operations",
        "semel gateway shop.main:app --for nginx --upstream 127.0.0.1:8080\n"
        "semel gateway shop.main:app --for haproxy --upstream a:8080 --upstream b:8080 --output haproxy.cfg\n"
        "semel gateway 'shop.main:make_app()' --for envoy --upstream shop:8080 --listen 0.0.0.0:80 > envoy.yaml",
        "The proxy refuses a missing or malformed key, never makes one, passes keys on as they are, asks another "
        "upstream only for commands that have a key, waits longer than the service, and logs no key. The application "
        "is imported, not started. Try the file with nginx -t, haproxy -c, envoy --mode validate or caddy validate.",
    )
    parser.add_argument("application", nargs="?", metavar="APPLICATION", help="module:app or module:make_app()")
    parser.add_argument("--for", dest="proxy", required=True, choices=tuple(WRITERS), help="the proxy")
    parser.add_argument(
        "--upstream",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="where the application listens; repeat it for several, which must share one store",
    )
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT", help="where the proxy listens")
    parser.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="timeout for an answer (default: the longest wait, plus 30)"
    )
    add_output(parser)
    parser.set_defaults(run=run)


def _seconds(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= 86_400:
        raise argparse.ArgumentTypeError(f"must be 1 to 86400 seconds, not {text!r}")
    return int(text)


def run(options: argparse.Namespace, out: Output) -> int:
    """Write the configuration."""
    check_output(options)
    spec = options.application or getattr(options.project, "application", None)
    if spec is None:
        raise UsageFailed("give an application, such as shop.main:app (see semel gateway --help)")
    app = load_server(spec)
    try:
        edge = Edge(find_guarded(app), options.upstream, options.listen, seconds=options.timeout)
        text = WRITERS[options.proxy](edge)
    except SemelError as error:
        raise UsageFailed(f"APPLICATION {spec}: {error}") from error
    if len(options.upstream) > 1 and (alone := [each.name for each in edge.guarded if not each.shared]):
        names = ", ".join(alone)
        out.note(f"semel: the store of {names} exists in one process only: a second upstream would run a command again")
    write_output(options, out, {"for": options.proxy}, text)
    return Exit.OK
