"""The engines, recording: every claim, settlement, reread and resolution of a process becomes part of its history.

They are the engines themselves, so that everything built on an engine (``run``, a web integration) can be recorded.
"""

from __future__ import annotations

from typing import Final, Self, Unpack

from semel.core.command_flow import make_settlement
from semel.core.identity import record_id
from semel.core.model import Record, Resolution, Resolving, Settling, State, Verdict
from semel.core.outcomes import Outcome
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import AsyncPermit, Permit
from semel.engine.result import Refusal
from semel.engine.state import EngineOptions
from semel.engine.sync_engine import Engine
from semel.errors import EarlyCommit, StoreUnavailable
from semel.policy import Command
from semel.stores.backend import Backend
from semel.stores.shield import Hold
from semel.stores.urls import connect_backend
from verification.history.events import (
    STATE_WORDS,
    Words,
    attempt_words,
    digest,
    resolving_words,
    settling_words,
    verdict_words,
)
from verification.history.recorder import Recorder

EARLY: Final[Words] = {"settling": "early"}  # the handler's transaction was committed before its settlement


def settle_words(permit: Permit, outcome: Outcome) -> Words:
    """What the model needs of a holder's settlement."""
    settlement = make_settlement(permit.grant, outcome, kept=permit.kept)
    state = "given-back" if settlement.state is State.PROCESSING else STATE_WORDS[settlement.state]
    return {
        "fence": permit.grant.fence,
        "effects": permit.effects.name.lower(),
        "state": state,
        "answer": digest(settlement.answer),
        "kept": permit.kept,
    }


def resolve_words(resolution: Resolution) -> Words:
    """What the model needs of an operator's settlement."""
    return {"fence": resolution.fence, "happened": resolution.happened, "answer": digest(resolution.answer)}


def read_words(row: Record | None) -> Words:
    """What a look at the record shows."""
    if row is None:
        return {"state": None}
    given_back = row.state == State.PROCESSING and row.lease_until == 0
    answer = row.answer_digest.hex() if row.answer_digest is not None else None
    state = "given-back" if given_back else STATE_WORDS[State(row.state)]
    return {"state": state, "fence": row.fence, "answer": answer}


class RecordingEngine(Engine):
    """A sync engine whose process leaves a history.

    Parameters: ``recorder``; the rest as :class:`~semel.engine.sync_engine.Engine`.
    """

    def __init__(self, backend: Backend, *, recorder: Recorder, **options: Unpack[EngineOptions]) -> None:
        super().__init__(backend, **options)
        self.recorder = recorder

    @classmethod
    def recording(cls, url: str, recorder: Recorder) -> Self:
        """An engine for a store URL that leaves its history with this recorder."""
        return cls(connect_backend(url), recorder=recorder)

    def _claim_into(self, hold: Hold[Permit], command: Command, wait_seconds: float | None) -> Permit | Refusal:
        """Do what the engine's method does, and record it as an attempt."""
        key = record_id(command.scope, command.key, self.core.id_secret)
        op = self.recorder.invoke("attempt", key, **attempt_words(command))
        try:
            met = super()._claim_into(hold, command, wait_seconds)
        except StoreUnavailable as error:
            self.recorder.fail(op, type(error).__name__)  # the engine's promise: nothing was written
            raise
        except BaseException as error:
            self.recorder.unknown(op, type(error).__name__)
            raise
        self.recorder.ok(op, **verdict_words(met))
        return met

    def settle(self, permit: Permit, outcome: Outcome) -> Settling:
        """Do what the engine's method does, and record it."""
        op = self.recorder.invoke("settle", permit.grant.id, **settle_words(permit, outcome))
        try:
            reply = super().settle(permit, outcome)
        except EarlyCommit:
            self.recorder.ok(op, **EARLY)
            raise
        except BaseException as error:
            self.recorder.unknown(op, type(error).__name__)
            raise
        self.recorder.ok(op, **settling_words(reply))
        return reply

    def reread(self, permit: Permit) -> Verdict:
        """Do what the engine's method does, and record it as a look."""
        op = self.recorder.invoke("look", permit.grant.id, **attempt_words(permit.command))
        seen = super().reread(permit)
        self.recorder.ok(op, **verdict_words(seen))
        return seen

    def resolve(self, resolution: Resolution) -> Resolving:
        """An operator's settlement, recorded."""
        op = self.recorder.invoke("resolve", resolution.id, **resolve_words(resolution))
        try:
            reply = self.perform("resolve", lambda: self.store.resolve(resolution))
        except BaseException as error:
            self.recorder.unknown(op, type(error).__name__)
            raise
        self.recorder.ok(op, **resolving_words(reply))
        return reply

    def read(self, id: bytes) -> Record | None:
        """A look at the stored record, recorded."""
        op = self.recorder.invoke("read", id)
        row: Record | None = self.perform("read", lambda: self.store.read((id,)))[0]
        self.recorder.ok(op, **read_words(row))
        return row


