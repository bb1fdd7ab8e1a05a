"""The events of commands that an engine reports to its observer: one method for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.core.identity import uuid_text
from semel.core.model import (
    Claim,
    InProgress,
    KeyExpired,
    KeyReused,
    OutcomeUnknown,
    Proceed,
    Replay,
    Settling,
    State,
    Superseded,
    Verdict,
)
from semel.core.outcomes import Outcome, Refused, Succeeded, Unprovable
from semel.errors import SchemaError, StoreError
from semel.outbox.run import ring
from semel.stores.failures import BROKEN_RULE
from semel.telemetry import Observer, Silence, UnknownOutcomes, guard

if TYPE_CHECKING:
    from semel.engine.permit import Permit

_ALSO: Final = {
    Replay: "replays",
    KeyReused: "mismatches",
    InProgress: "in_progress",
    KeyExpired: "expired",
}
# A record's state after a permit's end, and after a verdict that does not name the state. A released command may run
# again; whether it is written as PROCESSING or FAILED_NOT_REPLAYABLE depends on the store's record.
_SETTLED_AS: Final = {Succeeded: State.SUCCEEDED, Refused: State.FAILED_REPLAYABLE, Unprovable: State.UNKNOWN}
_STATES_MET: Final = {InProgress: "PROCESSING", OutcomeUnknown: "UNKNOWN", KeyExpired: "EXPIRED"}


class CommandEvents:
    """Reports the events of an engine's commands to an observer, or to the log if there is none."""

    def __init__(self, observer: Observer | None) -> None:
        self.observer: Observer = guard(Silence() if observer is None else observer)
        self.observing = not isinstance(self.observer, Silence)
        self._unknowns = UnknownOutcomes() if observer is None else None  # logged without an observer

    @property
    def logs_unknown(self) -> bool:
        """Whether unknown outcomes are logged, because no observer was given."""
        return self._unknowns is not None

    def tell(self, event: str, operation: str, value: float = 1, **labels: str) -> None:
        """Report one event to the observer."""
        if self.observing:
            self.observer.event(event, value, {"operation": operation, **labels}, {})

    def tell_unknown(self, operation: str, doubt: str, operation_id: bytes, caller: str) -> None:
        """Report an outcome that became unknown: one event to the observer, or a warning if there is none."""
        id = uuid_text(operation_id)
        if self.observing:
            detail = {"operation_id": id, "caller": caller}
            self.observer.event("unknown", 1, {"operation": operation, "doubt": doubt}, detail)
        elif self._unknowns is not None:
            self._unknowns.tell(operation, doubt, id, caller)

    def tell_lapsed(self, operation: str, operation_id: bytes, caller: str, **more: str) -> None:
        """Report a lease that has lapsed."""
        if self.observing:
            detail = {"operation_id": uuid_text(operation_id), "caller": caller, **more}
            self.observer.event("lapsed", 1, {"operation": operation}, detail)

    def tell_verdict(self, claim: Claim, verdict: Verdict) -> None:
        """Report an attempt's verdict; the log gets the caller and a prefix of the key's hash."""
        if not self.observing:
            if type(verdict) is OutcomeUnknown and self._unknowns is not None:
                self.tell_unknown(claim.scope.operation, verdict.doubt, verdict.operation_id, claim.scope.caller)
            return
        operation = claim.scope.operation
        detail = _detail(claim, verdict)
        self.observer.event("claims", 1, {"operation": operation, "verdict": type(verdict).__name__}, detail)
        also = _ALSO.get(type(verdict))
        if also is not None:
            self.observer.event(also, 1, {"operation": operation}, detail)
        if isinstance(verdict, Proceed) and verdict.grant.lapses:
            self.tell_lapsed(operation, verdict.grant.operation_id, claim.scope.caller, key_hash=detail["key_hash"])

    def tell_settled(self, permit: Permit, outcome: Outcome, reply: Settling) -> None:
        """Report how a permit ended."""
        if permit.emission is not None and permit.emission.events:
            ring()
        if not self.observing and (self._unknowns is None or (type(outcome) is Succeeded and permit.steps is None)):
            return
        scope = permit.asked.scope
        outcome = permit.outcome(outcome)
        doubt = getattr(outcome, "doubt", None)
        if doubt is not None:
            self.tell_unknown(scope.operation, str(doubt), permit.execution_id, scope.caller)
        if not self.observing:
            return
        operation = scope.operation
        name = type(outcome).__name__ if not isinstance(reply, Superseded) else "Superseded"
        detail = {
            "caller": scope.caller,
            "key_hash": permit.claim.key_hash.hex()[:8],
            "operation_id": uuid_text(permit.execution_id),
        }
        state = reply.state if isinstance(reply, Superseded) else _SETTLED_AS.get(type(outcome))
        if state is not None:
            detail["state"] = state.name
        self.observer.event("settlements", 1, {"operation": operation, "outcome": name}, detail)
        if isinstance(reply, Superseded):
            self.observer.event("superseded", 1, {"operation": operation}, detail)

    def tell_store_call(self, verb: str, seconds: float) -> None:
        """Report how long a store call took."""
        if self.observing:
            self.observer.event("store_call_seconds", seconds, {"verb": verb}, {})

    def tell_store_error(self, verb: str, error: StoreError | SchemaError) -> None:
        """Report a failed store call, and why, unless the handler broke a rule: the text may then hold values."""
        if self.observing:
            reason = {} if BROKEN_RULE in str(error) else {"reason": str(error)}
            self.observer.event("store_errors", 1, {"verb": verb, "error": type(error).__name__}, reason)


def _detail(claim: Claim, verdict: Verdict) -> dict[str, str]:
    """Return the details of an attempt for logs and traces, not for metrics; never the key."""
    detail = {"caller": claim.scope.caller, "key_hash": claim.key_hash.hex()[:8]}
    operation_id: bytes | None
    if type(verdict) is Proceed:
        operation_id, state = verdict.grant.operation_id, verdict.grant.state.name
    else:
        operation_id = getattr(verdict, "operation_id", None)
        known = getattr(verdict, "state", None)
        state = known.name if known is not None else _STATES_MET.get(type(verdict), "")
    if operation_id is not None:
        detail["operation_id"] = uuid_text(operation_id)
    if state:
        detail["state"] = state
    return detail
