"""Strawberry GraphQL: a mutation's field runs once for each key, and later attempts get its first result.

A GraphQL answer holds several fields, and is 200 even if fields fail; so the command is the field, not the request.
The field's resolver becomes a :func:`~semel.functions.command`, whose arguments are the field's.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import hashlib
import inspect
import math
from collections.abc import Callable, Collection, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Unpack

from semel.articles import name_type
from semel.extras import install_command

try:
    from graphql import GraphQLError
    from strawberry import UNSET
    from strawberry.extensions.field_extension import FieldExtension
    from strawberry.types.maybe import Some
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{missing.name} is missing, which semel.integrations.strawberry needs: {install_command('strawberry')}",
        name=missing.name,
    ) from missing

from semel.codec.shapes import Codec
from semel.core.model import Effects
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, InvalidKey, MissingKey, PolicyError, SemelError
from semel.functions import ResultNotKept, command
from semel.functions.arguments import NotThere, Path, check_key, text_of
from semel.functions.declare import check_function
from semel.http import problems
from semel.http.caller import Caller, single_caller
from semel.http.refused import CallerNotKnown, RefusedCall
from semel.keys import parse_key
from semel.policy import CommandOptions, Policy

if TYPE_CHECKING:
    from strawberry.types import Info
    from strawberry.types.field import StrawberryField

__all__ = ["Caller", "Idempotent", "permit_of", "single_caller"]

CallerOfInfo = Callable[[Any], Caller | None]
"""From a field's ``Info`` to the caller; None where the caller is not known."""

_HEADER: Final = "header:"
_PERMIT: Final = "semel_permit"  # on the field's Info
_USED: Final = "semel_header_key_used"  # on the HTTP request
_CALL: Final = "semel_call"
_PARENT: Final = "semel_parent"
_PIECE_BYTES: Final = 256 * 1024
_TOO_LARGE: Final = (
    "The result cannot be kept, so everything was rolled back: nothing happened. The server's log says why."
)


