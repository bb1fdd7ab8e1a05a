"""The arguments of a call by name, and the dotted paths into them.

A path is a parameter's name, and then steps joined by dots: ``order.customer.id``, ``payload.id``, ``items.0.sku``.
A step takes the member of a mapping, the item of a list or tuple if it is a number, and the attribute of anything
else. Use a function for anything more: ``key=lambda order: ...``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final
from uuid import UUID

from semel.articles import name_type
from semel.core.identity import frame
from semel.errors import ConfigurationError, InvalidKey, MissingKey, RequestError
from semel.http.caller import Caller, single_caller
from semel.keys import KEY_LENGTH_MAX


class NotThere(Exception):
    """A path without a value; the message explains why."""


@dataclass(frozen=True, slots=True)
class Path:
    """One path, checked against a function's parameters. Raises ConfigurationError.

    >>> Path.of("order.id", ("order",), "key=").find({"order": {"id": "A-1"}})
    'A-1'
    """

    text: str
    root: str
    steps: tuple[str, ...]

    @classmethod
    def of(cls, text: object, parameters: Sequence[str], option: str) -> Path:
        if not isinstance(text, str) or not all(text.split(".")):
            raise ConfigurationError(f"{option}{text!r} is not a path; write a parameter and its parts: 'order.id'")
        root, *steps = text.split(".")
        if root not in parameters:
            near = difflib.get_close_matches(root, parameters, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the parameters are {', '.join(parameters) or 'none'}"
            raise ConfigurationError(f"{option}{text!r}: the function has no parameter {root!r}; {hint}")
        return cls(text, root, tuple(steps))

    def find(self, arguments: Mapping[str, Any]) -> Any:
        """Find the value at the path. Raises NotThere."""
        value, seen = arguments[self.root], self.root
        for step in self.steps:
            value, seen = _step(value, step, seen), f"{seen}.{step}"
        return value


def _step(value: Any, step: str, seen: str) -> Any:
    if value is None:
        raise NotThere(f"{seen} is None")
    if isinstance(value, Mapping):
        if step in value:
            return value[step]
        raise NotThere(f"{seen} has no member {step!r}")
    if step.isascii() and step.isdigit():
        if isinstance(value, list | tuple) and len(step) < 10 and int(step) < len(value):
            return value[int(step)]
        raise NotThere(f"{seen} has no item {step}")
    try:
        return getattr(value, step)
    except AttributeError:
        raise NotThere(f"{seen}, {name_type(value)}, has no attribute {step!r}") from None


_TEXTS: Final = "a text, a whole number, a UUID or a date"


def text_of(value: object) -> str | None:
    """Return a value's text for a key or a caller; None if its type has no obvious text."""
    if isinstance(value, str):
        return str.__str__(value)  # for a text enum its text, never its name
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__str__(value)
    return None


# --- keys -----------------------------------------------------------------------------------------

KeyOfCall = str | tuple[str, ...] | Callable[..., object] | None
"""A path into the arguments, a tuple of paths, or a function of them; None if each call provides its key."""

MakeKey = Callable[[Mapping[str, Any], tuple[Any, ...], Mapping[str, Any]], str]
"""A function of the bound arguments, and of the call's own args and kwargs, that returns the key."""


def key_maker(key: object, parameters: Sequence[str]) -> MakeKey | None:
    """Make the function that derives a call's key; None if every call must provide one.

    Parameters: ``key`` as declared: a path, a tuple of paths, a function, or None.

    Raises ConfigurationError.
    """
    if key is None:
        return None
    if isinstance(key, str):
        one = Path.of(key, parameters, "key=")
        return lambda arguments, args, kwargs: check_key(_key_part(one, arguments), f"key={one.text!r}")
    if isinstance(key, tuple) and key:
        paths = tuple(Path.of(each, parameters, "key=") for each in key)
        name = f"key={key!r}"
        return lambda arguments, args, kwargs: check_key(
            frame(*(_key_part(path, arguments) for path in paths)).decode(), name
        )
    if callable(key):
        given: Callable[..., object] = key
        return lambda arguments, args, kwargs: _key_of(given, args, kwargs)
    raise ConfigurationError(
        f"key={key!r} is not a key; give a path such as 'order.id', a tuple of paths, or a function of the arguments"
    )


