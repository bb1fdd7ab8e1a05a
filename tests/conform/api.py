"""An API that does everything right, or exactly one thing wrong: what the check of that id looks for.

``RIGHT_OTHERWISE`` names what it may do in another way, and is right as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from semel.conform import Case, parse_case
from semel.conform.case import HOOKS

LEASE = 0.3
EXPIRY = 1000.0
SLOW = 0.3
TICK = 0.002
KEY_MAX = 255
HUGE = "x" * 3_000_000
CALLERS = {"Bearer alice": "alice", "Bearer bob": "bob"}

CASE = f"""
[request]
path = "/payments"
json = {{amount = 5, name = "rent"}}
[other]
json = {{amount = 6, name = "rent"}}
[second]
path = "/refunds"
json = {{amount = 5, name = "back"}}
[slow]
json = {{amount = 5, name = "slow"}}
seconds = {SLOW}
[refused]
json = {{amount = -1, name = "rent"}}
[broken]
json = {{amount = 5, name = "broken"}}
[large_answer]
json = {{amount = 5, name = "large"}}
[huge_answer]
json = {{amount = 5, name = "huge"}}
[empty_answer]
json = {{amount = 5, name = "empty"}}
[binary_answer]
json = {{amount = 5, name = "binary"}}
[stream_answer]
json = {{amount = 5, name = "stream"}}
[other_path]
path = "/payments/2"
[number_a]
body = '{{"amount": 9007199254740992, "name": "rent"}}'
[number_b]
body = '{{"amount": 9007199254740993, "name": "rent"}}'
[callers.first]
Authorization = "Bearer alice"
[callers.second]
Authorization = "Bearer bob"
[effects]
get = "/payments"
pointer = "/count"
per_caller = true
[multipart]
amount = "5"
name = "rent"
[limits]
rounds = 2
parallel = 6
crowd = 24
body_bytes = 400_000
timeout_seconds = 5
"""


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes
    late: bool
    chunked: bool
    again: bool

    def get(self, name: str) -> str | None:
        return next((value.strip() for found, value in self.headers if found.lower() == name), None)

    @property
    def media_type(self) -> str:
        return (self.get("content-type") or "").partition(";")[0]


@dataclass
class Said:
    """An answer."""

    status: int
    document: Any
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = "application/json"
    junk: bytes = b""
    body: bytes = b""
    streamed: bool = False

    def __post_init__(self) -> None:
        self.body = self.body or (b"" if self.status == 204 else json.dumps(self.document).encode())


@dataclass
class Record:
    """What is known of a key."""

    fingerprint: str
    since: float
    slow: bool
    answer: Said | None = None
    crashed_at: float | None = None
    replays: int = 0
    waiting: int = 0


class BadKey(Exception):
    """The key's header is malformed."""


RIGHT_OTHERWISE: Final = ("accepts-duplicates", "not-implemented")


