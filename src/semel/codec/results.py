"""The stored JSON of a function's result or declared exception.

The first caller's value also goes through the stored form, so that it equals what every replay gets.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from semel.codec.plain import DEPTH_MAX, dumps, from_plain, to_plain
from semel.codec.scalars import Mismatch, Unserialisable
from semel.codec.shapes import Shape
from semel.core.model import Answer
from semel.errors import ConfigurationError

HEADER: Final = b"semel-result"
RETURNED: Final = b"returned"
RAISED: Final = b"raised"
_JSON: Final = (b"content-type", b"application/json")
_NEVER_REPLAYED: Final = "a refusal needs its own type: declare specific exceptions, such as CardDeclined"


class KeptResult(NamedTuple):
    """A stored answer, and the value that its caller gets."""

    answer: Answer
    value: Any


def keep_result(value: Any, shape: Shape) -> KeptResult:
    """Encode a result as an answer. Raises Unserialisable, naming the part that cannot be stored and the remedy."""
    body, again = _round_trip(value, lambda each: shape.encode(each, "the result"), shape.decode)
    return KeptResult(Answer(None, (_JSON, (HEADER, RETURNED)), body), again)


def keep_error(error: Exception, declared: tuple[type[Exception], ...]) -> KeptResult:
    """Encode a declared exception as an answer: its type, its args and its attributes. Raises Unserialisable."""
    name = type(error).__qualname__
    if _type_of(name, declared) is not type(error):
        raise Unserialisable(f"the exception {name}", "shares its name with another declared one", "rename one of them")
    body, again = _round_trip(error, _error_form, lambda form: _error(form, declared))
    for lost in _members(error):
        if getattr(error, lost, None) != getattr(again, lost, None):
            raise Unserialisable(f"{name}.{lost}", "is not in its args or its attributes", "keep it in self.args")
    return KeptResult(Answer(None, (_JSON, (HEADER, RAISED)), body), again)


def restore_result(answer: Answer, shape: Shape, declared: tuple[type[Exception], ...]) -> Any:
    """Restore the result from an answer. Raises the exception that the answer holds instead, or Mismatch."""
    raised = (HEADER, RAISED) in answer.headers
    try:
        form = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise Mismatch("no JSON") from None
    if raised:
        raise _error(form, declared)
    return shape.decode(form)


def _round_trip(value: Any, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> tuple[bytes, Any]:
    try:
        body = dumps(encode(value))
        again = decode(json.loads(body))
        same = dumps(encode(again)) == body
    except RecursionError:
        raise Unserialisable(
            "the result", f"is nested deeper than {DEPTH_MAX} levels", "return a flatter one"
        ) from None
    except UnicodeEncodeError:
        raise Unserialisable("the result", "contains a text with a lone surrogate", "return valid Unicode") from None
    except (Mismatch, ValueError) as error:
        raise Unserialisable("the result", f"cannot be read back ({error})", _OTHER) from error
    if not same:
        raise Unserialisable("the result", "changes when it is read back", _OTHER)
    return body, again


_OTHER: Final = "let its class take its own fields as they are, or give a Codec"


# --- exceptions -----------------------------------------------------------------------------------


def check_replays(
    replays: object, nothing_happened: tuple[type[BaseException], ...] = ()
) -> tuple[type[Exception], ...]:
    """Check the exception types that are declared to be replayed. Raises ConfigurationError."""
    if not isinstance(replays, tuple):
        raise ConfigurationError(
            f"replays= takes a tuple of exception types, such as (CardDeclined,); it is {replays!r}"
        )
    for kind in replays:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigurationError(f"replays= takes exception types; it has {kind!r}")
        if kind is Exception or not issubclass(kind, Exception):
            raise ConfigurationError(f"replays= must not hold {kind.__name__}: {_NEVER_REPLAYED}")
        if issubclass(kind, ExceptionGroup):
            raise ConfigurationError(f"replays= must not hold {kind.__name__}: a group holds other exceptions")
        if kind in nothing_happened:
            raise ConfigurationError(f"{kind.__name__} cannot be both in replays= and in nothing_happened=; choose one")
    return replays


def _types(declared: tuple[type[Exception], ...]) -> Iterator[type[Exception]]:
    """Return the declared types, and the subclasses that this process knows."""
    for kind in declared:
        yield kind
        yield from _types(tuple(type.__subclasses__(kind)))


def _type_of(name: Any, declared: tuple[type[Exception], ...]) -> type[Exception] | None:
    found = {kind for kind in _types(declared) if kind.__qualname__ == name}
    return found.pop() if len(found) == 1 else None


def _arguments(error: Exception) -> tuple[Any, ...]:
    """Return the arguments of an exception. An OSError's args lack its file names; its copy protocol has them."""
    own = isinstance(type(error).__reduce__, types.MethodDescriptorType)
    return tuple(error.__reduce__()[1]) if own else error.args


def _error_form(error: Exception) -> Any:
    name = type(error).__qualname__
    return {
        "type": name,
        "args": [to_plain(each, f"{name}.args[{n}]") for n, each in enumerate(_arguments(error))],
        "attributes": {key: to_plain(each, f"{name}.{key}") for key, each in vars(error).items()},
    }


def _members(error: Exception) -> Iterator[str]:
    """Return an exception's state besides args and attributes: slots, and members of some of Python's own types."""
    for kind in type(error).__mro__:
        if kind not in (BaseException, object):
            for name, member in vars(kind).items():
                if isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType) and name[:2] != "__":
                    yield name


def _error(form: Any, declared: tuple[type[Exception], ...]) -> Exception:
    match form:
        case {"type": name, "args": list(args), "attributes": dict(attributes)}:
            kind = _type_of(name, declared)
        case _:
            raise Mismatch("no exception")
    if kind is None:
        raise Mismatch(f"the exception {name} is not declared in replays= any more")
    # Without __init__, whose parameters may differ from the args: __new__ sets the args, and the rest are attributes.
    values = tuple(from_plain(each) for each in args)
    try:
        error = kind.__new__(kind, *values)
    except Exception as refused:
        raise Mismatch(f"{name} refused its args ({type(refused).__name__})") from refused
    vars(error).update({key: from_plain(each) for key, each in attributes.items()})
    return error
