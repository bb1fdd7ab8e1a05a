"""Explain the state of a key in sentences: what happened, what the next attempt would get, and what to do.

The rules themselves answer what an attempt would get, from the record as it is stored and the store's time. This
module decides nothing and writes nothing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from semel.admin.damaged import DAMAGED_STATE, is_damaged, repair
from semel.admin.describe import has_lapsed, key_text, state_label, state_name, time_text
from semel.admin.words import Json
from semel.bulk.rules import is_bulk
from semel.core.decide import TABLE, decide, situation
from semel.core.identity import uuid_text
from semel.core.model import (
    ANSWERABLE,
    AfterExpiry,
    AnswerKind,
    Audit,
    Claim,
    Effects,
    InProgress,
    Proceed,
    Rebuild,
    Record,
    Replay,
    Scope,
    State,
    Terms,
    Unseal,
    Verdict,
)
from semel.core.settle import is_relinquished
from semel.core.timing import PURGE_GRACE_US, span_text
from semel.http.problems import Problems
from semel.imports.rules import OPEN_STATES as OPEN_IMPORTS
from semel.imports.rules import OVERDUE_US, TAKE_OVER, ImportState, Job, waiting_text
from semel.steps.doubts import step_of
from semel.steps.findings import find_unfinished, state_text
from semel.steps.rules import Steps, Unpackable, unpack_steps

_NONCE: Final = bytes(16)  # an attempt that is never made
_BODY: Final = "--body-file FILE --header 'Content-Type: application/json'"
_DOUBTS: Final[Mapping[str, str]] = {
    "lapsed": "its holder stopped responding while the handler may have been running",
    "not-rolled-back": "the handler failed, and what it wrote into a table without transactions could not be undone",
    "committed-early": "the record was committed before its answer: the handler ended the transaction itself",
    "dedup-over": "so long after the first start, the provider may have forgotten the derived key",
    "attempts-over": "too many of its holders have lost their lease",
    "abandoned": "a claim was released before its handler ran",
}


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """The outcome of an attempt now: the verdict, the rule's reason, and its meaning."""

    verdict: str
    why: str
    meaning: str
    answer: dict[str, Json] | None  # the problem document's members that an HTTP client acts upon


@dataclass(frozen=True, slots=True)
class Story:
    """The full explanation of one record."""

    happened: list[str]
    same: NextAttempt
    other: NextAttempt
    operator: list[str]
    kept: str
    client: str

    def document(self) -> dict[str, Json]:
        """Return the story as JSON."""
        return {
            "happened": self.happened,
            "sameRequest": _attempt_document(self.same),
            "otherRequest": _attempt_document(self.other),
            "operator": self.operator,
            "kept": self.kept,
            "client": self.client,
        }


def _attempt_document(attempt: NextAttempt) -> dict[str, Json]:
    return {"verdict": attempt.verdict, "why": attempt.why, "meaning": attempt.meaning, "answer": attempt.answer}


def tell(record: Record, audit: Sequence[Audit], now: int, listed: object = None, job: Job | None = None) -> Story:
    """Return the story of a record, read whole, at the store's time ``now`` (microseconds).

    Parameters: ``listed`` its steps, as :func:`semel.admin.settling.read_steps` reads them; ``job`` the import whose
    rows it holds, as :func:`semel.admin.settling.read_import` reads it.
    """
    own = repair(record).fingerprint
    same = attempt_at(record, own, now)
    other = attempt_at(record, bytes(byte ^ 0xFF for byte in own) or bytes(32), now)
    record = repair(record)
    if job is not None:
        return _tell_import(record, audit, now, same, job)
    return Story(
        happened=[*_beginning(record, now), _standing(record, now), *_settlers(audit, now)],
        same=same,
        other=other,
        operator=_operator(record, same, now, listed),
        kept=_retention(record, now),
        client=_client(record, same),
    )


