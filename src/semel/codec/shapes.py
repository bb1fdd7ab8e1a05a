"""The JSON forms of declared types, strict in both directions: a value reads back as it was written.

A shape accepts exactly its type: a subclass would come back as its base. ``semel.codec.structures`` has the
shapes of classes with fields, ``semel.codec.annotations`` finds the shape of an annotation.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from semel.articles import with_article
from semel.codec.plain import from_plain, in_order, to_plain
from semel.codec.scalars import SCALARS, Mismatch, Unserialisable, kind_name, scalar_text


class Shape(Protocol):
    """The JSON form of one declared type. ``name`` is the type's, for people and for unions."""

    @property
    def name(self) -> str: ...

    def encode(self, value: Any, where: str) -> Any:
        """The form of a value. Raises Unserialisable."""

    def decode(self, form: Any) -> Any:
        """The value of a form. Raises Mismatch."""


def wrong(where: str, value: object, name: str) -> Unserialisable:
    """Return the error for a value that does not match its annotation."""
    return Unserialisable(
        where, f"is {with_article(kind_name(type(value)))}, declared as {name}", "return exactly the annotated type"
    )


@dataclass(frozen=True, slots=True)
class Itself:
    """None, bool, int and str, which JSON has itself."""

    kind: type

    @property
    def name(self) -> str:
        return "None" if self.kind is type(None) else self.kind.__name__

    def encode(self, value: Any, where: str) -> Any:
        if type(value) is not self.kind:
            raise wrong(where, value, self.name)
        return value

    def decode(self, form: Any) -> Any:
        if type(form) is not self.kind:
            raise Mismatch(f"{self.name} was expected")
        return form


@dataclass(frozen=True, slots=True)
class Floating:
    """A float; an int is allowed too, and stays an int."""

    name: str = "float"

    def encode(self, value: Any, where: str) -> Any:
        if type(value) is int:
            return value
        if type(value) is not float:
            raise wrong(where, value, self.name)
        return value if math.isfinite(value) else str(value)

    def decode(self, form: Any) -> Any:
        if type(form) in (int, float):
            return form
        if form in ("nan", "inf", "-inf"):
            return float(form)
        raise Mismatch("float was expected")


@dataclass(frozen=True, slots=True)
class Text:
    """The types of ``scalars``."""

    kind: type

    @property
    def name(self) -> str:
        return self.kind.__name__

    def encode(self, value: Any, where: str) -> Any:
        if type(value) is not self.kind:
            raise wrong(where, value, self.name)
        return scalar_text(value, where)

    def decode(self, form: Any) -> Any:
        return SCALARS[self.kind].read(form)


@dataclass(frozen=True, slots=True)
class Member:
    """An enum: a member by its name, a flag by its number."""

    kind: type[enum.Enum]

    @property
    def name(self) -> str:
        return kind_name(self.kind)

    def encode(self, value: Any, where: str) -> Any:
        if type(value) is not self.kind:
            raise wrong(where, value, self.name)
        return value.value if issubclass(self.kind, enum.Flag) else value.name

    def decode(self, form: Any) -> Any:
        try:
            if issubclass(self.kind, enum.Flag):
                return self.kind(form)
            return self.kind[form]
        except (KeyError, ValueError, TypeError):
            raise Mismatch(f"no member of {self.name}") from None


@dataclass(frozen=True, slots=True)
class OneOf:
    """A Literal of texts, numbers, booleans and None."""

    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        return f"Literal{list(self.values)!r}"

    def encode(self, value: Any, where: str) -> Any:
        if not self._has(value):
            raise Unserialisable(where, f"is none of {self.name}", "return exactly the annotated type")
        return value

    def decode(self, form: Any) -> Any:
        if not self._has(form):
            raise Mismatch(f"none of {self.name}")
        return form

    def _has(self, value: Any) -> bool:
        return any(type(value) is type(each) and value == each for each in self.values)


@dataclass(frozen=True, slots=True)
class Several:
    """A list, a set, a frozenset, or a tuple of any length."""

    kind: Any
    item: Shape

    @property
    def name(self) -> str:
        return f"{self.kind.__name__}[{self.item.name}{', ...' if self.kind is tuple else ''}]"

    def encode(self, value: Any, where: str) -> Any:
        if type(value) is not self.kind:
            raise wrong(where, value, self.name)
        if self.kind in (set, frozenset):
            return in_order(self.item.encode(item, f"an item of {where}") for item in value)
        return [self.item.encode(item, f"{where}[{n}]") for n, item in enumerate(value)]

    def decode(self, form: Any) -> Any:
        if type(form) is not list:
            raise Mismatch(f"a list of {self.item.name} was expected")
        try:
            return self.kind(self.item.decode(item) for item in form)
        except TypeError:  # an item that no set can hold
            raise Mismatch(f"not a {self.name}") from None


