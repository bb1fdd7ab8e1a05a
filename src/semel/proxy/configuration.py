"""The configuration in ``operations.toml``: a proxy's operations, their callers, and the upstream's time limits."""

from __future__ import annotations

import difflib
import hashlib
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from semel.addresses import split_http_url
from semel.core.outcomes import StatusIn
from semel.errors import ConfigurationError, PolicyError
from semel.http.caller import Caller, CallerOf, single_caller
from semel.http.routing import Operation, Routes
from semel.policy import Policy
from semel.recipe import NEVER_COUNTED, check_headers

TIMEOUT_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 60  # for running requests, once the proxy is asked to end; commands have longer
NOT_RUN: Final = frozenset({401, 403, 425, 429})  # with these statuses, any service says that it has not begun
TIMEOUT_SECONDS_MAX: Final = 3600.0
CONNECT_SECONDS: Final = 5.0
KEYED: Final = "semel.keyed"  # in a command's scope: a gate has checked its key, and its upstream supports keys
_MARGIN_SECONDS: Final = 10.0  # added to the upstream's time for a command's deadline
_LEASE_SECONDS: Final = Policy().lease_seconds
_TENANT: Final = "proxy"
_TOP: Final = ("caller", "timeout_seconds", "operation")
_OWN: Final = ("name", "method", "path", "success", "not_run", "timeout_seconds")
# Members of an operation that are options of a Policy, under the same name and with the same meaning.
_SPANS: Final = (
    *("lease_seconds", "wait_seconds", "answer_seconds", "tombstone_seconds", "operation_seconds"),
    "dedup_for_seconds",
)
_WORDS: Final = ("effects", "key", "key_from", "answers", "after_expiry", "json", "replay")
_COUNTS: Final = ("attempts_max", "body_bytes_max", "answer_bytes_max")
_LISTS: Final = ("counts", "replay_headers", "redact")
_MEMBERS: Final = (*_OWN, *_SPANS, *_WORDS, *_COUNTS, *_LISTS)
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_ANYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_CALLERS: Final = 'caller = "header:X-Authenticated-User", caller = "authorization" or caller = "none"'


@dataclass(frozen=True, slots=True)
class Proxied:
    """A proxy's configuration: the operations, the caller, and the seconds that the upstream may take for each.

    Parameters: ``caller`` as a function and ``caller_rule`` as it is written; ``timeouts`` in seconds by operation.
    """

    operations: tuple[Operation, ...]
    caller: CallerOf
    caller_rule: str
    timeouts: Mapping[str, float]
    timeout_seconds: float = TIMEOUT_SECONDS


