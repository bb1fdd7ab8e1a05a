"""A declared ``@command`` function, and one call of it: its arguments become a command, its outcome an answer.

No IO happens here; ``semel.functions.once`` runs it, once in threads and once on an event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

from semel.articles import name_type
from semel.codec.annotations import Shapes
from semel.codec.results import KeptResult, keep_error, keep_result, restore_result
from semel.codec.scalars import Mismatch, Unserialisable
from semel.codec.shapes import Shape
from semel.core.identity import record_id
from semel.core.model import Answer, Effects, Scope
from semel.core.outcomes import Refused
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.engine.result import Result
from semel.engine.sync_engine import Engine
from semel.errors import (
    ConfigurationError,
    HandlerRefused,
    MissingKey,
    NothingHappened,
    NotReplayableError,
    NotReplicated,
    OutcomeUnknownError,
    RecordUnreadableError,
    RequestError,
    RequestTooLarge,
    StoreError,
)
from semel.functions.arguments import MakeCaller, MakeKey, check_key
from semel.functions.fingerprints import Fingerprints, digest
from semel.integrations.endpoint import annotations_of
from semel.policy import Command, Policy
from semel.resuming.functions import KeptArguments
from semel.stores.process import begin_in_children

_NOT_KEPT: Final = Answer(None, (), b"")
# Which function of an engine an operation's name belongs to.
_OPERATIONS: Final[WeakKeyDictionary[Any, dict[str, str]]] = WeakKeyDictionary()


class ResultNotKept(NotReplayableError):
    """The function ran, but its outcome cannot be stored: it never runs again, and nothing can be replayed.

    ``result`` is the function's return value, for this caller alone. The developer must fix this; the message says how.
    """

    def __init__(self, message: str, *, operation_id: str | None = None, result: Any = None) -> None:
        super().__init__(message, operation_id=operation_id)
        self.result = result


class DeclaredCommand:
    """A declared command function: how it is named, bound, fingerprinted, run and stored."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        policy: Policy,
        engine: Any,
        *,
        permits: tuple[str, ...],
        make_key: MakeKey | None,
        key_said: str,
        make_caller: MakeCaller,
        fingerprints: Fingerprints,
        shapes: Shapes,
        replays: tuple[type[Exception], ...],
        kept: KeptArguments | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.policy = policy if policy.rebuild is None else replace(policy, rebuild=self._rebuilt(policy.rebuild))
        self.given_engine = engine
        self.is_async = inspect.iscoroutinefunction(function)
        self.full_signature = inspect.signature(function)
        self.permits = permits
        self.signature = self.full_signature.replace(
            parameters=[each for each in self.full_signature.parameters.values() if each.name not in permits]
        )
        self.make_key = make_key
        self.key_said = key_said
        self.make_caller = make_caller
        self.fingerprints = fingerprints
        self.replays = replays
        self.kept = kept
        self.atomic = policy.terms.effects is Effects.ATOMIC
        self._shapes = shapes
        self._shape: Shape | None = None
        self.begin_process()
        begin_in_children(self)
        self._recipe = fingerprints.recipe

    def begin_process(self) -> None:
        """Start with no shape being made: at construction, and in a forked child."""
        self._shaping = threading.Lock()

    @property
    def called(self) -> str:
        """The function's name, for people."""
        return getattr(self.function, "__qualname__", self.name)

    def _rebuilt(self, build: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a builder that returns the function's result. Raises ConfigurationError if it cannot run here."""
        if not inspect.iscoroutinefunction(self.function):
            if inspect.iscoroutinefunction(build):
                raise ConfigurationError(f"{self.called} is a plain function, and its rebuild= is async; write `def`")
            return lambda done: keep_result(build(done), self.shape()).answer

        async def rebuilt(done: Any) -> Answer:
            if inspect.iscoroutinefunction(build):
                value = await build(done)
            else:
                value = await asyncio.to_thread(build, done)
            return keep_result(value, self.shape()).answer

        return rebuilt

    # --- what is needed before anything runs ------------------------------------------------------

    def engine(self) -> Any:
        """The engine, of the kind that the function needs. Raises ConfigurationError."""
        engine = self.given_engine
        if not isinstance(engine, Engine | AsyncEngine):
            engine = engine()
        needed = AsyncEngine if self.is_async else Engine
        if not isinstance(engine, needed):
            what = "an async function" if self.is_async else "a plain function"
            raise ConfigurationError(
                f"{self.called} is {what} and needs an {needed.__name__}; it was given {type(engine).__name__}"
            )
        if self.atomic:
            engine.backend.check_atomic()
        engine.core.needs.declare(self.name, self.policy)
        mine = f"{self.function.__module__}.{self.called}"
        other = _OPERATIONS.setdefault(engine, {}).setdefault(self.name, mine)
        if other != mine:
            raise ConfigurationError(
                f"two functions are named {self.name!r}, {other} and {mine}: their keys would collide; rename one"
            )
        return engine

    def shape(self) -> Shape:
        """The shape of stored results. Raises ConfigurationError if the annotation has no safe form."""
        if self._shape is None:
            with self._shaping:  # a shape that another thread is making has no fields yet
                annotation = annotations_of(self.function)["return"]
                self._shape = self._shapes.of(annotation, f"the return annotation of {self.called}")
        return self._shape

    def shape_early(self) -> None:
        """Check an annotation at declaration; one with a forward reference is checked at the first call."""
        if self.kept is not None:
            self.kept.shape_early()
        if not isinstance(annotations_of(self.function)["return"], str):
            try:
                self.shape()
            except ConfigurationError as error:
                if "not known" not in str(error):
                    raise

    # --- one call ---------------------------------------------------------------------------------

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: str | None) -> CommandCall:
        """Make the command of one call.

        Raises TypeError as the function itself would, and ConfigurationError or RequestError if the arguments make no
        command: nothing ran.
        """
        bound = self.signature.bind(*args, **kwargs)
        given = frozenset(bound.arguments)
        bound.apply_defaults()
        engine, shape = self.engine(), self.shape()
        arguments = dict(bound.arguments)
        try:
            text = self._key(arguments, args, kwargs, key)
        except MissingKey:
            if self.policy.key == "required":
                raise
            engine.core.tell("unprotected", self.name, reason="no-key")
            return CommandCall(self, engine, shape, arguments, None)
        caller = self.make_caller(arguments, args, kwargs)
        secret = engine.core.id_secret
        parts = self.fingerprints.parts(arguments, given)
        request, refusal = None, self._misfit(text, parts)
        if self.kept is not None and not isinstance(refusal, RequestTooLarge):
            request = self.kept.pack(arguments)
        command = Command(
            Scope(caller.tenant, caller.id, self.name),
            text,
            digest(parts, self.name, secret),
            self._recipe,
            self.policy,
            lambda recipe: self.fingerprints.under(recipe, arguments, parts, self.name, secret),
            request=request,
            refusal=refusal,
        )
        return CommandCall(self, engine, shape, arguments, command, (parts, given))

    def _misfit(self, key: str, parts: Mapping[str, bytes]) -> RequestError | None:
        """Return today's limit that a call breaks, if any: the call is refused unless its key is on record."""
        try:
            self.fingerprints.check_size(parts)
            if self.policy.key_format is not None:
                self.policy.key_format.check(key, time.time())
        except RequestError as error:
            return error
        return None

    def resume(self, request: bytes, receivers: tuple[Any, ...]) -> CommandCall:
        """Make a run without the caller, with the stored arguments. Raises RecordUnreadableError."""
        assert self.kept is not None
        return CommandCall(self, self.engine(), self.shape(), self.kept.unpack(request, receivers), None)

    def bypass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Bind the arguments of an unprotected call, and count it."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self.engine().core.tell("unprotected", self.name, reason="asked-for")
        return self.with_permit(bound.arguments, None)

    def _key(
        self, arguments: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], key: str | None
    ) -> str:
        if self.make_key is not None:
            return self.make_key(arguments, args, kwargs)
        if key is None:
            raise MissingKey(
                f"{self.called} needs a key for each call: {self.called}.with_key(key)(...); "
                "or declare where it is: key='order.id'"
            )
        return key

    def check_given_key(self, key: object) -> str:
        """Check the key that a caller gives. Raises RequestError, and ConfigurationError if the key is declared."""
        if self.make_key is not None:
            raise ConfigurationError(
                f"the key of {self.called} is declared ({self.key_said}); a command has one way to its key: call it "
                "without with_key, or declare no key="
            )
        return check_key(key, f"{self.called}.with_key: the key")

    def with_permit(self, arguments: Mapping[str, Any], permit: Permit | None) -> inspect.BoundArguments:
        """Return the function's own arguments, with the permit."""
        ordered = {name: permit if name in self.permits else arguments[name] for name in self.full_signature.parameters}
        return inspect.BoundArguments(self.full_signature, ordered)


