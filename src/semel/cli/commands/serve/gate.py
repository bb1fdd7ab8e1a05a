"""`semel gate`: a check of keys in front of an HTTP service, in any language, that enforces idempotency itself."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from semel.admin.failures import CommandFailed, UsageFailed
from semel.admin.words import table_lines
from semel.check.application import load_server
from semel.cli.arguments import Commands, Parser, add_command, add_listening
from semel.cli.exits import Exit
from semel.cli.terminal import Output
from semel.errors import SemelError
from semel.extras import install_command
from semel.gateway.guarded import Guarded, find_guarded, read_guarded, sort_by_precision
from semel.proxy.configuration import GRACE_SECONDS, UpstreamOrigin, read_configuration


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "gate",
        "refuse missing and malformed keys in front of an HTTP service that enforces idempotency itself",
        "semel gate --config operations.toml --check\n"
        "semel gate --config operations.toml --upstream http://127.0.0.1:3000\n"
        "semel gate shop.main:app --upstream http://shop:8080 --host 0.0.0.0",
        "The gate has no store: it makes no key, changes none, and sends no request twice. Where the service does not "
        "enforce idempotency, use `semel proxy` with the same file. SIGTERM lets requests that are on their way end, "
        f"for {GRACE_SECONDS} s at most.",
    )
    parser.add_argument(
        "application", nargs="?", metavar="APPLICATION", help="module:app that declares the operations, not started"
    )
    parser.add_argument("--config", metavar="FILE", help="the operations, in TOML (docs/proxy.md), without a caller")
    add_listening(parser)
    parser.add_argument("--check", action="store_true", help="only show the operations and the key that each requires")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Show the operations, or serve until SIGTERM or SIGINT."""
    operations = _operations(options)
    if not any(each.header for each in operations):
        raise UsageFailed("no operation takes its key from a header: the gate would have nothing to check")
    if options.check:
        if options.upstream is not None:
            UpstreamOrigin.of(options.upstream)
        rows = [
            {
                "operation": each.name,
                "method": "|".join(each.methods),
                "path": each.path,
                "key": "none" if each.header is None else "required" if each.required else "optional",
                "header": each.header or "",
            }
            for each in sort_by_precision(operations)
        ]
        out.document({"operations": rows})
        for line in table_lines(list(rows[0]), [list(each.values()) for each in rows]):
            out.say(line)
        return Exit.OK
    if options.upstream is None:
        raise UsageFailed("--upstream is missing: name the service, such as --upstream http://127.0.0.1:3000")
    origin = UpstreamOrigin.of(options.upstream)
    for name in ("httpcore", "uvicorn"):
        if find_spec(name) is None:
            raise CommandFailed(f"the gate needs {name}; install it: {install_command('proxy')}")
    from semel.gateway.application import GateApplication
    from semel.proxy.application import serve

    serve(GateApplication(origin, operations), options.host, options.port, options.health)
    return Exit.OK


def _operations(options: argparse.Namespace) -> list[Guarded]:
    spec = options.application
    if spec is None and options.config is None:
        spec = getattr(options.project, "application", None)
    if (spec is None) == (options.config is None):
        raise UsageFailed("name the operations once: --config FILE, or APPLICATION such as shop.main:app")
    if options.config is not None:
        return read_guarded(read_configuration(options.config, needs_caller=False))
    app = load_server(spec)
    try:
        return find_guarded(app)
    except SemelError as error:
        raise UsageFailed(f"APPLICATION {spec}: {error}") from error