def read_configuration(path: str | Path, *, needs_caller: bool = True) -> Proxied:
    """Read a configuration file. Raises ConfigurationError, which names the file, the member and the remedy.

    Parameters: ``needs_caller`` is False if nothing is stored, so that a key needs no caller.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--config {str(path)!r} cannot be read: {error}; name a TOML file") from error
    try:
        return configuration_of(text, needs_caller=needs_caller)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def configuration_of(text: str, *, needs_caller: bool = True) -> Proxied:
    """Parse the configuration's TOML text. Raises ConfigurationError.

    >>> found = configuration_of('caller = "none"\\n[[operation]]\\nname = "pay"\\npath = "/payments"')
    >>> found.operations[0].name, found.timeouts
    ('pay', {'pay': 30.0})
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"it is not TOML: {error}") from error
    _check_members("the top of the file", document, _TOP)
    timeout = _seconds("timeout_seconds", document.get("timeout_seconds", TIMEOUT_SECONDS))
    if needs_caller and "caller" not in document:
        raise ConfigurationError(f"caller is missing: a key means something only for its caller; write {_CALLERS}")
    rule = document.get("caller", "none")
    tables = document.get("operation", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigurationError("no operation is declared; write one [[operation]] table for each command")
    operations, timeouts = [], {}
    for number, table in enumerate(tables, 1):
        where = f"[[operation]] {number}"
        if isinstance(table.get("name"), str):
            where += f" ({table['name']})"
        operation, seconds = _operation(where, table, timeout)
        assert operation.name is not None
        operations.append(operation)
        timeouts[operation.name] = seconds
    Routes(operations)  # raises where two of them collide
    return Proxied(tuple(operations), caller_of(rule), rule, timeouts, timeout)


def _operation(where: str, table: Mapping[str, Any], timeout: float) -> tuple[Operation, float]:
    _check_members(where, table, _MEMBERS)
    for name in ("name", "path"):
        if not isinstance(table.get(name), str) or not table[name]:
            raise ConfigurationError(f'{where}: {name} must be a text, such as {name} = "/payments"')
    method = table.get("method", "POST")
    if not isinstance(method, str):
        raise ConfigurationError(f'{where}: method must be a text, such as method = "POST"; it is {method!r}')
    seconds = _seconds(f"{where}: timeout_seconds", table.get("timeout_seconds", timeout))
    options = {name: table[name] for name in (*_SPANS, *_WORDS, *_COUNTS, *_LISTS) if name in table}
    _check_values(where, options)
    if str(options.get("effects", "external")).lower() == "atomic":
        raise ConfigurationError(
            f"{where}: effects cannot be 'atomic': the upstream's writes are in no transaction of Semel's; write "
            "'idempotent' if the upstream deduplicates by Semel-Downstream-Key, else 'external'"
        )
    if options.get("answers") == "rebuild":
        raise ConfigurationError(f"{where}: answers cannot be 'rebuild', which is a Python function; write 'forget'")
    for name in _LISTS:
        if name in options:
            options[name] = tuple(options[name])
    try:
        policy = Policy.of(
            **options,
            deadline_seconds=max(seconds + _MARGIN_SECONDS, options.get("lease_seconds", _LEASE_SECONDS)),
            success=_success(where, table),
            not_run=_not_run(where, table),
        )
        return Operation(table["path"], policy, (method,), table["name"]), seconds
    except (PolicyError, ConfigurationError, ValueError, TypeError) as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _success(where: str, table: Mapping[str, Any]) -> StatusIn | None:
    """Read ``success``, the meaning of a 2xx answer: done if its status is listed, otherwise in doubt."""
    if "success" not in table:
        return None
    given = table["success"]
    if not isinstance(given, list) or not given or not all(type(each) is int and 200 <= each <= 299 for each in given):
        raise ConfigurationError(
            f"{where}: success must be a list of 2xx statuses, such as [200, 201]; it is {given!r}"
        )
    return StatusIn(given)


def _not_run(where: str, table: Mapping[str, Any]) -> frozenset[int]:
    """Read ``not_run``, the statuses that prove that nothing was done. A 408 proves it only for a known service."""
    given = table.get("not_run", NOT_RUN)
    if not isinstance(given, list | frozenset) or not all(type(each) is int and 400 <= each <= 599 for each in given):
        raise ConfigurationError(
            f"{where}: not_run must be a list of statuses from 400 to 599, such as [401, 429]; it is {given!r}"
        )
    return frozenset(given)


def _check_values(where: str, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name in _SPANS and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ConfigurationError(f"{where}: {name} must be a number of seconds, such as 30; it is {value!r}")
        if name in _WORDS and not isinstance(value, str):
            raise ConfigurationError(f"{where}: {name} must be a text; it is {value!r}")
        if name in _COUNTS and type(value) is not int:
            raise ConfigurationError(f"{where}: {name} must be a whole number; it is {value!r}")
        if name in _LISTS and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise ConfigurationError(f"{where}: {name} must be a list of texts; it is {value!r}")


def _check_members(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known members: {', '.join(known)}"
            raise ConfigurationError(f"{where}: {name!r} is not a member; {hint}")


def _seconds(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.1 <= value <= TIMEOUT_SECONDS_MAX:
        raise ConfigurationError(f"{where} must be 0.1 to {TIMEOUT_SECONDS_MAX:g} seconds; it is {value!r}")
    return float(value)


def caller_of(rule: object) -> CallerOf:
    """Return the function for a caller rule. Raises ConfigurationError.

    Parameters: ``rule`` is ``"header:NAME"``, a header set by an authenticating proxy that no client can bypass;
    ``"authorization"``, whose hash is the caller; or ``"none"``: all clients share all keys.
    """
    if rule == "none":
        return single_caller
    if rule == "authorization":
        return _Header(b"authorization", hashes=True)
    if isinstance(rule, str) and rule.startswith("header:"):
        name = rule.removeprefix("header:").strip()
        if name.lower() in NEVER_COUNTED | {"idempotency-key"}:
            raise ConfigurationError(
                f"caller must not be the header {name}: it holds a credential, which would be stored, or differs in "
                f"each request; write {_CALLERS}"
            )
        with suppress(PolicyError):
            check_headers((name,))
            return _Header(name.lower().encode(), hashes=False)
    raise ConfigurationError(f"caller must be one of {_CALLERS}; it is {rule!r}")


class _Header:
    """A caller function for one header; returns None if the header is missing, empty or sent twice."""

    __slots__ = ("_hashes", "_name")

    def __init__(self, name: bytes, *, hashes: bool) -> None:
        self._name = name
        self._hashes = hashes

    def __call__(self, request: Mapping[str, Any]) -> Caller | None:
        values = [value.strip() for name, value in request["headers"] if name == self._name]
        if len(values) != 1 or not values[0] or (len(values[0]) > 255 and not self._hashes):
            return None
        text = hashlib.sha256(values[0]).hexdigest() if self._hashes else values[0].decode("latin-1")
        return Caller(_TENANT, text)


@dataclass(frozen=True, slots=True)
class UpstreamOrigin:
    """The upstream's origin: scheme, host and port, without a path.

    >>> UpstreamOrigin.of("http://127.0.0.1:3000")
    UpstreamOrigin(scheme='http', host='127.0.0.1', port=3000)
    """

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> UpstreamOrigin:
        """Parse the origin of a URL. Raises ConfigurationError."""
        try:
            parts = split_http_url(url)
        except ValueError as error:
            raise ConfigurationError(f"--upstream must be http://HOST:PORT or https://HOST: {error}") from None
        if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigurationError(
                "--upstream must be http://HOST:PORT or https://HOST, without an account, a path and a query"
            )
        return cls(parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))

    def check_is_another(self, host: str, port: int) -> None:
        """Raise ConfigurationError if the proxy itself listens on this origin: each request would come back.

        >>> UpstreamOrigin.of("http://127.0.0.1:3000").check_is_another("127.0.0.1", 8080)
        """
        names = _LOOPBACK if host in _LOOPBACK | _ANYWHERE else {host}
        if self.port == port and self.host in names:
            raise ConfigurationError(
                f"--upstream {self.url} is the address that this proxy listens on, so that each request would come "
                "back to it; name the service's address, or give another --port"
            )

    @property
    def url(self) -> str:
        """The origin as in links."""
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """Host and port as in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"