class Api:
    """The server. ``wrong`` names the check that it must fail; empty: none."""

    def __init__(self, wrong: str = "", *, required: bool = True) -> None:
        self.wrong = wrong
        self.required = required
        self.records: dict[tuple[str, ...], Record] = {}
        self.used: dict[str, str] = {}
        self.effects: dict[str, int] = {}
        self.unkeyed: set[tuple[str, bytes]] = set()
        self.store_off = False
        self.store_hangs = False
        self.store_is_back = asyncio.Event()
        self.operations: dict[str, tuple[str, str]] = {}  # by id: whose it is, and its key
        self.clock = 0.0
        self.spoiled: set[tuple[str, ...]] = set()
        self.running: set[asyncio.Task[None]] = set()
        self.writers: set[asyncio.StreamWriter] = set()
        self.idle = asyncio.Event()
        self.idle.set()
        self.port = 0
        self.control_port = 0
        self._server: asyncio.Server | None = None

    # --- listening ---

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """End everything at once: no request continues, and nothing listens."""
        assert self._server is not None
        self._server.close()
        for task in list(self.running):
            task.cancel()
        for writer in list(self.writers):
            writer.transport.abort()
        await self._server.wait_closed()
        await asyncio.gather(*self.running, return_exceptions=True)
        for key, record in list(self.records.items()):
            if (record.answer is None and self.wrong == "crash-one-effect") or (
                record.answer is not None and self.wrong == "crash-remembers"
            ):
                del self.records[key]
            elif record.answer is None:
                record.crashed_at = asyncio.get_running_loop().time()
        self.idle.set()
        self.store_is_back.set()

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(length[1])) if length else b""
        name = head.split(" ")[1].strip("/")
        if name == "kill":
            await self.kill()
        elif name == "restart":
            await self.listen()
        elif name == "clock":
            self.clock += float(body)
        else:
            self.store_off, self.store_hangs = name == "store_off", name == "store_hang"
            if name == "store_hang":
                self.store_is_back.clear()
            elif name == "store_on":
                self.store_is_back.set()
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.running.add(task)
        self.writers.add(writer)
        try:
            again = False
            while await self._one(reader, writer, again):
                again = True
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.running.discard(task)
            self.writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, again: bool) -> bool:
        asked = await self._read(reader, again)
        if asked is None:
            return False
        said = await self._answer(asked, reader)
        closes = (asked.get("connection") or "").lower() == "close"
        lines = [f"HTTP/1.1 {said.status} Said"]
        body = b"" if asked.method == "HEAD" else said.body
        if said.streamed:
            half = len(body) // 2
            body = (
                b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:half], body[half:])) + b"0\r\n\r\n"
            )
            lines.append("Transfer-Encoding: chunked")
        elif said.status != 204:
            lines.append(f"Content-Length: {len(said.body)}")
        if said.status != 204:
            lines.append(f"Content-Type: {said.kind}")
        lines += [f"{name}: {value}" for name, value in said.headers.items()] + ["Connection: close"] * closes
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        if self.wrong == "lost-answer" and not has_left(reader):
            writer.write(head)
            await writer.drain()
            await pause(0.02)
            if has_left(reader):
                self.records.clear()
                return False
            writer.write(body)
        else:
            writer.write(head + body + said.junk)
        await writer.drain()
        return not closes

    async def _read(self, reader: asyncio.StreamReader, again: bool) -> Asked | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head[:-4].split("\r\n")
        method, target, _ = first.split(" ")
        headers = [(name, value[1:]) for name, _, value in (line.partition(":") for line in lines)]
        path, _, query = target.partition("?")
        found = {name.lower(): value.strip() for name, value in headers}
        chunked = "transfer-encoding" in found
        late, body = False, b""
        if chunked:
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        elif length := int(found.get("content-length", "0")):
            reading = asyncio.ensure_future(reader.readexactly(length))
            if self.wrong == "slow-client" and length < 10_000:
                _, waiting = await asyncio.wait({reading}, timeout=0.02)
                late = bool(waiting)
            try:
                body = await reading
            except asyncio.IncompleteReadError:
                if self.wrong == "half-body":
                    asked = Asked(method, path, query, headers, b"{}", False, chunked, again)
                    place = self._place(asked, "alice", self.key_of(asked) or "")
                    self.records[place] = Record("half", self.clock, False)
                raise
        return Asked(method, path, query, headers, body, late, chunked, again)

    # --- answering ---

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader) -> Said:
        caller = CALLERS.get(asked.get("authorization") or "")
        if asked.path == "/openapi.json":
            return Said(200, self._openapi())
        if caller is None:
            if self.wrong == "caller-nobody" and (record := self._anybodys(asked)):
                return self._replay(record)
            return self._problem(401, "Who are you?")
        if asked.method in ("GET", "HEAD"):
            if self.wrong == f"other-{asked.method.lower()}" and (record := self._anybodys(asked)):
                return self._replay(record)
            if asked.path.startswith("/status/"):
                return self._status(asked.path.rpartition("/")[2], caller)
            return Said(200, {"count": self.effects.get(caller, 0)})
        if asked.path not in ("/payments", "/payments/2", "/refunds"):
            return self._problem(404, "Nothing here")
        if asked.method != "POST":
            if self.wrong == "other-method" and (record := self._anybodys(asked)):
                return self._replay(record)
            if self.wrong == "not-implemented":
                return self._problem(501, "Only POST is implemented")
            return self._problem(405, "Only POST")
        try:
            key = self.key_of(asked)
        except BadKey as error:
            return self._problem(400, str(error))
        if key is None:
            return await self._without_key(asked, caller)
        if self.wrong == "flight-other-key":
            await self.idle.wait()
        return await self._answer_protected(asked, caller, key, reader)

    async def _without_key(self, asked: Asked, caller: str) -> Said:
        if not self.required:
            if self.wrong == "key-optional" and (caller, asked.body) in self.unkeyed:
                return Said(201, {"id": "old"})
            self.unkeyed.add((caller, asked.body))
            return await self._work(asked, caller)
        if self.wrong == "key-missing":
            return await self._work(asked, caller)
        return self._problem(
            428 if self.wrong == "key-missing-status" else 400, "Idempotency-Key is missing", "missing"
        )

    async def _answer_protected(self, asked: Asked, caller: str, key: str, reader: asyncio.StreamReader) -> Said:
        wrong = self.wrong
        if wrong == "key-injection" and "'or'" in key:
            return self._problem(500, "syntax error")
        if wrong == "replay-huge-body" and len(asked.body) > 300_000:
            return self._problem(500, "out of memory")
        place = self._place(asked, caller, key)
        if self.store_hangs:
            if wrong == "outage-hang":
                await self.store_is_back.wait()
            return self._problem(503, "No store", headers={"Retry-After": "1"})
        if self.store_off:
            known = place in self.records
            if (wrong == "outage-replay" and known) or (wrong == "outage-no-effect" and not known):
                return await self._work(asked, caller)
            if wrong == "outage-recovers":
                self.spoiled.add(place)
            return self._problem(500 if wrong == "outage-status" else 503, "No store", headers={"Retry-After": "1"})
        if place in self.spoiled:
            return self._problem(410, "This key was in use during an outage")
        if (
            (wrong == "replay-once")
            or (wrong == "replay-same-connection" and asked.again)
            or (wrong == "slow-client" and asked.late)
            or (wrong == "replay-large-body" and 100_000 < len(asked.body) < 300_000)
        ):
            return await self._work(asked, caller)
        print_ = self.fingerprint(asked)
        if wrong == "caller-other-payload" and self.used.get(key, print_) != print_ and place not in self.records:
            return self._problem(422, "Another request has this key")
        self.used.setdefault(key, print_)
        record = self.records.get(place)
        if record is not None and self.clock - record.since >= (400 if wrong == "expiry-not-early" else EXPIRY):
            if wrong == "expiry-clean":
                return self._problem(500, "expired")
            record = None
        if record is not None:
            said = await self._answer_known_key(record, place, print_, asked, caller)
            if said is not None:
                return said
        if wrong == "race-one-effect":
            await pause(TICK)
        return await self._first(place, print_, asked, caller, reader)

    async def _first(
        self, place: tuple[str, ...], print_: str, asked: Asked, caller: str, reader: asyncio.StreamReader
    ) -> Said:
        wrong = self.wrong
        running = (each for each in self.records.values() if each.answer is None and each.crashed_at is None)
        if wrong == "race-keys" and any(not each.slow for each in running):
            return self._problem(500, "deadlock")
        slow = b'"slow"' in asked.body
        record = self.records[place] = Record(print_, self.clock, slow)
        if slow:
            self.idle.clear()
        said = await self._work(asked, caller)
        if slow:
            self.idle.set()
        if record.answer is None:  # otherwise a wrong server has stored something else
            record.answer = said
        forgets = (
            (wrong == "broken-again" and said.status == 500)
            or (wrong == "lost-request" and not slow and has_left(reader))
            or (wrong == "lost-running" and slow and has_left(reader))
        )
        if forgets:
            self.records.pop(place, None)
        headers = {**said.headers, "Set-Cookie": f"session={secrets.token_hex(4)}", "Idempotency-Key-Lifetime": "1000"}
        if said.status == 201:
            operation = secrets.token_hex(8)
            self.operations[operation] = (caller, place[-1])
            said.headers["Link"] = headers["Link"] = f'</status/{operation}>; rel="status"'
        if wrong == "replay-no-cookie":
            said.headers.update(headers)
        if wrong == "replay-first-unmarked":
            headers["Idempotency-Replayed"] = "true"
        return Said(said.status, None, headers, said.kind, body=said.body, streamed=said.streamed)

    def _status(self, operation: str, caller: str) -> Said:
        whose, key = self.operations.get(operation, ("", ""))
        known = whose == caller or (bool(whose) and self.wrong == "status-other")
        if not known or self.wrong == "status-link":
            return self._problem(404, "No such operation")
        return Said(200, {"state": "DONE", **({"key": key} if self.wrong == "status-no-secrets" else {})})

    async def _answer_known_key(
        self, record: Record, place: tuple[str, ...], print_: str, asked: Asked, caller: str
    ) -> Said | None:
        """Answer a request whose key was used before; None: run it again."""
        wrong = self.wrong
        if record.fingerprint != print_ and wrong != "other-body" and not (
            wrong == "other-operation" and asked.path == "/refunds"
        ):  # fmt: skip
            if record.answer is None and not record.slow and wrong == "race-payloads":
                return await self._work(asked, caller)
            if record.answer is None and record.slow and wrong == "flight-other-payload":
                return self._problem(500, "cannot compare")
            if wrong == "other-body-keeps-first":
                del self.records[place]
            status = 403 if wrong == "other-body-status" else 422
            return self._problem(status, "Another request has this key", "mismatch", key=place[-1])
        if record.answer is not None:
            record.replays += 1
            if wrong == "replay-again" and record.replays == 2:
                del self.records[place]
            if wrong == "broken-honest" and record.answer.status == 500:
                return Said(201, {"id": "pretended"})
            if wrong == "replay-stream" and record.answer.streamed:
                return await self._work(asked, caller)
            if wrong == "refused-again" and record.answer.status == 422:
                return self._problem(400, "Something is wrong")
            return self._replay(record)
        return await self._running(record, asked, caller)

    async def _running(self, record: Record, asked: Asked, caller: str) -> Said:
        wrong = self.wrong
        now, crashed = asyncio.get_running_loop().time(), record.crashed_at
        if crashed is not None and now - crashed > LEASE and wrong != "crash-not-forever":
            return self._problem(409, "Nobody knows what became of it")
        if not record.slow:
            record.waiting += 1
            if wrong == "race-one-answer":
                return Said(201, {"id": secrets.token_hex(4)})
            if wrong == "race-losers":
                return self._problem(500, "unique constraint violated")
            if wrong == "race-crowd" and record.waiting > 12:
                return await self._work(asked, caller)
        else:
            if wrong == "flight-duplicate":
                return self._problem(423, "Locked")
            if wrong == "flight-one-effect":
                self.effects[caller] += 1
            if wrong == "flight-then-replay":
                record.answer = self._problem(409, "It is running")
        if wrong == "accepts-duplicates":
            return Said(202, {"state": "PROCESSING"}, {"Link": '</status/1>; rel="status"'})
        headers = {"Retry-After": "soon" if wrong == "flight-retry-after-value" else "1"}
        said = self._problem(409, "It is running", headers={} if wrong == "flight-retry-after" else headers)
        if wrong == "flight-problem":
            said.kind = "text/plain"
        return said

    def _replay(self, record: Record) -> Said:
        wrong, first = self.wrong, record.answer
        assert first is not None
        headers = {**first.headers, "Idempotency-Replayed": "true"}
        if first.status >= 300:
            return Said(first.status, None, headers, first.kind, body=first.body)
        if wrong != "lifetime":
            headers["Idempotency-Key-Lifetime"] = "1000"
        if wrong == "replay-marked":
            del headers["Idempotency-Replayed"]
        for name in ("Location", "ETag"):
            if wrong == f"replay-{name.lower()}":
                headers.pop(name, None)
        if first.status == 204:
            if wrong == "replay-empty-framing":
                headers["Content-Length"] = "0"
            return Said(200 if wrong == "replay-empty" else 204, None, headers)
        body = first.body + b" " * (wrong == "replay-body")
        if wrong == "replay-large-answer" and len(body) < 100_000:
            body = body[:10_000]
        if wrong == "replay-huge-answer":
            body = body[:1_000_000]
        if wrong == "replay-binary":
            body = body.decode("utf-8", "replace").encode()
        return Said(
            200 if wrong == "replay-status" else first.status,
            None,
            headers,
            "text/plain" if wrong == "replay-content-type" else first.kind,
            b"junk" if wrong == "replay-framing" else b"",
            body,
        )

    def _anybodys(self, asked: Asked) -> Record | None:
        with contextlib.suppress(BadKey):
            key = self.key_of(asked)
            return next((each for place, each in self.records.items() if place[-1] == key and each.answer), None)
        return None

    # --- the work itself ---

    async def _work(self, asked: Asked, caller: str) -> Said:
        if asked.media_type == "multipart/form-data":
            content: Any = {"amount": 5, "name": "form"}
        else:
            try:
                content = json.loads(asked.body)
                json.dumps(content, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                return self._problem(500 if self.wrong == "json-surrogate" else 422, "A lone surrogate")
            except RecursionError:
                return self._problem(500 if self.wrong == "json-nested" else 422, "Nested too deeply")
            except ValueError:
                return self._problem(500 if self.wrong == "json-invalid" else 400, "No JSON")
        if not isinstance(content, dict) or not isinstance(content.get("amount"), int) or content["amount"] < 0:
            if isinstance(content, list) and self.wrong == "json-nested":
                return self._problem(500, "Nested too deeply")
            return self._problem(422, "The amount is wrong")
        await pause(TICK)
        if content["name"] == "broken" and self.wrong == "broken-honest":
            return self._problem(500, "It broke")
        self.effects[caller] = self.effects.get(caller, 0) + 1
        if content["name"] == "slow":
            await pause(SLOW)
        if content["name"] == "broken":
            return self._problem(500, "It broke")
        made = secrets.token_hex(8)
        headers = {"Location": f"{asked.path}/{made}", "ETag": f'"{made}"'}
        if content["name"] == "empty":
            return Said(204, None, headers)
        if content["name"] == "binary":
            return Said(201, None, headers, "application/octet-stream", body=bytes(range(256)) + made.encode())
        text = {"large": "x" * 50_000, "huge": HUGE}.get(content["name"], "")
        return Said(201, {"id": made, "text": text}, headers, streamed=content["name"] == "stream")

    def _problem(
        self, status: int, title: str, about: str = "", *, key: str = "", headers: Mapping[str, str] | None = None
    ) -> Said:
        document: dict[str, Any] = {"type": "https://api.example/problems", "title": title, "status": status}
        missing, mismatch = about == "missing", about == "mismatch"
        if (missing and self.wrong == "problem-members") or (mismatch and self.wrong == "problem-members-mismatch"):
            document["status"] = 200
        if (missing and self.wrong == "problem-link-missing") or (mismatch and self.wrong == "problem-link-mismatch"):
            document["type"] = "about:blank"
        if mismatch and self.wrong == "problem-no-secrets":
            document["detail"] = f"{key} was used before"
        plain = (missing and self.wrong == "problem-missing") or (mismatch and self.wrong == "problem-mismatch")
        return Said(status, document, dict(headers or {}), "application/json" if plain else "application/problem+json")

    # --- keys and fingerprints ---

    def _place(self, asked: Asked, caller: str, key: str) -> tuple[str, ...]:
        wrong = self.wrong
        if wrong == "key-case":
            key = key.lower()
        if wrong == "key-fresh":
            key = re.sub(r"-\d$", "", key)
        operation = "/refunds" if asked.path == "/refunds" else "/payments"
        place = ("", operation, key) if wrong == "caller-other" else (caller, operation, key)
        if wrong == "key-pattern" and key.endswith("%"):
            return next((each for each in self.records if each[-1].startswith(key[:-1])), place)
        if wrong == "other-operation" and asked.path == "/refunds":
            return (caller, "/payments", key) if (caller, "/payments", key) in self.records else place
        return place

    def key_of(self, asked: Asked) -> str | None:
        """The key of a request. Raises BadKey."""
        wrong = self.wrong
        exact = wrong == "key-header-name"
        values = [
            value if wrong == "key-whitespace" else value.strip(" \t")
            for name, value in asked.headers
            if (name if exact else name.lower()) == ("Idempotency-Key" if exact else "idempotency-key")
        ]
        if not values:
            return None
        if len(values) > 1:
            same = len(set(values)) == 1
            if not (wrong == "key-doubled" and not same) and not (wrong == "key-doubled-same" and same):
                raise BadKey("More than one key")
        value = values[0].lstrip(" ") if wrong == "key-whitespace" else values[0]
        key = self._parse_quoted(value) if value.startswith('"') else self._bare(value)
        if not key and wrong != {"": "key-empty", '""': "key-empty-string"}.get(value):
            raise BadKey("An empty key")
        if any(not 0x21 <= ord(char) <= 0x7E for char in key):
            allowed = (wrong == "key-non-ascii" and any(ord(char) > 0x7E for char in key)) or (
                wrong == "key-control" and "\x01" in key
            )
            if not allowed:
                raise BadKey("Only visible ASCII")
        if len(key) > KEY_MAX:
            if wrong == "key-not-truncated" and len(key) < 1000:
                return key[:KEY_MAX]
            if wrong != "key-too-long" or len(key) < 1000:
                raise BadKey("Too long")
        if wrong == "key-255" and len(key) > 200:
            raise BadKey("Too long")
        return key

    def _bare(self, value: str) -> str:
        if self.wrong == "key-bare" and value:
            raise BadKey("Quotes are missing")
        if any(char in value for char in '",;\\'):
            raise BadKey("Not without quotes")
        return value

    def _parse_quoted(self, value: str) -> str:
        wrong = self.wrong
        if wrong == "key-quoted" and re.search(r'[,;][^"]*"$', value):
            raise BadKey("Not this character")
        found = re.match(r'"((?:[^"\\]|\\.)*)"', value)
        if found is None:
            if wrong == "key-unterminated":
                return value[1:]
            raise BadKey("The closing quote is missing")
        inner, rest = found[1], value[found.end() :]
        if "\\" in inner:
            if wrong == "key-escape" and inner.endswith('\\"'):
                raise BadKey("No escapes")
            if re.search(r'\\[^"\\]', inner.replace("\\\\", "")) and wrong != "key-bad-escape":
                raise BadKey("An unknown escape")
        inner = re.sub(r"\\(.)", "" if wrong == "key-escape-unescaped" else r"\1", inner)
        if rest and not re.fullmatch(r"(;[a-z]+=\d+)+", rest):
            taken = (wrong == "key-list" and rest.startswith(",")) or (wrong == "key-trailing" and rest == " x")
            if not taken:
                raise BadKey("Something follows the key")
        if wrong == "key-parameters":
            inner += rest.replace(";", "-")
        return f"Q{inner}" if wrong == "key-quoted-is-bare" and 0 < len(inner) < 200 else inner

    def fingerprint(self, asked: Asked) -> str:
        wrong, body = self.wrong, asked.body
        if wrong == "other-large-body":
            body = body[:100_000]
        if asked.chunked and wrong == "replay-chunked":
            body = b""
        path = asked.path[:9] if wrong == "other-path" else asked.path
        parts = [asked.method, path, "" if wrong == "other-query" else asked.query]
        parts.append("" if wrong == "other-media-type" else asked.media_type)
        if wrong == "replay-other-headers":
            parts.append(asked.get("x-conform") or "")
        parts.append(self._content(asked, body))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _content(self, asked: Asked, body: bytes) -> str:
        wrong = self.wrong
        if asked.media_type == "multipart/form-data" and wrong == "multipart-other":
            return "a form"
        if asked.media_type == "multipart/form-data" and wrong != "multipart-boundary":
            boundary = (asked.get("content-type") or "").partition("boundary=")[2]
            return body.decode("latin-1").replace(boundary, "")

        def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            if len(dict(pairs)) != len(pairs) and wrong != "other-duplicate-names":
                raise ValueError("twice")
            return dict(pairs)

        read_int: Callable[[str], Any] = float if wrong == "other-number" else str
        try:
            value = json.loads(body, object_pairs_hook=members, parse_int=read_int, parse_float=str)
        except (ValueError, RecursionError):
            return body.decode("latin-1")
        text = json.dumps(value, sort_keys=wrong != "json-order")
        if wrong == "json-space":
            text += str(body.count(b"\n"))
        return text + (str(body.count(b"\\u")) if wrong == "json-escapes" else "")

    def _openapi(self) -> dict[str, Any]:
        statuses = ["201", "400", "422"] if self.wrong == "openapi-errors" else ["201", "400", "409", "422"]
        if self.wrong == "openapi-statuses":
            statuses[0] = "200"
        header = {
            "name": "X-Other" if self.wrong == "openapi-header" else "Idempotency-Key",
            "in": "header",
            "required": self.required is not (self.wrong == "openapi-required"),
        }
        operation = {"parameters": [header], "responses": {status: {} for status in statuses}}
        return {"paths": {"/payments": {"post": operation}}}


def has_left(reader: asyncio.StreamReader) -> bool:
    """Whether the client has left."""
    return reader.at_eof() or reader.exception() is not None


async def pause(seconds: float) -> None:
    """Let others run for so long."""
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, done.set)
    await done.wait()


@contextlib.asynccontextmanager
async def serving(wrong: str = "", *, required: bool = True) -> AsyncIterator[tuple[str, Case]]:
    """A running server: its URL and a case that describes it."""
    api = Api(wrong, required=required)
    await api.listen()
    control = await asyncio.start_server(api.control, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{control.sockets[0].getsockname()[1]}"
    hooks = "\n".join(f'{name} = "{base}/{name}"' for name in HOOKS)
    text = f'openapi = "/openapi.json"\n{CASE}\n[key]\nrequired = {str(required).lower()}\n[hooks]\n{hooks}\n'
    text += f"lease_seconds = {LEASE}\nexpiry_seconds = {EXPIRY}\n"
    try:
        yield f"http://127.0.0.1:{api.port}", parse_case(text)
    finally:
        await api.kill()
        control.close()
        await control.wait_closed()
