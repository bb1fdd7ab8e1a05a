"""One worker process, from the supervisor's side: start on the inherited socket, readiness, drain, end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

from semel.reference.metrics import MetricsPlace
from semel.reference.settings import Settings

KILL_AFTER_SECONDS: Final = 15.0  # longer than a worker's own drain


class WorkerProcess:
    """A process of ``semel.reference.worker_main``.

    Parameters: ``settings`` of the service; ``listening``, the descriptor of the bound socket; ``lifeline``, the
    reading end of a pipe that closes with the supervisor; ``measured`` the metrics page's place.

    ``ready`` is the descriptor that becomes readable when the worker serves (None: already read), ``serves`` whether it
    does, ``former`` whether it is to be replaced, ``kill_at`` the monotonic time until which it may drain.
    """

    __slots__ = ("former", "kill_at", "process", "ready", "serves", "started")

    def __init__(self, settings: Settings, listening: int, lifeline: int, measured: MetricsPlace | None = None) -> None:
        self.ready: int | None
        self.ready, tells = os.pipe()
        descriptors = {"--socket": listening, "--lifeline": lifeline, "--ready": tells}
        if measured is not None:
            descriptors["--metrics"] = measured.listening.fileno()
        try:
            self.process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                [
                    *(sys.executable, "-m", "semel.reference.worker_main"),
                    *(word for name, value in descriptors.items() for word in (name, str(value))),
                ],
                pass_fds=tuple(descriptors.values()),
                env=_environment(settings, measured),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which passes it on once
            )
        except BaseException:
            self.forget()
            raise
        finally:
            os.close(tells)
        self.started = time.monotonic()
        self.serves = False
        self.former = False
        self.kill_at: float | None = None

    def hear(self) -> None:
        """Read the worker's messages: that it serves, or the end of the stream."""
        assert self.ready is not None
        self.serves = os.read(self.ready, 1) != b""
        self.forget()

    def forget(self) -> None:
        """Close the descriptor that reports readiness."""
        if self.ready is not None:
            os.close(self.ready)
            self.ready = None

    def end(self) -> None:
        """Ask the worker to drain and end."""
        self.kill_at = time.monotonic() + KILL_AFTER_SECONDS
        self.process.terminate()

    def kill_if_due(self) -> None:
        """Kill a worker that was asked to end and did not do so in time."""
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)


def _environment(settings: Settings, measured: MetricsPlace | None) -> dict[str, str]:
    """Return the supervisor's environment, with the resolved settings."""
    return {
        **os.environ,
        **({} if measured is None else {"PROMETHEUS_MULTIPROC_DIR": measured.folder}),
        "HOST": settings.host,
        "PORT": str(settings.port),
        "SEMEL_URL": settings.url,
        "SEMEL_DEMO": "1" if settings.demo else "0",
    }
