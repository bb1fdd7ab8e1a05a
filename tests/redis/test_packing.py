"""Commands on the wire: hiredis and our own code write the same bytes."""

from __future__ import annotations

import importlib
import random
from typing import Any

import pytest

from semel.stores.redis import packing as redis_packing
from semel.stores.redis.packing import pack, pack_in_python

SEED = 20261121
COMMANDS: list[tuple[Any, ...]] = [
    ("GET", b"key"),
    ("EVALSHA", "a" * 40, 1, b"{semel:00}:r:00", b"", -5, 0, 2**53),
    ("SET", b"\r\n$1\r\n*", b"\x00\xff" * 300, "PX", 1),
    ("WAIT", 1, 1000),
    ("SCRIPT", "LOAD", "return 'Ä'".encode()),
]


def test_hiredis_and_our_code_pack_the_same_bytes() -> None:
    random_bytes = random.Random(SEED)
    many = [
        ("EVALSHA", *(random_bytes.randbytes(random_bytes.randrange(80)) for _ in range(random_bytes.randrange(1, 22))))
        for _ in range(200)
    ]
    assert importlib.import_module("hiredis").pack_command is not None  # else both ways are one
    assert pack(COMMANDS) == pack_in_python(COMMANDS)
    assert pack(many) == pack_in_python(many)
    assert pack([]) == b""


@pytest.mark.parametrize("found", [None, "older"])
def test_without_hiredis_our_code_packs_commands(found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> object:
        if found is None:
            raise ImportError(name)
        return object()  # a hiredis that cannot pack yet

    redis_packing._pack_command.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(importlib, "import_module", import_module)
        assert redis_packing._pack_command() is None
        assert pack(COMMANDS) == pack_in_python(COMMANDS)
    redis_packing._pack_command.cache_clear()
