"""Find one record by an operation id, a key in its scope, or the beginning of an id.

A whole operation id, a whole record id, or a key with its whole scope takes one read. Anything else walks the store,
newest first, with one page in memory at a time: on a large store, give what you know of the scope.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from typing import Final

from semel.admin.damaged import repair
from semel.admin.failures import CommandFailed, NotFound, UsageFailed
from semel.admin.filters import pages
from semel.cli.progress import ProgressLine
from semel.core.identity import ID_BYTES, key_hash, record_id, uuid_bytes, uuid_text
from semel.core.model import Find, Record, Scope
from semel.engine.sync_engine import Engine
from semel.errors import InvalidKey
from semel.keys import parse_key

SHOWN_MAX: Final = 5  # matching records named in a message at most
PREFIX_LENGTH_MIN: Final = 6
_PREFIX: Final = re.compile(rf"[0-9a-fA-F-]{{{PREFIX_LENGTH_MIN},36}}").fullmatch

Matching = Callable[[Record], bool]


def key_of(text: str, name: str) -> str:
    """Parse a key as a client sends it, quoted or bare. Raises UsageFailed, naming the argument."""
    try:
        return parse_key((text.encode("utf-8", "surrogateescape"),))
    except InvalidKey as error:
        raise UsageFailed(f"{name}: {error}") from error


def find_key(engine: Engine, scope: Scope, key: str) -> Record | None:
    """Read the record of a key in its whole scope."""
    id = record_id(scope, key, engine.core.id_secret)
    [record] = engine.perform("read", lambda: engine.store.read((id,)))
    return record


def check_beginning(text: str, name: str) -> None:
    """Raise UsageFailed, naming the argument, where a text cannot be the beginning of a record's name."""
    if not is_beginning(text):
        raise UsageFailed(
            f"{name} must be an operation id (a UUID) as `semel list` shows it, or at least {PREFIX_LENGTH_MIN} hex "
            f"digits that an operation id, a record id or a key hash begins with; it is {text!r}. For a client's key, "
            f"run: semel explain KEY, which prints its operation id"
        )


def find_named(engine: Engine, text: str, options: argparse.Namespace, name: str) -> Record:
    """Find the only record whose operation id, record id or key hash begins with a text.

    Raises NotFound, and CommandFailed where several records match.
    """
    whole = by_whole_id(engine, text)
    if whole is not None:
        return whole
    found = list(walk(engine, begins_with(text), options))
    if not found:
        raise NotFound(f"{name} {text!r} names no record of this store; see: semel list")
    return the_one(engine, found, name)


def is_beginning(text: str) -> bool:
    """Return whether a text may be the beginning of an operation id, a record id or a key hash."""
    return _PREFIX(text) is not None


def by_whole_id(engine: Engine, text: str) -> Record | None:
    """Find the record of a whole operation id or record id, by one read each."""
    raw = uuid_bytes(text)
    if raw is None or len(raw) != ID_BYTES:
        return None
    found = _by_operation(engine, raw)
    if found is None:
        [found] = engine.perform("read", lambda: engine.store.read((raw,)))
    return found


def _by_operation(engine: Engine, operation_id: bytes) -> Record | None:
    [record] = engine.perform("read_operations", lambda: engine.store.read_operations((operation_id,)))
    return record


def begins_with(text: str) -> Matching:
    """Return a test for records with a name that begins with a text, with or without dashes."""
    plain = text.lower().replace("-", "")
    return lambda record: (
        record.operation_id.hex().startswith(plain)
        or record.id.hex().startswith(plain)
        or record.key_hash.hex().startswith(plain)
    )


def carries(engine: Engine, key: str) -> Matching:
    """Return a test for records of this key in any scope."""
    hash = key_hash(key, engine.core.id_secret)
    return lambda record: record.key_hash == hash


def walk(engine: Engine, matching: Matching, options: argparse.Namespace) -> Iterator[Record]:
    """Find the matching records within the scope, newest first; a few more than the page shows."""
    asked = getattr(options, "progress", False)
    total = sum(engine.perform("counts", engine.store.counts).values()) if asked else None  # it looks at all of them
    progress = ProgressLine("search", asked=asked, total=total)
    query = Find(tenant=options.tenant, caller=options.caller, operation=options.operation)
    seen = found = 0
    for page in pages(engine, query):
        seen += len(page.records)
        progress.tell(seen)
        for record in page.records:
            if matching(record):
                found += 1
                yield record
        if found > SHOWN_MAX:
            break
    progress.end()


def the_one(engine: Engine, found: list[Record], name: str) -> Record:
    """Return the only record found, read whole. Raises CommandFailed, naming them, where there are several."""
    if len(found) > 1:
        more = "" if len(found) <= SHOWN_MAX else " and more"
        raise CommandFailed(
            f"{name} fits several records{more}: {', '.join(name_of(record) for record in found[:SHOWN_MAX])}; "
            "give one's operation id, or narrow with --tenant, --caller and --operation"
        )
    [record] = engine.perform("read", lambda: engine.store.read((found[0].id,)))
    if record is None:  # it was purged between the two reads
        raise NotFound(f"{name} no longer names a record; see: semel list")
    return record


def name_of(record: Record) -> str:
    """Describe a record by its operation id and scope."""
    record = repair(record)
    return f"{uuid_text(record.operation_id)} ({record.operation} of {record.tenant}/{record.caller})"