class Idempotent(FieldExtension):
    """Makes a mutation's field safe to retry: ``@strawberry.mutation(extensions=[Idempotent(engine, "pay", ...)])``.

    Put it first in ``extensions``: those after it, and permissions, run before it claims, on replays too.

    Parameters:
        engine: an :class:`~semel.AsyncEngine` for an ``async def`` resolver, an :class:`~semel.Engine` for a plain one;
            or a function that returns it.
        name: of the operation, the scope of its keys; keep it when fields are renamed.
        policy: or its ``options``, those of :class:`~semel.policy.Policy`.
        caller: a function of the field's ``Info`` that returns the :class:`~semel.http.caller.Caller` whose key it is;
            None where the caller is not known. ``single_caller`` where there is only one.
        key: the argument that holds it, or a path in it (``"input.key"``), by its Python name; or
            ``"header:Idempotency-Key"``, which one field of an HTTP request can have.
        parent: for a field below the root: a function of its parent object that returns what tells that one from
            others, such as its id (None for a namespace); it counts like an argument.
        include: paths of the arguments that tell commands apart; by default all of them count.
        exclude: arguments that do not count.
        replays: exception types that are definite refusals, kept and raised again.
        codecs: of classes of your own in arguments and results.
        operations_path: where the status of operations is served, with ``{id}``; errors name it.

    Raises PolicyError and ConfigurationError, here or when the schema is built (there as the cause of a TypeError).

    >>> import strawberry
    >>> from semel import Engine
    >>> from semel.integrations.strawberry import Idempotent, single_caller
    >>> engine = Engine.connect("memory://")
    >>> @strawberry.type
    ... class Query:
    ...     version: int = 1
    >>> @strawberry.type
    ... class Mutation:
    ...     @strawberry.mutation(extensions=[Idempotent(engine, "pay", caller=single_caller, key="key")])
    ...     def pay(self, amount: int, key: str) -> str:
    ...         print("paying")
    ...         return f"paid {amount}"
    >>> schema = strawberry.Schema(Query, Mutation)
    >>> engine.open()
    >>> [schema.execute_sync('mutation { pay(amount: 5, key: "k-1") }').data for _ in range(2)]
    paying
    [{'pay': 'paid 5'}, {'pay': 'paid 5'}]
    >>> engine.close()
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine | Callable[[], Engine | AsyncEngine],
        name: str,
        policy: Policy | None = None,
        *,
        caller: CallerOfInfo | None = None,
        key: str = "idempotency_key",
        parent: Callable[[Any], object] | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        replays: tuple[type[Exception], ...] = (),
        codecs: Sequence[Codec] = (),
        operations_path: str | None = None,
        **options: Unpack[CommandOptions],
    ) -> None:
        if caller is None:
            raise ConfigurationError(
                f"{name}: caller= is missing: a key means something only for its caller; give a function of the Info "
                "that returns Caller(tenant, id), or single_caller where there is only one"
            )
        for option, given in (("caller", caller), ("parent", parent)):
            if given is not None and (not callable(given) or inspect.iscoroutinefunction(given)):
                raise ConfigurationError(f"{name}: {option} must be a plain function; it is {given!r}")
        if operations_path is not None and operations_path.count("{id}") != 1:
            raise ConfigurationError(f"{name}: operations_path must contain {{id}} once; it is {operations_path!r}")
        if not isinstance(key, str) or key == _HEADER:
            raise ConfigurationError(f"{name}: key= is the name of an argument, or 'header:NAME'; it is {key!r}")
        if any(isinstance(each, type) and issubclass(each, GraphQLError) for each in replays):
            raise ConfigurationError(
                f"{name}: replays= names a GraphQLError, whose place in a query belongs to one request and cannot be "
                "kept; raise an exception of your own with an attribute `extensions`"
            )
        if policy is not None and options:
            raise PolicyError("give either a policy or its options, not both")
        self.policy = policy if policy is not None else Policy(**options)
        if isinstance(self.policy, Policy) and self.policy.resumable:
            raise PolicyError(f"{name}: resumable is not for fields; nothing could give the resolver its context again")
        self.name = name
        self.engine = engine
        self.caller = caller
        self.key = key
        self.parent = parent
        self.operations_path = operations_path
        self._include = tuple(include) if not isinstance(include, str) else include
        self._exclude = tuple(exclude) if not isinstance(exclude, str) else exclude
        self._replays = replays
        self._codecs = (*codecs, *_CODECS)
        self._resolver: Any = None
        self._arguments: tuple[str, ...] = ()
        self._path: Path | None = None
        self._once: Any = None

    def __call__(self, *_: Any) -> Any:
        """Refuse the use as a decorator. Raises ConfigurationError."""
        raise ConfigurationError(
            f"{self.name}: Idempotent(...) is not a decorator; write @strawberry.mutation(extensions=[Idempotent(...)])"
        )

    # --- when the schema is built -----------------------------------------------------------------

    def apply(self, field: StrawberryField) -> None:
        """Declare the field's resolver as the operation, as Strawberry asks when it builds a schema.

        Raises ConfigurationError.
        """
        resolver = field.base_resolver
        owner = getattr(getattr(field.origin, "__strawberry_definition__", None), "name", None)
        called = f"{owner}.{field.python_name}"
        if field.is_subscription or owner in ("Query", "Subscription"):
            raise ConfigurationError(
                f"{called} is not a mutation: queries and subscriptions change nothing, so that they have no key; put "
                "Idempotent(...) on a mutation's field"
            )
        if resolver is None:
            raise ConfigurationError(f"{called} has no resolver; put Idempotent(...) on the field of a mutation")
        self._check_place(called, field)
        function = getattr(resolver.wrapped_func, "__func__", resolver.wrapped_func)
        if self._resolver is not None:
            if self._resolver is not function:
                raise ConfigurationError(f"{called}: this Idempotent({self.name!r}) is another field's; make a new one")
            return
        check_function(function)
        self._arguments = tuple(each.python_name for each in resolver.arguments)
        self._check_key(called, resolver.signature.parameters)
        once = self._declare(function, resolver.signature, is_async=field.is_async)
        once.check_result()
        self._resolver, self._once = function, once

    def _check_place(self, called: str, field: StrawberryField) -> None:
        for each in field.extensions:
            if each is self:
                return
            if getattr(each, "has_resolver", True):
                raise ConfigurationError(
                    f"{called}: {type(each).__name__} comes before Idempotent(...), so it would run after the claim, "
                    "and not on a replay; put Idempotent first in extensions=[...]"
                )

    def _check_key(self, called: str, parameters: Any) -> None:
        if self.key.startswith(_HEADER):
            return
        self._path = Path.of(self.key, self._arguments, "key=")
        default = parameters[self._path.root].default
        if default not in (inspect.Parameter.empty, None, UNSET):
            raise ConfigurationError(
                f"{called}: {self._path.root} has a default, so that all calls without a key would share it; let the "
                "default be None, or have none"
            )

    def _declare(self, function: Any, signature: inspect.Signature, *, is_async: bool) -> Any:
        """Declare the resolver as a command of the field's arguments, passed in ``semel_call``."""

        @functools.wraps(function)
        def plain(semel_call: _FieldCall, semel_permit: Permit | None, **arguments: Any) -> Any:
            return semel_call.run(semel_permit)

        @functools.wraps(function)
        async def coroutine(semel_call: _FieldCall, semel_permit: Permit | None, **arguments: Any) -> Any:
            return await semel_call.run_async(semel_permit)

        kind = inspect.Parameter.KEYWORD_ONLY
        own = [signature.parameters[name].replace(kind=kind) for name in self._arguments]
        target: Any = coroutine if is_async else plain
        target.__signature__ = signature.replace(
            parameters=[
                inspect.Parameter(_CALL, kind),
                inspect.Parameter(_PERMIT, kind, annotation=Permit),
                inspect.Parameter(_PARENT, kind),
                *own,
            ]
        )
        include = self._include
        if include and not isinstance(include, str):
            include = (*include, _PARENT)
        exclude = self._exclude
        if not include and not isinstance(exclude, str):
            exclude = (*exclude, _CALL)
        engine: Any = self.engine
        declare: Any = command(
            engine,
            self.name,
            self.policy,
            caller=lambda semel_call, **_: semel_call.find_caller(),
            key=lambda semel_call, **_: semel_call.find_key(),
            include=include,
            exclude=exclude,
            replays=self._replays,
            codecs=self._codecs,
        )
        return declare(target)

    # --- when the field is resolved ---------------------------------------------------------------

    def resolve(self, next_: Callable[..., Any], source: Any, info: Info, **kwargs: Any) -> Any:
        """Resolve the field once, as Strawberry asks for a plain resolver."""
        call = _FieldCall(self, next_, source, info, kwargs)
        try:
            return self._once(**self._digest_arguments(call.arguments()))
        except SemelError as error:
            raise call.error_of(error) from error

    async def resolve_async(self, next_: Callable[..., Any], source: Any, info: Info, **kwargs: Any) -> Any:
        """Resolve the field once, as Strawberry asks for a coroutine."""
        call = _FieldCall(self, next_, source, info, kwargs)
        try:
            arguments = call.arguments()
            if _has_file([arguments[name] for name in self._arguments if name in arguments]):
                arguments = await asyncio.to_thread(self._digest_arguments, arguments)  # a file may be long
            return await self._once(**arguments)
        except SemelError as error:
            raise call.error_of(error) from error

    def _digest_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Make the arguments as they count: each file, at any depth, is replaced by its bytes."""
        own = {each.kind for each in self._codecs}
        named = {name: _digest_value(arguments[name], own) for name in self._arguments if name in arguments}
        return {**arguments, **named}

    def own_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Select the field's arguments from a resolver's, which also include the parent and the Info."""
        return {name: value for name, value in kwargs.items() if name in self._arguments}

    def key_of(self, kwargs: dict[str, Any]) -> str:
        """Read the key in a field's arguments. Raises RequestError."""
        assert self._path is not None
        try:
            value = self._path.find(kwargs)
        except (NotThere, KeyError):
            value = None
        if value is None or value is UNSET:
            raise MissingKey(f"{self.key} is missing; send a UUID there, the same whenever this is retried")
        text = text_of(value)
        if text is None:
            raise InvalidKey(f"{self.key} is {name_type(value)}, no key; send a UUID there")
        if not text.strip():  # empty differs from missing: with optional keys it must not run unprotected
            raise InvalidKey(f"{self.key} is empty; send a UUID there, the same whenever this is retried")
        return check_key(text, self.key)