class AsyncRecordingEngine(AsyncEngine):
    """An async engine whose process leaves a history.

    Parameters: ``recorder``; the rest as :class:`~semel.engine.async_engine.AsyncEngine`.
    """

    def __init__(self, backend: Backend, *, recorder: Recorder, **options: Unpack[EngineOptions]) -> None:
        super().__init__(backend, **options)
        self.recorder = recorder

    @classmethod
    def recording(cls, url: str, recorder: Recorder) -> Self:
        """An engine for a store URL that leaves its history with this recorder."""
        return cls(connect_backend(url), recorder=recorder)

    async def claim(self, command: Command, *, wait_seconds: float | None = None) -> AsyncPermit | Refusal:
        """Do what the engine's method does, and record it as an attempt."""
        key = record_id(command.scope, command.key, self.core.id_secret)
        op = self.recorder.invoke("attempt", key, **attempt_words(command))
        try:
            met = await super().claim(command, wait_seconds=wait_seconds)
        except StoreUnavailable as error:
            self.recorder.fail(op, type(error).__name__)  # the engine's promise: nothing was written
            raise
        except BaseException as error:
            self.recorder.unknown(op, type(error).__name__)
            raise
        self.recorder.ok(op, **verdict_words(met))
        return met

    async def settle(self, permit: Permit, outcome: Outcome) -> Settling:
        """Do what the engine's method does, and record it."""
        op = self.recorder.invoke("settle", permit.grant.id, **settle_words(permit, outcome))
        try:
            reply = await super().settle(permit, outcome)
        except EarlyCommit:
            self.recorder.ok(op, **EARLY)
            raise
        except BaseException as error:
            self.recorder.unknown(op, type(error).__name__)
            raise
        self.recorder.ok(op, **settling_words(reply))
        return reply

    async def reread(self, permit: Permit) -> Verdict:
        """Do what the engine's method does, and record it as a look."""
        op = self.recorder.invoke("look", permit.grant.id, **attempt_words(permit.command))
        seen = await super().reread(permit)
        self.recorder.ok(op, **verdict_words(seen))
        return seen

    async def resolve(self, resolution: Resolution) -> Resolving:
        """An operator's settlement, recorded."""
        op = self.recorder.invoke("resolve", resolution.id, **resolve_words(resolution))
        try:
            reply = await self.perform("resolve", lambda: self.store.resolve(resolution))
        except BaseException as error:
            self.recorder.unknown(op, type(error).__name__)
            raise
        self.recorder.ok(op, **resolving_words(reply))
        return reply

    async def read(self, id: bytes) -> Record | None:
        """A look at the stored record, recorded."""
        op = self.recorder.invoke("read", id)
        row: Record | None = (await self.perform("read", lambda: self.store.read((id,))))[0]
        self.recorder.ok(op, **read_words(row))
        return row
