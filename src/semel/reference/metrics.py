"""The reference service's metrics page on a separate port: any worker answers for all of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError
from semel.extras import install_command
from semel.reference.settings import Settings


@dataclass(frozen=True, slots=True)
class MetricsPlace:
    """The address of the metrics page, and the folder with the workers' shared counts."""

    listening: socket.socket
    folder: str

    @property
    def url(self) -> str:
        """The page."""
        host, port = self.listening.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


@contextmanager
def serve_metrics(settings: Settings) -> Iterator[MetricsPlace | None]:
    """Serve metrics as ``SEMEL_METRICS`` requires. Raises ConfigurationError, naming it, if that is impossible."""
    if settings.metrics is None:
        yield None
        return
    if find_spec("prometheus_client") is None:
        raise ConfigurationError(f"SEMEL_METRICS needs prometheus-client; install it: {install_command('prometheus')}")
    host, port = settings.metrics
    with TemporaryDirectory(prefix="semel-metrics-") as folder:
        try:
            listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigurationError(
                f"SEMEL_METRICS: cannot listen on {host}:{port}: {why}; choose another port, or leave it out"
            ) from error
        with listening:
            yield MetricsPlace(listening, folder)


class Page:
    """The service, and beside it the metrics page on the port of ``listening``."""

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        from semel.exporters.prometheus import Prometheus, own_registry  # needs an extra

        self._store = Engine.connect(settings.url, id_secret=settings.id_secret)
        self.observer = Prometheus(own_registry(), store=self._store)
        self._page = self.observer.asgi()
        self._port = listening.getsockname()[1]

    def beside(self, app: Any) -> Any:
        """Combine both into one ASGI application."""

        async def either(scope: Any, receive: Any, send: Any) -> None:
            server = scope.get("server")
            if scope["type"] != "http" or server is None or server[1] != self._port:
                await app(scope, receive, send)
            elif scope["path"] == "/metrics":
                await self._page(scope, receive, send)
            else:
                headers = [(b"content-type", b"text/plain; charset=utf-8")]
                await send({"type": "http.response.start", "status": 404, "headers": headers})
                await send({"type": "http.response.body", "body": b"the page is /metrics\n"})

        return either

    def close(self) -> None:
        """Close the store. Counts remain."""
        self._store.close()