@dataclass(frozen=True)
class _FileBytes:
    """The part of a file that counts: its bytes, not its name or media type."""

    size: int
    sha256: bytes


def _stream_of(value: Any) -> Any:
    """Find the file of a framework's upload object, readable without waiting; None if it is not one."""
    for each in (value, getattr(value, "file", None), getattr(value, "stream", None)):
        methods = [getattr(each, name, None) for name in ("read", "seek", "tell")]
        if all(map(callable, methods)) and not any(map(inspect.iscoroutinefunction, methods)):
            return each
    return None


def _inner(value: Any) -> dict[Any, Any]:
    """Return the values inside of an argument, by their place in it."""
    if isinstance(value, Some):
        return {"value": value.value}
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {}


def _has_file(value: Any) -> bool:
    return _stream_of(value) is not None or any(map(_has_file, _inner(value).values()))


def _digest_value(value: Any, own: Collection[type]) -> Any:
    """Replace the files of an argument by their bytes, except types that the application has a codec for."""
    if not _has_file(value) or (type(value) in own and not isinstance(value, Some)):
        return value
    stream = _stream_of(value)
    if stream is not None:
        return _digest(stream)
    made = {place: _digest_value(each, own) for place, each in _inner(value).items()}
    if isinstance(value, Some):
        return Some(made["value"])
    if isinstance(value, (list, tuple)):
        return list(made.values())
    if isinstance(value, dict):
        return made
    copied = copy.copy(value)
    for name, each in made.items():
        object.__setattr__(copied, name, each)
    return copied


