"""``python -m tests.frameworks.suite.host ADAPTER FOLDER FD``: a shop at its real server and at its own test client.

Two children share what this process has imported. One serves the socket ``FD``, and another takes its place when it
dies. The other one reads requests for the test client from the standard input, a line of JSON each, and writes the
answers; when the input ends, everything ends.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.frameworks.suite import shop
from tests.frameworks.suite.adapters import ADAPTERS, Adapter

Asked = dict[str, Any]
Ask = Callable[[Asked, bytes], tuple[int, list[tuple[str, str]], bytes]]


# --- real servers ---------------------------------------------------------------------------------


def uvicorn(made: Callable[[], Any], listener: socket.socket) -> None:
    import uvicorn

    app = made()
    is_django = type(app).__name__ == "ASGIHandler"  # which has no lifespan
    config = uvicorn.Config(shop.dying_asgi(app), lifespan="off" if is_django else "on", log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


def hypercorn(made: Callable[[], Any], listener: socket.socket) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config, ended = Config(), asyncio.Event()
    config.bind = [f"fd://{listener.fileno()}"]

    async def run() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        await serve(shop.dying_asgi(made()), config, shutdown_trigger=ended.wait)

    asyncio.run(run())


def gunicorn(made: Callable[[], Any], listener: socket.socket) -> None:
    from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]

    class Application(BaseApplication):  # type: ignore[misc]
        """Two workers with threads, each of which makes the shop of its own."""

        def load_config(self) -> None:
            given = {
                **{"bind": f"fd://{listener.detach()}", "workers": 2, "threads": 4, "control_socket_disable": True},
                **{"graceful_timeout": 5, "loglevel": "warning"},
            }
            for name, value in given.items():
                self.cfg.set(name, value)

        def load(self) -> Any:
            return shop.dying_wsgi(made())

    Application().run()


def waitress(made: Callable[[], Any], listener: socket.socket) -> None:
    from waitress import create_server

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    create_server(shop.dying_wsgi(made()), sockets=[listener], threads=8).run()


# --- test clients ---------------------------------------------------------------------------------


def starlette(app: Any) -> Iterator[Ask]:
    from starlette.testclient import TestClient

    with TestClient(app, raise_server_exceptions=False, follow_redirects=False) as client:
        yield _httpx(client)


def litestar(app: Any) -> Iterator[Ask]:
    from litestar.testing import TestClient

    with TestClient(app, raise_server_exceptions=False) as client:
        client.follow_redirects = False
        yield _httpx(client)


def _httpx(client: Any) -> Ask:
    def ask(asked: Asked, body: bytes) -> Any:
        got = client.request(asked["method"], asked["path"], content=body, headers=asked["headers"])
        return got.status_code, got.headers.multi_items(), got.content

    return ask


def flask(app: Any) -> Iterator[Ask]:
    yield _werkzeug(app.test_client())


def werkzeug(app: Any) -> Iterator[Ask]:
    from werkzeug.test import Client

    yield _werkzeug(Client(app))


def _werkzeug(client: Any) -> Ask:
    def ask(asked: Asked, body: bytes) -> Any:
        got = client.open(asked["path"], method=asked["method"], data=body, headers=asked["headers"], buffered=True)
        return got.status_code, list(got.headers), got.data

    return ask


def django(app: Any) -> Iterator[Ask]:
    from django.test import Client

    yield _django(Client(raise_request_exception=False))


def rest(app: Any) -> Iterator[Ask]:
    from rest_framework.test import APIClient

    yield _django(APIClient(raise_request_exception=False))


def _django(client: Any) -> Ask:
    def ask(asked: Asked, body: bytes) -> Any:
        headers = dict(asked["headers"])
        kind = headers.pop("Content-Type", "application/octet-stream")
        got = client.generic(asked["method"], asked["path"], body, content_type=kind, headers=headers)
        told = b"".join(got) if got.streaming else got.content
        cookies = [("Set-Cookie", each.OutputString()) for each in got.cookies.values()]
        return got.status_code, [*got.items(), *cookies], told

    return ask


def quart(app: Any) -> Iterator[Ask]:
    with asyncio.Runner() as runner:
        running = app.test_app()
        runner.run(running.startup())
        client = running.test_client()

        async def request(asked: Asked, body: bytes) -> Any:
            given = {"method": asked["method"], "data": body, "headers": dict(asked["headers"])}
            got = await client.open(asked["path"], **given)
            return got.status_code, list(got.headers), await got.get_data()

        def ask(asked: Asked, body: bytes) -> Any:
            return runner.run(request(asked, body))

        yield ask
        runner.run(running.shutdown())


# --- the host -------------------------------------------------------------------------------------

CLIENTS: Final[dict[str, Callable[[Any], Iterator[Ask]]]] = {
    each.__name__: each for each in (starlette, litestar, flask, werkzeug, django, rest, quart)
}
SERVERS: Final[dict[str, Callable[[Callable[[], Any], socket.socket], None]]] = {
    each.__name__: each for each in (uvicorn, hypercorn, gunicorn, waitress)
}


def answer_lines(adapter: Adapter, module: Any) -> None:
    """Answer what the standard input asks for: requests, and documents."""
    app = module.make()
    with contextmanager(CLIENTS[adapter.client])(app) as ask:
        for line in sys.stdin:
            asked = json.loads(line)
            if "ready" in asked:
                said: dict[str, Any] = {}
            elif "document" in asked:
                said = {"document": documents(app, module)[asked["document"]]()}
            else:
                said = answer_request(ask, asked)
            print(json.dumps(said), flush=True)


def documents(app: Any, module: Any) -> dict[str, Callable[[], Any]]:
    """The application's OpenAPI document: by its framework, and by ``semel openapi``."""
    from semel.cli.commands.develop.openapi import document_of

    return {"own": lambda: module.document(app), "command": lambda: document_of(app)}


def answer_request(ask: Ask, asked: Asked) -> dict[str, Any]:
    try:
        status, headers, body = ask(asked, base64.b64decode(asked["body"]))
    except Exception:  # noqa: BLE001 -- as a connection that is cut: what the application raised in its answer
        return {"status": 0, "headers": [], "body": ""}
    return {"status": status, "headers": headers, "body": base64.b64encode(body).decode()}


def fork(folder: Path, run: Callable[[], None]) -> int:
    """A child with its own folder."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ["SHOP_FOLDER"] = str(folder)
        run()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stderr.flush()
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)


def main(name: str, folder: Path, descriptor: int) -> None:
    adapter = next(each for each in ADAPTERS if str(each) == name)
    module = importlib.import_module(f"tests.frameworks.suite.shops.{adapter.shop}")
    for door in ("client", "server"):
        (folder / door).mkdir()
        os.environ["SHOP_FOLDER"] = str(folder / door)
        shop.prepare()
    listener = socket.socket(fileno=descriptor)

    def serve() -> None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        SERVERS[adapter.server](module.make, listener)

    client = fork(folder / "client", lambda: answer_lines(adapter, module))
    server = fork(folder / "server", serve)
    while True:
        ended, status = os.wait()
        if ended == client:
            break
        if os.waitstatus_to_exitcode(status) != shop.KILLED:
            os.kill(client, signal.SIGTERM)
            sys.exit(f"{adapter.server} has ended by itself")
        server = fork(folder / "server", serve)
    os.kill(server, signal.SIGTERM)
    os.waitpid(server, 0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
