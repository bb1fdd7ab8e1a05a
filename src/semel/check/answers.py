"""The shipping questions about an operation, answered from its declaration.

A question that a declaration does not answer stays open, with what to find out or to declare. The report also names
the features that this version of Semel lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from semel.check.bulk import BULK
from semel.check.discovery import CheckedOperation
from semel.check.outcomes import (
    Level,
    Said,
    downstream,
    ending,
    reconciliation,
    retry,
    seconds,
    transaction,
)
from semel.engine.async_engine import AsyncEngine
from semel.http.caller import FromUser, single_caller
from semel.recipe import Computed, DigestField, Members, NoBody
from semel.telemetry import Silence

ANSWER_SECONDS_MIN: Final = 3600  # a client's retries, a queue's back-off and a night's restart are minutes to hours


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """One question's answer. ``level``: "ok"; "open", to be found out or decided; "unsafe". ``remedy``: what to do."""

    question: str
    level: Level
    said: str
    remedy: str = ""


def answers(operation: CheckedOperation) -> list[CheckAnswer]:
    """Return all questions, in their order, with the operation's answers."""
    instead = {} if operation.bulk is None else BULK
    return [CheckAnswer(question, *instead.get(question, answer)(operation)) for question, answer in QUESTIONS.items()]


# --- the key and the request --------------------------------------------------------------------


def _key_required(operation: CheckedOperation) -> Said:
    if operation.policy.key_from is not None:
        return "ok", f"yes: it comes from the request ({operation.policy.key_from}); the header is ignored", ""
    if operation.policy.key == "required":
        return "ok", "yes: a request without one is refused with 400", ""
    if operation.path.endswith("*"):
        return (
            "open",
            "no: this is the default of a middleware, for requests that carry a key",
            "declare the operations whose retries cost money, each with Operation(...): their key is required",
        )
    return (
        "open",
        "no: requests without one run unprotected, and are counted",
        "declare key='required', or watch unprotected{reason=no-key} until all clients send one",
    )


def _scope(operation: CheckedOperation) -> Said:
    surface = operation.surface
    if operation.policy.on_unprotected == "mark":
        return (
            "unsafe",
            "where the caller is unknown the request runs unprotected (on_unprotected='mark')",
            "declare on_unprotected='refuse'",
        )
    caller = operation.caller if surface is None else surface.caller
    if caller is None:
        return "open", "the caller function cannot be seen", "check that it returns the authenticated caller"
    if caller is single_caller:
        return (
            "open",
            "one caller for all: every client shares every key",
            "right only for a tool with one user; otherwise caller= must return the authenticated caller",
        )
    if isinstance(caller, FromUser):
        return "ok", f"tenant, caller and operation; the caller is user.{caller.attribute}", ""
    name = getattr(caller, "__qualname__", type(caller).__qualname__)
    ours = getattr(caller, "__module__", "") in (single_caller.__module__, "semel.integrations.django.site")
    return (
        "ok" if ours else "open",
        f"tenant, caller and operation; the caller comes from {name.partition('.<locals>')[0]}",
        "" if ours else "check that it returns the authenticated caller, never a value that a client can choose",
    )


def _format(operation: CheckedOperation) -> Said:
    given = operation.policy.key_format
    plain = "1 to 255 visible ASCII characters"
    if given is None:
        return (
            "ok",
            f"{plain}; weak ones (short, digits alone, an e-mail address, a card's number) are counted, not refused",
            "",
        )
    parts = ["a UUID"] if given.uuid else []
    parts += [] if given.uuid7_max_age is None else [f"a UUIDv7 of at most {seconds(given.uuid7_max_age)}"]
    parts += [f"at least {given.length_min} characters"] if given.length_min > 1 else []
    parts += [f"matching {given.pattern}"] if given.pattern else []
    return "ok", f"{plain}, {', '.join(parts)}", ""


