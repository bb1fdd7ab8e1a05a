"""Shapes from annotations; types without a safe form are refused before anything runs."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from semel.codec.scalars import SCALARS, kind_name
from semel.codec.shapes import (
    ANYTHING,
    Codec,
    Either,
    Fixed,
    Floating,
    Itself,
    Mapped,
    Maybe,
    Member,
    OneOf,
    Several,
    Shape,
    Text,
)
from semel.codec.structures import MembersShape, RecordShape, make_dataclass, make_tuple, model_of
from semel.errors import ConfigurationError

_ITSELF: Final = (type(None), bool, int, str)
_CONTAINERS: Final = (list, set, frozenset, tuple, dict)
REMEDY: Final = (
    "declare JSON values, dataclasses, enums, UUID, Decimal, dates, bytes, pydantic models or msgspec Structs, or give "
    "codecs=(Codec(TYPE, encode=..., decode=...),)"
)


class Shapes:
    """Finds shapes. ``codecs`` are for classes that Semel has no form for."""

    def __init__(self, codecs: tuple[Codec, ...] = ()) -> None:
        self.codecs: Mapping[type, Codec] = {codec.kind: codec for codec in codecs}
        self._known: dict[Any, Shape] = {}

    def of(self, annotation: Any, where: str) -> Shape:
        """Return the shape of the annotation at ``where``.

        Raises ConfigurationError, naming the type that cannot be stored and the remedy.
        """
        annotation = _plain_annotation(annotation)
        if annotation in _UNDECLARED or isinstance(annotation, typing.TypeVar):
            return ANYTHING
        if isinstance(annotation, str | typing.ForwardRef):
            raise ConfigurationError(
                f"{where}: the type {annotation!r} is not known when the function is called; define it at "
                "module level, and import it outside `if TYPE_CHECKING`"
            )
        try:
            known = self._known.get(annotation)
        except TypeError:  # a Literal of an unhashable value
            raise _no_form(where, annotation) from None
        return known if known is not None else self._new(annotation, where)

    def _new(self, annotation: Any, where: str) -> Shape:
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Literal:
            if not all(type(each) in _ITSELF for each in args):
                raise ConfigurationError(f"{where}: a Literal may hold texts, numbers, booleans and None only")
            return OneOf(args)
        if origin in (typing.Union, types.UnionType):
            return self._union(args, where)
        kind = origin or annotation
        if kind in _CONTAINERS:
            return self._container(kind, args, annotation, where)
        if not isinstance(kind, type):
            raise _no_form(where, annotation)
        return self._scalar(kind) or self._structure(kind, annotation, args, where)

    def _union(self, args: tuple[Any, ...], where: str) -> Shape:
        arms = [self.of(arg, where) for arg in args if arg is not type(None)]
        named = {shape.name: shape for shape in arms}
        if len(named) != len(arms):
            raise ConfigurationError(f"{where}: two types of the union have the same name; rename one")
        shape = arms[0] if len(arms) == 1 else Either(named)
        return Maybe(shape) if len(arms) < len(args) else shape

    def _container(self, kind: Any, args: tuple[Any, ...], annotation: Any, where: str) -> Shape:
        if not args and annotation is not tuple[()]:
            args = (Any, Any) if kind is dict else (Any, ...) if kind is tuple else (Any,)
        if kind is dict:
            return Mapped(self.of(args[0], where), self.of(args[1], where))
        if kind is tuple and not (len(args) == 2 and args[1] is ...):
            return Fixed(tuple(self.of(arg, where) for arg in args))
        return Several(kind, self.of(args[0], where))

    def _scalar(self, kind: type) -> Shape | None:
        if kind in self.codecs:
            return self.codecs[kind]
        if kind in _ITSELF:
            return Itself(kind)
        if kind is float:
            return Floating()
        if kind in SCALARS:
            return Text(kind)
        if issubclass(kind, enum.Enum):
            return Member(kind)
        return model_of(kind)

    def _structure(self, kind: Any, annotation: Any, args: tuple[Any, ...], where: str) -> Shape:
        shape: RecordShape | MembersShape
        if hasattr(kind, "__dataclass_fields__"):
            names = [each.name for each in dataclasses.fields(kind) if not _is_computed(kind, each)]
            shape = RecordShape(kind, make_dataclass)
        elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
            names = list(kind._fields)
            shape = RecordShape(kind, make_tuple)
        elif typing.is_typeddict(kind):
            names = list(kind.__annotations__)
            shape = MembersShape(kind_name(kind))
        else:
            raise _no_form(where, annotation)
        self._known[annotation] = shape  # before its fields, which may refer to it again
        try:
            hints = _field_types(kind, args, where)
            if isinstance(shape, MembersShape):
                shape.required = _required_members(kind)
            shape.fields = {name: self.of(hints.get(name, Any), f"{where}: {shape.name}.{name}") for name in names}
        except ConfigurationError:
            self._known.clear()  # other shapes may hold this one, which has no fields
            raise
        return shape


def _is_computed(kind: Any, each: dataclasses.Field[Any]) -> bool:
    """Return whether a field is a method of its class, such as a GraphQL type's resolver, and so has no value."""
    return not each.init and inspect.isroutine(getattr(kind, each.name, None))


_UNDECLARED: Final = (Any, object, inspect.Parameter.empty)


def _plain_annotation(annotation: Any) -> Any:
    """Strip Annotated, NewType, type aliases, Final and ClassVar from an annotation."""
    while True:
        if typing.get_origin(annotation) in (typing.Annotated, typing.Final):
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif annotation is None:
            return type(None)
        else:
            return annotation


def _field_types(kind: Any, args: tuple[Any, ...], where: str) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(kind)
    except NameError as error:
        raise ConfigurationError(
            f"{where}: {kind_name(kind)} has a field of a type that is not known ({error}); define it at module level, "
            "and import it outside `if TYPE_CHECKING`"
        ) from None
    if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
        raise ConfigurationError(f"{where}: {kind_name(kind)} has an InitVar, which is not stored; make it a field")
    given = dict(zip(getattr(kind, "__parameters__", ()), args, strict=False))
    return {name: _with_arguments(hint, given) for name, hint in hints.items()}


def _required_members(kind: Any) -> frozenset[str]:
    """Return the required members of a TypedDict; its own list overlooks NotRequired in string annotations."""
    said = {name: typing.get_origin(hint) for name, hint in typing.get_type_hints(kind, include_extras=True).items()}
    own: frozenset[str] = kind.__required_keys__
    return frozenset(
        name
        for name, says in said.items()
        if says is typing.Required or (name in own and says is not typing.NotRequired)
    )


def _with_arguments(hint: Any, given: dict[Any, Any]) -> Any:
    if isinstance(hint, typing.TypeVar):
        return given.get(hint, Any)
    free = getattr(hint, "__parameters__", ())
    if not free or isinstance(hint, type):
        return hint
    return hint[tuple(given.get(each, Any) for each in free)]


def _no_form(where: str, annotation: Any) -> ConfigurationError:
    name = kind_name(annotation) if isinstance(annotation, type) else str(annotation)
    return ConfigurationError(f"{where}: {name} has no safe form, and nothing is ever pickled; {REMEDY}")
