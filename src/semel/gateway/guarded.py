"""The rules that a gateway enforces for each operation, as patterns that every proxy understands.

A gateway checks that a key is present and well formed. It never makes or changes a key, and it retries a command on
another upstream only if the command has a key and all upstreams share one store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from semel.check.discovery import discover
from semel.errors import ConfigurationError
from semel.http.problems import INVALID_KEY, MISSING_KEY, TOO_EARLY, Kind, Problems
from semel.http.spelling import normal_segments
from semel.keys import KEY_LENGTH_MAX
from semel.proxy.configuration import Proxied

KEY_HEADER: Final = "Idempotency-Key"
# The grammar of semel.keys.parse_key without its rarest parts, in the syntax that PCRE, RE2 and Go share: a bare
# key, or a quoted one with parameters. The service refuses the remaining malformed keys.
BARE: Final = r"[!#-+\x2d-:<-~]{1,255}"
QUOTED: Final = r"\x22([!#-\x5b\x5d-~]|\x5c[\x22\x5c]){1,255}\x22( *;[ -~]*)?"
KEY: Final = f"^({BARE}|{QUOTED})$"
MARGIN_SECONDS: Final = 30  # for the handler itself; a proxy that times out first hides the service's answer

_HOLE: Final = re.compile(r"\{(\w+)(?::(\w+))?\}|<(?:(\w+)(?:\([^)]*\))?:)?(\w+)>")
_WHOLE: Final = {"path"}
_PLAIN: Final = re.compile(r"[A-Za-z0-9/_~-]")


@dataclass(frozen=True, slots=True)
class Guarded:
    """A gateway's view of one operation.

    Parameters: ``name`` for comments; ``methods`` in upper case; ``path`` a template such as ``/orders/{id}/cancel``,
    or one that ends with ``*``; ``required`` whether a request without a key is refused; ``header`` that has the key,
    None if the key comes from the path or the body; ``shared`` whether all upstreams share the operation's store, so
    that the proxy may retry on another one; ``seconds`` that the service may take to answer.

    >>> Guarded("pay", ("POST",), "/payments/{id:int}").pattern
    '^/payments/[^/]+$'
    """

    name: str
    methods: tuple[str, ...]
    path: str
    required: bool = True
    header: str | None = KEY_HEADER
    shared: bool = True
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ConfigurationError(f"{self.name}: path must start with a slash; it is {self.path!r}")
        if not self.methods or any(not re.fullmatch("[A-Z]+", method) for method in self.methods):
            raise ConfigurationError(f"{self.name}: methods must be upper-case names, such as ('POST',)")
        if self.header is not None and not re.fullmatch("[A-Za-z0-9-]+", self.header):
            raise ConfigurationError(f"{self.name}: {self.header!r} is not the name of a header")

    @property
    def pattern(self) -> str:
        """A regular expression for the whole path, of characters that need no quoting in any configuration."""
        return _pattern(self.path)

    @property
    def lenient_pattern(self) -> str:
        """The same for a path's normal spelling (semel.http.spelling), which a lenient service may accept."""
        parts = []
        for part in self.path.split("/"):
            parts += [part.casefold()] if _HOLE.search(part) else normal_segments(part)
        return _pattern("/" + "/".join(parts))


def _pattern(path: str) -> str:
    text, rest = "", path
    any_path = rest.endswith("*")
    rest = rest.removesuffix("*")
    position = 0
    for hole in _HOLE.finditer(rest):
        text += _literal(rest[position : hole.start()])
        text += ".+" if (hole[2] or hole[3]) in _WHOLE else "[^/]+"
        position = hole.end()
    return f"^{text}{_literal(rest[position:])}{'.*' if any_path else ''}$"


def _literal(text: str) -> str:
    r"""Return a pattern that matches only this text; unusual characters become ``\x..`` of their UTF-8 bytes.

    >>> _literal("/a b.c")
    '/a\\x20b\\x2ec'
    """
    return "".join(
        each if _PLAIN.fullmatch(each) else "".join(f"\\x{byte:02x}" for byte in each.encode()) for each in text
    )


def refusal(kind: Kind, problems: Problems) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """Return headers and document of a refusal: as the service's own, but without data from the request."""
    text = {
        MISSING_KEY: "The request has no Idempotency-Key; send one that is unique to this command.",
        TOO_EARLY: "Send the command again once the handshake is complete.",
        INVALID_KEY: f"The Idempotency-Key must be one key of 1 to {KEY_LENGTH_MAX} visible ASCII characters.",
    }[kind]
    answer = problems.answer(kind, text)
    return answer.headers, answer.body or b""


def longest(operations: Iterable[Guarded]) -> int:
    """Return a proxy's timeout in whole seconds: longer than any duplicate waits in the service."""
    return int(max((each.seconds for each in operations), default=0.0)) + MARGIN_SECONDS


def sort_by_precision(operations: Iterable[Guarded]) -> list[Guarded]:
    """Sort exact paths before templates, and templates before wildcards: the first match counts."""
    return sorted(operations, key=lambda each: (each.path.endswith("*"), len(_HOLE.findall(each.path)), each.path))


def find_guarded(app: Any) -> list[Guarded]:
    """Return the operations of an ASGI or WSGI application, as a gateway has to know them."""
    found = []
    for each in discover(app).operations:
        if not each.path:
            continue
        derived = each.policy.key_from is not None
        surface = each.surface
        found.append(
            Guarded(
                each.name,
                each.methods,
                each.path,
                required=each.policy.key == "required" and not derived and not each.path.endswith("*"),
                header=None if derived else KEY_HEADER if surface is None else surface.key_header,
                shared=each.engine.backend.store.capabilities.shared_between_processes,
                seconds=max(each.policy.wait_seconds, 0.0 if surface is None else surface.wait_seconds_max),
            )
        )
    return found


def read_guarded(configuration: Proxied) -> list[Guarded]:
    """Return the operations that ``operations.toml`` declares, as a gateway has to know them."""
    return [
        Guarded(
            str(each.name),
            tuple(each.methods),
            each.template,
            required=each.policy.key == "required" and each.policy.key_from is None,
            header=KEY_HEADER if each.policy.key_from is None else None,
            seconds=max(each.policy.wait_seconds, configuration.timeouts[str(each.name)]),
        )
        for each in configuration.operations
    ]