def _tell_import(record: Record, audit: Sequence[Audit], now: int, same: NextAttempt, job: Job) -> Story:
    """Tell the story of an import's rows: no client has the key, and a process of the service runs it again."""
    id, state, lapse_us = uuid_text(job.id), ImportState(job.state), now - max(job.next_at, job.created_at)
    happened = [*_beginning(record, now), _standing(record, now), *_settlers(audit, now)]
    happened.append(f"It holds the rows of the import {id} ({job.key}), which is {state.name}.")
    operator = [f"semel imports show {id}"]
    if state in OPEN_IMPORTS:
        operator = [f"The import is not over: {waiting_text(state, lapse_us)}.", *operator]
        if lapse_us > OVERDUE_US:
            operator.insert(1, f"{TAKE_OVER[:1].upper()}{TAKE_OVER[1:]}.")
        becomes = "the next process that runs the import continues with the rows that have no outcome"
    else:
        operator += [f"semel imports rows {id}", f"semel imports retry {id} --reason '...'"]
        becomes = "nothing runs automatically: only semel imports retry runs the import again"
    return Story(
        happened=happened,
        same=replace(same, meaning=becomes, answer=None),
        other=replace(same, meaning="there is none: the import's key is derived from the file's bytes", answer=None),
        operator=operator,
        kept=_retention(record, now),
        client="Send the file again whenever you like: you get the current state of this import, and no row is booked "
        "twice.",
    )


def attempt_at(record: Record, fingerprint: bytes, now: int) -> NextAttempt:
    """Return the outcome of an attempt with the record's own scope, key and recipe. The record may be damaged."""
    row = repair(record)  # the claim needs some terms; the rules get the record as it is
    try:
        state, after, effects = State(row.state), AfterExpiry(row.after_expiry), Effects(row.effects)
    except ValueError:
        state, after, effects = State.PROCESSING, AfterExpiry.REFUSE, Effects.EXTERNAL
    deadline_us = max(row.deadline_at - row.first_started_at, row.lease_us)
    dedup_us = row.dedup_until - row.first_started_at
    starts = state if state is State.CLAIMED else State.PROCESSING
    lives = (row.lease_us, deadline_us, dedup_us, row.attempts_max, row.answer_us, row.tombstone_us)
    scope = Scope(row.tenant, row.caller, row.operation)
    terms = Terms(effects, *lives, after, starts)
    own = (row.recipe, fingerprint, row.operation_id, "nobody")
    claim = Claim(row.id, _NONCE, scope, row.key_hash, *own, terms)
    verdict = decide(record, claim, now)
    rule = TABLE[situation(record, claim, now)]
    return NextAttempt(type(verdict).__name__, rule.why, _meaning(verdict), _answer(verdict))


def _meaning(verdict: Verdict) -> str:
    match verdict:
        case Proceed(grant) if grant.attempt == 1:
            return "it runs, as a new command"
        case Proceed(grant):
            return f"it runs, as attempt {grant.attempt}"
        case Replay(answer):
            status = "" if answer.status is None else f"status {answer.status}, "
            return f"nothing runs; it gets the stored answer: {status}{len(answer.body)} bytes"
        case Unseal(_, answer):
            status = "" if answer.status is None else f": status {answer.status}"
            return f"nothing runs; it gets the stored answer, if it can be decrypted{status}"
        case Rebuild(status):
            said = "" if status is None else f", under status {status}"
            return f"nothing runs; its answer is rebuilt from the current state{said}"
        case InProgress(_, left):
            return (
                "it waits as long as the operation's policy allows, then gets a refusal that asks it to try again "
                f"(lease: {span_text(left)})"
            )
        case _:
            name = type(verdict).__name__
            return {
                "KeyReused": "nothing runs; it is refused, however the first request ended",
                "OutcomeUnknown": "nothing runs; it gets a refusal: the outcome cannot be proven",
                "KeyExpired": "nothing runs; it gets a refusal: the answer is no longer kept",
                "NotReplayable": "nothing runs; it gets a refusal: the command was done, and its answer was not kept",
            }.get(name, "nothing runs; it is refused, because the record cannot be read")


def _answer(verdict: Verdict) -> dict[str, Json] | None:
    if isinstance(verdict, Proceed | Replay | Unseal | Rebuild):
        return None
    document = json.loads(Problems().of_verdict(verdict).body)
    return {name: document[name] for name in ("status", "code", "keyAction", "retryAfter") if name in document}


