"""``@command``: declares a plain function as an operation, and refuses at once one that could not be protected."""

from __future__ import annotations

import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields
from typing import Any, Final, ParamSpec, TypeVar, Unpack, overload

from semel.articles import with_article
from semel.codec.annotations import Shapes
from semel.codec.results import check_replays
from semel.codec.shapes import Codec
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, PolicyError
from semel.functions.arguments import CallerOfCall, KeyOfCall, Path, caller_maker, key_maker
from semel.functions.declared import DeclaredCommand
from semel.functions.fingerprints import Fingerprints
from semel.functions.once import AsyncOnce, Once
from semel.integrations.endpoint import PermitHere, annotations_of
from semel.policy import CommandOptions, Policy
from semel.resuming.functions import KeptArguments, find_kept

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", Engine, AsyncEngine)

this_permit: Any = PermitHere()
"""The default of a parameter that takes the permit, for type checkers: ``permit: Permit = this_permit``."""

RECEIVERS: Final = ("self", "cls", "mcs")
# Options that are for HTTP only, and what to do for a function instead.
_HTTP_ONLY: Final = {
    "key_from": "give key= a path of the arguments",
    "reference_from": "run the command by engine.run with a Command, which takes a business_ref",
    "reference_scope": "run the command by engine.run with a Command, which takes a business_ref",
    "fingerprint": "give include= or exclude=",
    "counts": "give include= or exclude=",
    "fingerprints_known": "a parameter that was added with a default is understood without it",
    "on_error": "declare the exceptions that are answers: replays=(...)",
    "replay": "declare the exceptions that are answers: replays=(...)",
    "not_run": "declare the exceptions that prove it: nothing_happened=(...)",
    "definite_5xx": "declare the exceptions that are answers: replays=(...)",
    "success": "return the refusal's value, or raise what is declared: replays=(...)",
    "json": "a function has no body",
    "replay_headers": "a function has no headers",
    "on_unprotected": "a function runs protected or not at all; call .unprotected(...) to run it without protection",
}


class _Settings:
    """The options of ``@command``, kept until there is a function to check them against."""

    def __init__(self, engine: Any, name: str, **settings: Any) -> None:
        self.engine = engine
        self.name = name
        self.settings = settings

    def declare(self, function: Any) -> Once[..., Any] | AsyncOnce[..., Any]:
        """Make the command of a function, a classmethod or a staticmethod."""
        binds = "instance"
        if isinstance(function, classmethod | staticmethod):
            binds = "class" if isinstance(function, classmethod) else "nothing"
            function = function.__func__
        check_function(function)
        declared = self._declare(function)
        declared.shape_early()
        if isinstance(self.engine, Engine | AsyncEngine):
            declared.engine()  # last: from here on the name is taken
        return (AsyncOnce if declared.is_async else Once)(declared, binds)

    def _declare(self, function: Callable[..., Any]) -> DeclaredCommand:
        given = self.settings
        permits = permit_names(function)
        own = inspect.signature(function).parameters
        names = tuple(name for name in own if name not in permits)
        shapes = Shapes(check_codecs(given["codecs"]))
        receiver = names[0] if names and names[0] in RECEIVERS else None
        counted = tuple(name for name in names if name != receiver)
        kept: KeptArguments | None = None
        if given["policy"].resumable:
            left_in = check_exclude(given["exclude"], counted)
            kept = KeptArguments(function, find_kept(function, counted, left_in), receiver, shapes)
        return DeclaredCommand(
            function,
            self.name,
            given["policy"],
            self.engine,
            permits=permits,
            make_key=key_maker(given["key"], names),
            key_said=f"key={given['key']!r}",
            make_caller=caller_maker(given["caller"], names),
            fingerprints=Fingerprints(
                check_exclude(given["exclude"], counted),
                check_include(given["include"], given["exclude"], names),
                {name: own[name].default for name in names if own[name].default is not inspect.Parameter.empty},
                shapes.codecs,
                given["policy"].body_bytes_max,
            ),
            shapes=shapes,
            replays=check_replays(given["replays"], given["policy"].nothing_happened),
            kept=kept,
        )


