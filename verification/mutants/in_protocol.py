"""Mutants of the engine, its flows and the wire: when a reply is sent, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from semel.core.flow import Flow, ask
from semel.core.identity import derive_key
from semel.core.model import Answer, AnswerKind, Grant, InProgress, Settled, Settlement, Settling, State
from semel.core.outcomes import Refused, Released, Succeeded
from semel.core.requests import Perform, Unit, Within
from semel.engine.permit import Permit
from semel.engine.result import Result
from semel.errors import StoreError, StoreTimeout, StoreUnavailable
from semel.policy import NOT_RUN
from verification.explore.replacing import Patch, replace_everywhere
from verification.mutants.mutant import Mutant


def _at(place: str, make: Any) -> Patch:
    return lambda: replace_everywhere(place, make)


def _refusals_stored(original: Any) -> Any:
    def classify(answer: Answer, policy: Any, *, begun: bool) -> Any:
        return Refused(answer) if answer.status in NOT_RUN else original(answer, policy, begun=begun)

    return classify


def _settles_first(original: Any) -> Any:
    def finish(self: Any, permit: Any, handler: Any) -> Any:
        answer = Answer(201, (), b"run 1")
        self.settle(permit, Succeeded(answer))
        handler(permit)
        return original(self, permit, lambda _: answer)

    return finish


def _settle_believed(original: Any) -> Any:
    def settle(self: Any, permit: Any, outcome: Any) -> Settling:
        try:
            reply: Settling = original(self, permit, outcome)
        except StoreError:
            return Settled()
        return reply

    return settle


def _zero_rows_commit(_: Any) -> Any:
    def settle_inside(store: Any, unit: Unit, grant: Grant, settlement: Settlement) -> Flow[Settling | None]:
        yield from ask(Within(unit, "settle", lambda: store.settle((settlement,))))
        return Settled()

    return settle_inside


def _no_key_of_the_command(_: Any) -> Any:
    def key_for(self: Any, name: str, ordinal: int = 0) -> str:
        return derive_key(self.grant.id, self.grant.attempt, name, ordinal)

    return key_for


def _commit_believed(original: Any) -> Any:
    """A unit that is known not to have committed is reported as done."""

    def settle_unit(*arguments: Any, **named: Any) -> Any:
        try:
            return (yield from original(*arguments, **named))
        except StoreUnavailable:
            return Settled()

    return settle_unit


@contextmanager
def _runs_again_after_a_commit_error() -> Iterator[None]:
    """A commit that was not answered counts as failed, and the unit runs again under its old grant."""

    def make_failing(_: Any) -> Any:
        def confirm_commit(store: Any, grant: Grant) -> Flow[None]:
            yield from ()
            raise StoreTimeout("the commit failed")

        return confirm_commit

    def again(original: Any) -> Any:
        def finish(self: Any, permit: Any, handler: Any) -> Any:
            try:
                return original(self, permit, handler)
            except StoreTimeout:
                if permit.unit is None:
                    raise
            unit = self.backend.begin()
            unit.hand_out()
            other = Permit(permit.command, permit.claim, permit.fence, 0.0)
            other.given, other.unit = permit.grant, unit
            answer = handler(other)
            unit.commit()
            return Result(answer, False, permit.operation_id)

        return finish

    with (
        replace_everywhere("semel.atomic.flow:_confirm_commit", make_failing),
        replace_everywhere("semel.engine.sync_engine:Engine._finish", again),
    ):
        yield


@contextmanager
def _cookies() -> Iterator[None]:
    """Both the list of what is kept and the list of what never is."""
    with (
        replace_everywhere("semel.policy:REPLAY_HEADERS", lambda headers: headers | {b"set-cookie"}),
        replace_everywhere("semel.policy:NEVER_REPLAYED", lambda headers: headers - {b"set-cookie"}),
    ):
        yield


MUTANTS: Final = (
    Mutant(
        name="complete-before-the-effect",
        does="the record is settled before the handler runs",
        breaks="I2",
        part="faults",
        patch=_at("semel.engine.sync_engine:Engine._finish", _settles_first),
    ),
    Mutant(
        name="answer-before-the-settle",
        does="the answer leaves although the store did not confirm it",
        breaks="I2",
        part="faults",
        patch=_at("semel.engine.sync_engine:Engine.settle", _settle_believed),
    ),
    Mutant(
        name="commit-error-ignored",
        does="a unit that did not commit is taken for done",
        breaks="I2",
        part="faults",
        patch=_at("semel.engine.sync_engine:settle_unit", _commit_believed),
    ),
    Mutant(
        name="retry-on-a-commit-error",
        does="a commit that was not answered is taken for a failure, and the unit is run again",
        breaks="I1",
        part="faults",
        patch=_runs_again_after_a_commit_error,
    ),
    Mutant(
        name="commit-without-reply-believed",
        does="a commit that was not answered is believed without reading back",
        breaks="I2",
        part="faults",
        patch=_at("semel.atomic.flow:_stands", lambda _: lambda row, grant: True),
    ),
    Mutant(
        name="zero-rows-commit",
        does="a settle that changed no row is followed by the commit",
        breaks="I2",
        part="model",
        patch=_at("semel.atomic.flow:settle_inside", _zero_rows_commit),
    ),
    Mutant(
        name="claim-outside-the-unit",
        does="the claim of an ATOMIC command is committed before its effects",
        breaks="I1",
        part="model",
        patch=lambda: replace_everywhere(
            "semel.atomic.flow:Within",
            lambda within: (
                lambda unit, verb, make: Perform(verb, make) if verb == "claim" else within(unit, verb, make)
            ),
            only_there=True,
        ),
    ),
    Mutant(
        name="early-commit-not-looked-for",
        does="the engine does not check whether an ATOMIC record is visible before it settles it",
        breaks="I1",
        part="model",
        patch=_at("semel.atomic.flow:is_visible", lambda _: lambda store, grant: _nothing()),
    ),
    Mutant(
        name="derived-key-of-the-attempt",
        does="derived keys change with every attempt",
        breaks="I1",
        part="faults",
        patch=_at("semel.engine.permit:Permit.key_for", _no_key_of_the_command),
    ),
    Mutant(
        name="claim-timeout-is-failure",
        does="a claim whose reply was lost is forgotten, and blocks the key",
        breaks="I6",
        part="faults",
        patch=_at("semel.engine.renewal:SyncUpkeep.abandon", lambda _: lambda self, claim: None),
    ),
    Mutant(
        name="exception-releases",
        does="an EXTERNAL handler that raises after its effect is run again",
        breaks="I4",
        part="faults",
        patch=_at(
            "semel.core.outcomes:classify_exception",
            lambda _: lambda error, policy, **named: Released(type(error).__name__, proven=True),
        ),
    ),
    Mutant(
        name="error-stored-as-success",
        does="a 5xx answer is stored as a success",
        breaks="I2",
        part="http",
        patch=_at("semel.core.outcomes:classify_answer", lambda _: lambda answer, policy, **named: Succeeded(answer)),
    ),
    Mutant(
        name="5xx-is-final",
        does="a 5xx answer of an EXTERNAL handler is replayed for ever",
        breaks="I2",
        part="http",
        patch=_at(
            "semel.core.outcomes:classify_answer",
            lambda original: (
                lambda answer, policy, **named: (
                    Refused(answer) if (answer.status or 0) >= 500 else original(answer, policy, **named)
                )
            ),
        ),
    ),
    Mutant(
        name="401-is-stored",
        does="a 401, 403, 408, 425 or 429 is stored and replayed",
        breaks="I2",
        part="http",
        patch=_at("semel.core.outcomes:classify_answer", _refusals_stored),
    ),
    Mutant(
        name="cookie-replayed",
        does="a replay carries the first caller's Set-Cookie",
        breaks="I5",
        part="http",
        patch=_cookies,
    ),
    Mutant(
        name="fingerprint-truncated",
        does="only the first bytes of a body are compared",
        breaks="I7",
        part="http",
        patch=_at(
            "semel.http.fingerprint.fingerprinter:_Held.feed",
            lambda original: lambda self, chunk: original(self, chunk[:64]),
        ),
    ),
    Mutant(
        name="fingerprint-of-the-spelling",
        does="a retry that a client's library spells otherwise is refused",
        breaks="I7",
        part="http",
        patch=_at(
            "semel.http.fingerprint.fingerprinter:plain_reader",
            lambda _: lambda: lambda body, depth_max: bytes(body),
        ),
    ),
    Mutant(
        name="fingerprint-of-each-try",
        does="something that differs between tries enters the fingerprint",
        breaks="I7",
        part="http",
        patch=_at("semel.http.exchange:Exchange._command", lambda original: _count(original)),
    ),
    Mutant(
        name="waiter-without-comparison",
        does="an attempt that meets a running ATOMIC command waits for its answer, whatever was asked",
        breaks="I7",
        part="faults",
        patch=_at(
            "semel.engine.state:_await_verdict",
            lambda _: lambda other, claim, under: InProgress(other.operation_id, other.terms.lease_us),
        ),
    ),
    Mutant(
        name="settle-forgets-the-answer",
        does="an answer is settled as done and not kept",
        breaks="I2",
        part="http",
        patch=_at(
            "semel.core.command_flow:make_settlement",
            lambda original: lambda *given, **named: _unkept(original(*given, **named)),
        ),
    ),
    Mutant(
        name="unprovable-is-released",
        does="what cannot be proven is settled as 'nothing happened'",
        breaks="I4",
        part="faults",
        patch=_at(
            "semel.core.command_flow:make_settlement",
            lambda original: lambda *given, **named: _release(original(*given, **named)),
        ),
    ),
)


def _nothing() -> Flow[bool]:
    yield from ()
    return False


def _unkept(settlement: Settlement) -> Settlement:
    return settlement._replace(answer_kind=AnswerKind.NOT_KEPT) if settlement.answer is not None else settlement


def _release(settlement: Settlement) -> Settlement:
    return settlement._replace(state=State.FAILED_NOT_REPLAYABLE) if settlement.state == State.UNKNOWN else settlement


def _count(original: Any) -> Any:
    count = 0

    def command(self: Any, fingerprint: bytes, recipe: str) -> Any:
        nonlocal count
        count += 1
        return original(self, fingerprint[:28] + count.to_bytes(4), recipe)

    return command
