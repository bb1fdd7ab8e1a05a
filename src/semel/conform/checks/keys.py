"""Checks of key spellings: valid keys, malformed ones, and two spellings of one key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from semel.conform.attempt import IN_PROGRESS, Failed, NotTried, Try
from semel.conform.checks.registry import check
from semel.conform.checks.replies import tally
from semel.conform.order import BESIDE_OTHERS, WITHOUT_EFFECTS

LONG_KEY: Final = 300
HUGE_KEY: Final = 8_000


async def expect_refusal(t: Try, spell: Callable[[Try, str], list[bytes]]) -> None:
    """Expect a 4xx and no effect for a request with these key lines."""
    reply = await t.send(None, lines=spell(t, t.key()))
    if not 400 <= reply.status < 500:
        raise Failed(f"{reply.text()}, not a 4xx; {await t.count_new_effects()} effect(s) happened")
    await t.expect_effects(0, reply.text())


async def same_key(t: Try, spell: Callable[[Try, str], tuple[bytes, bytes]], *, key_name: str = "") -> None:
    """Expect one effect, and both requests accepted, for two spellings of one key."""
    one, two = spell(t, t.key())
    await t.first(None, lines=[one])
    again = await t.send(None, lines=[two], key_name=key_name)
    if not again.ok:
        raise Failed(f"the second spelling got {again.text()}")
    await t.expect_effects(1, f"the second spelling got {again.text()}")


async def two_keys(t: Try, spell: Callable[[Try, str], tuple[bytes, bytes]]) -> None:
    """Expect two effects for two different keys, unless the API refuses such keys."""
    replies = [await t.send(None, lines=[line]) for line in spell(t, t.key())]
    told = f"{replies[0].text()} and {replies[1].text()}"
    if any(reply.status >= 500 or not reply.status or reply.status in IN_PROGRESS for reply in replies):
        raise Failed(told)
    await t.expect_effects(sum(reply.ok for reply in replies), told)


# Each turns a fresh key into malformed header lines: a 4xx, and no effect.
_MALFORMED: Final[Mapping[str, Callable[[Try, str], list[bytes]]]] = {
    "key-bad-escape": lambda t, key: [f'"{key}\\n"'.encode()],
    "key-unterminated": lambda t, key: [f'"{key}'.encode()],
    "key-trailing": lambda t, key: [f'"{key}" x'.encode()],
    "key-doubled": lambda t, key: [t.spell(key), t.spell(t.key())],
    "key-doubled-same": lambda t, key: [t.spell(key), t.spell(key)],
    "key-list": lambda t, key: [t.spell(key) + b", " + t.spell(t.key())],
    "key-empty": lambda t, key: [b""],
    "key-empty-string": lambda t, key: [b'""'],
    "key-too-long": lambda t, key: [t.spell(key.ljust(HUGE_KEY, "x"))],
    "key-non-ascii": lambda t, key: [t.spell(key).replace(b"conform", "clé".encode())],
    "key-control": lambda t, key: [t.spell(key).replace(b"conform", b"a\x01b")],
}
# Each spells a fresh key in two equivalent ways: one effect.
_ONE_KEY: Final[Mapping[str, Callable[[Try, str], tuple[bytes, bytes]]]] = {
    "key-quoted": lambda t, key: (f'"{key};a,b"'.encode(), f'"{key};a,b"'.encode()),
    "key-bare": lambda t, key: (key.encode(), key.encode()),
    "key-parameters": lambda t, key: (t.spell(key), t.spell(key) + b";v=1"),
    "key-escape": lambda t, key: (f'"{key}\\""'.encode(), f'"{key}\\""'.encode()),
    "key-255": lambda t, key: (t.spell(key.ljust(255, "x")), t.spell(key.ljust(255, "x"))),
    "key-whitespace": lambda t, key: (t.spell(key), b"  " + t.spell(key) + b" \t"),
}
# Each derives two different keys from a fresh one: two effects.
_TWO_KEYS: Final[Mapping[str, Callable[[Try, str], tuple[bytes, bytes]]]] = {
    "key-escape-unescaped": lambda t, key: (f'"{key}\\\\"'.encode(), f'"{key}\\""'.encode()),
    "key-not-truncated": lambda t, key: (
        t.spell(key.ljust(LONG_KEY, "x") + "a"),
        t.spell(key.ljust(LONG_KEY, "x") + "b"),
    ),
    "key-case": lambda t, key: (t.spell(key.lower()), t.spell(key.upper())),
    "key-pattern": lambda t, key: (t.spell(f"{key}x"), t.spell(f"{key}%")),
    "key-injection": lambda t, key: (t.spell(f"{key}'or'1'='1"), t.spell(f"{key}'or'1'='2")),
}
for _name, _lines in _MALFORMED.items():
    check(_name, WITHOUT_EFFECTS)(partial(expect_refusal, spell=_lines))
for _name, _spellings in _ONE_KEY.items():
    check(_name)(partial(same_key, spell=_spellings))
for _name, _spellings in _TWO_KEYS.items():
    check(_name)(partial(two_keys, spell=_spellings))


@check("key-header-name")
async def _(t: Try) -> None:
    await same_key(t, lambda t, key: (t.spell(key), t.spell(key)), key_name=t.case.key_header.swapcase())


@check("key-quoted-is-bare")
async def _(t: Try) -> None:
    key = t.key().encode()
    await t.first(None, lines=[b'"' + key + b'"'])
    again = await t.send(None, lines=[key])
    if again.status == 400:
        raise NotTried("the API takes no bare keys")
    await t.expect_effects(1, f"the bare spelling got {again.text()}")


@check("key-fresh")
async def _(t: Try) -> None:
    key = t.key()
    replies = [await t.send(f"{key}-{number}") for number in (1, 2)]
    await t.expect_effects(2, tally(replies))


@check("key-missing", WITHOUT_EFFECTS)
async def _(t: Try) -> None:
    reply = await t.send(None)
    if reply.status >= 500 or not reply.status:
        raise Failed(reply.text())
    await t.expect_effects(0, reply.text())


@check("key-missing-status", BESIDE_OTHERS)
async def _(t: Try) -> None:
    reply = await t.send(None)
    if reply.status != 400 and not reply.ok:
        raise Failed(f"{reply.text()}, not 400")


@check("key-optional")
async def _(t: Try) -> None:
    replies = [await t.first(None) for _ in range(2)]
    await t.expect_effects(2, tally(replies))
