"""An application whose command ends when it is let, behind both middlewares: for tests with real servers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from flask import Flask

from semel import AsyncEngine, Engine, Policy
from semel.http.asgi.middleware import SemelMiddleware as AsgiMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.integrations.flask import Semel

BODY_SECONDS = 1
DECLARED = [Operation("/slow", Policy(effects="external")), Operation("/notes", Policy(effects="external"))]
END_SECONDS = 30.0


def wsgi() -> Any:
    """`POST /slow` ends after `GET /end`; everything else at once."""
    end = threading.Event()

    def shop(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/slow":
            assert end.wait(END_SECONDS)
        elif environ["PATH_INFO"] == "/end":
            end.set()
        start_response("201 Created", [("Content-Type", "text/plain")])
        return [b"done"]

    engine = Engine.connect("memory://")
    engine.open()
    return WsgiMiddleware(shop, engine, caller=single_caller, operations=DECLARED, body_seconds_max=BODY_SECONDS)


def flask() -> Any:
    """`POST /notes` alone, by a Flask view that claims after Flask's own checks."""
    engine = Engine.connect("memory://")
    engine.open()
    app = Flask("slow_shop")
    semel = Semel(app, engine, caller=single_caller, body_seconds_max=BODY_SECONDS)

    @app.post("/notes")
    @semel.command("notes.create", effects="external")
    def create() -> Any:
        return "done", 201

    return app


def asgi() -> Any:
    """`POST /notes` alone."""

    async def shop(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})

    engine = AsyncEngine.connect("memory://")
    return AsgiMiddleware(shop, engine, caller=single_caller, operations=DECLARED, body_seconds_max=BODY_SECONDS)


def main(server: str, port: int) -> None:
    """Serve by a server that has no command line of its own."""
    if server in ("werkzeug", "flask"):
        from werkzeug.serving import make_server

        make_server("127.0.0.1", port, wsgi() if server == "werkzeug" else flask(), threaded=True).serve_forever()
    else:
        import uvicorn

        config = uvicorn.Config(asgi(), port=port, http=server.removeprefix("uvicorn-"), lifespan="off")
        asyncio.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    import sys

    main(sys.argv[1], int(sys.argv[2]))
