"""From files to one history: the operations of each key, the effects, the deaths.

A killed process may leave its last line cut and operations without an end; anything else that does not fit together is
damage, and is refused with its file and line.
"""

from __future__ import annotations

import gc
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from verification.history.events import FORMAT, SUFFIX, VERSION, Header, HistoryError, Words

NEVER: Final = 1 << 62  # the end of an operation that has none
WALL_CLOCK_SPREAD_NS_MAX: Final = 50_000_000

_WORDS: Final[dict[str, frozenset[str]]] = {
    "attempt": frozenset({"request", "effects", "lease_us", "attempts_max"}),
    "look": frozenset({"request", "effects", "lease_us", "attempts_max"}),
    "settle": frozenset({"fence", "effects", "state", "answer", "kept"}),
    "resolve": frozenset({"fence", "happened", "answer"}),
    "read": frozenset(),
}


class Operation:
    """One call of one client: its request (``args``), its reply (``result``), and the times.

    ``end_ns`` is NEVER if it got no answer: its process died, or ``gave_up`` says what it saw instead of an answer.
    """

    __slots__ = (
        "args",
        "by",
        "end_ns",
        "gave_up",
        "gave_up_ns",
        "key",
        "kind",
        "number",
        "process",
        "result",
        "start_ns",
    )

    def __init__(self, process: str, number: int, kind: str, key: str, by: int, start_ns: int, args: Words) -> None:
        self.process = process
        self.number = number
        self.kind = kind
        self.key = key
        self.by = by
        self.start_ns = start_ns
        self.end_ns = NEVER
        self.args = args
        self.result: Words | None = None
        self.gave_up: str | None = None
        self.gave_up_ns = NEVER


@dataclass(frozen=True, slots=True)
class Effect:
    """A side effect that really happened, and the answer it was given."""

    key: str
    effects: str
    generation: int
    derived: str | None
    answer: str | None
    at_ns: int


@dataclass(slots=True)
class History:
    """What some processes did to one store."""

    headers: list[Header] = field(default_factory=list)
    keys: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))  # without any effect
    effects: list[Effect] = field(default_factory=list)
    deaths_ns: dict[str, int] = field(default_factory=dict)  # by process
    notes: list[str] = field(default_factory=list)
    leases_judged: bool = True

    @property
    def operations(self) -> int:
        """How many there are."""
        return sum(len(operations) for operations in self.keys.values())


def history_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files that these paths name; of a folder, all of its history files. Raises HistoryError."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(path.glob(f"*{SUFFIX}"))
            if not inside:
                raise HistoryError(f"{path}: no *{SUFFIX} file in this folder; name the folder the recorder was given")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise HistoryError(f"{path}: no such file or folder")
    return found


def read_history(paths: Iterable[str | Path]) -> History:
    """Read all these files (or folders of files) as one history, in memory: some 2 KB an operation.

    Raises HistoryError: a file is missing, of another version, damaged, or of another machine run or store.
    """
    history = History()
    files = history_files(paths)
    if not files:
        raise HistoryError("no file was named; name the folder that the recorder was given")
    deaths: list[tuple[int, int]] = []
    collecting = gc.isenabled()
    gc.disable()  # millions of values are made and all of them kept: looking for garbage would take half of the time
    try:
        for file in files:
            _read_file(file, history, deaths)
    finally:
        if collecting:
            gc.enable()
    if not history.headers:
        raise HistoryError("none of these files has a whole header: their processes died before they had begun")
    _fit_together(history, deaths)
    for operations in history.keys.values():
        operations.sort(key=lambda operation: operation.start_ns)
    return history


def _read_file(path: Path, history: History, deaths: list[tuple[int, int]]) -> None:
    raw = path.read_bytes().split(b"\n")
    if raw.pop():
        history.notes.append(f"{path.name}: the last line is cut: its process died while it was writing")
    if not raw:
        history.notes.append(f"{path.name}: empty: its process died before it had begun")
        return
    header = _header(path, raw[0])
    history.headers.append(header)
    running: dict[int, Operation] = {}
    for number, event in _events(path, raw):
        try:
            _take(header, event, running, history, deaths)
        except (KeyError, TypeError, ValueError) as error:
            raise _make_damage_error(
                path, number, f"an event that does not fit ({type(error).__name__}: {error})"
            ) from None
    for operation in running.values():
        history.keys[operation.key].append(operation)


