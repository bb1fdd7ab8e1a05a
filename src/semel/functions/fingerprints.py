"""The fingerprint of a call: a digest of its arguments, by name and type.

Defaults are applied and names sorted, so that every way to write a call gives one fingerprint. Values differ
by type: ``1``, ``1.0``, ``True`` and ``"1"`` differ; a list and a tuple of the same items do not. A value without a
canonical form is refused, naming the argument; it is never left out silently.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import hmac
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations, islice
from operator import itemgetter
from typing import Any, Final

from semel.articles import with_article
from semel.codec.plain import DEPTH_MAX
from semel.codec.scalars import Unserialisable, kind_name, scalar_text
from semel.codec.shapes import Codec
from semel.codec.structures import FieldDefault, defaults_of, model_of
from semel.core.identity import frame
from semel.errors import ConfigurationError, RequestTooLarge
from semel.functions.arguments import NotThere, Path

VERSION: Final = "f1"
OPTIONAL_MAX: Final = 8  # all selections of up to so many parameters are tried, if a record knows fewer
SPELLINGS_MAX: Final = 8  # so many fingerprints of former classes are tried, if a record has another one
_REMEDY: Final = "leave it out with exclude=({root!r},) where it says nothing about what is wanted, or give a Codec"


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """Makes fingerprints for one function.

    Parameters: ``names`` of the parameters that count; ``paths`` instead, if only parts of them do; ``defaults`` of
    parameters that have one; ``codecs`` by class; ``bytes_max`` of all arguments in canonical form; ``without`` how
    many of a class's last fields to leave out, as before it had them.
    """

    names: tuple[str, ...]
    paths: tuple[Path, ...] = ()
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    codecs: Mapping[type, Codec] = dataclasses.field(default_factory=dict)
    bytes_max: int = 10 * 1024 * 1024
    without: Mapping[type, int] = dataclasses.field(default_factory=dict)
    declared: dict[str, bytes] = dataclasses.field(init=False, default_factory=dict)
    """The counted parts of the defaults, as they were at declaration: the function may change them later."""

    def __post_init__(self) -> None:
        for name, root, find in self._list_parts():
            if root in self.defaults:
                with suppress(Exception):  # any error, a codec's too: each call that uses the default raises it again
                    self.declared[name] = self.canonical(find(self.defaults), name)

    def _list_parts(self) -> Iterator[tuple[str, str, Callable[[Mapping[str, Any]], Any]]]:
        """List each counted part: its name, its parameter, and how to find it among the arguments."""
        if not self.paths:
            for name in self.names:
                yield name, name, itemgetter(name)
        for path in self.paths:
            yield path.text, path.root, path.find

    @property
    def recipe(self) -> str:
        """Names version and configuration, such as ``f1.3f9a0c2b5d6e7f80``: stored beside every fingerprint."""
        return recipe_of(self._count_parts())

    def _count_parts(self) -> tuple[str, ...]:
        return tuple(path.text for path in self.paths) or self.names

    def parts(self, arguments: Mapping[str, Any], given: Collection[str] = ()) -> dict[str, bytes]:
        """Return each counted argument in canonical form.

        Parameters: ``given`` the arguments that the call passed: a default object that is passed counts as it is now.

        Raises ConfigurationError, naming an argument that has no canonical form.
        """
        try:
            parts = dict(self._parts(arguments, given))
        except RecursionError:
            raise ConfigurationError(
                "an argument holds itself, or is nested deeper than this process can follow; leave it out with exclude="
            ) from None
        except Unserialisable as error:
            root = error.where.removeprefix("a key of ").removeprefix("an item of ")
            root = root.partition(".")[0].partition("[")[0]
            why = f"the argument {error.where} {error.why}, so that this command cannot be distinguished from another"
            raise ConfigurationError(f"{why}; {_REMEDY.format(root=root)}") from None
        return parts

    def check_size(self, parts: Mapping[str, bytes]) -> None:
        """Raise RequestTooLarge if the arguments are too large to compare for a new command."""
        if sum(map(len, parts.values())) > self.bytes_max:
            raise RequestTooLarge(
                f"the arguments are larger than {self.bytes_max} bytes (body_bytes_max); leave the large ones out with "
                "exclude=(...), and let a digest of them be an argument"
            )

    def _parts(self, arguments: Mapping[str, Any], given: Collection[str]) -> Iterator[tuple[str, bytes]]:
        for name, root, find in self._list_parts():
            if name in self.declared and root not in given and arguments[root] is self.defaults[root]:
                yield name, self.declared[name]
                continue
            try:
                yield name, self.canonical(find(arguments), name)
            except NotThere:  # differs from None
                continue

    def under(
        self,
        recipe: str,
        arguments: Mapping[str, Any],
        parts: Mapping[str, bytes],
        operation: str,
        secret: bytes | None,
    ) -> tuple[bytes, ...] | None:
        """Return the call's fingerprints for a record made before the function, or a class, got its newest parts.

        Only if the new parts have a default, and the call uses it: then both calls have the same intent. The recipe
        tells which parameters to leave out; of a class, whose fields it does not name, the last fields are left out.
        """
        names = self._names_under(recipe, parts)
        if names is None:
            return None
        found = [digest({name: parts[name] for name in names if name in parts}, operation, secret)]
        for former in self._former_classes(arguments):
            spelled = replace(self, without=former).parts(arguments)
            found.append(digest({name: spelled[name] for name in names if name in spelled}, operation, secret))
        return tuple(found)

    def _names_under(self, recipe: str, parts: Mapping[str, bytes]) -> tuple[str, ...] | None:
        """Return the parts that counted under a recipe; None if the recipe cannot be of this call."""
        if recipe == self.recipe:
            return self._count_parts()
        if self.paths:
            return None
        newer = [name for name in self.names if name in self.defaults and self._is_default(name, parts[name])]
        for count in range(1, len(newer) + 1 if len(newer) <= OPTIONAL_MAX else 1):
            for left_out in combinations(newer, count):
                names = tuple(name for name in self.names if name not in left_out)
                if recipe_of(names) == recipe:
                    return names
        return None

    def _former_classes(self, arguments: Mapping[str, Any]) -> Iterator[dict[type, int]]:
        """Yield each class among the arguments without its last field, without its last two, and so on.

        A field may be left out if every instance has its default.
        """
        at_default: dict[type, int] = {}
        roots = [path.root for path in self.paths] or self.names
        for value in _instances([arguments[name] for name in roots], frozenset(self.codecs)):
            count = 0
            for each in reversed(defaults_of(type(value))):
                if not self._is_at_default(value, each):
                    break
                count += 1
            at_default[type(value)] = min(count, at_default.get(type(value), count))
        each = ({kind: number} for kind, most in at_default.items() for number in range(1, most + 1))
        return islice(each, SPELLINGS_MAX)

    def _left_out(self, kind: Any, value: Any) -> tuple[FieldDefault, ...]:
        """Return the fields that a former class lacked; none if an instance has a value other than the default in one.

        Such an instance may come from a place that ``_instances`` does not search, such as a codec: without the field
        its call would equal one with another intent.
        """
        newest = defaults_of(kind)[-self.without[kind] :] if kind in self.without else ()
        return newest if all(self._is_at_default(value, each) for each in newest) else ()

    def _is_at_default(self, value: Any, field: FieldDefault) -> bool:
        if field.default is None:
            return False
        try:
            return self.canonical(getattr(value, field.name), "") == self.canonical(field.default(), "")
        except Exception:  # noqa: BLE001 - a factory that fails here has made no value: the field is not at its default
            return False

    def _is_default(self, name: str, part: bytes) -> bool:
        if name in self.declared:
            return part == self.declared[name]
        with suppress(Exception):  # as in ``__post_init__``
            return part == self.canonical(self.defaults[name], name)
        return False

    def canonical(self, value: Any, where: str, depth: int = 0) -> bytes:
        """Return a value as bytes, different for different values. Raises Unserialisable."""
        if depth > DEPTH_MAX:
            raise Unserialisable(where, f"is nested deeper than {DEPTH_MAX} levels")
        kind = type(value)
        if kind in _PLAIN:
            return _tag(kind.__name__, _plain(value))
        if kind in (list, tuple):
            items = [self.canonical(item, f"{where}[{n}]", depth + 1) for n, item in enumerate(value)]
            return _tag("items", *items)
        if kind in (set, frozenset):
            return _tag("set", *sorted(self.canonical(item, f"an item of {where}", depth + 1) for item in value))
        if isinstance(value, Mapping):
            return self._members("mapping", value.items(), where, depth)
        if isinstance(value, enum.Enum):
            return _tag("enum", kind.__qualname__, str(value.value if isinstance(value, enum.Flag) else value.name))
        text = scalar_text(value, where)
        if text is not None:
            return _tag(kind.__name__, text)
        return self._instance(kind, value, where, depth)

    def _instance(self, kind: Any, value: Any, where: str, depth: int) -> bytes:
        codec = self.codecs.get(kind)
        if codec is not None:
            return _tag("codec", kind.__qualname__, self.canonical(codec.encode_value(value), where, depth + 1))
        left_out = self._left_out(kind, value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [each.name for each in dataclasses.fields(value)]
            members = [(name, getattr(value, name)) for name in names[: len(names) - len(left_out)]]
            return self._members(kind.__qualname__, members, where, depth)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            names = list(value._fields)
            members = list(zip(names, value, strict=True))[: len(names) - len(left_out)]
            return self._members(kind.__qualname__, members, where, depth)
        model = model_of(kind)
        if model is not None:
            form = model.encode(value, where)
            for each in left_out if isinstance(form, dict) else ():  # a root model's form is the value itself
                form.pop(each.member, None)
            return _tag("model", kind.__qualname__, self.canonical(form, where, depth + 1))
        raise Unserialisable(where, f"is {with_article(kind_name(kind))}, which has no canonical form")

    def _members(self, tag: str, members: Iterable[tuple[Any, Any]], where: str, depth: int) -> bytes:
        pairs = [
            (
                self.canonical(name, f"a key of {where}", depth + 1),
                self.canonical(value, f"{where}.{name}" if isinstance(name, str) else f"{where}[{name!r}]", depth + 1),
            )
            for name, value in members
        ]
        return _tag(tag, *(part for pair in sorted(pairs) for part in pair))


def _instances(values: Iterable[Any], codecs: frozenset[type]) -> Iterator[Any]:
    """Return the instances of classes with fields among and inside some values, but not inside a model."""
    for value in values:
        kind = type(value)
        if kind in codecs:
            continue
        is_tuple = isinstance(value, tuple) and hasattr(value, "_fields")
        is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if is_tuple or is_dataclass or model_of(kind) is not None:
            yield value
        if is_dataclass:
            yield from _instances([getattr(value, each.name) for each in dataclasses.fields(value)], codecs)
        elif isinstance(value, Mapping):
            yield from _instances((*value, *value.values()), codecs)
        elif isinstance(value, list | tuple | set | frozenset):
            yield from _instances(value, codecs)


_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes, bytearray})


def _plain(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    # Hexadecimal: Python refuses to write out very long whole numbers in tens.
    return (f"{value:x}" if type(value) is int else repr(value)).encode()


def _tag(tag: str, *parts: str | bytes) -> bytes:
    return frame(tag, *parts)


def recipe_of(names: Iterable[str]) -> str:
    """Return the recipe's name, from the arguments that count."""
    return f"{VERSION}.{hashlib.sha256(frame(*sorted(names))).hexdigest()[:16]}"


def digest(parts: Mapping[str, bytes], operation: str, secret: bytes | None) -> bytes:
    """Return 32 bytes over the counted arguments of an operation; an HMAC if the engine has an id secret."""
    framed = frame("semel.function.1", operation, *(part for name in sorted(parts) for part in (name, parts[name])))
    return hashlib.sha256(framed).digest() if secret is None else hmac.digest(secret, framed, "sha256")