def _retention(operation: CheckedOperation) -> Said:
    policy = operation.policy
    said = (
        f"lease {seconds(policy.lease_seconds)} (handlers: {seconds(policy.deadline_seconds)}), "
        f"answer {seconds(policy.answer_seconds)}, fact {seconds(policy.tombstone_seconds)}"
    )
    if policy.operation_seconds is not None:
        said += f", operation {seconds(policy.operation_seconds)}"
    if policy.after_expiry == "new":
        said += "; a retry after the answer has expired runs again (after_expiry='new')"
        if policy.answer_seconds < ANSWER_SECONDS_MIN:
            return (
                "unsafe",
                said,
                "a queue that was stuck for an hour would pay twice: raise answer_seconds, or use 'refuse'",
            )
        return "open", said, "check that no client, queue or operator retries later than that"
    if policy.answer_seconds < ANSWER_SECONDS_MIN:
        return "open", said, "check that every client's last retry comes earlier, or raise answer_seconds"
    return "ok", said, ""


def _fingerprint(operation: CheckedOperation) -> Said:
    recipe = operation.policy.recipe
    match recipe.body:
        case Members(names):
            return (
                "open",
                f"of JSON only {', '.join(names)} count, under {recipe.algorithm}",
                "check that no other member changes the effect; members that do not count may differ unnoticed",
            )
        case NoBody():
            return (
                "open",
                "the body does not count",
                "check that nothing in the body changes the effect; a body that does not count may differ unnoticed",
            )
        case Computed(name=name):
            return (
                "open",
                f"what {name} makes of the body",
                "check that it is equal for a retry, and for no other request",
            )
        case DigestField():
            return "ok", "by the Content-Digest field, which is checked: byte by byte, not canonical", ""
        case _:
            said = f"yes: JSON and forms in canonical form, anything else byte by byte, under {recipe.algorithm}"
            return "ok", "arguments in canonical form" if operation.way == "function" else said, ""


def _mismatch(operation: CheckedOperation) -> Said:
    said = "KeyReusedError" if operation.way == "function" else "422, in every state"
    return "ok", f"refused: {said}; the first command is untouched", ""


def _running(operation: CheckedOperation) -> Said:
    core = operation.engine.core
    refusal = "InProgressError" if operation.way == "function" else "409 with Retry-After"
    return (
        "ok",
        f"a duplicate waits {seconds(operation.policy.wait_seconds)}, then {refusal}; at most {core.waiters_max} wait "
        f"in a process, {core.waiters_per_caller_max} of one caller",
        "",
    )


# --- the answer -----------------------------------------------------------------------------------


def _replay(operation: CheckedOperation) -> Said:
    policy = operation.policy
    if policy.answers == "rebuild":
        return (
            "ok",
            "rebuilt: the resource as it is then, under the original status; where that fails within "
            f"{seconds(policy.rebuild_seconds)}: 409 with the resource's link, and nothing runs",
            "",
        )
    if policy.answers == "forget":
        return (
            "ok",
            "neither: a retry gets 409 with the operation's link, which says that it was done, and nothing runs",
            "",
        )
    redacted = f"; without {', '.join(policy.redact)}, which are null" if policy.redact else ""
    if operation.way == "function":
        return "ok", f"exactly: the stored result, up to {policy.answer_bytes_max} bytes{redacted}", ""
    extra = f", and {', '.join(sorted(policy.replay_headers))}" if policy.replay_headers else ""
    narrow = "; answers other than 2xx and 3xx are not kept" if policy.replay == "2xx" else ""
    return (
        "ok",
        f"exactly: status, bytes and the allowed headers{extra}, up to {policy.answer_bytes_max} bytes (longer "
        f"ones are not kept: 409 with the operation's link){narrow}{redacted}",
        "",
    )