def _events(path: Path, raw: list[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, event in enumerate(_parse(path, raw[1:]), start=2):
        if type(event) is not dict:
            raise _make_damage_error(path, number, "it is no event")
        yield number, event


def _parse(path: Path, lines: list[bytes]) -> list[Any]:
    """All lines as one document, which shares its words and so costs half; one by one where that is not what it is."""
    try:
        events: list[Any] = json.loads(b"[%b]" % b",".join(lines))
        if len(events) == len(lines):
            return events
    except ValueError:
        pass  # the line is found below
    events = []
    for number, line in enumerate(lines, start=2):
        try:
            events.append(json.loads(line))
        except ValueError:
            raise _make_damage_error(path, number, "it is no JSON") from None
    return events


def _take(
    header: Header,
    event: dict[str, Any],
    running: dict[int, Operation],
    history: History,
    deaths: list[tuple[int, int]],
) -> None:
    at = event.pop("at")
    if type(at) is not int:
        raise TypeError("'at' must be nanoseconds")
    match event.pop("event"):
        case "invoke":
            number, kind, key, by = event.pop("op"), event.pop("kind"), event.pop("key"), event.pop("by")
            if number in running:
                raise ValueError(f"operation {number} begins twice")
            missing = _WORDS[kind] - event.keys()
            if missing:
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
            running[number] = Operation(header.process, number, kind, key, by, at, event)
        case "ok":
            operation = running.pop(event.pop("op"))
            operation.end_ns, operation.result = at, event
            history.keys[operation.key].append(operation)
        case "unknown":
            operation = running.pop(event["op"])
            operation.gave_up, operation.gave_up_ns = str(event["reason"]), at
            history.keys[operation.key].append(operation)
        case "fail":  # it certainly had no effect: nothing needs to explain it
            operation = running.pop(event["op"])
            operation.end_ns, operation.gave_up = at, str(event["reason"])
            history.failed[operation.key].append(operation)
        case "effect":
            history.effects.append(Effect(at_ns=at, **event))
        case "ended":
            deaths.append((event["pid"], at))
        case other:
            raise ValueError(f"an unknown event {other!r}")


def _header(path: Path, line: bytes) -> Header:
    try:
        words = json.loads(line)
    except ValueError:
        words = None
    if type(words) is not dict or words.get("format") != FORMAT:
        raise HistoryError(
            f"{path}, line 1: no header of format {FORMAT!r}; this is no history, or its first line is damaged"
        ) from None
    version = words.get("version")
    if version != VERSION:
        raise HistoryError(
            f"{path}, line 1: history version {version!r}, written by semel {words.get('semel', '(unknown)')}; this "
            f"semel reads version {VERSION}: check it with the semel that wrote it, or record anew"
        )
    try:
        return Header(**{name: words[name] for name in Header.__dataclass_fields__})
    except KeyError as missing:
        raise _make_damage_error(path, 1, f"the header lacks {missing}") from None


def _make_damage_error(path: Path, line: int, what: str) -> HistoryError:
    return HistoryError(
        f"{path}, line {line}: damaged: {what}. Nothing after it can be trusted: check the other files without this "
        "one only if its process touched no key of theirs, otherwise record anew"
    )


def _fit_together(history: History, deaths: list[tuple[int, int]]) -> None:
    headers = history.headers
    for name, remedy in (
        ("boot", "monotonic times of two machine runs cannot be compared: check each run's files alone"),
        ("store", "one check is about one store: check each store's files alone"),
    ):
        if len({getattr(header, name) for header in headers}) > 1:
            raise HistoryError(f"these files differ in {name!r}; {remedy}")
    twice = len(headers) - len({header.process for header in headers})
    if twice:
        raise HistoryError("a process's file was named twice; name each file, or its folder, once")
    offsets = [header.wall_offset_ns for header in headers]
    if max(offsets) - min(offsets) > WALL_CLOCK_SPREAD_NS_MAX:
        history.leases_judged = False
        history.notes.append("the wall clock was stepped during this run: whether leases lapsed early is not judged")
    by_pid: dict[int, list[Header]] = defaultdict(list)
    for header in headers:
        by_pid[header.pid].append(header)
    for pid, at in deaths:
        # A pid may have been used again: the latest process of that pid that had begun by then. A process that
        # called the recorder's folder its own twice has several files.
        for header in by_pid.get(pid, ()):
            if header.opened_ns < at:
                history.deaths_ns[header.process] = min(at, history.deaths_ns.get(header.process, NEVER))
