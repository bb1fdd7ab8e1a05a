"""Counters of real effects: a GET, a SQL query, the lines of a file, a command, or the tool's own webhook sink."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from semel.conform.case import Case, Hook
from semel.conform.wire import Reply, Target, encode, exchange, parse_target

_HOOK_SECONDS: Final = 60.0
Get = Callable[[str, Mapping[str, str]], Awaitable[Reply]]


class CountError(Exception):
    """Effects cannot be counted: the message names the field and the remedy."""


class Counter:
    """Counts the effects of a case. An async context manager: the webhook sink listens inside it."""

    def __init__(self, case: Case, get: Get) -> None:
        self._case = case
        self._get = get
        self._sink = _Sink()
        self._known: dict[bool, int] = {}  # the count since the last request, by ``both``

    def forget(self) -> None:
        """Discard the known counts: a request is being sent, or an earlier one may still have effects."""
        self._known.clear()

    async def count_before(self, *, both: bool = False) -> int:
        """Return the effects before a check: the last count, if nothing was sent since. Raises CountError."""
        known = self._known.get(both)
        return await self.count(both=both) if known is None else known

    async def __aenter__(self) -> Counter:
        if self._case.effects.webhook:
            host, _, port = self._case.effects.webhook.rpartition(":")
            try:
                await self._sink.listen(host, int(port))
            except OSError as error:
                raise CountError(
                    f"cannot listen on effects.webhook {self._case.effects.webhook}: {error.strerror}; "
                    "give a free port of this machine"
                ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sink.close()

    async def count(self, *, both: bool = False) -> int:
        """Count the effects; with ``both``, those of both callers. Raises CountError."""
        self._known.clear()
        found = self._known[both] = await self._count(both)
        return found

    async def _count(self, both: bool) -> int:
        effects = self._case.effects
        if effects.settle_seconds:
            await asyncio.sleep(effects.settle_seconds)
        if effects.get:
            total = await self._by_get(self._case.caller)
            if both and effects.per_caller and self._case.other_caller is not None:
                total += await self._by_get(self._case.other_caller)
            return total
        if effects.sql:
            return await asyncio.to_thread(_by_sql, effects.database, effects.sql)
        if effects.file:
            return await asyncio.to_thread(_lines, effects.file)
        if effects.command:
            return await _by_command(effects.command)
        return self._sink.received

    async def _by_get(self, headers: Mapping[str, str]) -> int:
        path, pointer = self._case.effects.get, self._case.effects.pointer
        reply = await self._get(path, headers)
        if reply.status != 200:
            raise CountError(f"effects.get {path}: {reply.text()}; it must answer 200 with JSON to the first caller")
        try:
            value: Any = json.loads(reply.body)
        except ValueError:
            raise CountError(f"effects.get {path} answers {reply.media_type or 'something'}, not JSON") from None
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(name)] if isinstance(value, list) else value[name]
            except (LookupError, ValueError, TypeError):
                raise CountError(f"effects.pointer {pointer!r} leads nowhere in the answer of {path}") from None
        if isinstance(value, list | dict):
            return len(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise CountError(f"effects.pointer {pointer!r} leads to {type(value).__name__}; it must be a list or a number")


def _by_sql(database: str, query: str) -> int:
    try:
        if database.startswith("sqlite:///"):
            path = Path(database.removeprefix("sqlite:///")).absolute()
            with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file:
                row = file.execute(query).fetchone()
        else:
            try:
                psycopg = importlib.import_module("psycopg")
            except ImportError:
                raise CountError("effects.database needs psycopg: pip install 'psycopg[binary]'") from None
            with psycopg.connect(database, connect_timeout=10) as connection:
                row = connection.execute(query).fetchone()
    except CountError:
        raise
    except Exception as error:  # noqa: BLE001 -- any client's error is the user's query or database
        told = str(error).splitlines() or [type(error).__name__]
        raise CountError(f"effects.sql failed: {told[0]}") from None
    return _number(row[0] if row else None, "effects.sql")


def _lines(path: str) -> int:
    try:
        with Path(path).open("rb") as file:
            return sum(1 for _ in file)
    except FileNotFoundError:
        return 0  # nothing has happened yet
    except OSError as error:
        raise CountError(f"effects.file {path!r} cannot be read: {error.strerror}") from None


async def _by_command(words: tuple[str, ...]) -> int:
    return _number((await _run(words, "effects.command")).strip(), "effects.command")


def _number(value: Any, place: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise CountError(f"{place} must give one whole number, not {str(value)[:40]!r}") from None


async def _run(words: tuple[str, ...], place: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise CountError(f"{place}: {words[0]!r} cannot be started: {error.strerror}") from None
    try:
        async with asyncio.timeout(_HOOK_SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise CountError(f"{place}: {words[0]!r} did not end within {_HOOK_SECONDS:g} s") from None
    if process.returncode:
        last = (err or out).decode("utf-8", "replace").strip().splitlines()[-1:]
        raise CountError(f"{place}: {words[0]!r} ended with {process.returncode}{': ' + last[0] if last else ''}")
    return out.decode("utf-8", "replace")


async def run_hook(hook: Hook, name: str, argument: str = "") -> None:
    """Run a hook: execute a command, or POST to a URL. Raises CountError."""
    if not isinstance(hook, str):
        await _run((*hook, argument) if argument else hook, f"hooks.{name}")
        return
    url, _, query = hook.partition("?")
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    target = _hook_target(f"{scheme}://{host}", name)
    reply = await exchange(
        target, encode(target, "POST", f"{slash or '/'}{path}{'?' + query if query else ''}", [], argument.encode()),
        "POST", _HOOK_SECONDS,
    )  # fmt: skip
    if not reply.ok:
        raise CountError(f"hooks.{name}: {hook} answers {reply.text()}; a hook must answer 2xx when it is done")


def _hook_target(url: str, name: str) -> Target:
    try:
        return parse_target(url)
    except ValueError as error:
        raise CountError(f"hooks.{name}: {error}") from None


class _Sink:
    """Receives webhooks: each POST is one effect."""

    def __init__(self) -> None:
        self.received = 0
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, host, port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").lower().split("\r\n")
                length = next((line[15:] for line in lines if line.startswith("content-length:")), "0").strip()
                if length.isdigit():
                    await reader.readexactly(min(int(length), 10_000_000))
                if not lines[0].startswith("get "):
                    self.received += 1
                writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that disconnects early has delivered nothing
        finally:
            writer.close()
