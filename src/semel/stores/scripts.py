"""Scripts as data: the asks of the Redis store, and the reader of its ``.lua`` file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from semel.flow import Ask

_HEAD: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One script, with the prelude that all of them share."""

    name: str
    text: bytes
    sha: str  # as EVALSHA wants it


@dataclass(frozen=True, slots=True)
class Call:
    """One script or command, on keys that lie in one slot. The driver puts the time first where ``script`` is one."""

    script: Script | None
    keys: tuple[bytes, ...]
    arguments: tuple[bytes | int, ...]
    command: str = ""


class Calls(Ask[list[Any]]):
    """Several calls in one round trip; their replies in their order."""

    __slots__ = ("calls",)

    def __init__(self, calls: tuple[Call, ...]) -> None:
        self.calls = calls


class Scan(Ask[tuple[int | None, list[bytes]]]):
    """Some keys that begin with ``prefix``, from where ``after`` stands; and where the next ones begin (None: the end).

    As Redis scans: a key that is there all the while is met at least once, in no order.
    """

    __slots__ = ("after", "count", "prefix")

    def __init__(self, prefix: bytes, after: int, count: int) -> None:
        self.prefix = prefix
        self.after = after
        self.count = count


@cache
def scripts(package: str, file: str, constants: str) -> Mapping[str, Script]:
    """The named scripts of a ``.lua`` file that lies in a package, each after ``constants`` and the prelude."""
    parts = _HEAD.split(resources.files(package).joinpath(file).read_text("utf-8"))
    blocks = dict(zip(parts[1::2], parts[2::2], strict=True))
    prelude = constants + blocks.pop("prelude")
    found = {}
    for name, block in blocks.items():
        text = (prelude + block).encode()
        found[name] = Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())
    return found
