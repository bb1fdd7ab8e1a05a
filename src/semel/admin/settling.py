"""Settle one record for an operator: preview the effect, apply it, or explain the refusal."""

from __future__ import annotations

import json
from typing import Any, Final

from semel.admin.damaged import is_damaged
from semel.admin.failures import CommandFailed
from semel.bulk.rules import is_bulk
from semel.core.identity import uuid_text
from semel.core.model import Answer, MovedOn, Record, Resolution, Resolved, Resolving, State, TooEarly
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine
from semel.errors import ResolveRefused, StepError
from semel.http.headers import BODYLESS_STATUSES
from semel.imports.rules import Job
from semel.imports.store import ImportRows
from semel.operations.flow import is_kept_by, resolve
from semel.reconciliation.resolutions import resolve_row
from semel.steps.findings import steps_after
from semel.steps.run import encode_found
from semel.steps.store import read_listed_steps

REASON_LENGTH_MAX: Final = 1000
FORCE: Final = "give --force if you know that it has stopped"


def make_answer(status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> Answer:
    """Make the answer for retries. Raises ValueError for values that do not fit, and names them.

    >>> make_answer(204, (), b"paid")
    Traceback (most recent call last):
        ...
    ValueError: an answer with status 204 has no body
    """
    if body and status in BODYLESS_STATUSES:  # a server would abort each replay
        raise ValueError(f"an answer with status {status} has no body")
    return Answer(status, headers, body)


def parse_step_result(step: str | None, text: str) -> bytes:
    """Convert a step's result, given as JSON, to its recorded form.

    Raises ValueError, and CommandFailed where no step is in doubt.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be JSON, such as '\"ch_81\"' or null: {error}") from error
    if step is None:
        raise CommandFailed("refused: no step of this command is in doubt; see: semel explain")
    try:
        return encode_found(step, value)
    except StepError as error:
        raise ValueError(str(error)) from error


def settle(engine: Engine, record: Record, resolution: Resolution, *, force: str = FORCE) -> State:
    """Write an operator's resolution, and return the state that the record then has.

    Parameters: ``force`` how to ask for a resolution before the deadline on this surface.

    Raises CommandFailed, saying why it was refused, and StoreError.
    """
    _check_sound(record)
    try:
        covered = engine.core.cover(record.operation, resolution)
        reply = engine.perform("resolve", lambda: resolve(engine.store, covered))
    except (ResolveRefused, StepError) as error:
        raise CommandFailed(f"refused: {error}") from error
    return _state_of(reply, record, force)


def foresee(record: Record, resolution: Resolution, now: int, *, listed: object = None, force: str = FORCE) -> State:
    """Preview the state that a record would have after an operator's resolution; nothing is written.

    Parameters: ``listed`` its steps, as :func:`read_steps` reads them.

    Raises CommandFailed, as :func:`settle` would.
    """
    _check_sound(record)
    try:
        # Without the list the effect on single steps is left open; only ending the whole command needs it.
        steps = None if listed is None and resolution.ends is None else steps_after(record, resolution, listed, now)
    except (ResolveRefused, StepError) as error:
        raise CommandFailed(f"refused: {error}") from error
    return _state_of(resolve_row(record, resolution, now, steps)[0], record, force)


def read_steps(engine: Engine, record: Record) -> Any:
    """Read the recorded steps of an execution, in stored form; None if there are none."""
    return engine.perform("read_steps", lambda: read_listed_steps(engine.store, record.id))


def read_import(engine: Engine, record: Record) -> Job | None:
    """Read the import whose rows a record holds; None where it holds none."""
    if is_damaged(record) or not is_bulk(record.recipe) or not is_kept_by(engine.store):
        return None
    rows = ImportRows(engine.store)
    return engine.perform("import", lambda: rows.of_bulk(record.tenant, record.operation, record.operation_id))


def _check_sound(record: Record) -> None:
    if is_damaged(record):
        raise CommandFailed("refused: the record is damaged; restore it from a backup (see semel doctor)")


def _state_of(reply: Resolving, record: Record, force: str) -> State:
    id = uuid_text(record.operation_id)
    match reply:
        case Resolved(state):
            return state
        case TooEarly(wait_us):
            raise CommandFailed(
                "refused: the handler may still be running, because its deadline has not passed; wait "
                f"{span_text(wait_us)}, or {force}"
            )
        case MovedOn(None):
            raise CommandFailed("refused: the record no longer exists; see: semel list")
        case MovedOn(State.UNKNOWN):
            raise CommandFailed("refused: a different step is now in doubt; see: semel explain")
        case MovedOn(State.CLAIMED):
            raise CommandFailed(
                "refused: the command is CLAIMED: none of its steps is in doubt. A retry with the same key and "
                "request continues it, even after its worker died, and repeats no finished step; for resumable "
                "operations, semel worker --complete does the same. If its client has lost the key, end it with "
                f"--step for each step that had begun, once its lease has expired; see: semel explain {id}"
            )
        case MovedOn(state):
            raise CommandFailed(
                f"refused: only UNKNOWN (or lapsed) commands are settled by hand, this one is {state and state.name} "
                f"now; see: semel show {id}"
            )


def consequence(resolution: Resolution, state: State) -> str:
    """Describe how a record was settled, and the effect on retries.

    >>> consequence(Resolution(bytes(16), 1, False, None, "ops", "no charge"), State.FAILED_NOT_REPLAYABLE)
    'it did not happen; a retry runs it'
    """
    if resolution.refused:
        return "it was refused; a retry gets that refusal, and nothing runs"
    if resolution.happened and resolution.result is None:
        then = (
            "a retry gets it"
            if resolution.answer is not None
            else "a retry learns this and gets no answer; this is final"
        )
        return f"it succeeded; {then}"
    what = "it" if resolution.step is None else f"step {resolution.step!r}"
    sentence = f"{what} {'succeeded' if resolution.happened else 'did not happen'}"
    match state:
        case State.UNKNOWN:
            return f"{sentence}; another step is in doubt, see: semel explain"
        case State.CLAIMED:
            return f"{sentence}; a retry continues, and repeats no finished step"
        case _:
            return f"{sentence}; a retry runs it"
