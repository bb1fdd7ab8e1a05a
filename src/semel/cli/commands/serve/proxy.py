"""`semel proxy`: the whole of Semel in front of an HTTP service in any language."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from semel.admin.failures import CommandFailed, UsageFailed
from semel.admin.words import table_lines
from semel.cli.arguments import Commands, Parser, add_command, add_listening
from semel.cli.exits import Exit
from semel.cli.open_store import open_store, url_of
from semel.cli.terminal import Output
from semel.engine.async_engine import AsyncEngine
from semel.extras import install_command
from semel.proxy.configuration import GRACE_SECONDS, UpstreamOrigin, read_configuration
from semel.reference.settings import id_secret, seal_keys


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "proxy",
        "protect the commands of an HTTP service in any language, as a reverse proxy in front of it",
        "semel proxy --config operations.toml --check\n"
        "semel proxy --config operations.toml --upstream http://127.0.0.1:3000 --store sqlite:///semel.db\n"
        "semel proxy --config operations.toml --upstream http://shop:3000 --store postgresql://semel@db/shop "
        "--host 0.0.0.0",
        "Run `semel migrate` on the store first. Several proxies may share one store. SIGTERM lets requests that are "
        f"on their way end, for {GRACE_SECONDS} s, and commands for their timeout_seconds more.",
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="the operations, in TOML (docs/proxy.md)")
    parser.add_argument("--store", metavar="URL", help="the store; the same as --url")
    add_listening(parser)
    parser.add_argument("--check", action="store_true", help="only check the configuration and show its operations")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Check the configuration, or serve until SIGTERM or SIGINT."""
    configuration = read_configuration(options.config)
    for name in ("httpcore", "uvicorn"):
        if find_spec(name) is None:
            raise CommandFailed(f"the proxy needs {name}; install it: {install_command('proxy')}")
    from semel.proxy.application import ProxyApplication, describe, serve

    if options.check:
        if options.upstream is not None:
            UpstreamOrigin.of(options.upstream)
        operations = describe(configuration)
        out.document({"caller": configuration.caller_rule, "operations": operations})
        out.say("", f"caller: {configuration.caller_rule}")
        rows = [[str(value) for value in each.values()] for each in operations]
        for line in table_lines(list(operations[0]), rows):
            out.say(line)
        return Exit.OK
    if options.upstream is None:
        raise UsageFailed("--upstream is missing: name the service, such as --upstream http://127.0.0.1:3000")
    origin = UpstreamOrigin.of(options.upstream)
    if options.store is not None:
        options.url = options.store
    with open_store(options):
        pass  # reports an unusable store here, in one line
    engine = AsyncEngine.connect(url_of(options), id_secret=id_secret(), sealer=seal_keys())

    async def check() -> dict[str, str]:
        await engine.perform("identity", engine.store.identity)
        return {"store": "answers"}

    serve(ProxyApplication(engine, origin, configuration), options.host, options.port, options.health, check)
    return Exit.OK