def _key_of(key: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    made = key(*args, **kwargs)
    if made is None or made == "":
        raise MissingKey("the key function returned no key; return a text that is the same whenever this is retried")
    text = text_of(made)
    if text is None:
        raise InvalidKey(f"the key function returned {name_type(made)}; return {_TEXTS}")
    return check_key(text, "the key function's key")


def _key_part(path: Path, arguments: Mapping[str, Any]) -> str:
    try:
        value = path.find(arguments)
    except NotThere as error:
        raise MissingKey(f"no key: {path.text!r} is not there ({error}); every call needs one") from None
    if value is None:
        raise MissingKey(f"no key: {path.text!r} is None; every call needs one")
    text = text_of(value)
    if text is None:
        raise InvalidKey(
            f"{path.text!r} is {name_type(value)}, no key; let the path lead to {_TEXTS}, or give key= a function"
        )
    if not text.strip():
        raise MissingKey(f"no key: {path.text!r} is empty; every call needs one")
    return text


def check_key(key: object, what: str) -> str:
    """Require a non-empty, short enough, valid Unicode key. Raises MissingKey and InvalidKey, without the key."""
    if key is None or key == "" or (isinstance(key, str) and not key.strip()):
        raise MissingKey(f"{what} is empty; give a text that is the same whenever this is retried")
    if not isinstance(key, str):
        raise InvalidKey(f"{what} is {name_type(key)}; give a text")
    if len(key) > KEY_LENGTH_MAX:
        raise InvalidKey(f"{what} has {len(key)} characters, at most {KEY_LENGTH_MAX} are taken; give a digest of it")
    if not key.isprintable() and any(0xD800 <= ord(char) < 0xE000 for char in key):
        raise InvalidKey(f"{what} is not valid Unicode text")
    return key


# --- callers --------------------------------------------------------------------------------------

CallerOfCall = str | tuple[str, str] | Caller | Callable[..., Caller]
"""A path into the arguments, two for tenant and caller, a caller, or a function of the arguments."""

MakeCaller = Callable[[Mapping[str, Any], tuple[Any, ...], Mapping[str, Any]], Caller]
"""A function of the bound arguments, and of the call's own args and kwargs, that returns the caller."""

_SAY_WHO: Final = (
    "say in whose name it is called: caller='order.customer_id', caller=('order.tenant_id', 'order.customer_id'), "
    "caller=Caller('acme', 'billing'), a function of the arguments, or caller=single_caller where there is only one"
)


def caller_maker(caller: object, parameters: Sequence[str]) -> MakeCaller:
    """Make the function that finds a call's caller. Raises ConfigurationError if it is not declared."""
    if caller is single_caller:
        only = single_caller({})
        return lambda arguments, args, kwargs: only
    if isinstance(caller, Caller):
        return lambda arguments, args, kwargs: caller
    if isinstance(caller, str):
        path = Path.of(caller, parameters, "caller=")
        return lambda arguments, args, kwargs: _caller(path, arguments)
    if isinstance(caller, tuple) and len(caller) == 2:
        tenant, id = (Path.of(each, parameters, "caller=") for each in caller)
        return lambda arguments, args, kwargs: Caller(_name(tenant, arguments), _name(id, arguments))
    if callable(caller) and not isinstance(caller, type):
        return lambda arguments, args, kwargs: _caller_of(caller, args, kwargs)
    if caller is None:
        raise ConfigurationError(f"caller= is missing: a key means something only for its caller; {_SAY_WHO}")
    raise ConfigurationError(f"caller={caller!r} is not a caller; {_SAY_WHO}")


def _caller_of(caller: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Caller:
    found = caller(*args, **kwargs)
    if not isinstance(found, Caller):
        raise ConfigurationError(f"caller= returned {name_type(found)}; it must return a Caller(tenant, id)")
    return found


def _caller(path: Path, arguments: Mapping[str, Any]) -> Caller:
    found = _look(path, arguments)
    return found if isinstance(found, Caller) else Caller("single", _caller_name(path, found))


def _name(path: Path, arguments: Mapping[str, Any]) -> str:
    return _caller_name(path, _look(path, arguments))


def _look(path: Path, arguments: Mapping[str, Any]) -> Any:
    try:
        return path.find(arguments)
    except NotThere as error:
        raise RequestError(f"caller={path.text!r} is not there ({error}); {_NO_CALLER}") from None


def _caller_name(path: Path, value: object) -> str:
    if value is None or value == "":
        raise RequestError(f"caller={path.text!r} is {value!r}; {_NO_CALLER}")
    text = text_of(value)
    if text is None:
        raise ConfigurationError(f"caller={path.text!r} is {name_type(value)}; let it lead to {_TEXTS}")
    return text


_NO_CALLER: Final = "nothing runs for an unknown caller"