def _beginning(record: Record, now: int) -> list[str]:
    scope = f"caller {record.caller} of tenant {record.tenant}"
    lines = [f"First seen {_ago(record.created_at, now)}, from {scope}, for {record.operation} ({_effects(record)})."]
    if record.attempt > 1:
        lapses = f"; {record.lapses} of the holders lost their lease" if record.lapses else ""
        lines.append(f"It was granted {record.attempt} times{lapses}.")
    if record.generation:
        lines.append(
            f"It is generation {record.generation}: an earlier one was settled as 'did not happen', or had expired; "
            "its derived keys are new."
        )
    return lines


def _effects(record: Record) -> str:
    """Describe the effects in words. A bulk's effects are its items', which its record does not hold."""
    if is_bulk(record.recipe):
        return "a list: each item has the effects that its declaration says"
    try:
        return f"effects {Effects(record.effects).name}"
    except ValueError:
        return f"effects damaged: {record.effects}"


def _standing(record: Record, now: int) -> str:
    state = state_label(state_name(record, now))
    if is_damaged(record):
        what = "columns hold" if record.state == DAMAGED_STATE else f"its state is {record.state}:"
        return f"The record is damaged: {what} a value that Semel never writes."
    match State(record.state):
        case State.CLAIMED if is_relinquished(record) and record.doubt is None:
            return f"{state}: the doubt has been settled; the next attempt continues where it stopped."
        case State.CLAIMED | State.PROCESSING if is_relinquished(record):
            return f"{state}: its holder gave the lease back ({record.doubt or 'no reason given'}); it may be repeated."
        case State.CLAIMED | State.PROCESSING if has_lapsed(record, now):
            return (
                f"{state}: the lease of its holder {record.holder} expired {_ago(record.lease_until, now)}, and the "
                "holder has not renewed it since."
            )
        case State.CLAIMED | State.PROCESSING:
            return (
                f"{state}: {record.holder} holds it and is believed alive for another "
                f"{span_text(record.lease_until - now)}; it renews every third of {span_text(record.lease_us)}, "
                f"but not beyond its deadline in {span_text(record.deadline_at - now)}."
            )
        case State.UNKNOWN:
            return f"UNKNOWN: {_doubt(record.doubt)}. Its last holder was {record.holder}."
        case State.FAILED_NOT_REPLAYABLE:
            because = f" ({record.doubt})" if record.doubt else ""
            ago = _ago(record.settled_at, now)
            return f"{state}: settled {ago}; it is proven that nothing happened{because}, and a retry runs it."
        case _:
            return f"{state}: settled {_ago(record.settled_at, now)}, {_answer_text(record, state)}."


def _doubt(doubt: str | None) -> str:
    if doubt is None:
        return "the outcome cannot be proven"
    if doubt.startswith("http-"):
        return f"the handler answered {doubt.removeprefix('http-')}, which proves nothing about the effect"
    if doubt.startswith("error:"):
        return f"the handler raised {doubt.removeprefix('error:')}, which proves nothing about the effect"
    step = step_of(doubt)
    if step is not None:
        return f"step {step!r} had begun, and its outcome cannot be proven; the steps before it are not in doubt"
    return _DOUBTS.get(doubt, doubt)


def _answer_text(record: Record, state: str) -> str:
    status = "" if record.status is None else f" with status {record.status}"
    if state == "EXPIRED":
        return f"as {State(record.state).name}, and its answer{status} has expired"
    if record.answer_kind == AnswerKind.KEPT:
        return f"and the answer{status} is kept"
    if record.answer_kind == AnswerKind.SEALED:
        return f"and the answer{status} is kept, sealed under {key_text(record)}"
    if record.answer_kind == AnswerKind.REBUILT:
        return f"and the answer{status} is not stored: it is rebuilt for each retry"
    return f"and the answer{status} is not kept"


def _settlers(audit: Sequence[Audit], now: int) -> list[str]:
    return [f"{_ago(line.at, now)[:1].upper()}{_ago(line.at, now)[1:]}: {line.actor} settled it "
            f"({line.action.removeprefix('resolve:')}): {line.reason}" for line in audit]  # fmt: skip


