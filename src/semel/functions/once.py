"""The callable form of a command function: plain on an Engine, async on an AsyncEngine.

Both are callables with the function's own signature, and descriptors, so that methods are commands too.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from semel.core.model import Answer, Record
from semel.core.outcomes import Refused
from semel.engine.permit import Permit
from semel.errors import ConfigurationError, StoreError
from semel.functions.declared import CommandCall, DeclaredCommand
from semel.policy import Policy
from semel.resuming.worker import Completer, CompleterOptions

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
S = TypeVar("S")


class _Command:
    """The shared part of both forms: they look like their function, and bind arguments like it."""

    def __init__(self, declared: DeclaredCommand, binds: str) -> None:
        functools.update_wrapper(self, declared.function)  # type: ignore[arg-type]  # which takes any callable
        self._declared = declared
        self._binds = binds  # "instance", "class" or "nothing": what precedes the arguments of a method
        self._before: tuple[Any, ...] = ()
        self._key: str | None = None

    @property
    def operation(self) -> str:
        """The operation's name."""
        return self._declared.name

    @property
    def policy(self) -> Policy:
        """The operation's policy."""
        return self._declared.policy

    @property
    def engine(self) -> Any:
        """The engine that it runs on. Raises ConfigurationError if it is not of the kind that the function needs."""
        return self._declared.engine()

    def check_result(self) -> None:
        """Raise ConfigurationError if the return annotation has no form that can be stored."""
        self._declared.shape()

    def check_resumable(self) -> None:
        """Raise ConfigurationError if the function cannot be continued without its caller."""
        kept = self._declared.kept
        if kept is None:
            raise ConfigurationError(
                f"{self.operation!r} is not declared resumable: it never runs without its caller. "
                "@command(..., steps=True, resumable=True)"
            )
        if kept.receiver is not None and not self._before:
            raise ConfigurationError(
                f"{self._declared.called} is a method, and {kept.receiver!r} is not kept with its arguments: give it "
                "as it is bound to the object that it shall run on, such as completer(shop.ship)"
            )

    def with_key(self, key: str) -> Self:
        """Return the same command under this key: ``charge.with_key("order-17")(order)``.

        Parameters: ``key``, 1 to 255 characters, the same whenever the same intent is retried.

        Raises MissingKey, InvalidKey, and ConfigurationError if the key is declared to come from the arguments.
        """
        return self._copy(_key=self._declared.check_given_key(key))

    def _bound(self, instance: Any, owner: Any) -> Self:
        if self._binds == "nothing" or self._before:
            return self
        receiver = owner if self._binds == "class" else instance
        return self if receiver is None else self._copy(_before=(receiver,))

    def _copy(self, **changed: Any) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self), **changed)
        return other

    if not TYPE_CHECKING:  # type checkers find a misspelled name

        def __getattr__(self, name: str) -> Any:
            # Only for names that are not found otherwise; on an instance, for inspect.signature.
            if name == "__signature__":
                signature = self._declared.signature
                left = list(signature.parameters.values())[len(self._before) :]
                return signature.replace(parameters=left)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> str:
        # By name, as functions are pickled, so that it can be passed to a process pool.
        return str(getattr(self, "__qualname__"))  # noqa: B009 - of the function

    def __repr__(self) -> str:
        return f"<command {self.operation!r}: {self._declared.called}>"