def _sensitive(operation: CheckedOperation) -> Said:
    policy = operation.policy
    if policy.covers:
        return _check_secrets(operation)
    said = f"answers are stored in clear for {seconds(policy.answer_seconds)}: nothing seals or shortens them"
    remedy = "declare answers='seal', 'rebuild' or 'forget', or redact=; "
    remedy += "keep card numbers and tokens out of the answer, restrict who reads the store, or shorten answer_seconds"
    if policy.steps:
        said += "; results of steps likewise"
    if policy.resumable and operation.engine.core.sealer is None:
        said += "; its request is stored in clear until there is an outcome"
        remedy += "; give the engine a sealer= for stored requests (semel.Sealer)"
    elif policy.resumable:
        said += "; its request is stored sealed until there is an outcome"
    return "open", said, remedy


def _check_secrets(operation: CheckedOperation) -> Said:
    """Check how an operation stores answers that hold secrets."""
    policy, sealer = operation.policy, operation.engine.core.sealer
    said = {
        "keep": f"stored as they are for {seconds(policy.answer_seconds)}",
        "seal": f"sealed for {seconds(policy.answer_seconds)}",
        "rebuild": "not stored, but for their status; refusals are " + ("sealed" if sealer else "not stored either"),
        "forget": "not stored, but for their status",
    }[policy.answers]
    said = f"answers are {said}"
    if policy.redact:
        said += f", without {', '.join(policy.redact)}"
    left: list[str] = []
    remedies: list[str] = []
    sealed_too = "sealed" if sealer is not None else "stored as they are"
    if policy.steps:
        how = sealed_too if policy.answers != "keep" else "stored as they are"
        said += f"; results of steps are {how}"
        if how != "sealed":
            left.append(how)
            remedies.append("declare answers='seal' for results of steps, with a sealer= for the engine")
    if policy.resumable:
        said += f"; its request is {sealed_too} until there is an outcome"
        if sealer is None:
            left.append("request")
            remedies.append("give the engine a sealer= for stored requests (semel.Sealer)")
    if policy.recipe.algorithm != "hmac-sha256" and operation.way != "function":
        said += "; anyone who can read the store can test guesses of a short body against its fingerprint"
        left.append("fingerprint")
        remedies.append("where bodies are guessable, declare fingerprint=Recipe(algorithm='hmac-sha256', ...)")
    return ("open", said, "; ".join(remedies)) if left else ("ok", said, "")


# --- the store --------------------------------------------------------------------------------------


def _unique(operation: CheckedOperation) -> Said:
    backend = operation.engine.backend
    secret = "HMAC under the id secret" if operation.engine.core.id_secret is not None else "SHA-256"
    if not backend.store.capabilities.shared_between_processes:
        return "ok", f"one table under one lock, by record id ({secret} of scope and key)", ""
    how = (
        "is the primary key" if backend.store.capabilities.holds_features else "is the record's only place in the store"
    )
    source = operation.policy.reference_from
    whose = "tenant, caller" if operation.policy.reference_scope == "caller" else "tenant"
    reference = "" if source is None else f"; so is the business reference ({source}) within its {whose} and operation"
    return "ok", f"the record id ({secret} of scope and key) {how}{reference}", ""


def _claim(operation: CheckedOperation) -> Said:
    backend = operation.engine.backend
    able = backend.store.capabilities
    if not able.shared_between_processes or not able.survives_process_crash:
        return (
            "unsafe",
            f"one step, but {backend.name} exists in one process only: another worker or a restart runs it again",
            "use a store that all workers share, such as sqlite:/// on one host",
        )
    synchronous = backend.settings.get("synchronous", "FULL")
    if synchronous not in ("FULL", "EXTRA"):
        return (
            "unsafe",
            f"one statement, but synchronous={synchronous}: a power loss may undo an answered command",
            "leave ?synchronous= at FULL",
        )
    if operation.policy.on_unprotected == "mark":
        return (
            "unsafe",
            "one statement; while the store is down the handler runs without it (on_unprotected='mark')",
            "declare on_unprotected='refuse'",
        )
    if not able.survives_server_crash:
        return (
            "open",
            f"one step of {backend.name}, which may lose it when its server crashes",
            "read the guarantees of its settings (docs/guarantees.md, semel doctor)",
        )
    return "ok", f"one statement of {backend.name}, durable before the handler runs", ""