class DeclareSync(_Settings):
    """Declares plain functions; :func:`command` returns it for an Engine."""

    def __call__(self, function: Callable[P, R]) -> Once[P, R]:
        return typing.cast("Once[P, R]", self.declare(function))


class DeclareAsync(_Settings):
    """Declares async functions; :func:`command` returns it for an AsyncEngine."""

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncOnce[P, R]:
        return typing.cast("AsyncOnce[P, R]", self.declare(function))


@overload
def command(
    engine: Engine | Callable[[], Engine],
    name: str,
    policy: Policy | None = None,
    *,
    caller: CallerOfCall,
    key: KeyOfCall = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    replays: tuple[type[Exception], ...] = (),
    codecs: Sequence[Codec] = (),
    **options: Unpack[CommandOptions],
) -> DeclareSync: ...
@overload
def command(
    engine: AsyncEngine | Callable[[], AsyncEngine],
    name: str,
    policy: Policy | None = None,
    *,
    caller: CallerOfCall,
    key: KeyOfCall = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    replays: tuple[type[Exception], ...] = (),
    codecs: Sequence[Codec] = (),
    **options: Unpack[CommandOptions],
) -> DeclareAsync: ...
def command(
    engine: Any,
    name: str,
    policy: Policy | None = None,
    *,
    caller: CallerOfCall | None = None,
    key: KeyOfCall = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    replays: tuple[type[Exception], ...] = (),
    codecs: Sequence[Codec] = (),
    **options: Unpack[CommandOptions],
) -> Any:
    """Make a function run once for each key; every later call gets the first result.

    Parameters: ``engine``, or a function that returns it, called for each call; ``name`` of the operation, stable when
    functions are renamed; ``policy``, or ``options``, those of :class:`~semel.policy.Policy`; ``caller`` for whom it is
    called: a path (``"order.customer_id"``), two for tenant and caller, a :class:`~semel.http.caller.Caller`, a
    function of the arguments, or :func:`~semel.http.caller.single_caller`; ``key``: a path, a tuple of paths, a
    function of the arguments, or None if each call provides one (``charge.with_key(key)(order)``); ``include``
    (paths) or ``exclude`` (parameters): the arguments that distinguish commands, by default all but ``self``;
    ``replays`` exception types that are definite refusals, stored and raised again; ``codecs`` of classes of your own.

    Raises PolicyError and ConfigurationError, when the function is declared, naming the option and the remedy.

    >>> from semel import Engine
    >>> from semel.functions import command, single_caller
    >>> engine = Engine.connect("memory://")
    >>> engine.open()
    >>> @command(engine, "invoices.send", key="number", caller=single_caller, effects="external")
    ... def send(number: int, note: str = "") -> str:
    ...     print("sending")
    ...     return f"sent {number}"
    >>> send(1841), send(number=1841)
    sending
    ('sent 1841', 'sent 1841')
    >>> engine.close()
    """
    if not isinstance(name, str) or not name:
        raise ConfigurationError("a command needs a name: @command(engine, 'payments.charge', key='order.id', ...)")
    if not isinstance(engine, Engine | AsyncEngine) and not callable(engine):
        raise ConfigurationError(
            f"{name}: the engine comes first, or a function that returns it; it is {type(engine).__name__}"
        )
    if policy is not None and options:
        raise PolicyError("give either a policy or its options, not both")
    chosen = policy if policy is not None else Policy(**options)
    check_policy(chosen)
    kind = DeclareAsync if isinstance(engine, AsyncEngine) else DeclareSync
    return kind(
        engine,
        name,
        policy=chosen,
        key=key,
        caller=caller,
        include=include,
        exclude=exclude,
        replays=replays,
        codecs=codecs,
    )