class Once(_Command, Generic[P, R]):
    """A plain function as a command."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function once for this command; a duplicate gets the first result.

        Raises the function's own exception; a CommandError for every verdict but Proceed and Replay; a RequestError or
        a ConfigurationError if the arguments make no command; StoreError if the store cannot confirm that this
        process owns it. After the last three nothing ran.
        """
        call = self._declared.begin((*self._before, *args), kwargs, self._key)
        if call.command is None:
            bare: R = self._run(call.arguments(None))
            return bare

        try:
            result = call.engine.run(call.command, lambda permit: self._handle(call, permit))
        except StoreError as error:
            raise call.unconfirmed_error(error)  # noqa: B904 - the context stays as it is
        ended: R = call.end(result)
        return ended

    def _handle(self, call: CommandCall, permit: Permit) -> Answer | Refused:
        try:
            value = self._run(call.arguments(permit))
        except BaseException as error:  # noqa: BLE001 - raised again, unless it was declared
            return call.take_error(error)
        return call.take_value(value)

    def resume(self, permit: Permit, request: bytes) -> Answer | Refused:
        """Run the function with the stored arguments, as a completer's handler. Raises as the function does."""
        return self._handle(self._declared.resume(request, self._before), permit)

    def _run(self, arguments: inspect.BoundArguments) -> Any:
        return self._declared.function(*arguments.args, **arguments.kwargs)

    def record(self, *args: P.args, **kwargs: P.kwargs) -> Record | None:
        """Read this command's state in the store; None if it was never seen. Nothing runs."""
        call = self._declared.begin((*self._before, *args), kwargs, self._key)
        id = call.record_id()
        rows: list[Record | None] = call.engine.perform("read", lambda: call.engine.store.read((id,)))
        return rows[0]

    def unprotected(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself: no key, no record, no protection. Counts the call; a permit parameter is None."""
        call = self._declared.bypass((*self._before, *args), kwargs)
        ended: R = self._run(call)
        return ended

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Once[P, R]: ...
    @overload
    def __get__(self: Once[Concatenate[S, Q], R], instance: S, owner: type | None = None) -> Once[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self._bound(instance, owner)


class AsyncOnce(_Command, Generic[P, R]):
    """An async function as a command."""

    def __init__(self, declared: DeclaredCommand, binds: str) -> None:
        super().__init__(declared, binds)
        mark = getattr(inspect, "markcoroutinefunction", None)  # Python 3.12
        if mark is not None:
            mark(self)
        else:
            self._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)
            for name in ("__code__", "__defaults__", "__kwdefaults__"):  # what ``inspect`` looks at: without, a library
                setattr(self, name, getattr(declared.function, name))  # would call it, and never await it

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As :meth:`Once.__call__`. If the caller is cancelled, the function finishes and its outcome is stored."""
        call = self._declared.begin((*self._before, *args), kwargs, self._key)
        if call.command is None:
            bare: R = await self._run(call.arguments(None))
            return bare

        try:
            result = await call.engine.run(call.command, lambda permit: self._handle(call, permit))
        except StoreError as error:
            raise call.unconfirmed_error(error)  # noqa: B904 - the context stays as it is
        ended: R = call.end(result)
        return ended

    async def _handle(self, call: CommandCall, permit: Permit) -> Answer | Refused:
        try:
            value = await self._run(call.arguments(permit))
        except BaseException as error:  # noqa: BLE001 - raised again, unless it was declared
            return call.take_error(error)
        return call.take_value(value)

    async def resume(self, permit: Permit, request: bytes) -> Answer | Refused:
        """As :meth:`Once.resume`."""
        return await self._handle(self._declared.resume(request, self._before), permit)

    async def _run(self, arguments: inspect.BoundArguments) -> Any:
        return await self._declared.function(*arguments.args, **arguments.kwargs)

    async def record(self, *args: P.args, **kwargs: P.kwargs) -> Record | None:
        """As :meth:`Once.record`."""
        call = self._declared.begin((*self._before, *args), kwargs, self._key)
        id = call.record_id()
        rows: list[Record | None] = await call.engine.perform("read", lambda: call.engine.store.read((id,)))
        return rows[0]

    async def unprotected(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As :meth:`Once.unprotected`."""
        call = self._declared.bypass((*self._before, *args), kwargs)
        ended: R = await self._run(call)
        return ended

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> AsyncOnce[P, R]: ...
    @overload
    def __get__(self: AsyncOnce[Concatenate[S, Q], R], instance: S, owner: type | None = None) -> AsyncOnce[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self._bound(instance, owner)


def completer(*commands: Once[..., Any] | AsyncOnce[..., Any], **options: Unpack[CompleterOptions]) -> Completer:
    """Make a completer that finishes abandoned calls of resumable functions: ``async with completer(ship):``.

    Parameters: ``commands`` declared with ``resumable=True``, all on one engine; a method bound to the object that it
    shall run on (``completer(shop.ship)``); ``options`` those of :class:`~semel.resuming.worker.Completer`.

    Raises ConfigurationError: one is no such command, two have the same name, or the engines differ.

    >>> import asyncio, tempfile
    >>> from semel import AsyncEngine, AsyncPermit
    >>> from semel.functions import command, completer, single_caller
    >>> folder = tempfile.TemporaryDirectory()
    >>> engine = AsyncEngine.connect(f"sqlite:///{folder.name}/shop.db")
    >>> @command(engine, "parcels.ship", key="number", caller=single_caller, steps=True, resumable=True)
    ... async def ship(number: int, permit: AsyncPermit) -> str:
    ...     return await permit.step("ship", lambda: f"shipped {number}", repeat=True)
    >>> async def main() -> str:
    ...     await engine.migrate()
    ...     async with engine, completer(ship):  # for as long as the process lives
    ...         return await ship(7)
    >>> asyncio.run(main())
    'shipped 7'
    >>> folder.cleanup()
    """
    if not commands:
        raise ConfigurationError("completer(...) needs the functions that it shall bring to their end")
    for each in commands:
        if not isinstance(each, _Command):
            raise ConfigurationError(f"{each!r} is not a command; write @command(engine, name, ...) above the function")
        each.check_resumable()
    engines = {id(each.engine): each.engine for each in commands}
    if len(engines) > 1:
        raise ConfigurationError("the functions are of several engines; make a completer for each engine")
    [engine] = engines.values()
    made = Completer(engine, **options)
    for each in commands:
        made.register(each.operation, each.policy, each.resume)
    return made
