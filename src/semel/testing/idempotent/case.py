"""One operation under test: its request, its callers, a different request, and the effect to count."""

from __future__ import annotations

import difflib
import inspect
import json as json_module
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypedDict

from semel.errors import ConfigurationError
from semel.policy import Policy

Effects = Callable[[], int | Awaitable[int]] | Sized
Events = Callable[[], Iterable[Any] | Awaitable[Iterable[Any]]] | Iterable[Any]
METHODS: Final = ("POST", "PATCH", "PUT", "DELETE")


@dataclass(frozen=True, slots=True)
class Request:
    """One request: over HTTP a method, a target, headers and a body; for a function its arguments.

    >>> Request("POST", "/payments", body=b"{}").text()
    'POST /payments'
    """

    method: str = ""
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return the request as reports name it."""
        return f"{self.method} {self.path.partition('?')[0]}" if self.method else "the call"


class CaseOptions(TypedDict, total=False):
    """The parameters of :class:`Case` beside its request and its effects, as keyword arguments."""

    json: Any
    body: bytes | None
    arguments: Mapping[str, Any] | Callable[[int], Mapping[str, Any]]
    changed: Any
    headers: Mapping[str, str]
    other_caller: Mapping[str, Any] | None
    single_caller: bool
    events: Events | None
    name: str
    policy: Policy | None
    new_key: Callable[[str], str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation under test.

    Parameters:
        request: ``"POST /payments"``; empty for a function.
        effects: what is counted: a function that returns a number (it may be async), or anything with a length,
            such as the list that your fake provider appends to.
        json, body: the payload: a JSON value, or bytes with their ``Content-Type`` in ``headers``.
        arguments: a function's arguments by name, without the key.
            ``json`` and ``arguments`` may be functions of the command's number, ``json=lambda n: {"order": n}``, if no
            two commands may have the same payload.
        changed: another payload of the same kind (JSON value, bytes, or arguments). By default one value of the
            payload is changed. It may be a function of the command's number, too.
        headers: of the request, such as those that authenticate the caller.
        other_caller: the headers with which *another* caller sends the same request (for a function: its arguments).
        events: all events that the handler has published without Semel's outbox, which is read automatically: a list,
            or a function that returns it (it may be async), of :class:`~semel.Event` objects, mappings with ``id``, or
            ids. ``()`` if there are none.
        single_caller: True if the operation has only one caller, instead of ``other_caller``.
        name: what reports call it (by default the request).
        policy: the declared policy, if it cannot be read (a running server).
        new_key: makes a key from a text, if keys have a format of their own (by default a UUID).

    Raises ConfigurationError, naming what is missing.
    """

    effects: Effects
    request: str = ""
    json: Any = None
    body: bytes | None = None
    arguments: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] = field(default_factory=dict)
    changed: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    other_caller: Mapping[str, Any] | None = None
    single_caller: bool = False
    events: Events | None = None
    name: str = ""
    policy: Policy | None = None
    new_key: Callable[[str], str] | None = None

    def __post_init__(self) -> None:
        if not callable(self.effects) and not isinstance(self.effects, Sized):
            raise ConfigurationError(
                "effects= must be a function that returns how often the effect has happened, such as "
                f"effects=lambda: provider.count(), or a list that grows; it is {self.effects!r}"
            )
        if self.events is not None and not callable(self.events) and not _is_list(self.events):
            raise ConfigurationError(
                "events= must be the list of published events, or a function that returns it; it is "
                f"{self.events!r:.80}"
            )
        if self.request:
            method, _, path = self.request.partition(" ")
            if method not in METHODS or not path.startswith("/"):
                raise ConfigurationError(
                    f"request must be a method and a path, such as 'POST /payments'; it is {self.request!r}"
                )
        if self.json is not None and self.body is not None:
            raise ConfigurationError("give json= or body=, not both")
        if self.other_caller is not None and self.single_caller:
            raise ConfigurationError("give other_caller= or single_caller=True, not both")
        object.__setattr__(self, "name", self.name or self.request or "the call")

    @classmethod
    def of(cls, **options: Any) -> Case:
        """Make a case from options; refuse an unknown option with the closest name."""
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known options: {', '.join(known)}"
                raise ConfigurationError(f"unknown option {name!r}{hint}")
        return cls(**options)

    def first(self, number: int = 1) -> Request:
        """Return the request under test, for the command with this number."""
        return self._make(_of(self.json, number), self.body, _of(self.arguments, number))

    def another(self, number: int = 1, members: tuple[str, ...] = ()) -> Request | None:
        """Return a request with another payload; None if there is no other. ``members`` of JSON that must differ."""
        value, arguments = _of(self.json, number), _of(self.arguments, number)
        changed = _of(self.changed, number)
        if changed is not None:
            if isinstance(changed, bytes):
                return self._make(None, changed, arguments)
            if self.request:
                return self._make(changed, None, arguments)
            return self._make(None, None, {**arguments, **changed})
        if value is not None:
            return self._make(alter(value, members), None, arguments)
        if self.body:
            return self._make(None, _alter_bytes(self.body, members), arguments)
        return self._make(None, None, alter(dict(arguments), members)) if arguments else None

    def as_other(self, request: Request) -> Request | None:
        """Return a request as another caller sends it; None if no other caller was given."""
        if self.other_caller is None:
            return None
        if not self.request:
            return replace(request, arguments={**request.arguments, **self.other_caller})
        names = {name.lower() for name in self.other_caller}
        kept = {name: value for name, value in request.headers.items() if name.lower() not in names}
        return replace(request, headers={**kept, **self.other_caller})

    def as_nobody(self, request: Request) -> Request | None:
        """Return a request without its credentials; None if it has none."""
        kept = {name: value for name, value in request.headers.items() if name.lower() not in _AUTHENTICATING}
        return None if len(kept) == len(request.headers) else replace(request, headers=kept)

    def _make(self, value: Any, body: bytes | None, arguments: Mapping[str, Any]) -> Request:
        method, _, path = self.request.partition(" ")
        encoded = body if body is not None else b"" if value is None else json_module.dumps(value).encode()
        return Request(method, path, {**_type(value), **self.headers}, encoded, arguments)