def _operator(record: Record, same: NextAttempt, now: int, listed: object) -> list[str]:
    id = uuid_text(record.operation_id)
    if same.verdict == "Unreadable" or is_damaged(record):
        return ["Restore the record from a backup, or run a version that can read it: retries run nothing until then."]
    if record.state == State.UNKNOWN or (same.verdict == "OutcomeUnknown"):
        wait = record.deadline_at - now
        early = f"; until its deadline in {span_text(wait)} only with --force" if wait > 0 else ""
        step = step_of(record.doubt)
        named = "NAME" if step is None or "#" in step else shlex.quote(step)
        of_step = [] if step is None else [f"semel settle {id} --step-succeeded 'RESULT' --reason '...'"]
        return [
            "Ask the provider what happened, by the derived key that it received:",
            f"semel show {id} --derived {named}",
            f"Then report what you found{early}:",
            f"semel settle {id} --succeeded --status STATUS {_BODY} --reason '...'",
            *of_step,
            f"semel settle {id} --did-not-happen --reason '...'",
        ]
    if same.verdict == "InProgress":
        return ["Wait: if its holder dies, its lease expires. The command cannot be settled while its holder is alive."]
    if record.state == State.CLAIMED and is_bulk(record.recipe):
        return [f"A retry continues with the remaining items and settles it; list them with: semel bulk {id}"]
    if record.state == State.CLAIMED:
        return _between_steps(record, id, listed)
    return ["No action is needed."]


def _between_steps(record: Record, id: str, listed: object) -> list[str]:
    """Explain a command between its steps: a client with the key continues it; otherwise an operator can end it."""
    steps: Steps = ()
    recorded = ["No step has begun."]
    try:
        steps = unpack_steps(listed, record.generation)
    except Unpackable as error:
        recorded = [f"{str(error).capitalize()}."]
    if steps:
        recorded = [f"Step {step.shown!r}: {state_text(step)}." for step in steps]
    open = find_unfinished(steps)
    answered = open or steps[-1:]
    said = "".join(f" --step {shlex.quote(step.shown)}=happened" for step in answered)
    or_not = " (or =not, as you found out)" if open else ""
    return [
        (
            "A retry with the same key and request continues it; for resumable operations, so does semel worker "
            "--complete."
        ),
        *recorded,
        f"If its client has lost the key, find out what happened, and end it with the answer for a late retry{or_not}:",
        f"semel settle {id} --succeeded --status STATUS {_BODY}{said} --reason '...'",
        f"semel settle {id} --refused --status 409 {_BODY}{said} --reason '...'",
        "If no step has happened, the whole command may run again:",
        f"semel settle {id} --did-not-happen{said.replace('=happened', '=not')} --reason '...'",
    ]


def _retention(record: Record, now: int) -> str:
    if record.forget_after is None or record.answer_until is None:
        return "It is kept until it is settled: open and UNKNOWN records never expire."
    forgotten = f"the key is remembered until {time_text(record.forget_after)}, and is new afterwards"
    if record.forget_after + PURGE_GRACE_US <= now:
        return "It has expired: the next purge deletes it, and the key is then new."
    if record.answer_until <= now:
        return f"The answer's time was over {_ago(record.answer_until, now)}; {forgotten}."
    what = "The answer is replayed" if record.answer_kind in ANSWERABLE else "The fact that it was done is reported"
    return f"{what} until {time_text(record.answer_until)}; {forgotten}."


def _client(record: Record, same: NextAttempt) -> str:
    id = uuid_text(record.operation_id)
    match same.verdict:
        case "Replay" | "Unseal":
            return "Retry with the same key: you get the first answer again."
        case "Rebuild":
            return "Retry with the same key: you get its resource as it is then."
        case "Proceed":
            return "Retry the same request with the same key: it runs."
        case "InProgress":
            return "Keep the key and ask again shortly: it is running."
        case "OutcomeUnknown":
            return f"Keep the key and do not send a new one: we are finding out the outcome of operation {id}."
        case "KeyExpired":
            return "This command was sent before. Look for its result by your own reference before you send a new key."
        case "NotReplayable":
            return f"It was done; look up its result (operation {id}). Do not send it again."
        case _:
            return f"Keep the key: we are looking into operation {id}, and nothing runs meanwhile."


def _ago(at: int | None, now: int) -> str:
    if at is None:
        return "at a time not recorded"
    if at > now:
        return f"{span_text(at - now)} in the future by the store's clock ({time_text(at)})"
    return f"{span_text(now - at)} ago ({time_text(at)})"
