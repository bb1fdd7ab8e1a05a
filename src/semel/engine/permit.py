"""The permit that a successful claim gives to the handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from semel.core.decide import first_grant
from semel.core.identity import derive_key, uuid_text
from semel.core.model import Claim, Effects, Grant, Renewal
from semel.core.outcomes import Outcome
from semel.errors import PolicyError
from semel.outbox.run import PermitEvents
from semel.policy import Command
from semel.steps.permit import PermitSteps

if TYPE_CHECKING:
    from semel.steps.permit import AwaitedSteps

_new: Final[Any] = tuple.__new__  # every renewal and every failed command makes one


class Permit(PermitSteps, PermitEvents):
    """The right to run one command's handler, and the handler's interface to Semel.

    ``attempt`` counts the grants of this record, ``generation`` grows only when an execution (not a step of one) was
    settled as "did not happen", ``lost`` turns true when another attempt was granted the record.
    """

    # Defaults that most commands keep are attributes of the class.
    _begun: bool | None = None
    kept = True
    unit: Any = None
    handler_thread: int | None = None  # the id of the thread that its handler began in
    requested_outcome: Outcome | None = None  # the outcome that the holder asked to settle
    lost = False
    inherited = False  # a parent process's: this one was forked while the handler ran, and may not settle it
    settling = False  # its settlement is on its way: a renewal's reply means nothing meanwhile
    resource_type: str | None = None
    resource_id: str | None = None
    _on_lost: Callable[[], object] | None = None
    given: Grant | None = None  # the grant, if the fence alone does not determine it
    _deadline_monotonic: float | None = None

    def __init__(self, command: Command, claim: Claim, fence: int, now_monotonic: float) -> None:
        self.asked = command  # or a request with a command's attributes
        self.claim = claim
        self.fence = fence
        self.renewed_monotonic = self._granted_monotonic = now_monotonic

    @property
    def begun(self) -> bool:
        """Whether the effect may have begun: true from the start if the operation does not mark that point."""
        return not self.asked.policy.marks_effects if self._begun is None else self._begun

    @begun.setter
    def begun(self, begun: bool) -> None:
        self._begun = begun

    @property
    def grant(self) -> Grant:
        """The grant that the claim wrote."""
        return self.given or first_grant(self.claim, self.fence)

    @property
    def holder(self) -> Renewal:
        """The id, fence and nonce that identify this permit to a store."""
        return _new(Renewal, (self.claim.id, self.fence, self.claim.nonce))  # type: ignore[no-any-return]

    @property
    def execution_id(self) -> bytes:
        """The operation's id as stores hold it, 16 bytes."""
        return (self.given or self.claim).operation_id

    @property
    def deadline_monotonic(self) -> float:
        """The time at which the handler must end, in seconds of this process's monotonic clock."""
        if self._deadline_monotonic is None:
            self._deadline_monotonic = self._granted_monotonic + self.claim.terms.deadline_us / 1_000_000
        return self._deadline_monotonic

    @deadline_monotonic.setter
    def deadline_monotonic(self, seconds: float) -> None:
        self._deadline_monotonic = seconds

    @property
    def command(self) -> Command:
        """The command: the key in its scope, the request's fingerprint, and the policy."""
        asked = self.asked
        if type(asked) is not Command:
            asked = self.asked = Command.of_request(asked)
        return asked

    @property
    def effects(self) -> Effects:
        """The declared kind of the handler's side effects when the claim was made."""
        return self.claim.terms.effects

    @property
    def operation_id(self) -> str:
        """The name of this execution, for people and URLs (a UUID)."""
        return uuid_text(self.execution_id)

    @property
    def attempt(self) -> int:
        """The number of this grant of the record; 1 is the first."""
        return self.grant.attempt

    @property
    def generation(self) -> int:
        """Grows only when an execution was settled as "did not happen"; not when a single step was."""
        return self.grant.generation

    def key_for(self, name: str, ordinal: int = 0) -> str:
        """Derive a key for one downstream call, stable over retries, takeovers and a lost claim.

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

    def result(self, resource_type: str, resource_id: str) -> None:
        """Name the resource that this command made, for the operation's status.

        Raises PolicyError if one of them is not a text, or contains a lone surrogate, which cannot be encoded.
        """
        for name, text in (("resource_type", resource_type), ("resource_id", resource_id)):
            if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
                raise PolicyError(f"{name} must be a text without lone surrogates; it is {text!a}")
        self.resource_type = resource_type
        self.resource_id = resource_id

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
        """Register a function to call if another attempt is granted the record while this handler runs."""
        self._on_lost = act

    def lose(self) -> None:
        """Mark the permit as lost to another attempt; from here on every write with it is refused."""
        if not self.lost:
            self.lost = True
            if self._on_lost is not None:
                self._on_lost()


if TYPE_CHECKING:

    class AsyncPermit(AwaitedSteps, Permit):  # its steps are awaited, even if their calls are not
        """The permit of an async engine, for type checkers. At run time it is :class:`Permit`."""

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