# --- operating --------------------------------------------------------------------------------------


def _gateway(operation: CheckedOperation) -> Said:
    if operation.way == "function":
        return "open", "cannot be seen from here", "check that queues and schedulers retry with the same key"
    return (
        "open",
        "cannot be seen from here",
        "check that proxies, meshes and SDKs retry this operation with the client's Idempotency-Key, or not at all, "
        "and that their time limit is longer than wait_seconds",
    )


def _metrics(operation: CheckedOperation) -> Said:
    core = operation.engine.core
    observer = getattr(core.observer, "observer", core.observer)  # what the guard holds
    if isinstance(observer, Silence):
        if core.logs_unknown:
            return (
                "open",
                "unknown outcomes are warnings of the logger 'semel'; mismatches and lapsed leases are not logged",
                "give the engine an observer: Logging(logging.getLogger('semel')), or your metrics",
            )
        return (
            "unsafe",
            "none: no process is notified of unknown outcomes, mismatches and lapsed leases",
            "give the engine an observer: Logging(logging.getLogger('semel')), or your metrics",
        )
    return (
        "open",
        f"reported to {type(observer).__name__}; alerts cannot be seen from here",
        "alert on unknown, gave_up, lapsed, mismatches and unprotected; where it emits events, on their backlog (semel "
        "events)",
    )


def _new_keys(operation: CheckedOperation) -> str:
    """Describe the limit on a caller's new keys."""
    quota = operation.policy.quota or operation.engine.core.quota
    if quota is None:
        if operation.engine.backend.store.capabilities.counts_new_keys:
            return "a caller's new keys are unlimited (set quota=Quota(new_keys=600, per_seconds=60))"
        return "a caller's new keys are unlimited: limit requests in front of the application"
    limits = [] if quota.new_keys is None else [f"{quota.new_keys} new keys in {quota.per_seconds:g} s"]
    limits += [] if quota.open_at_once is None else [f"{quota.open_at_once} unfinished"]
    limits += [] if quota.unknown_at_once is None else [f"{quota.unknown_at_once} of unknown outcome"]
    return f"a caller may have {', '.join(limits)}"


def _cleanup(operation: CheckedOperation) -> Said:
    if operation.managed or (operation.way == "endpoint" and isinstance(operation.engine, AsyncEngine)):
        by = "manage_engine=True" if operation.managed else "semel.install(app), unless reap=False"
        return "ok", f"hourly, by the application's own reaper ({by}); {_new_keys(operation)}", ""
    return (
        "open",
        "no reaper runs here: the store grows, and a lapsed command is noticed only when its client retries; "
        + _new_keys(operation),
        "run `semel worker --url ...` beside it, which reaps and purges"
        + ("; or give SemelMiddleware manage_engine=True" if operation.managed is False else ""),
    )


QUESTIONS: Final[dict[str, Callable[[CheckedOperation], Said]]] = {
    "key required": _key_required,
    "key scope": _scope,
    "key format and length": _format,
    "retention": _retention,
    "fingerprint canonical": _fingerprint,
    "on mismatch": _mismatch,
    "while running": _running,
    "replayed or rebuilt": _replay,
    "sensitive answers": _sensitive,
    "unique constraint": _unique,
    "atomic claim": _claim,
    "transaction": transaction,
    "downstream idempotency": downstream,
    "reconciliation": reconciliation,
    "retry with the same key": retry,
    "who ends it without its client": ending,
    "gateway retries": _gateway,
    "metrics and alerts": _metrics,
    "cleanup": _cleanup,
}


def as_document(operation: CheckedOperation, given: list[CheckAnswer]) -> dict[str, Any]:
    """Return one operation's answers as JSON."""
    return {
        "operation": operation.name,
        "methods": list(operation.methods),
        "path": operation.path,
        "answers": [
            {"question": each.question, "level": each.level, "answer": each.said, "remedy": each.remedy or None}
            for each in given
        ],
    }
