"""Judges a history: every key for itself, then the effects and the answers that clients got.

A violation comes with the smallest part of the history that shows it: cut off at the first answer that nothing can
explain, without the observations that are not needed for that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Final

from verification.history.linear import PLACES_MAX, Finding, Stuck, Undecided, linearize
from verification.history.reading import NEVER, Effect, History, Operation
from verification.history.standing import Standing, Terms, show

OPERATIONS_PER_KEY_MAX: Final = 2_000
ONE_WRITER: Final = ("sqlite:", "memory:")  # stores without locks of single records
LINGERS_NS: Final = 1_000_000_000  # how long a server may keep the transaction of a client that is gone
REPORTED_MAX: Final = 20  # violations that are made small and shown; the rest is counted


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: on which key, how, and the operations that show it."""

    kind: str
    key: str
    what: str
    operations: tuple[Operation, ...] = ()
    effects: tuple[Effect, ...] = ()


@dataclass(slots=True)
class Report:
    """What a check found. It is ``ok`` only if everything was judged and nothing was broken."""

    keys: int = 0
    operations: int = 0
    unanswered: int = 0
    effects: int = 0
    processes: int = 0
    most_operations: int = 0  # of one key
    violations: list[Violation] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every key was judged, and none is broken."""
        return not self.violations and not self.undecided


def check(
    history: History,
    *,
    operations_per_key_max: int = OPERATIONS_PER_KEY_MAX,
    places_max: int = PLACES_MAX,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Judge a whole history.

    Parameters: ``operations_per_key_max`` a key with more is reported as undecided, not searched; ``places_max`` what
    one key's search may remember; ``progress`` is called with the judged and the total number of operations.
    """
    terms = Terms(history.deaths_ns, history.leases_judged)
    row_locks = any(not header.store.startswith(ONE_WRITER) for header in history.headers)
    total = history.operations
    report = Report(
        len(history.keys), total, effects=len(history.effects), processes=len(history.headers), notes=[*history.notes]
    )
    done = 0
    for key, operations in history.keys.items():
        report.unanswered += sum(op.end_ns == NEVER for op in operations)
        report.most_operations = max(report.most_operations, len(operations))
        if len(operations) > operations_per_key_max:
            report.undecided.append(f"key {key}: {len(operations)} operations, more than {operations_per_key_max}")
        else:
            part = select_operations(operations, history.failed.get(key, ()), history.deaths_ns, row_locks=row_locks)
            _check_key(report, key, part, terms, places_max)
        done += len(operations)
        if progress is not None:
            progress(done, total)
    report.violations += effect_violations(history)
    return report


def _check_key(report: Report, key: str, operations: list[Operation], terms: Terms, places_max: int) -> None:
    finding = linearize(operations, terms, places_max)
    match finding:
        case Undecided(places):
            report.undecided.append(f"key {key}: given up after {places} places of its search")
        case Stuck():
            if len(report.violations) < REPORTED_MAX:
                operations, finding = smallest(operations, finding, terms, places_max)
            what = f"no order explains it: at best {show(finding.standing)}, and then not {_describe(finding.blocked)}"
            report.violations.append(Violation("not-linearizable", key, what, tuple(operations)))
        case _:
            pass


def _describe(blocked: Sequence[Operation]) -> str:
    names = [
        f"{op.kind} → {(op.result or {}).get('verdict') or (op.result or {}).get('settling') or op.result}"
        for op in blocked
    ]
    return " nor ".join(names) or "anything"


def select_operations(
    operations: list[Operation],
    failed: Sequence[Operation] = (),
    deaths_ns: Mapping[str, int] | None = None,
    *,
    row_locks: bool = False,
) -> list[Operation]:
    """The operations that one record must explain; ``failed`` those that certainly had no effect.

    A process answers for its own running ATOMIC command out of its memory, also while that one only waits for its
    transaction. Such an "in progress" says nothing of the record and is left out; so is a "reused" beside one that was
    granted, or may have been. On a store with
    ``row_locks`` an ATOMIC attempt gets "in progress" while any other one of its key is under way: that may hold the
    record's lock, with any verdict of its own. So may the claim of another request whose commit takes its time:
    until it is there, no one can see that the requests differ. And so may one that was never answered: a server that
    hangs in it hangs with its locks.
    """
    everything = operations
    if row_locks:
        hidden = {id(op) for op in _behind_a_lock(operations, failed, deaths_ns or {})}
        operations = [op for op in operations if id(op) not in hidden]
    atomic = [op for op in operations if op.args.get("effects") == "atomic"]
    busy = _busy([op for op in (*everything, *failed) if op.args.get("effects") == "atomic"], deaths_ns or {})
    left_out = {
        id(op)
        for op in atomic
        if op.kind == "attempt" and op.result is not None and op.result["verdict"] in ("in-progress", "reused")
        if any(
            start < op.end_ns and op.start_ns < end
            for start, end, who in busy
            if who is not op and _may_be_told(op, op.result["verdict"], who, row_locks=row_locks)
        )
    }
    own = {(op.process, op.result["fence"]): op.args["request"] for op in atomic if _is_grant(op) and op.result}
    return [_with_request(_soften(op, row_locks), own) for op in operations if id(op) not in left_out]


