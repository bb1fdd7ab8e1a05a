"""The case file in TOML: how to send a valid request to an API and count its effects. Errors name the wrong field."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

FORMAT: Final = 1
_JSON: Final = "application/json"


class CaseError(ValueError):
    """The case file is wrong: the message names the field and the remedy."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the case, without the key and the caller's headers."""

    method: str
    path: str
    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def members(self) -> dict[str, Any] | None:
        """The body's members if it is a JSON object that is not empty."""
        if self.content_type.partition(";")[0].strip().lower() != _JSON:
            return None
        try:
            value = json.loads(self.body)
        except ValueError:
            return None
        return value if isinstance(value, dict) and value else None

    def with_body(self, body: bytes, content_type: str | None = None) -> Request:
        """Return the same request with another body."""
        return replace(self, body=body, content_type=self.content_type if content_type is None else content_type)


@dataclass(frozen=True, slots=True)
class EffectCount:
    """How to count effects: exactly one of ``get``, ``sql``, ``file``, ``command``, ``webhook``.

    ``settle_seconds`` passes before each count, for effects that happen after the answer.
    """

    get: str = ""
    pointer: str = ""
    per_caller: bool = False
    sql: str = ""
    database: str = ""
    file: str = ""
    command: tuple[str, ...] = ()
    webhook: str = ""
    settle_seconds: float = 0.0


Hook = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the load. Their upper bounds are fixed: this tests correctness, not capacity."""

    rounds: int = 20
    parallel: int = 40
    crowd: int = 200
    body_bytes: int = 5_000_000
    timeout_seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class Case:
    """A whole case. ``requests`` holds the optional ones, by their table's name in the file."""

    request: Request
    effects: EffectCount
    requests: Mapping[str, Request] = field(default_factory=dict)
    caller: Mapping[str, str] = field(default_factory=dict)
    other_caller: Mapping[str, str] | None = None
    key_header: str = "Idempotency-Key"
    key_required: bool = True
    replayed_header: str = "Idempotency-Replayed"
    no_wait_headers: Mapping[str, str] = field(default_factory=dict)
    hooks: Mapping[str, Hook] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    slow_seconds: float = 1.0
    lease_seconds: float = 0.0
    expiry_seconds: float = 0.0
    openapi: str = ""
    ca_file: str = ""
    multipart: Mapping[str, str] = field(default_factory=dict)


REQUESTS: Final = {
    "other": "another valid request of the same operation, with another payload",
    "second": "a request of a second protected operation (another path)",
    "slow": "a valid request whose effect takes slow.seconds",
    "refused": "a request that the application itself refuses with a 4xx",
    "broken": "a request whose handler fails with a 5xx after its effect",
    "large_answer": "a valid request with a long answer",
    "huge_answer": "a valid request with an answer of 3 MB or more",
    "empty_answer": "a valid request that is answered without a body: 204, 205 or 304",
    "binary_answer": "a valid request whose answer is not text",
    "stream_answer": "a valid request whose answer is streamed",
    "other_path": "the same operation and payload with another parameter in its path",
    "number_a": "a valid request with a number beyond the precision of a double",
    "number_b": "as number_a, with the next number",
}
HOOKS: Final = ("kill", "restart", "store_off", "store_on", "store_hang", "clock")
_TOP: Final = {"format", "request", "callers", "effects", "key", "hooks", "limits", "openapi", "tls", "multipart"}
_REQUEST: Final = {"method", "path", "json", "body", "content_type", "headers"}


def load_case(path: str | Path) -> Case:
    """Read a case file. Raises CaseError."""
    try:
        text = Path(path).read_text("utf-8")
    except UnicodeDecodeError:
        raise CaseError(f"{path}: is not UTF-8: a case file is TOML text") from None
    except OSError as error:
        raise CaseError(f"{path}: cannot be read: {error.strerror}; give the path of a case file") from None
    return parse_case(text, str(path))


