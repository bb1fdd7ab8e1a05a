"""JSON forms of classes with fields: dataclasses, named tuples, typed dictionaries, pydantic models, msgspec Structs.

Decoding only makes classes that an annotation names, through their own constructor or validation. This file does not
import pydantic and msgspec: an application that returns one of their types has done so.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from semel.codec.plain import dumps
from semel.codec.scalars import Mismatch, Unserialisable, kind_name
from semel.codec.shapes import Shape, wrong

Fields: TypeAlias = Mapping[str, Shape]


@dataclass(slots=True)
class RecordShape:
    """A dataclass or a named tuple: an object with its fields. They are set later, so a class may refer to itself."""

    kind: type
    made_of: Callable[[Any, Mapping[str, Any]], Any]
    fields: Fields = field(default_factory=dict)

    @property
    def name(self) -> str:
        return kind_name(self.kind)

    def encode(self, value: Any, where: str) -> Any:
        if type(value) is not self.kind:
            raise wrong(where, value, self.name)
        form = {}
        for name, shape in self.fields.items():
            try:
                form[name] = shape.encode(getattr(value, name), f"{where}.{name}")
            except AttributeError:
                raise Unserialisable(f"{where}.{name}", "is not set", "set every field") from None
        return form

    def decode(self, form: Any) -> Any:
        required = [name for name, _, default in defaults_of(self.kind) if default is None and name in self.fields]
        values = decode_fields(self.name, self.fields, form, required)
        try:
            return self.made_of(self.kind, values)
        except Exception as error:
            raise Mismatch(f"{self.name} refused its stored fields ({type(error).__name__})") from error


def decode_fields(name: str, fields: Fields, form: Any, required: Any) -> dict[str, Any]:
    """Decode the values of an object's members. Raises Mismatch if some are missing or too many."""
    if type(form) is not dict or not (set(required) <= set(form) <= set(fields)):
        raise Mismatch(f"the fields of {name} were expected")
    return {key: fields[key].decode(inner) for key, inner in form.items()}


def make_dataclass(kind: Any, values: Mapping[str, Any]) -> Any:
    """Make an instance with these fields, including those that its constructor does not take."""
    takes = {each.name for each in dataclasses.fields(kind) if each.init}
    made = kind(**{name: value for name, value in values.items() if name in takes})
    for name in values.keys() - takes:
        object.__setattr__(made, name, values[name])
    return made


def make_tuple(kind: Any, values: Mapping[str, Any]) -> Any:
    """Make a named tuple of these fields."""
    return kind(**values)


@dataclass(slots=True)
class MembersShape:
    """A TypedDict: some members may be missing, none may be added."""

    name: str
    required: frozenset[str] = frozenset()
    fields: Fields = field(default_factory=dict)

    def encode(self, value: Any, where: str) -> Any:
        if type(value) is not dict:
            raise wrong(where, value, self.name)
        missing, unknown = self.required - value.keys(), value.keys() - self.fields.keys()
        if missing or unknown:
            which = f"lacks {sorted(missing)!r}" if missing else f"has {sorted(map(str, unknown))!r} besides"
            raise Unserialisable(where, f"{which}, declared as {self.name}", "return exactly the annotated type")
        return {name: self.fields[name].encode(item, f"{where}[{name!r}]") for name, item in value.items()}

    def decode(self, form: Any) -> Any:
        return decode_fields(self.name, self.fields, form, self.required)


@dataclass(frozen=True, slots=True)
class PydanticModel:
    """A pydantic model, by its own dump and validation."""

    kind: Any

    @property
    def name(self) -> str:
        return kind_name(self.kind)

    def encode(self, value: Any, where: str) -> Any:
        if type(value) is not self.kind:
            raise wrong(where, value, self.name)
        try:
            form = value.model_dump(mode="json", by_alias=True, round_trip=True)
            same = self.decode(form) == value
        except Exception as error:
            raise Unserialisable(where, f"is not dumped by pydantic ({type(error).__name__})", _LOSES) from error
        if not same:
            raise Unserialisable(where, "changes in model_dump and model_validate", _LOSES)
        return form

    def decode(self, form: Any) -> Any:
        try:
            return self.kind.model_validate_json(dumps(form))  # as JSON: strict models otherwise refuse texts for dates
        except ValueError as error:
            raise Mismatch(f"pydantic refuses it as {self.name}") from error