def _digest(stream: Any) -> _FileBytes:
    digest, size, at = hashlib.sha256(), 0, stream.tell()
    stream.seek(0)
    while piece := stream.read(_PIECE_BYTES):
        raw = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
        digest.update(raw)
        size += len(raw)
    stream.seek(at)
    return _FileBytes(size, digest.digest())


class _FieldCall:
    """One resolving of one protected field."""

    def __init__(
        self, extension: Idempotent, next_: Callable[..., Any], source: Any, info: Info, kwargs: dict[str, Any]
    ) -> None:
        self.extension = extension
        self.next_ = next_
        self.source = source
        self.info = info
        self.kwargs = kwargs
        self.has_run = False
        self.failed: BaseException | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the command's arguments. Raises ConfigurationError if the field is not a command here."""
        where = self.info.path
        if self.info.operation.operation.value != "mutation":
            raise ConfigurationError(
                f"{self.info.field_name} was called in a {self.info.operation.operation.value}: it is a command, and "
                "belongs under Mutation"
            )
        parent: object = None
        if self.extension.parent is not None:
            parent = self.extension.parent(self.source)
        elif where.prev is not None:
            raise ConfigurationError(
                f"{self.info.field_name} is below another field, whose arguments would not count: give parent= a "
                "function that distinguishes its parents (parent=lambda account: account.id), or one that returns "
                "None (parent=lambda namespace: None)"
            )
        return {_CALL: self, _PARENT: parent, **self.extension.own_arguments(self.kwargs)}

    def find_caller(self) -> Caller:
        found = self.extension.caller(self.info)
        if found is None:
            raise CallerNotKnown
        return found  # which must be a Caller: the command looks

    def find_key(self) -> str:
        given = self.extension.key
        if not given.startswith(_HEADER):
            return self.extension.key_of(self.kwargs)
        return _header_key(self.info, given.removeprefix(_HEADER))

    def run(self, permit: Permit | None) -> Any:
        self._begin(permit)
        try:
            return self.next_(self.source, self.info, **self.kwargs)
        except BaseException as error:
            self.failed = error
            raise

    async def run_async(self, permit: Permit | None) -> Any:
        self._begin(permit)
        try:
            return await self.next_(self.source, self.info, **self.kwargs)
        except BaseException as error:
            self.failed = error
            raise

    def _begin(self, permit: Permit | None) -> None:
        self.has_run, self.failed = True, None
        setattr(self.info, _PERMIT, permit)  # Strawberry makes an Info for each resolving of each field

    def error_of(self, error: SemelError) -> Exception:
        """Make the field's error: the resolver's own or the developer's unchanged, a verdict as a GraphQL error."""
        if error is self.failed:
            return error
        atomic = self.extension.policy.terms.effects is Effects.ATOMIC
        why = RefusedCall.of(error, maybe_done=self.has_run and atomic)
        if isinstance(error, ResultNotKept) and atomic:
            kind = problems.ANSWER_TOO_LARGE
            why = RefusedCall(kind, _TOO_LARGE, kind.key_action, error.operation_id)
        return error if why is None else GraphQLError(why.detail, extensions=self._extensions(why))

    def _extensions(self, why: RefusedCall) -> dict[str, Any]:
        path = self.extension.operations_path
        more = {
            "operationId": why.operation_id,
            "operation": path.replace("{id}", why.operation_id) if path and why.operation_id else None,
            "state": why.state,
            "retryAfter": None if why.retry_seconds is None else max(1, math.ceil(why.retry_seconds)),
        }
        return {
            "code": why.kind.code,
            "retryable": why.kind.retryable,
            "keyAction": why.key_action,
            **{name: value for name, value in more.items() if value is not None},
        }