class CommandCall:
    """One call of a command, and its outcome in this process. ``command`` is None if a call without a key may run."""

    __slots__ = (
        "_arguments",
        "_counted",
        "_declared",
        "_failed",
        "_permit",
        "_raised",
        "_shape",
        "_unkept",
        "_value",
        "command",
        "engine",
    )

    def __init__(
        self,
        declared: DeclaredCommand,
        engine: Any,
        shape: Shape,
        arguments: dict[str, Any],
        command: Command | None,
        counted: tuple[Mapping[str, bytes], Collection[str]] | None = None,
    ) -> None:
        self.engine = engine
        self.command = command
        self._declared = declared
        self._shape = shape
        self._arguments = arguments
        self._counted = counted
        self._permit: Permit | None = None
        self._value: Any = None
        self._raised: Exception | None = None  # a declared exception, which is stored
        self._failed: BaseException | None = None  # any other
        self._unkept: Unserialisable | None = None

    def arguments(self, permit: Permit | None) -> inspect.BoundArguments:
        """The function's arguments.

        Raises HandlerRefused if an earlier run, rolled back as after a deadlock, has changed them.
        """
        if self._permit is not None and self._counted is not None:
            self._check_unchanged(*self._counted)
        self._permit = permit
        return self._declared.with_permit(self._arguments, permit)

    def _check_unchanged(self, counted: Mapping[str, bytes], given: Collection[str]) -> None:
        now = self._declared.fingerprints.parts(self._arguments, given)
        changed = [name for name, part in counted.items() if now.get(name) != part]
        if changed:
            raise HandlerRefused(
                f"the transaction of {self._declared.called} was rolled back because of another one, and it is not run "
                f"again: it has changed its argument {changed[0]!r}, so that it would do something else. Nothing was "
                "done. Let it change a copy"
            )

    # --- in the handler -------------------------------------------------------------------------

    def take_value(self, value: Any) -> Answer:
        """Make the answer of a function that returned."""
        if inspect.isawaitable(value) or isinstance(value, types.GeneratorType | types.AsyncGeneratorType):
            self._refuse_unfinished(value)
        self._value = value
        try:
            kept = keep_result(value, self._shape)
        except Unserialisable as error:
            return self._not_kept(error)
        self._value = kept.value
        return self._fitting(kept)

    def take_error(self, error: BaseException) -> Refused:
        """Turn a declared exception into a refusal; raise any other again."""
        if not self._is_declared(error):
            self._failed = error
            raise error
        assert isinstance(error, Exception)
        self._raised = error
        try:
            return Refused(self._fitting(keep_error(error, self._declared.replays)))
        except Unserialisable as why:
            return Refused(self._not_kept(why))

    def _is_declared(self, error: BaseException) -> bool:
        for kind in type(error).__mro__:  # the nearest declaration applies
            if kind in self._declared.replays:
                return True
            if kind is NothingHappened or kind in self._declared.policy.nothing_happened:
                return False
        return False

    def _refuse_unfinished(self, value: Any) -> NoReturn:
        if isinstance(value, types.CoroutineType | types.GeneratorType):
            value.close()
        raise ConfigurationError(
            f"{self._declared.called} returned {name_type(value)}: its work continues after it returns, so it cannot "
            "be protected; declare an `async def`, or await and collect inside"
        )

    def _fitting(self, kept: KeptResult) -> Answer:
        most = self._declared.policy.answer_bytes_max
        if len(kept.answer.body) <= most:
            return kept.answer
        if self._declared.atomic:
            raise self._rollback_error(f"the result is larger than {most} bytes (answer_bytes_max)")
        return self._mark_not_kept()

    def _not_kept(self, why: Unserialisable) -> Answer:
        if self._declared.atomic:
            raise self._rollback_error(str(why)) from self._raised
        self._unkept = why
        return self._mark_not_kept()

    def _mark_not_kept(self) -> Answer:
        assert self._permit is not None
        self._permit.kept = False
        return _NOT_KEPT

    def _rollback_error(self, why: str) -> ResultNotKept:
        assert self._permit is not None
        return ResultNotKept(
            f"{self._declared.called} was rolled back, because its end cannot be kept: {why}",
            operation_id=self._permit.operation_id,
            result=self._value,
        )

    # --- to the caller --------------------------------------------------------------------------

    def end(self, result: Result) -> Any:
        """Return the caller's result, or raise the declared exception. Raises CommandError if neither is stored."""
        if result.replayed:
            return self._replay(result)
        if self._unkept is not None:
            raise ResultNotKept(
                f"{self._declared.called} was done and is never run again, but its end cannot be kept, so that retries "
                f"are refused: {self._unkept}",
                operation_id=result.operation_id,
                result=self._value,
            ) from self._raised
        if self._raised is not None:
            raise self._raised
        return self._value

    def _replay(self, result: Result) -> Any:
        try:
            return restore_result(result.answer, self._shape, self._declared.replays)
        except Mismatch as error:
            raise RecordUnreadableError(
                f"the stored end of {self._declared.name!r} does not fit what {self._declared.called} declares now "
                f"({error}); it is never run again. Restore the former return annotation or replays=, or read it",
                operation_id=result.operation_id,
            ) from error

    def unconfirmed_error(self, error: StoreError) -> BaseException:
        """Return the exception for a store failure: before the function ran, or after it."""
        # An ATOMIC command is committed with its answer, or not at all: calling again is safe.
        if self._permit is None or (self._declared.atomic and not isinstance(error, NotReplicated)):
            return error
        if self._failed is not None:
            return self._failed
        return OutcomeUnknownError(
            f"{self._declared.called} ran, but the store did not confirm it; call again with the same key to learn "
            "how it ended",
            operation_id=self._permit.operation_id,
        )

    # --- without protection, and looking ----------------------------------------------------------

    def record_id(self) -> bytes:
        """Return the id of this command's record. Raises MissingKey if the call has no key."""
        if self.command is None:
            raise MissingKey("a call without a key has no record")
        return record_id(self.command.scope, self.command.key, self.engine.core.id_secret)
