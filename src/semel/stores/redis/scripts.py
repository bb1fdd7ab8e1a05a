"""Scripts as data: the asks of the Redis store, and the reader of its ``.lua`` file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple

from semel.core.flow import Ask

_HEAD: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_FLAGS: Final = re.compile(r"\A-- flags: ([\w, -]+)\n")
_WRITES: Final = re.compile(r"\bcall\('(?:SET|DEL|Z(?:ADD|REM)|HSET|RPUSH|PEXPIRE)\w*'")


@dataclass(frozen=True, slots=True)
class RedisScript:
    """One script, with the prelude that all of them share."""

    name: str
    text: bytes
    sha: str  # as EVALSHA wants it
    writes: bool


class RedisCall(NamedTuple):
    """One script or command, on keys that lie in one slot. The driver puts the time in front of a script's arguments.

    A command without a key goes to the server that holds the key ``at``.
    """

    script: RedisScript | None
    keys: tuple[bytes, ...]
    arguments: tuple[bytes | int, ...]
    command: str = ""
    at: bytes = b""

    @property
    def place(self) -> bytes:
        """The key that selects the node of a cluster."""
        return self.keys[0] if self.keys else self.at


class Calls(Ask[list[Any]]):
    """Several calls in one round trip; their replies in their order."""

    __slots__ = ("calls",)

    def __init__(self, calls: tuple[RedisCall, ...]) -> None:
        self.calls = calls


@cache
def scripts(package: str, file: str, placed: Callable[[str], str]) -> Mapping[str, RedisScript]:
    """Read the named scripts of a package's ``.lua`` file, each after the prelude; ``placed`` fills in places."""
    parts = _HEAD.split(resources.files(package).joinpath(file).read_text("utf-8"))
    blocks = dict(zip(parts[1::2], parts[2::2], strict=True))
    prelude = blocks.pop("prelude")
    found = {}
    for name, block in blocks.items():
        flags = _FLAGS.match(block)
        shebang = "" if flags is None else f"#!lua flags={flags[1]}\n"
        text = (shebang + placed(prelude + block)).encode()
        writes = _WRITES.search(block) is not None
        found[name] = RedisScript(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest(), writes)
    return found
