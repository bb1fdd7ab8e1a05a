"""What a successful claim hands to the handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from semel.core.decide import first_grant
from semel.core.identity import derive_key, uuid_text
from semel.core.model import Claim, Effects, Grant, Renewal
from semel.core.outcomes import Outcome
from semel.errors import PolicyError, StepError
from semel.outbox.run import Emission
from semel.policy import Command

if TYPE_CHECKING:
    from types import UnionType
    from typing import TypeAlias, _SpecialForm

    _Form: TypeAlias = UnionType | _SpecialForm  # what ``int | None`` is, and ``Literal["a"]``

T = TypeVar("T")

_new: Final[Any] = tuple.__new__  # every renewal and every failed command makes one


class Permit:
    """The right to run one command's handler, and what the handler may ask of Semel.

    ``attempt`` counts the grants of this record, ``generation`` grows only when an execution (not a step of one) was
    settled as "did not happen", ``lost`` turns true when another attempt was granted the record.
    """

    # What most commands do not change is an attribute of the class.
    _begun: bool | None = None
    kept = True
    unit: Any = None
    handler_thread: int | None = None  # where its handler has begun, in threads
    requested_outcome: Outcome | None = None  # what the holder has asked to be settled
    lost = False
    settling = False  # its settlement is on its way: a renewal's reply means nothing meanwhile
    resource_type: str | None = None
    resource_id: str | None = None
    may_emit = False  # whether the store keeps events
    emission: Emission | None = None  # its events, where it has any
    steps: Any = None  # those of an operation that declares them, in the form of its engine
    _on_lost: Callable[[], object] | None = None
    given: Grant | None = None  # what was granted, where a fence does not say all of it
    _deadline_monotonic: float | None = None

    def __init__(self, command: Command, claim: Claim, fence: int, now_monotonic: float) -> None:
        self.asked = command  # or a request that has what a command has
        self.claim = claim
        self.fence = fence
        self.renewed_monotonic = self._granted_monotonic = now_monotonic

    @property
    def begun(self) -> bool:
        """Whether the effect may have begun: of an operation that does not mark that point, from the beginning."""
        return not self.asked.policy.marks_effects if self._begun is None else self._begun

    @begun.setter
    def begun(self, begun: bool) -> None:
        self._begun = begun

    @property
    def grant(self) -> Grant:
        """What the claim wrote."""
        return self.given or first_grant(self.claim, self.fence)

    @property
    def holder(self) -> Renewal:
        """What a store knows it by."""
        return _new(Renewal, (self.claim.id, self.fence, self.claim.nonce))  # type: ignore[no-any-return]

    @property
    def execution_id(self) -> bytes:
        """The operation's id as stores have it, 16 bytes."""
        return (self.given or self.claim).operation_id

    @property
    def deadline_monotonic(self) -> float:
        """Until when the handler may run, by this process's monotonic clock, in seconds."""
        if self._deadline_monotonic is None:
            self._deadline_monotonic = self._granted_monotonic + self.claim.terms.deadline_us / 1_000_000
        return self._deadline_monotonic

    @deadline_monotonic.setter
    def deadline_monotonic(self, seconds: float) -> None:
        self._deadline_monotonic = seconds

    @property
    def command(self) -> Command:
        """What is done once: the key in its scope, the request's fingerprint, and the policy."""
        asked = self.asked
        if type(asked) is not Command:
            asked = self.asked = Command.of_request(asked)
        return asked

    @property
    def effects(self) -> Effects:
        """What was declared of the handler's side effects when the claim was made."""
        return self.claim.terms.effects

    @property
    def operation_id(self) -> str:
        """The name of this execution, for people and URLs (a UUID)."""
        return uuid_text(self.execution_id)

    @property
    def attempt(self) -> int:
        """Which grant of this record it is; 1 is the first."""
        return self.grant.attempt

    @property
    def generation(self) -> int:
        """Grows only when an execution was settled as "did not happen"; not when that was said of a step."""
        return self.grant.generation

    def key_for(self, name: str, ordinal: int = 0) -> str:
        """A key for one downstream call, stable over retries, takeovers and a lost claim.

        Parameters: ``name`` of the call, such as "charge"; ``ordinal`` tells repeated calls apart.
        """
        if not name:
            raise PolicyError("key_for needs a name, such as permit.key_for('charge')")
        return derive_key(self.grant.id, self.grant.generation, name, ordinal)

    def effect(self) -> _Effect:
        """The point of no return: ``with permit.effect(): provider.charge(...)``.

        Of an operation declared with ``marks_effects=True``, an exception before it releases the key.
        """
        return _Effect(self)

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
            call: makes the effect; its result is recorded as JSON, and what is returned went through that form. Async
                engines await what it returns.
            repeat: whether the call may be repeated while it is open whether it took effect: it gives the downstream
                ``permit.key_for(name, ordinal)``, which deduplicates for the policy's ``dedup_for_seconds``.
            returns: the result's type, where the call's own annotation does not say it.

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
        """A step that writes into the store's own database: its writes and its record are committed together.

        Parameters: ``call`` is given the connection of a transaction that Semel begins and ends, as
        ``permit.connection`` of an ATOMIC command; where the transaction met a deadlock or a serialization failure it
        is called again, up to four times. The others as :meth:`step`.

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
        """What the end of the handler means, seen with the steps that it has begun."""
        ended: Outcome = outcome if self.steps is None else self.steps.outcome(outcome)
        return ended

    def result(self, resource_type: str, resource_id: str) -> None:
        """Name the resource that this command made, for the operation's status.

        Raises PolicyError where one of them is no text, or holds half of a character, which no store can keep.
        """
        for name, text in (("resource_type", resource_type), ("resource_id", resource_id)):
            if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
                raise PolicyError(f"{name} must be a text without lone surrogates; it is {text!a}")
        self.resource_type = resource_type
        self.resource_id = resource_id

    def emit(
        self,
        topic: str,
        payload: Any,
        *,
        type: str | None = None,
        aggregate: tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        name: str | None = None,
        ordinal: int = 0,
    ) -> str:
        """Tell the world, if and only if this command succeeds: the event is written in the commit that settles it.

        Parameters:
            topic: where it goes: a subject, queue, topic or stream, 1 to 249 letters in parts joined by dots.
            payload: bytes, a text, or what JSON can say; at most 1,000,000 bytes.
            type: what it is, for its consumers; the topic by default.
            aggregate: ``("order", order_id)``: what it is about. Events of one aggregate are published in their order;
                by default this operation's own.
            headers: texts that travel with it, 8,192 bytes in all.
            name: what its id is derived from, with ``ordinal``: the type by default. Each is emitted once.

        Returns the event's id, the same for every run of the same execution.

        Raises PolicyError: it cannot be an event, or not here; the message says what to do.
        """
        if not self.may_emit:
            raise PolicyError(
                "events need a store in a SQL database: sqlite:///, postgresql:// or mysql:// (MariaDB); this store "
                "is not one"
            )
        if self.settling:
            raise PolicyError(f"the event {topic!a} was emitted after its command was settled; emit it in the handler")
        if self.emission is None:
            grant = self.grant
            self.emission = Emission(grant.id, grant.generation, grant.operation_id, self.asked.scope.tenant)
        return self.emission.add(topic, payload, type, aggregate, headers, name, ordinal)

    @property
    def connection(self) -> Any:
        """The connection of an ATOMIC command: what is written on it commits with the record, or not at all."""
        if self.unit is None:
            raise PolicyError(
                "permit.connection exists only for operations with effects='atomic'; declare that, or use a "
                "connection of your own"
            )
        return self.unit.connection

    def when_lost(self, act: Callable[[], object]) -> None:
        """What to do when the record is granted to another attempt while this handler runs."""
        self._on_lost = act

    def lose(self) -> None:
        """Another attempt was granted the record; from here on every write of this permit is refused."""
        if not self.lost:
            self.lost = True
            if self._on_lost is not None:
                self._on_lost()


if TYPE_CHECKING:

    class AsyncPermit(Permit):
        """The permit of an async engine, for type checkers: there every step is awaited, whatever its call is.

        At run time it is :class:`Permit`.
        """

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

else:
    AsyncPermit = Permit


class _Effect:
    __slots__ = ("_permit",)

    def __init__(self, permit: Permit) -> None:
        self._permit = permit

    def __enter__(self) -> Permit:
        self._permit.begun = True
        return self._permit

    def __exit__(self, *_: object) -> Literal[False]:
        return False

    async def __aenter__(self) -> Permit:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> Literal[False]:
        return False
