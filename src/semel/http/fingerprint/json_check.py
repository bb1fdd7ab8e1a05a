r"""Checks, before the claim, that a body is JSON that a handler can read: the handler would fail after the claim.

A body passes if Python's own ``json.loads`` accepts its bytes and an answer could repeat its values: no NaN or
infinities, no numbers beyond a double, no lone surrogates. A duplicate name passes. Of a body too large for memory,
only the depth is checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from math import isfinite
from typing import Final, Literal, NoReturn

from semel.errors import InvalidBody, RequestTooLarge
from semel.http.fingerprint.multipart import parse_media_type

JsonMode = Literal["checked", "required", "any"]

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]").search
# Only such a token can be infinite: with three digits of an exponent, or very many before it.
_HUGE = re.compile(r"[0-9]\.?[eE]\+?[0-9]{3}|[0-9]{200}").search
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_OPENING: Final = frozenset(b"[{")


class _Unusable(ValueError):
    """The reason why a document is unusable, for its sender."""


def _refuse_constant(name: str) -> NoReturn:
    raise _Unusable(f"it holds {name}")


def _finite(token: str) -> float:
    number = float(token)
    if not isfinite(number):
        raise _Unusable("it contains a number that is too large for a double")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_CAREFUL_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def reads_json(mode: JsonMode, media_type: str, *, is_empty: bool) -> bool:
    """Return whether a body must be JSON, by its operation's ``json`` option and the request's media type.

    >>> reads_json("checked", "application/json", is_empty=False), reads_json("checked", "text/plain", is_empty=False)
    (True, False)
    >>> reads_json("required", "", is_empty=True), reads_json("checked", "application/json", is_empty=True)
    (True, False)
    """
    if mode == "required":
        return True
    if mode == "any" or is_empty or not media_type:
        return False
    return _is_json(media_type) if len(media_type) <= 128 else _is_json.__wrapped__(media_type)


@lru_cache(maxsize=256)
def _is_json(media_type: str) -> bool:
    media = parse_media_type(media_type)
    if media is None:
        return False
    essence = media.essence
    return essence in ("application/json", "text/json") or (
        essence.startswith("application/") and essence.endswith("+json")
    )


def check_json(body: bytes, depth_max: int) -> None:
    r"""Refuse a body that is not JSON, or has values that no answer could repeat.

    Raises InvalidBody; RequestTooLarge: nested deeper than ``depth_max`` arrays and objects.

    >>> check_json(b'{"amount": "5.00", "amount": "6.00"}', 64)
    >>> check_json(b'{"amount": NaN}', 64)
    Traceback (most recent call last):
        ...
    semel.errors.InvalidBody: The body is not usable JSON: it holds NaN; send it corrected.
    """
    try:
        encoding = json.detect_encoding(body)
        text = body.decode(encoding)
        if text.count("[") + text.count("{") > depth_max:
            check_depth((body if encoding == "utf-8" else text.encode(),), depth_max)
        value = (_DECODER if _HUGE(text) is None else _CAREFUL_DECODER).decode(text)
        if _SURROGATE(text) is not None:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise _refusal("it is not UTF-8") from None
    except UnicodeEncodeError:
        raise _refusal("it contains a lone surrogate") from None
    except json.JSONDecodeError as error:
        raise _refusal(f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.pos}") from None
    except _Unusable as error:
        raise _refusal(str(error)) from None
    except RecursionError:
        raise _too_deep(depth_max) from None
    except ValueError:
        raise _refusal("it contains an integer with too many digits") from None


def check_depth(chunks: Iterable[bytes], depth_max: int) -> None:
    """Refuse a document whose arrays and objects nest too deep, in one linear pass and without parsing it.

    Raises RequestTooLarge.

    >>> check_depth((b'[["', b"]]]]", b'"]]'), 2)
    """
    depth, carry = 0, b""
    for chunk in chunks:
        # Without escapes, every second piece between quotes is outside of strings.
        plain = _ESCAPE.sub(b"", carry + chunk)
        pieces = plain.split(b'"')
        carry = (b"" if len(pieces) % 2 else b'"') + (b"\\" if plain.endswith(b"\\") else b"")
        outside = b"".join(pieces[::2])
        if depth + outside.count(b"[") + outside.count(b"{") <= depth_max:
            depth += sum(map(outside.count, (b"[", b"{"))) - sum(map(outside.count, (b"]", b"}")))
            continue
        for bracket in outside.translate(None, _NOT_BRACKETS):
            depth += 1 if bracket in _OPENING else -1
            if depth > depth_max:
                raise _too_deep(depth_max)


def _too_deep(depth_max: int) -> RequestTooLarge:
    return RequestTooLarge(f"The JSON body is nested deeper than {depth_max} levels; send a flatter one.")


def _refusal(why: str) -> InvalidBody:
    return InvalidBody(f"The body is not usable JSON: {why}; send it corrected.")
