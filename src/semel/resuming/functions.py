"""Resumable functions: their arguments are kept as the request, from which a completer continues.

Annotations decide how arguments and results are written. Nothing is ever pickled.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from semel.codec.annotations import Shapes
from semel.codec.plain import DEPTH_MAX, dumps
from semel.codec.scalars import Mismatch, Unserialisable
from semel.codec.shapes import Shape
from semel.errors import ConfigurationError, RequestTooLarge
from semel.integrations.endpoint import annotations_of
from semel.steps.options import REQUEST_BYTES_MAX

_REMEDY: Final = (
    "annotate the parameter with exactly its type, give codecs=(...) for a class of your own, or leave the parameter "
    "out with exclude= and give it a default, which is what a run without the caller gets"
)


class KeptArguments:
    """Stores the arguments of one function for a run without its caller.

    Parameters: ``names`` of the kept parameters; ``receiver`` of a method, which is not kept.
    """

    def __init__(
        self, function: Callable[..., Any], names: tuple[str, ...], receiver: str | None, shapes: Shapes
    ) -> None:
        self.receiver = receiver
        self._function = function
        self._called = getattr(function, "__qualname__", repr(function))
        self._parameters = inspect.signature(function).parameters
        self._names = names
        self._shapes = shapes
        self._shaped: dict[str, Shape] | None = None

    def shape_early(self) -> None:
        """Refuse an annotation without a form at the declaration; one that cannot be resolved yet waits for a call."""
        try:
            self._all_shapes()
        except ConfigurationError as error:
            if "not known" not in str(error):
                raise

    def pack(self, arguments: Mapping[str, Any]) -> bytes:
        """Pack the arguments as the request that is kept.

        Raises ConfigurationError, naming the argument that has no form, and RequestTooLarge.
        """
        forms: dict[str, bytes] = {}
        for name, shape in self._all_shapes().items():
            forms[name] = self._pack(name, arguments[name], shape)
        packed = b'{"arguments":{' + b",".join(dumps(name) + b":" + form for name, form in forms.items()) + b"}}"
        if len(packed) > REQUEST_BYTES_MAX:
            largest = max(forms, key=lambda name: len(forms[name]))
            raise RequestTooLarge(
                f"the arguments of {self._called} take {len(packed)} bytes, and at most {REQUEST_BYTES_MAX} are kept "
                f"for a run without the caller (resumable=True); the largest is {largest!r}: keep it elsewhere, and "
                "let its id be the argument"
            )
        return packed

    def _pack(self, name: str, value: Any, shape: Shape) -> bytes:
        try:
            form = dumps(shape.encode(value, name))
            again = dumps(shape.encode(shape.decode(json.loads(form)), name))
        except Unserialisable as error:
            why = f"{error.where} {error.why}"
        except (Mismatch, ValueError) as error:
            why = f"{name} cannot be read back ({error})"
        except RecursionError:
            why = f"{name} is nested deeper than {DEPTH_MAX} levels"
        else:
            if again == form:
                return form
            why = f"{name} changes when it is read back"
        raise ConfigurationError(
            f"{self._called} is resumable, so that its arguments are kept, and the argument {why}; {_REMEDY}"
        )

    def unpack(self, request: bytes, receivers: tuple[Any, ...]) -> dict[str, Any]:
        """Unpack the arguments of a run without the caller. Raises ConfigurationError where they no longer fit."""
        try:
            kept = json.loads(request)["arguments"]
            arguments = dict(self._read(kept))
        except (Mismatch, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigurationError(
                f"the arguments that were kept for {self._called} do not fit its parameters now ({error}); it is not "
                "run. Restore the former parameters, or settle the command by hand"
            ) from error
        if self.receiver is not None:
            arguments[self.receiver] = receivers[0]
        return arguments

    def _read(self, kept: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        shapes = self._all_shapes()
        for name in kept:
            if name not in shapes:
                raise Mismatch(f"there is no parameter {name!r} any more")
        for name, parameter in self._parameters.items():
            if name in kept:
                yield name, shapes[name].decode(kept[name])
            elif parameter.kind is parameter.VAR_POSITIONAL:
                yield name, ()
            elif parameter.kind is parameter.VAR_KEYWORD:
                yield name, {}
            elif parameter.default is not parameter.empty:
                yield name, parameter.default
            elif name in shapes:
                raise Mismatch(f"the parameter {name!r} is new, and has no default")

    def _all_shapes(self) -> dict[str, Shape]:
        if self._shaped is None:
            hints = annotations_of(self._function)
            self._shaped = {name: self._shape(name, hints[name]) for name in self._names}
        return self._shaped

    def _shape(self, name: str, annotation: Any) -> Shape:
        kind = self._parameters[name].kind
        hint: Any = Any if annotation is inspect.Parameter.empty else annotation
        if kind is inspect.Parameter.VAR_POSITIONAL:
            hint = types.GenericAlias(tuple, (hint, ...))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            hint = types.GenericAlias(dict, (str, hint))
        return self._shapes.of(hint, f"the parameter {name!r} of {self._called}, which is kept (resumable=True)")


def find_kept(function: Callable[..., Any], names: tuple[str, ...], counted: tuple[str, ...]) -> tuple[str, ...]:
    """Find the stored parameters: all that count, and excluded ones without a default."""
    empty = inspect.Parameter.empty
    parameters = inspect.signature(function).parameters
    return tuple(name for name in names if name in counted or parameters[name].default is empty)
