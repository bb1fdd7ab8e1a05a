"""Canonical JSON: one sequence of bytes for every spelling of the same document, numbers as they were written.

Members are sorted in UTF-16 order, whitespace is dropped and escapes are normalised, all as RFC 8785 does; number
tokens stay verbatim, where RFC 8785 would round them to doubles and take ...993 for ...992. So `1` and `1.0` differ:
loudly, and only for a client that spells its retry differently. What is not JSON, or means different things to
different parsers (a name given twice, half a surrogate pair), has no canonical form: the answer is None, and the
caller hashes the bytes as they are. The file deliberately neither hashes nor hands out parsed values.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from json.encoder import encode_basestring
from typing import Any, NoReturn, TypeAlias

from semel.errors import RequestTooLarge

# Numbers are kept as ASCII bytes, which distinguishes them from strings: `str.encode` is the cheapest callable the
# scanner can be given (a subclass of str costs twice as much), and with it no digit limit and no float is involved.
_Json: TypeAlias = "dict[str, _Json] | list[_Json] | str | bytes | bool | None"
_Order: TypeAlias = Callable[[Iterable[str]], list[str]]

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_OPENING = frozenset(b"[{")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_WORDS = {None: "null", True: "true", False: "false"}

# The documents that orjson may read: with strings, and integers of at most 18 digits, not -0. Strings may not contain
# U+E000 to U+FFFF, which UTF-16 sorts differently, or an escape that may be a colon. Every step is possessive, so that
# a document that does not match is refused in one linear pass. A string without escapes is tried first.
_PLAIN = re.compile(
    rb"""[{\[](?:[^"\\0-9\-\x80-\xff]++|"[^"\\\xee\xef]*+"|"[^"\\\xee\xef]*+(?:\\(?!u(?:003|[eEfF])).[^"\\\xee\xef]*+)++"|"""
    rb"""(?:0|-?[1-9][0-9]{0,17}+)(?![0-9.eE]))*+""",
    re.DOTALL,
).fullmatch
_HUGE = re.compile(rb"[0-9]\.?[eE]\+?[0-9]{3}|[0-9]{200}").search  # maybe too large for a double, or for an int


def canonical_json(body: bytes, *, depth_max: int = 64) -> bytes | None:
    r"""Return the canonical bytes of a JSON document, or None if it has none.

    Args:
        body: the document as received.
        depth_max: how many arrays and objects may be open at once. Depth is counted on the brackets outside strings
            before anything is parsed, so that a hostile body is refused in one linear pass.

    Returns:
        UTF-8 text; None if the body is not UTF-8 or not JSON (NaN, a byte order mark, trailing data), if a member
        name is given twice after unescaping, or if a string holds a lone surrogate.

    Raises:
        RequestTooLarge: nested deeper than `depth_max`.

    Source: RFC 8785, sections 3.2.1 to 3.2.3, except 3.2.2.3 (numbers); RFC 8259 for what JSON is.

    >>> canonical_json(b'{"b": 1.0, "a": "\\u00e9\\u002f"}').decode()
    '{"a":"é/","b":1.0}'
    >>> canonical_json(b'{"a":1,"\\u0061":2}') is None
    True
    """
    out = plain_json(body, depth_max)
    if out is not None:
        return out
    _refuse_deep(body, depth_max)
    return _exact(body)


def plain_json(body: bytes, depth_max: int) -> bytes | None:
    r"""Return the canonical bytes of a document that all parsers read the same way; None if that is not certain.

    Any handler can read such a document, and any answer can repeat it: its numbers are integers of at most 18 digits,
    and it has no duplicate name, no lone surrogate, and at most ``depth_max`` nested arrays and objects.

    >>> plain_json(b'{"b": 1, "a": ["\\u0041"]}', 64), plain_json(b'{"b": 1.0}', 64), plain_json(b"[[]]", 1)
    (b'{"a":["A"],"b":1}', None, None)
    """
    read = plain_reader()
    return None if read is None else read(body, depth_max)


def usual_json(body: bytes, depth_max: int) -> bytes | None:
    """As :func:`plain_json`, with numbers of any form that is far from the limits of a double; it takes longer.

    Such a document also passes every check of `json_check`: this function reads strict JSON in UTF-8, nothing else.

    >>> usual_json(b'{"b": 1.50}', 64), usual_json(b"[1e300]", 64), usual_json(b"[[]]", 1)
    (b'{"b":1.50}', None, None)
    """
    if body.count(b"{") + body.count(b"[") > depth_max or _HUGE(body) is not None:
        return None
    try:
        return _exact(body)
    except RequestTooLarge:
        return None


def select_members(body: bytes, members: tuple[str, ...], *, depth_max: int = 64) -> bytes | None:
    """Return the canonical bytes of an object that holds only the named members of `body`.

    Args:
        body: the document as received.
        members: paths, their steps joined by dots: `amount`, `customer.id`, `items.0.sku` (a decimal step into an
            array is an index). As in RFC 6901, `~0` stands for a tilde, and here `~1` for a dot inside a name.
        depth_max: as for `canonical_json`.

    Returns:
        An object whose member names are the paths as given; a path without a value is left out, which differs
        from null. None if the document is not an object, not JSON, gives a name twice anywhere, or holds a lone
        surrogate in what was selected.

    Raises:
        RequestTooLarge: nested deeper than `depth_max`.

    >>> select_members(b'{"note": "x", "customer": {"id": 7, "age": 9}}', ("customer.id", "amount"))
    b'{"customer.id":7}'
    """
    _refuse_deep(body, depth_max)
    return _exact(body, members)


def _refuse_deep(body: bytes, depth_max: int) -> None:
    # No more opening brackets than levels allowed, strings included: it cannot be too deep.
    if body.count(b"{") + body.count(b"[") <= depth_max:
        return
    # The closing quote is optional in the pattern: an unterminated string is consumed to its end, once, instead of
    # being tried again from every quote inside it.
    depth = 0
    for bracket in _STRING.sub(b"", body).translate(None, _NOT_BRACKETS):
        if bracket in _OPENING:
            depth += 1
            if depth > depth_max:
                raise RequestTooLarge(f"The JSON body is nested deeper than {depth_max} levels; send a flatter one.")
        else:
            depth -= 1


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _members(pairs: list[tuple[str, _Json]]) -> dict[str, _Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member name is given twice")
    return members


_DECODER = json.JSONDecoder(
    parse_int=str.encode,
    parse_float=str.encode,
    parse_constant=_refuse_constant,
    object_pairs_hook=_members,
)


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _sort_utf16(names: Iterable[str]) -> list[str]:
    return sorted(names, key=_utf16)


def _exact(body: bytes, members: tuple[str, ...] | None = None) -> bytes | None:
    """The slow path, which defines the canonical form: the standard library's scanner and our own writer."""
    # Characters and UTF-16 code units sort alike if all are ASCII.
    order: _Order = sorted if body.isascii() and b"\\u" not in body and members is None else _sort_utf16
    pieces: list[str] = []
    try:
        value: _Json = _DECODER.decode(body.decode("utf-8"))
        if members is not None:
            if type(value) is not dict:
                return None
            value = _select(value, members)
        _write(value, pieces.append, order)
        # A lone surrogate can only come from an escape, and is found here: UTF-8 has no form for it.
        return "".join(pieces).encode("utf-8")
    except RecursionError as error:
        # Only if the stack was nearly used up, or with a very large depth_max. A fallback to the raw bytes would make
        # the canonical form depend on the caller's stack.
        raise RequestTooLarge("The JSON body is nested deeper than this process can follow.") from error
    except ValueError:
        # Not UTF-8, not JSON, or ambiguous: all of these are ValueErrors, and all have no canonical form.
        return None


def _select(document: dict[str, _Json], members: tuple[str, ...]) -> dict[str, _Json]:
    found: dict[str, _Json] = {}
    for path in members:
        value: _Json = document
        for step in path.split("."):
            name = step.replace("~1", ".").replace("~0", "~")
            if type(value) is dict and name in value:
                value = value[name]
            elif type(value) is list and name.isascii() and name.isdigit() and _is_index(name, len(value)):
                value = value[int(name)]
            else:
                break
        else:
            found[path] = value
    return found


def _is_index(name: str, length: int) -> bool:
    # The length first: int() of a very long run of digits is refused by Python, and would be slow.
    return len(name) <= len(str(length)) and str(int(name)) == name and int(name) < length


def _write(value: _Json, put: Callable[[str], None], order: _Order) -> None:
    """Append the canonical text of `value` piece by piece; recursion is bounded by the depth check."""
    if type(value) is str:
        # Escapes the quote, the backslash and the controls, with the short forms and lower-case hex of RFC 8785.
        put(encode_basestring(value))
    elif type(value) is bytes:
        # Strict ASCII: a scanner in pure Python takes digits of other scripts, which are not JSON.
        put(value.decode("ascii"))
    elif type(value) is dict:
        if not value:
            put("{}")
            return
        separator = "{"
        for name in order(value):
            put(f"{separator}{encode_basestring(name)}:")
            _write(value[name], put, order)
            separator = ","
        put("}")
    elif type(value) is list:
        if not value:
            put("[]")
            return
        separator = "["
        for item in value:
            put(separator)
            _write(item, put, order)
            separator = ","
        put("]")
    else:
        assert value is None or type(value) is bool
        put(_WORDS[value])


@cache
def plain_reader() -> Callable[..., bytes | None] | None:
    """Return the reader of :func:`plain_json`, made with orjson, or None if that is not installed. Imported once."""
    try:
        orjson: Any = importlib.import_module("orjson")
    except ImportError:
        return None
    loads: Callable[[bytes], object] = orjson.loads
    dumps: Callable[..., bytes] = orjson.dumps
    sort_keys: int = orjson.OPT_SORT_KEYS

    plain = _PLAIN

    def quick(body: bytes, depth_max: int = sys.maxsize) -> bytes | None:
        r"""Exactly what `_exact` returns, or None where that is not certain.

        Why it is the same: `loads` accepts only JSON in UTF-8, without lone surrogates. Both write a string with the
        same escapes: those of RFC 8785, and no others. An integer of at most 18 digits, other
        than -0, is exact as an int, has no leading zero, and is written back as it was. Structure is written without
        whitespace. Without characters from U+E000 to U+FFFF, names sort alike as UTF-8 and as UTF-16.

        So the two can only differ by members that were dropped because their name was repeated. A dropped member takes
        at least its own colon with it, and nothing adds one: equal counts of colons prove that none was dropped, for
        any whitespace. Equal lengths prove it as well, since nothing ever becomes longer.
        """
        if body.count(b"{") + body.count(b"[") > depth_max:  # those within strings count too: it cannot be too deep
            return None
        if plain(body) is None:
            return None
        try:
            out = dumps(loads(body), option=sort_keys)
        except (ValueError, TypeError, RecursionError):
            # Not JSON, or deeper than orjson writes; the slow path finds out which.
            return None
        return out if len(out) == len(body) or out.count(b":") == body.count(b":") else None

    # The proof holds for orjson only; another module under that name must not change fingerprints.
    probe = b'{"b":[-1,"\x7f\\/\\u00E9\\u001F\xe2\x82\xac"],"a":{"z":null,"y":0}}'
    expected = b'{"a":{"y":0,"z":null},"b":[-1,"\x7f/\xc3\xa9\\u001f\xe2\x82\xac"]}'
    return quick if quick(probe, 64) == expected else None
