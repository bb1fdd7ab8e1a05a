"""Self-describing JSON for values without a declared type.

JSON's own values are written as they are. Tuples, sets, mappings with other keys and the types of ``scalars`` are
written as an object with one member, whose name is a dollar sign and the type: ``{"$decimal": "1.10"}``. Classes
are refused: the content of a store must never decide which class is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from semel.articles import with_article
from semel.codec.scalars import BY_TAG, SCALARS, Mismatch, Unserialisable, kind_name, scalar_text

DEPTH_MAX: Final = 100
REMEDY: Final = (
    "use JSON values, tuples, sets, bytes, Decimal, UUID, dates and times; for a dataclass, an enum, a pydantic model "
    "or a msgspec Struct declare its type in the return annotation"
)
_ALIKE: Final = frozenset({type(None), bool, int, str})
_SPECIAL_FLOATS: Final = frozenset({"nan", "inf", "-inf"})


def dumps(form: Any) -> bytes:
    """Write a form as bytes. Raises ValueError for lone surrogates and numbers that Python does not write out."""
    return json.dumps(form, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def to_plain(value: Any, where: str, depth: int = 0) -> Any:
    """Return the form of a value by its own type. Raises Unserialisable, naming its place and the remedy."""
    if depth > DEPTH_MAX:
        raise Unserialisable(where, f"is nested deeper than {DEPTH_MAX} levels", "return a flatter value")
    kind = type(value)
    if kind in _ALIKE:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind is list:
        return [to_plain(item, f"{where}[{n}]", depth + 1) for n, item in enumerate(value)]
    if kind is tuple:
        return {"$tuple": [to_plain(item, f"{where}[{n}]", depth + 1) for n, item in enumerate(value)]}
    if kind is set or kind is frozenset:
        return {f"${kind.__name__}": in_order(to_plain(item, f"an item of {where}", depth + 1) for item in value)}
    if kind is dict:
        return _mapping(value, where, depth)
    text = scalar_text(value, where)
    if text is None:
        raise Unserialisable(where, f"is {with_article(kind_name(kind))}, which has no safe form", REMEDY)
    return {f"${SCALARS[kind].tag}": text}


def _mapping(value: dict[Any, Any], where: str, depth: int) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: to_plain(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    return {
        "$dict": [
            [to_plain(key, f"a key of {where}", depth + 1), to_plain(item, f"a value of {where}", depth + 1)]
            for key, item in value.items()
        ]
    }


def from_plain(form: Any) -> Any:
    """Return the value of a form. Raises Mismatch if it is not a form."""
    if type(form) is list:
        return [from_plain(item) for item in form]
    if type(form) is not dict:
        return form
    if len(form) == 1:
        [(name, inner)] = form.items()
        if name.startswith("$"):
            return _read_tagged(name[1:], inner)
    return {key: from_plain(item) for key, item in form.items()}


def _read_tagged(tag: str, inner: Any) -> Any:
    scalar = BY_TAG.get(tag)
    if scalar is not None:
        return scalar.read(inner)
    if tag == "float" and inner in _SPECIAL_FLOATS:
        return float(inner)
    if tag in _CONTAINERS and type(inner) is list:
        try:
            return _CONTAINERS[tag](inner)
        except (TypeError, ValueError):  # an item that no set or key can hold, or no pair
            raise Mismatch(f"not a {tag}") from None
    raise Mismatch(f"there is no tag ${tag}")


_CONTAINERS: Final[Mapping[str, Callable[[list[Any]], Any]]] = {
    "tuple": lambda items: tuple(from_plain(item) for item in items),
    "set": lambda items: {from_plain(item) for item in items},
    "frozenset": lambda items: frozenset(from_plain(item) for item in items),
    "dict": lambda items: {from_plain(key): from_plain(item) for key, item in items},
}


def in_order(forms: Any) -> list[Any]:
    """Sort forms by their content alone, so that the same set is always written the same way."""
    return sorted(forms, key=lambda form: json.dumps(form, sort_keys=True))