def _may_be_told(op: Operation, verdict: str, who: Operation, *, row_locks: bool) -> bool:
    """Whether this verdict may come from that other ATOMIC attempt, rather than from the record."""
    if verdict == "in-progress":
        return row_locks or who.process == op.process
    return who.process == op.process and (who.result is None or _is_grant(who))


def _is_grant(op: Operation) -> bool:
    return op.kind == "attempt" and op.result is not None and op.result["verdict"] == "proceed"


def _with_request(op: Operation, own: Mapping[tuple[str, int], str]) -> Operation:
    """A refusal is stored by its own claim: it brings the request back that went with its rolled back grant."""
    if op.kind != "settle" or op.args["effects"] != "atomic" or op.args["state"] != "refused":
        return op
    asked = own.get((op.process, op.args["fence"]))
    if asked is None:
        return op
    again = copy(op)
    again.args = {**op.args, "request": asked}
    return again


def _behind_a_lock(
    operations: list[Operation], failed: Sequence[Operation], deaths_ns: Mapping[str, int]
) -> list[Operation]:
    """The attempts that got "in progress" while one of another request, or one without an answer, was being claimed."""
    attempts = [op for op in (*operations, *failed) if op.kind == "attempt"]
    return [
        op
        for op in operations
        if op.kind == "attempt" and op.result is not None and op.result["verdict"] == "in-progress"
        if any(
            (other.result is None or other.args["request"] != op.args["request"])
            and other.start_ns < op.end_ns
            and op.start_ns < _attempt_ends_ns(other, deaths_ns)
            for other in attempts
        )
    ]


def _attempt_ends_ns(op: Operation, deaths_ns: Mapping[str, int]) -> int:
    return op.end_ns if op.result is not None else min(op.gave_up_ns, deaths_ns.get(op.process, NEVER)) + LINGERS_NS


def _soften(op: Operation, by_wire: bool) -> Operation:
    """A settlement that frees the record and whose reply was lost: its repetition may meet what came after it.

    It then gets "superseded", although it did write. An ATOMIC refusal is stored beside its rolled back transaction;
    its repetition meets its own write in the same way. So this reply leaves open whether it wrote. An operator's
    resolution, ``by_wire``, is repeated over a new connection, and learns that the record has moved on.
    """
    if by_wire and op.kind == "resolve" and op.result is not None and op.result["resolving"] == "moved-on":
        return _leave_open(op, "moved on, if only by itself")
    if op.kind != "settle" or op.result is None or op.result["settling"] != "superseded":
        return op
    state = op.args["state"]
    frees = state not in ("succeeded", "refused", "unknown")
    lone = op.args["effects"] == "atomic" and state == "refused"
    return _leave_open(op, "superseded, if only by itself") if frees or lone else op


def _leave_open(op: Operation, why: str) -> Operation:
    open_end = Operation(op.process, op.number, op.kind, op.key, op.by, op.start_ns, op.args)
    open_end.gave_up = why
    return open_end


def _busy(atomic: list[Operation], deaths_ns: Mapping[str, int]) -> list[tuple[int, int, Operation]]:
    """When ATOMIC attempts of this key were under way: until the settlement, where one was granted."""
    settled = {(op.process, op.args["fence"]): op for op in atomic if op.kind == "settle"}
    busy: list[tuple[int, int, Operation]] = []
    for op in atomic:
        if op.kind == "attempt":
            fence = None if op.result is None else op.result.get("fence")
            last = op if fence is None else settled.get((op.process, fence))
            end = NEVER if last is None else last.end_ns
            if end == NEVER:  # no reply was seen; its transaction ends soon after it was given up, or its process died
                gave_up_ns = NEVER if last is None else last.gave_up_ns
                end = min(gave_up_ns, deaths_ns.get(op.process, NEVER)) + LINGERS_NS
            busy.append((op.start_ns, end, op))
    return busy