@dataclass(frozen=True, slots=True)
class MsgspecStruct:
    """A msgspec Struct, by msgspec's own conversion."""

    kind: Any

    @property
    def name(self) -> str:
        return kind_name(self.kind)

    def encode(self, value: Any, where: str) -> Any:
        if type(value) is not self.kind:
            raise wrong(where, value, self.name)
        msgspec = sys.modules["msgspec"]
        try:
            form = json.loads(msgspec.json.encode(value))
            same = self.decode(form) == value
        except Exception as error:
            raise Unserialisable(where, f"is not encoded by msgspec ({type(error).__name__})", _LOSES) from error
        if not same:
            raise Unserialisable(where, "changes when msgspec encodes and decodes it", _LOSES)
        return form

    def decode(self, form: Any) -> Any:
        msgspec = sys.modules["msgspec"]
        try:
            return msgspec.json.decode(dumps(form), type=self.kind)
        except (ValueError, msgspec.MsgspecError) as error:
            raise Mismatch(f"msgspec refuses it as {self.name}") from error


_LOSES = "make it store all its fields in JSON, with their types"


def model_of(kind: type) -> Shape | None:
    """Return the shape of a pydantic model or a msgspec Struct; None for any other class."""
    pydantic: Any = sys.modules.get("pydantic")
    if pydantic is not None and issubclass(kind, pydantic.BaseModel):
        return PydanticModel(kind)
    msgspec: Any = sys.modules.get("msgspec")
    if msgspec is not None and issubclass(kind, msgspec.Struct):
        return MsgspecStruct(kind)
    return None


class FieldDefault(NamedTuple):
    """A field of a class: its ``name``, its name in JSON, and a function that makes its default (None: no default)."""

    name: str
    member: str
    default: Callable[[], Any] | None


def defaults_of(kind: Any) -> tuple[FieldDefault, ...]:
    """Return the fields of a dataclass, a named tuple, a pydantic model or a msgspec Struct, in order.

    None for any other class, such as a row of SQLAlchemy, whose instances have the names of the fields.
    """
    if hasattr(kind, "__dataclass_fields__"):
        missing = dataclasses.MISSING
        return tuple(
            FieldDefault(each.name, each.name, _default_of(each.default, each.default_factory, missing))
            for each in dataclasses.fields(kind)
        )
    if hasattr(kind, "_field_defaults"):
        given, none = kind._field_defaults, object()
        return tuple(FieldDefault(name, name, _default_of(given.get(name, none), none, none)) for name in kind._fields)
    if hasattr(kind, "model_fields"):
        return tuple(
            FieldDefault(name, each.serialization_alias or each.alias or name, _default_of_model(each))
            for name, each in kind.model_fields.items()
        )
    msgspec: Any = sys.modules.get("msgspec")
    if msgspec is None or not issubclass(kind, msgspec.Struct):
        return ()
    return tuple(
        FieldDefault(each.name, each.encode_name, _default_of(each.default, each.default_factory, msgspec.NODEFAULT))
        for each in msgspec.structs.fields(kind)
    )


def _default_of(default: Any, factory: Any, missing: Any) -> Callable[[], Any] | None:
    if factory is not missing:
        make: Callable[[], Any] = factory
        return make
    return None if default is missing else lambda: default


def _default_of_model(each: Any) -> Callable[[], Any] | None:
    if each.is_required() or getattr(each, "default_factory_takes_validated_data", False):
        return None
    return lambda: each.get_default(call_default_factory=True)