# --- checks ---------------------------------------------------------------------------------------


def check_policy(policy: object) -> None:
    """Refuse options that mean nothing for a function. Raises PolicyError."""
    if not isinstance(policy, Policy):
        raise PolicyError(f"policy must be a Policy; it is {type(policy).__name__}")
    plain = Policy()
    for option, instead in _HTTP_ONLY.items():
        if getattr(policy, option) != getattr(plain, option):
            raise PolicyError(f"{option} is for HTTP operations; {instead}")


def check_function(function: Any) -> None:
    """Refuse a function whose calls cannot be protected. Raises ConfigurationError."""
    name = getattr(function, "__qualname__", repr(function))
    if isinstance(function, Once | AsyncOnce):
        raise ConfigurationError(f"{name} is a command already ({function.operation!r})")
    if inspect.isclass(function):
        raise ConfigurationError(f"{name} is a class: declare its method instead")
    if isinstance(function, functools.partial) or not inspect.isroutine(function):
        raise ConfigurationError(f"{name} is not a function: write `def` or `async def`, and @command above it")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        kind = "an async generator" if inspect.isasyncgenfunction(function) else "a generator"
        raise ConfigurationError(
            f"{name} is {kind}, which runs after its call has returned, so that the call cannot be protected; collect "
            "its items and return a list"
        )
    returned = annotations_of(function)["return"]
    origin = typing.get_origin(returned) or returned
    late = isinstance(origin, type) and issubclass(origin, _UNFINISHED) and origin is not object
    if late and not inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"{name} returns {with_article(origin.__name__)}: its work continues after it returns, so it cannot be "
            "protected; declare an `async def`, or collect inside and return a list"
        )


_UNFINISHED: Final = (
    typing.Awaitable,
    typing.Iterator,
    typing.AsyncIterator,
    typing.AsyncIterable,
)


def permit_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameters that take the permit: annotated as Permit, or with ``this_permit`` as their default."""
    hints = annotations_of(function)
    return tuple(
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if isinstance(parameter.default, PermitHere) or _is_permit(hints[parameter.name])
    )


def _is_permit(hint: Any) -> bool:
    args = typing.get_args(hint)
    return hint is Permit or (bool(args) and any(each is Permit for each in args))


def check_codecs(codecs: object) -> tuple[Codec, ...]:
    """Check the codecs: one for each class. Raises ConfigurationError."""
    if not isinstance(codecs, tuple | list) or not all(isinstance(each, Codec) for each in codecs):
        raise ConfigurationError("codecs= takes a tuple of Codec(TYPE, encode=..., decode=...)")
    if len({each.kind for each in codecs}) != len(codecs):
        raise ConfigurationError("codecs= has two of one class; keep one")
    return tuple(codecs)


def check_exclude(exclude: object, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parameters that distinguish commands. Raises ConfigurationError."""
    if isinstance(exclude, str) or not isinstance(exclude, tuple | list):
        raise ConfigurationError(f"exclude= takes a tuple of parameters, such as ('note',); it is {exclude!r}")
    for name in exclude:
        if name not in names and name not in RECEIVERS:
            near = difflib.get_close_matches(str(name), names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; the parameters are {', '.join(names) or 'none'}"
            raise ConfigurationError(f"exclude= names {name!r}, which is not a parameter of the function{hint}")
    return tuple(name for name in names if name not in exclude)


def check_include(include: object, exclude: object, names: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the parts of the arguments that distinguish commands instead of all. Raises ConfigurationError."""
    if isinstance(include, str) or not isinstance(include, tuple | list):
        raise ConfigurationError(f"include= takes a tuple of paths, such as ('order.id',); it is {include!r}")
    if include and exclude:
        raise ConfigurationError("give either include= or exclude=, not both")
    return tuple(Path.of(each, names, "include=") for each in include)


assert {field.name for field in fields(Policy)} >= _HTTP_ONLY.keys()