def parse_case(text: str, name: str = "case") -> Case:
    """Parse a case from TOML text. Raises CaseError, whose message begins with ``name`` and the field.

    >>> case = parse_case('''
    ... [request]
    ... path = "/payments"
    ... json = {amount = 5}
    ... [effects]
    ... get = "/payments"
    ... ''')
    >>> case.request.method, case.request.body
    ('POST', b'{"amount": 5}')
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CaseError(f"{name}: is not valid TOML: {error}") from None
    try:
        return _case(_Table(data, ""))
    except CaseError as error:
        raise CaseError(f"{name}: {error}") from None


class _Table:
    """A TOML table that reads its members by type; its errors name the field."""

    def __init__(self, data: Mapping[str, Any], place: str) -> None:
        self.data = data
        self.place = place

    def name(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key

    def only(self, known: set[str]) -> None:
        for key in self.data:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
                raise CaseError(f"{self.name(key)} is unknown; {hint}")

    def text(self, key: str, default: str = "", *, needed: str = "") -> str:
        value = self.data.get(key, default)
        if not isinstance(value, str):
            raise CaseError(f"{self.name(key)} must be text, not {value!r}")
        if needed and not value:
            raise CaseError(f"{self.name(key)} is missing: {needed}")
        if any(ord(char) < 32 or ord(char) == 127 for char in value) and key != "body":
            raise CaseError(f"{self.name(key)} has a control character; write it without")
        return value

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self.data.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise CaseError(f"{self.name(key)} must be a number from {low:g} to {high:g}, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise CaseError(f"{self.name(key)} must be true or false, not {value!r}")
        return value

    def table(self, key: str) -> _Table:
        value = self.data.get(key, {})
        if not isinstance(value, dict):
            raise CaseError(f"{self.name(key)} must be a table, not {value!r}")
        return _Table(value, self.name(key))

    def texts(self, key: str) -> dict[str, str]:
        inner = self.table(key)
        return {name: inner.text(name) for name in inner.data}

    def headers(self, key: str) -> dict[str, str]:
        found = self.texts(key)
        for name, value in found.items():
            if not name or not name.isascii() or any(char in name for char in " :\t"):
                raise CaseError(f"{self.name(key)} has {name!r}, which is not the name of a header")
            if not value.isascii():
                raise CaseError(f"{self.name(key)}.{name} must be ASCII")
        return found

    def command(self, key: str) -> tuple[str, ...]:
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise CaseError(f'{self.name(key)} must be a list of words, such as ["docker", "restart", "api"]')
        return tuple(value)


def _case(top: _Table) -> Case:
    top.only(_TOP | set(REQUESTS))
    if top.number("format", FORMAT, 0, 1000) != FORMAT:
        raise CaseError(f"format must be {FORMAT}: this version of semel reads no other")
    if "request" not in top.data:
        raise CaseError("request is missing: add a table [request] with path and json of a valid request")
    if "effects" not in top.data:
        raise CaseError("effects is missing: add a table [effects] that defines how to count effects, such as get")
    request = _request(top.table("request"), None, set())
    requests = {
        name: _request(top.table(name), request, {"seconds"} if name == "slow" else set())
        for name in REQUESTS
        if name in top.data
    }
    if ("number_a" in requests) != ("number_b" in requests):
        raise CaseError("number_a and number_b go together: give both, or none")
    callers = top.table("callers")
    callers.only({"first", "second"})
    key = top.table("key")
    key.only({"header", "required", "replayed_header", "no_wait_headers"})
    tls = top.table("tls")
    tls.only({"ca_file"})
    hooks, more = _hooks(top.table("hooks"))
    openapi = top.text("openapi")
    if openapi and not openapi.startswith("/"):
        raise CaseError("openapi must be a path that begins with /")
    return Case(
        request=request,
        effects=_effects(top.table("effects")),
        requests=requests,
        caller=callers.headers("first"),
        other_caller=callers.headers("second") if "second" in callers.data else None,
        key_header=key.text("header", "Idempotency-Key", needed="the name of the header"),
        key_required=key.flag("required", True),
        replayed_header=key.text("replayed_header", "Idempotency-Replayed"),
        no_wait_headers=key.headers("no_wait_headers"),
        hooks=hooks,
        limits=_limits(top.table("limits")),
        slow_seconds=top.table("slow").number("seconds", 1.0, 0.05, 30),
        lease_seconds=more("lease_seconds"),
        expiry_seconds=more("expiry_seconds"),
        openapi=openapi,
        ca_file=tls.text("ca_file"),
        multipart=top.texts("multipart"),
    )


def _request(table: _Table, base: Request | None, more: set[str]) -> Request:
    table.only(_REQUEST | more)
    method = table.text("method", base.method if base else "POST").upper()
    path = table.text("path", base.path if base else "", needed="the path of the operation, such as /payments")
    if not method.isalpha():
        raise CaseError(f"{table.name('method')} must be a method such as POST, not {method!r}")
    if not path.startswith("/") or " " in path or not path.isascii():
        raise CaseError(f"{table.name('path')} must begin with / and be ASCII without spaces, not {path!r}")
    if "json" in table.data and "body" in table.data:
        raise CaseError(f"{table.name('json')} and {table.name('body')} exclude each other: give one")
    content_type = table.text("content_type", base.content_type if base else _JSON)
    if "json" in table.data:
        try:
            body = json.dumps(table.data["json"]).encode()
        except TypeError:
            raise CaseError(f"{table.name('json')} has a value that JSON does not know, such as a date") from None
    elif "body" in table.data:
        body = table.text("body").encode()
    elif base is not None:
        body = base.body
    else:
        raise CaseError(f"{table.name('json')} is missing: the members of a valid request (or body, as text)")
    headers = {**(base.headers if base else {}), **table.headers("headers")}
    return Request(method, path, body, content_type, headers)


def _effects(table: _Table) -> EffectCount:
    table.only(set(EffectCount.__dataclass_fields__))
    command = table.command("command")
    effects = EffectCount(
        get=table.text("get"),
        pointer=table.text("pointer"),
        per_caller=table.flag("per_caller", False),
        sql=table.text("sql"),
        database=table.text("database"),
        file=table.text("file"),
        command=command,
        webhook=table.text("webhook"),
        settle_seconds=table.number("settle_seconds", 0.0, 0.0, 10.0),
    )
    given = [name for name in ("get", "sql", "file", "command", "webhook") if getattr(effects, name)]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise CaseError(f"effects needs exactly one of get, sql, file, command, webhook; it has {found}")
    if effects.get and not effects.get.startswith("/"):
        raise CaseError("effects.get must be a path that begins with /")
    if effects.pointer and not effects.pointer.startswith("/"):
        raise CaseError("effects.pointer must be a JSON pointer: empty, or beginning with /")
    if effects.sql and not effects.database.startswith(("sqlite:///", "postgresql://")):
        raise CaseError("effects.database must be the database of effects.sql: sqlite:///file or postgresql://…")
    if effects.webhook and not _is_port(effects.webhook):
        raise CaseError("effects.webhook must be a loopback address that the tool listens on, such as 127.0.0.1:9099")
    return effects


def _is_port(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return host in ("127.0.0.1", "localhost") and port.isdigit() and 0 < int(port) < 65536


def _hooks(table: _Table) -> tuple[dict[str, Hook], Callable[[str], float]]:
    table.only({*HOOKS, "lease_seconds", "expiry_seconds"})
    hooks: dict[str, Hook] = {}
    for name in HOOKS:
        value = table.data.get(name)
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            hooks[name] = table.text(name)
        elif value is not None:
            words = table.command(name)
            if not words:
                raise CaseError(f"{table.name(name)} is empty: give a command as a list of words, or a URL to POST to")
            hooks[name] = words
    for one, *others in (
        ("kill", "restart"),
        ("restart", "kill"),
        ("store_off", "store_on"),
        ("store_hang", "store_on"),
        ("store_on", "store_off", "store_hang"),
    ):
        if one in hooks and not any(other in hooks for other in others):
            raise CaseError(f"hooks.{one} needs hooks.{others[0]}: the tool must be able to restart it")
    return hooks, lambda name: table.number(name, 0.0, 0.0, 10_000_000.0)


def _limits(table: _Table) -> Limits:
    table.only(set(Limits.__dataclass_fields__))
    usual = Limits()
    return Limits(
        rounds=int(table.number("rounds", usual.rounds, 1, 100)),
        parallel=int(table.number("parallel", usual.parallel, 2, 100)),
        crowd=int(table.number("crowd", usual.crowd, 2, 500)),
        body_bytes=int(table.number("body_bytes", usual.body_bytes, 100_000, 20_000_000)),
        timeout_seconds=table.number("timeout_seconds", usual.timeout_seconds, 0.1, 120),
    )
