"""`semel console`: the operators' pages of a store, for one browser on this machine."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import socket
import webbrowser
from contextlib import suppress

from semel.admin.effective import of_application
from semel.admin.failures import CommandFailed
from semel.cli.arguments import Commands, Parser, add_command, whole_number
from semel.cli.exits import Exit
from semel.cli.open_store import connect, hide_password, url_of
from semel.cli.terminal import Output
from semel.errors import StoreError
from semel.extras import install_command


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "console",
        "serve a store's operator pages to a browser on this machine",
        "semel console\n"
        "semel console --url postgresql://semel@db/shop --read-only\n"
        "semel console --application shop.main:app --port 8085 --open",
        "Shows stuck commands and why they are stuck, the history of a record, parked events, the doctor's findings "
        "and the policies, and settles commands, with a dry run. Listens on 127.0.0.1 only; the printed link works "
        "once. Stop it with Ctrl-C. To mount the pages in your own application, behind its authorisation, use "
        "semel.console.Console.",
    )
    parser.add_argument(
        "--port", type=whole_number(0, 65_535), default=0, help="the port to listen on (default: any free port)"
    )
    parser.add_argument("--read-only", action="store_true", help="show no form, and refuse every change")
    parser.add_argument("--application", metavar="MODULE:APP", help="show the policies that this application declares")
    parser.add_argument("--open", action="store_true", help="open the link in this machine's browser")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Serve the pages until Ctrl-C."""
    try:
        import uvicorn

        from semel.console.app import Console
        from semel.console.loopback import Loopback
    except ImportError as error:
        raise CommandFailed(f"the console needs {error.name}; run: {install_command('console')}") from error
    if options.application is not None:
        of_application(options.application)  # a wrong name is reported here, not on a page
    engine = connect(options)
    try:
        try:
            engine.open()
        except StoreError as error:  # an outage ends; a missing or different store is refused
            out.note(f"semel: {error}; the pages try again")
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind(("127.0.0.1", options.port))
            except OSError as error:
                raise CommandFailed(f"--port {options.port}: {error.strerror}; give another one") from error
            port = listening.getsockname()[1]
            door = Loopback(getpass.getuser(), (f"127.0.0.1:{port}", f"localhost:{port}"))
            door.console = Console(engine, door.operator, read_only=options.read_only, application=options.application)
            link = f"http://127.0.0.1:{port}/?token={door.token}"
            out.document({"event": "serving", "url": link})
            out.say(f"the console of {hide_password(url_of(options))}: {link}", "the link works once; stop with Ctrl-C")
            out.flush()
            if options.open:
                webbrowser.open(link)
            config = uvicorn.Config(door, log_level="warning", access_log=False, lifespan="off")
            listening.listen(64)
            with suppress(KeyboardInterrupt):  # Ctrl-C is its normal end
                asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))
    finally:
        engine.close()
    return Exit.OK
