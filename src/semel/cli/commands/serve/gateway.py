"""`semel gateway`: a proxy's configuration, written from the operations that an application declares."""

from __future__ import annotations

import argparse

from semel.check.application import load
from semel.check.discovery import is_asgi, is_wsgi
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit, UsageFailed
from semel.cli.terminal import Output
from semel.cli.whole_file import WholeFile
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
    parser.add_argument("--output", metavar="FILE", help="write to this file, completely or not at all")
    parser.add_argument("--force", action="store_true", help="replace the file")
    parser.set_defaults(run=run)


def _seconds(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= 86_400:
        raise argparse.ArgumentTypeError(f"must be 1 to 86400 seconds, not {text!r}")
    return int(text)


def run(options: argparse.Namespace, out: Output) -> int:
    """Write the configuration."""
    if options.force and options.output is None:
        raise UsageFailed("--force replaces the file of --output; give --output FILE")
    spec = options.application or getattr(options.project, "application", None)
    if spec is None:
        raise UsageFailed("give an application, such as shop.main:app (see semel gateway --help)")
    app = load(spec)
    if not (callable(app) and (is_asgi(app) or is_wsgi(app))):
        kind = type(app).__name__
        raise UsageFailed(f"APPLICATION {spec} is of the type {kind}, no ASGI or WSGI application")
    try:
        edge = Edge(find_guarded(app), options.upstream, options.listen, seconds=options.timeout)
        text = WRITERS[options.proxy](edge)
    except SemelError as error:
        raise UsageFailed(f"APPLICATION {spec}: {error}") from error
    if len(options.upstream) > 1 and (alone := [each.name for each in edge.guarded if not each.shared]):
        names = ", ".join(alone)
        out.note(f"semel: the store of {names} exists in one process only: a second upstream would run a command again")
    if options.output is None:
        if out.machine:
            out.document({"for": options.proxy, "text": text})
        else:
            out.raw(text)
            out.flush()
        return Exit.OK
    with WholeFile(options.output, "--output", replace=options.force) as file:
        file.write(text)
        file.keep()
    out.document({"for": options.proxy, "file": options.output})
    out.say(f"written: {options.output}")
    return Exit.OK