def _is_list(events: Any) -> bool:
    return isinstance(events, Iterable) and not isinstance(events, (str, bytes, Mapping))


_AUTHENTICATING: Final = frozenset({"authorization", "cookie", "x-api-key", "api-key", "x-auth-token"})


def _type(value: Any) -> dict[str, str]:
    return {} if value is None else {"Content-Type": "application/json"}


def _of(given: Any, number: int) -> Any:
    """Return a payload, or the result of the function given in its place."""
    if not callable(given):
        return given
    return given(number) if inspect.signature(given).parameters else given()


def alter(value: Any, members: tuple[str, ...] = ()) -> Any:
    """Change a JSON value but keep its shape, in the first of ``members`` if they are given.

    >>> alter({"amount": 1250, "currency": "EUR"}), alter(["a"]), alter(True), alter({})
    ({'amount': 1251, 'currency': 'EUR'}, ['a2'], False, {'another': 1})
    """
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}2"
        case dict() if members:
            name, _, inner = members[0].partition(".")
            below = value.get(name, {} if inner else None)
            return {**value, name: alter(below, (inner,) if inner else ())}
        case dict() if value:
            name = _first_number(value) or next(iter(value))
            return {**value, name: alter(value[name])}
        case dict():
            return {"another": 1}
        case list() if value:
            return [alter(value[0]), *value[1:]]
        case _:
            return 1


def _alter_bytes(body: bytes, members: tuple[str, ...]) -> bytes:
    try:
        value = json_module.loads(body)
    except ValueError:
        return body + b"2"
    return json_module.dumps(alter(value, members)).encode()  # more than whitespace must differ


def _first_number(members: dict[str, Any]) -> str | None:
    """Order numbers first: texts are more often names of something that must exist."""
    return next(
        (name for name, each in members.items() if isinstance(each, int | float) and not isinstance(each, bool)), None
    )
