"""The shipping questions about outcomes: the transaction, calls, crashes, reconciliation and completion."""

from __future__ import annotations

from typing import Final, Literal

from semel.check.discovery import CheckedOperation
from semel.core.model import Effects
from semel.core.timing import span_text

Level = Literal["ok", "open", "unsafe"]
Said = tuple[Level, str, str]
SECOND_US: Final = 1_000_000


def seconds(span: float) -> str:
    """Format a time span for reports."""
    return span_text(int(span * SECOND_US))


def keeps_tables(operation: CheckedOperation) -> bool:
    """Return whether its store is a SQL database, which events, steps, bulks and reconcilers need."""
    return operation.engine.backend.store.capabilities.holds_features


def transaction(operation: CheckedOperation) -> Said:
    """Answer whether the business state is committed with the record."""
    events = "; events of permit.emit are written in that commit" if keeps_tables(operation) else ""
    if operation.policy.effects is Effects.ATOMIC:
        return (
            "ok",
            f"yes, writes on permit.connection commit with the record{events}; other calls of the handler do not",
            "",
        )
    if operation.policy.steps:
        return (
            "open",
            f"in parts: permit.local_step(...) commits its writes with its record, and the answer comes last{events}",
            (
                "check that every write of the handler is a local_step; where all effects are rows, declare "
                "effects='atomic'"
            ),
        )
    name = operation.policy.terms.effects.name.lower()
    return (
        "open",
        f"no: effects='{name}' is apart from the handler's own transaction; the answer is committed separately{events}",
        "where all effects are rows in the record's database, declare effects='atomic'",
    )


def downstream(operation: CheckedOperation) -> Said:
    """Answer whether the systems that the handler calls act only once."""
    policy = operation.policy
    span = seconds(policy.dedup_for_seconds)
    match policy.effects:
        case Effects.ATOMIC:
            return "ok", "not needed: nothing leaves the transaction (check that the handler calls no other system)", ""
        case Effects.IDEMPOTENT:
            return (
                "open",
                f"promised for {span}, by permit.key_for(...); Semel cannot check it",
                "test it: assert_idempotent counts effects over a crash; ask the provider how long it remembers keys",
            )
        case _ if policy.steps:
            return (
                "open",
                f"step by step: a finished step never runs again, a running one only with repeat=True, within {span}",
                "check that every call with an effect is a step, and give repeat=True where the provider deduplicates "
                "by permit.key_for(...)",
            )
        case _:
            return (
                "open",
                "none is declared: after a crash the outcome cannot be proven",
                "where the provider deduplicates by a key, declare effects='idempotent' and pass permit.key_for(...); "
                "where there are several calls, steps=True",
            )


def reconciliation(operation: CheckedOperation) -> Said:
    """Describe how an unknown outcome is reconciled."""
    policy, known = operation.policy, operation.reconciled_by
    if policy.effects is Effects.ATOMIC:
        return "ok", "not needed: a crash leaves nothing", ""
    when = "after a crash" if policy.effects is Effects.EXTERNAL else "when the provider may have forgotten"
    when = "where a step is in doubt" if policy.steps else when
    by_people = f"by people: {when} it reads UNKNOWN until `semel settle`"
    write_down = "document who looks, where, and how soon: semel list --state unknown"
    if not keeps_tables(operation):
        return "open", f"{by_people}; reconcilers need a SQL store, and this is not one", write_down
    if known is None:
        return (
            "open",
            f"{by_people}; no reconciler of it was seen",
            f"declare one, @reconciler({operation.name!r}, quiet_for=...), run `semel worker --reconcile MODULE:NAME`, "
            f"and name it here: --reconcile MODULE:NAME; until then {write_down}",
        )
    if not known.runs:
        return (
            "open",
            f"{known.name} is declared; whether it runs cannot be seen from here",
            f"run `semel worker --reconcile {known.name}` beside it, and name it here: --reconcile {known.name}",
        )
    quiet = seconds(known.reconciler.quiet_for)
    return (
        "ok",
        f"{known.name}, as given to this check: {when} it asks up to {known.reconciler.asks_max} times, and believes "
        f"that it did not happen from {quiet} after the deadline; then people, by `semel settle`",
        "",
    )


def retry(operation: CheckedOperation) -> Said:
    """Describe the effect of a retry with the same key."""
    policy = operation.policy
    if policy.on_error == "replay":
        return (
            "open",
            "always the stored answer, also a 5xx (on_error='replay')",
            "tell clients that an error is final and needs a new key",
        )
    match policy.effects:
        case Effects.ATOMIC:
            said = "the stored answer; after an error or a crash it runs again from the start"
        case Effects.IDEMPOTENT:
            crashes = f"up to {policy.attempts_max} crashes"
            said = f"the stored answer; after an error or a crash it runs again with the same derived keys, {crashes}"
        case _ if policy.steps:
            said = (
                "the stored answer; after a crash it continues after the finished steps, or is refused as UNKNOWN if "
                "the interrupted step may not be repeated"
            )
        case _:
            said = "the stored answer; after an error or a crash it is refused as UNKNOWN and never runs again"
    return "ok", said, ""


def ending(operation: CheckedOperation) -> Said:
    """Describe how an execution is completed without its client."""
    if not operation.policy.resumable:
        return "ok", "only its client, by a retry: it never runs without it", ""
    if operation.completed:
        by = "install(app)" if operation.way == "endpoint" else "manage_engine=True"
        said = f"the application's own completer ({by}), within the lease and a second"
        return "ok", f"{said}; its requests have no credential: let authentication pass those with 'semel.resumed'", ""
    return (
        "open",
        "no completer runs here: abandoned commands wait for their client, even those answered with 202",
        "run `semel worker --complete MODULE:APP` beside it",
    )