def _header_key(info: Info, name: str) -> str:
    """Read the key in the request's header, for the one field that may have it. Raises RequestError."""
    context: Any = info.context
    request = context.get("request") if isinstance(context, dict) else getattr(context, "request", context)
    headers = getattr(request, "headers", None)
    scope = getattr(request, "scope", None)
    if headers is None:
        raise ConfigurationError(
            f"key='header:{name}' needs the HTTP request in info.context (context['request'] or context.request); "
            "let the key be an argument: key='idempotency_key'"
        )
    if isinstance(scope, dict) and scope.get("type") == "websocket":
        raise InvalidKey("a WebSocket's header is not a command's key; send this mutation over HTTP")
    lines = getattr(headers, "getlist", None) or getattr(headers, "getall", None)
    values = [headers[name]] if lines is None and name in headers else lines(name) if lines and name in headers else []
    key = parse_key([str(value).encode("latin-1", "replace") for value in values])
    marks = request if isinstance(request, MutableMapping) else None  # aiohttp's requests take no attributes
    if getattr(request, _USED, False) or (marks is not None and _USED in marks):
        raise InvalidKey(
            f"this request has one key, in {name}, and another field has used it: send each of these mutations in a "
            "separate request"
        )
    if marks is not None:
        marks[_USED] = True
    else:
        setattr(request, _USED, True)
    return key


def permit_of(info: Any) -> Permit:
    """Return the permit of the field that is being resolved: ``permit_of(info).key_for("charge")``.

    Parameters: ``info`` that the resolver was given.

    Raises ConfigurationError where the field is not protected, or the call has no key.
    """
    permit = getattr(info, _PERMIT, None)
    if not isinstance(permit, Permit):
        raise ConfigurationError(
            "this field is not protected, so that there is no permit: put Idempotent(...) into its extensions, and let "
            "key='required' refuse calls without a key"
        )
    return permit


# Encodings of Strawberry's own values: an argument that was not sent, and one that was, if that differs.
_CODECS: Final = (
    Codec(type(UNSET), encode=lambda value: "unset", decode=lambda form: UNSET),
    Codec(Some, encode=lambda some: [some.value], decode=lambda form: Some(form[0])),
)
