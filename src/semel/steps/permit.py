"""The part of a permit for the handler of an operation with steps: ``permit.step`` and ``permit.local_step``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, overload

from semel.core.outcomes import Outcome
from semel.errors import StepError

if TYPE_CHECKING:
    from types import UnionType
    from typing import TypeAlias, _SpecialForm

    _Form: TypeAlias = UnionType | _SpecialForm  # what ``int | None`` is, and ``Literal["a"]``

T = TypeVar("T")


class PermitSteps:
    """The part of a permit that is about steps."""

    steps: Any = None  # the steps of an operation that declares them, in its engine's form

    @overload
    def step(
        self, name: str, call: Callable[[], object], *, returns: type[T], ordinal: int = 0, repeat: bool = False
    ) -> T: ...
    @overload
    def step(
        self, name: str, call: Callable[[], object], *, returns: _Form, ordinal: int = 0, repeat: bool = False
    ) -> Any: ...
    @overload
    def step(
        self, name: str, call: Callable[[], T], *, ordinal: int = 0, repeat: bool = False, returns: None = None
    ) -> T: ...
    def step(
        self, name: str, call: Callable[[], Any], *, ordinal: int = 0, repeat: bool = False, returns: Any = None
    ) -> Any:
        """Make an effect once for the whole execution: ``await permit.step("charge", call)``, without ``await`` on a
        sync engine. A later run of the same execution gets the recorded result, and the call is not made again.

        Parameters:
            name: of the step, at most 100 bytes; ``ordinal`` tells steps of one name apart.
            call: makes the effect; its result is recorded as JSON, and returned as read back from it. Async engines
                await the call's result.
            repeat: whether the call may be repeated while its effect is unknown: it passes ``permit.key_for(name,
                ordinal)`` to the downstream, which deduplicates for the policy's ``dedup_for_seconds``.
            returns: the result's type, if the call's own annotation does not name it.

        Raises:
            StepError: the operation declares no steps, the name was used before, or the result cannot be recorded.
            StepInDoubt: the step had begun in a former run, and may not be repeated: the operation is UNKNOWN.
            SupersededError: another attempt holds the record; the call was not made.
            StoreError: the start could not be recorded; the call was not made.
        """
        return self._book("step", name).step(name, call, ordinal, repeat=repeat, returns=returns)

    @overload
    def local_step(self, name: str, call: Callable[[Any], object], *, returns: type[T], ordinal: int = 0) -> T: ...
    @overload
    def local_step(self, name: str, call: Callable[[Any], object], *, returns: _Form, ordinal: int = 0) -> Any: ...
    @overload
    def local_step(self, name: str, call: Callable[[Any], T], *, ordinal: int = 0, returns: None = None) -> T: ...
    def local_step(self, name: str, call: Callable[[Any], Any], *, ordinal: int = 0, returns: Any = None) -> Any:
        """Run a step that writes into the store's own database: its writes and its record commit together.

        Parameters: ``call`` receives the connection of a transaction that Semel begins and ends, as
        ``permit.connection`` of an ATOMIC command; after a deadlock or a serialization failure it is called again, up
        to four times. The others as :meth:`step`.

        Raises as :meth:`step`, and EarlyCommit where the call has ended the transaction itself.
        """
        return self._book("local_step", name).local(name, call, ordinal, returns=returns)

    def _book(self, method: str, name: object) -> Any:
        if self.steps is None:
            raise StepError(
                f"permit.{method}({name!r}, ...) needs an operation that declares its steps: Policy(steps=True). Then "
                "put every effect of the handler into a step"
            )
        return self.steps

    def outcome(self, outcome: Outcome) -> Outcome:
        """Return the outcome of the handler's end, given the steps that it has begun."""
        ended: Outcome = outcome if self.steps is None else self.steps.outcome(outcome)
        return ended


if TYPE_CHECKING:

    class AwaitedSteps(PermitSteps):
        """The same for an async engine, where every step is awaited, whatever its call is."""

        @overload  # type: ignore[override]  # a plain call is awaited, too
        def step(
            self, name: str, call: Callable[[], object], *, returns: type[T], ordinal: int = 0, repeat: bool = False
        ) -> Coroutine[Any, Any, T]: ...
        @overload
        def step(
            self, name: str, call: Callable[[], object], *, returns: _Form, ordinal: int = 0, repeat: bool = False
        ) -> Coroutine[Any, Any, Any]: ...
        @overload
        def step(
            self,
            name: str,
            call: Callable[[], Awaitable[T]],
            *,
            ordinal: int = 0,
            repeat: bool = False,
            returns: None = None,
        ) -> Coroutine[Any, Any, T]: ...
        @overload
        def step(
            self, name: str, call: Callable[[], T], *, ordinal: int = 0, repeat: bool = False, returns: None = None
        ) -> Coroutine[Any, Any, T]: ...
        def step(self, name: str, call: Callable[[], Any], **options: Any) -> Any: ...

        @overload  # type: ignore[override]  # as step
        def local_step(
            self, name: str, call: Callable[[Any], object], *, returns: type[T], ordinal: int = 0
        ) -> Coroutine[Any, Any, T]: ...
        @overload
        def local_step(
            self, name: str, call: Callable[[Any], object], *, returns: _Form, ordinal: int = 0
        ) -> Coroutine[Any, Any, Any]: ...
        @overload
        def local_step(
            self, name: str, call: Callable[[Any], Awaitable[T]], *, ordinal: int = 0, returns: None = None
        ) -> Coroutine[Any, Any, T]: ...
        @overload
        def local_step(
            self, name: str, call: Callable[[Any], T], *, ordinal: int = 0, returns: None = None
        ) -> Coroutine[Any, Any, T]: ...
        def local_step(self, name: str, call: Callable[[Any], Any], **options: Any) -> Any: ...
