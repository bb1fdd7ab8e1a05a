"""A service behind `semel proxy`, a process of its own that a test holds in the middle of a command, and kills.

``X-Hold: before:PORT`` (or ``after``) connects to the test's port before (after) the effect and waits there: it goes on
when it reads ``g``, and kills itself when it reads ``k``.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

EFFECTS = Path(os.environ["SERVICE_FOLDER"]) / "effects.txt"


async def hold(headers: dict[bytes, bytes], phase: str) -> None:
    """Wait for the test, where it asks for that."""
    wanted, _, port = headers.get(b"x-hold", b"").decode().partition(":")
    if wanted != phase:
        return
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    told = await reader.read(1)
    writer.close()
    if told == b"k":
        os.kill(os.getpid(), signal.SIGKILL)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Note what arrives, and answer with the status and the length that the path says."""
    if scope["type"] != "http":
        return
    headers = dict(scope["headers"])
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message.get("more_body"):
            break
    await hold(headers, "before")
    with EFFECTS.open("a") as file:
        line = f"{scope['method']} {scope['path']} {body.decode()} {headers.get(b'semel-downstream-key', b'').decode()}"
        file.write(f"{line}\n")
    await hold(headers, "after")
    status = int(headers.get(b"x-status", b"201"))
    await send({"type": "http.response.start", "status": status, "headers": [(b"x-service", b"yes")]})
    if scope["path"] in ("/stream", "/long"):
        await send({"type": "http.response.body", "body": b"first" * 20, "more_body": True})
        await hold(headers, "streaming")
    await send({"type": "http.response.body", "body": b"done"})