# --- the smallest part that shows it ---


def smallest(
    operations: list[Operation], finding: Stuck, terms: Terms, places_max: int
) -> tuple[list[Operation], Stuck]:
    """Cut the history off as early as it is broken, and leave out observations that it is broken without.

    Both are safe: what begins a sound history is sound, and so is a sound history without some of its observations.
    """
    ends = sorted(op.end_ns for op in operations if op.result is not None)
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        part = list(_until(operations, ends[middle]))
        found: Finding = linearize(part, terms, places_max)
        if isinstance(found, Stuck):
            high = middle
        else:
            low = middle + 1
    part = list(_until(operations, ends[low]))
    found = linearize(part, terms, places_max)
    best = (part, found) if isinstance(found, Stuck) else (operations, finding)
    for op in list(best[0]):
        if is_observation(op):
            fewer = [other for other in best[0] if other is not op]
            found = linearize(fewer, terms, places_max)
            if isinstance(found, Stuck):
                best = (fewer, found)
    return best


def _until(operations: list[Operation], now_ns: int) -> Iterator[Operation]:
    """The history as it was at this moment: what had not been answered yet is unanswered."""
    for op in operations:
        if op.start_ns <= now_ns:
            if op.end_ns <= now_ns or op.result is None:
                yield op
            else:
                yield _leave_open(op, "not answered yet")


def is_observation(op: Operation) -> bool:
    """Whether it can have changed nothing."""
    told = op.result
    if op.kind in ("read", "look"):
        return True
    return op.kind == "attempt" and told is not None and told["verdict"] != "proceed"


# --- effects and answers ---


def effect_violations(history: History) -> list[Violation]:
    """The promises about effects and about clients' answers, each by counting."""
    found: list[Violation] = []
    effects: dict[str, list[Effect]] = defaultdict(list)
    for effect in history.effects:
        effects[effect.key].append(effect)
    for key, made in effects.items():
        found += _double_effects(key, made, history.keys.get(key, []))
    for key, operations in history.keys.items():
        told, resolved = _answers(operations)
        if len(told) > 1:
            what = f"clients were told {len(told)} different answers: {', '.join(sorted(told))}"
            found.append(Violation("changed-answer", key, what, tuple(op for op in operations if _answer(op))))
        if effects:  # the run recorded its effects
            missing = told - resolved - {effect.answer for effect in effects.get(key, ())}
            if missing:
                what = f"an answer was given whose effect never happened: {', '.join(sorted(missing))}"
                found.append(Violation("answer-without-effect", key, what, tuple(operations)))
    return found


def _double_effects(key: str, made: list[Effect], operations: list[Operation]) -> Iterator[Violation]:
    derived: dict[int, set[str | None]] = defaultdict(set)
    for effect in made:
        derived[effect.generation].add(effect.derived)
    match made[0].effects:
        case "idempotent":
            if any(len(keys) > 1 for keys in derived.values()):
                what = "the derived key changed within a generation: the downstream cannot deduplicate"
                yield Violation("derived-keys-differ", key, what, tuple(operations), tuple(made))
        case kind:
            again = 0 if kind == "atomic" else sum(map(_frees, operations))
            if len(made) > 1 + again:
                what = f"{len(made)} effects of one {kind} command, and {again} settlements that nothing had happened"
                yield Violation("two-effects", key, what, tuple(operations), tuple(made))


def _frees(op: Operation) -> bool:
    """Whether it may have settled that nothing had happened."""
    if op.kind == "settle":
        return bool(op.args["state"] == "released")
    return op.kind == "resolve" and not op.args["happened"]


def _answer(op: Operation) -> str | None:
    """The answer that this operation proves to be the record's."""
    told = op.result
    if told is None:
        return None
    if op.kind == "settle" and told["settling"] == "settled" and op.args["state"] == "succeeded" and op.args["kept"]:
        return str(op.args["answer"])
    if op.kind in ("attempt", "look") and told["verdict"] == "replay" and told["state"] == "succeeded":
        return str(told["answer"])
    return None


def _answers(operations: list[Operation]) -> tuple[set[str], set[str]]:
    """The answers that clients got, and those that an operator gave."""
    told = {answer for op in operations if (answer := _answer(op)) is not None}
    resolved = {str(op.args["answer"]) for op in operations if op.kind == "resolve"}
    return told, resolved


__all__ = [
    "OPERATIONS_PER_KEY_MAX",
    "Report",
    "Standing",
    "Violation",
    "check",
    "effect_violations",
    "select_operations",
]