@dataclass(frozen=True, slots=True)
class Fixed:
    """A tuple of a fixed length."""

    items: tuple[Shape, ...]

    @property
    def name(self) -> str:
        return f"tuple[{', '.join(item.name for item in self.items) or '()'}]"

    def encode(self, value: Any, where: str) -> Any:
        if type(value) is not tuple or len(value) != len(self.items):
            raise wrong(where, value, self.name)
        pairs = zip(self.items, value, strict=True)
        return [shape.encode(item, f"{where}[{n}]") for n, (shape, item) in enumerate(pairs)]

    def decode(self, form: Any) -> Any:
        if type(form) is not list or len(form) != len(self.items):
            raise Mismatch(f"a list of {len(self.items)} was expected")
        return tuple(shape.decode(item) for shape, item in zip(self.items, form, strict=True))


@dataclass(frozen=True, slots=True)
class Mapped:
    """A dict: a JSON object if the keys are texts, pairs otherwise."""

    key: Shape
    item: Shape

    @property
    def name(self) -> str:
        return f"dict[{self.key.name}, {self.item.name}]"

    def encode(self, value: Any, where: str) -> Any:
        if type(value) is not dict:
            raise wrong(where, value, self.name)
        pairs = [
            (self.key.encode(key, f"a key of {where}"), self.item.encode(item, f"{where}[{key!r}]"))
            for key, item in value.items()
        ]
        return dict(pairs) if self._texts else [list(pair) for pair in pairs]

    def decode(self, form: Any) -> Any:
        pairs = form.items() if type(form) is dict and self._texts else form
        if type(form) is not (dict if self._texts else list):
            raise Mismatch(f"{self.name} was expected")
        try:
            return {self.key.decode(key): self.item.decode(item) for key, item in pairs}
        except (TypeError, ValueError):  # not pairs, or an unhashable key
            raise Mismatch(f"not a {self.name}") from None

    @property
    def _texts(self) -> bool:
        return isinstance(self.key, Itself) and self.key.kind is str


@dataclass(frozen=True, slots=True)
class Maybe:
    """A type, or None."""

    shape: Shape

    @property
    def name(self) -> str:
        return f"{self.shape.name} | None"

    def encode(self, value: Any, where: str) -> Any:
        return None if value is None else self.shape.encode(value, where)

    def decode(self, form: Any) -> Any:
        return None if form is None else self.shape.decode(form)


@dataclass(frozen=True, slots=True)
class Either:
    """One of several types; the JSON form names it."""

    arms: Mapping[str, Shape]

    @property
    def name(self) -> str:
        return " | ".join(self.arms)

    def encode(self, value: Any, where: str) -> Any:
        inside: Unserialisable | None = None
        for name, shape in self.arms.items():
            try:
                return {name: shape.encode(value, where)}
            except Unserialisable as error:
                if error.where != where:  # the value has this type, but something inside it does not fit
                    inside = error
        raise inside or wrong(where, value, self.name)

    def decode(self, form: Any) -> Any:
        if type(form) is dict and len(form) == 1:
            [(name, inner)] = form.items()
            shape = self.arms.get(name)
            if shape is not None:
                return shape.decode(inner)
        raise Mismatch(f"one of {self.name} was expected")


@dataclass(frozen=True, slots=True)
class Anything:
    """A value without a declared type: see ``semel.codec.plain``."""

    name: str = "Any"

    def encode(self, value: Any, where: str) -> Any:
        return to_plain(value, where)

    def decode(self, form: Any) -> Any:
        return from_plain(form)


@dataclass(frozen=True, slots=True)
class Codec:
    """Your encoding of a class that Semel has no form for.

    Parameters: ``kind``, exactly that class; ``encode`` turns a value into JSON values, tuples, sets, bytes, Decimal,
    UUID, dates or times; ``decode`` restores the value. It serves results and, for fingerprints, arguments.

    >>> from fractions import Fraction
    >>> Codec(Fraction, encode=str, decode=Fraction).name
    'fractions.Fraction'
    """

    kind: type
    encode_value: Callable[[Any], Any]
    decode_value: Callable[[Any], Any]

    def __init__(self, kind: type, *, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "encode_value", encode)
        object.__setattr__(self, "decode_value", decode)

    @property
    def name(self) -> str:
        return kind_name(self.kind)

    def encode(self, value: Any, where: str) -> Any:
        """The form of a value. Raises Unserialisable."""
        if type(value) is not self.kind:
            raise wrong(where, value, self.name)
        try:
            plain = self.encode_value(value)
        except Exception as error:
            raise Unserialisable(
                where, f"is refused by its codec ({type(error).__name__})", "mend the codec"
            ) from error
        return to_plain(plain, where)

    def decode(self, form: Any) -> Any:
        """The value of a form. Raises Mismatch."""
        plain = from_plain(form)
        try:
            value = self.decode_value(plain)
        except Exception as error:
            raise Mismatch(f"the codec of {self.name} refuses it ({type(error).__name__})") from error
        if type(value) is not self.kind:
            raise Mismatch(f"its codec decodes no {self.name}")
        return value


ANYTHING: Final = Anything()
