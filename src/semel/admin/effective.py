"""The settings in force for a store and each operation, each with its source.

For an application these are the declared settings; for records, the ones that they were made under: a policy is
stored with its record, and no later declaration changes it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final

from semel.admin.doctor.schema import pending_of
from semel.admin.filters import pages
from semel.admin.guarantees import Ground, Promise, caveats, level, promises
from semel.admin.words import Json
from semel.bulk.declaration import BulkPolicy
from semel.bulk.rules import bulk_kind, is_bulk
from semel.check.application import Declaration, declarations
from semel.cli.open_store import hide_password, source_of_url, url_of
from semel.core.model import AfterExpiry, Effects, Find, Record, State, Terms
from semel.engine.sync_engine import Engine
from semel.http.settings import HttpSettings
from semel.policy import SECOND_US, Policy

_SURFACE: Final = ("key_header", "replayed_header", "wait_seconds_max")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting in force. ``source``: default, declared, records, --url, $SEMEL_URL and so on."""

    name: str
    value: Json
    source: str

    @property
    def shown(self) -> str:
        """Return the value as text for people."""
        return self.value if isinstance(self.value, str) else json.dumps(self.value)


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings in force for one operation; ``records`` counts the records with them, None for a declaration."""

    name: str
    route: str
    effects: str
    level: str
    settings: list[Setting]
    promises: list[Promise]
    caveats: list[str]
    records: int | None = None


# --- an application's declarations ---------------------------------------------------------------


def of_application(spec: str) -> tuple[list[Effective], list[Setting]]:
    """Return the operations that an application declares, and the settings of its stores. Raises UsageFailed."""
    found = declarations(spec)
    backends = {id(each.engine.backend): each.engine.backend for each in found if each.engine is not None}
    settings = [setting for backend in backends.values() for setting in _backend(backend, "application")]
    return [_from_declaration(each) for each in found], settings


def _from_declaration(each: Declaration) -> Effective:
    backend = getattr(each.engine, "backend", None)
    ground = Ground(
        terms=each.policy.terms,
        capabilities=backend.store.capabilities,  # type: ignore[union-attr]  # every declaration has an engine
        weak_sync=backend.settings.get("synchronous") == "NORMAL",  # type: ignore[union-attr]
        key_optional=each.policy.key == "optional",
        marks=each.policy.on_unprotected == "mark",
        behind=each.way,
        reaped=each.reaped,
        items=None if each.bulk is None else each.bulk.effects,
    )
    if each.bulk is None:
        effects, options = each.policy.terms.effects.name, _options(each.policy, Policy())
    else:
        effects = f"BULK of {each.bulk.effects} items"
        options = _options(each.bulk, BulkPolicy(operation=each.bulk.operation))
    settings = [*options, *(_surface(each.surface) if each.surface is not None else ())]
    return Effective(each.name, each.route, effects, level(ground), settings, promises(ground), caveats(ground))


def _options(policy: Policy | BulkPolicy, default: Policy | BulkPolicy) -> Iterator[Setting]:
    """Return all options. An option declared with its default value looks like an undeclared one."""
    for field in fields(policy):
        if field.init:
            value = getattr(policy, field.name)
            source = "default" if value == getattr(default, field.name) else "declared"
            yield Setting(field.name, plain(value), source)


def _surface(surface: HttpSettings) -> Iterator[Setting]:
    defaults = {field.name: field.default for field in fields(HttpSettings)}
    for name in _SURFACE:
        value = getattr(surface, name)
        yield Setting(name, plain(value), "default" if value == defaults[name] else "declared")


def plain(value: Any) -> Json:
    """Convert a setting's value to JSON: sets sorted, types and recipes by their names.

    >>> plain(Effects.ATOMIC), plain(frozenset({503, 502})), plain((KeyError,)), plain(None)
    ('atomic', [502, 503], ['KeyError'], None)
    """
    if isinstance(value, IntEnum):
        return value.name.lower()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, type):
        return value.__name__
    return str(getattr(value, "id", None) or value)  # a recipe has an id


# --- the policies of records -------------------------------------------------------------------------


def of_records(engine: Engine, limit: int) -> list[Effective]:
    """Return the policies under which the newest records were made, each operation's newest first."""
    counts: dict[tuple[Any, ...], int] = {}
    firsts: dict[tuple[Any, ...], Record] = {}
    seen = 0
    for page in pages(engine, Find()):
        for record in page.records[: limit - seen]:
            seen += 1
            kind = _kind(record)
            counts[kind] = counts.get(kind, 0) + 1
            firsts.setdefault(kind, record)
        if seen >= limit:
            break
    order = sorted(counts, key=lambda kind: (kind[0], -firsts[kind].created_at))
    return [_from_record(engine, firsts[kind], counts[kind]) for kind in order]


def _kind(record: Record) -> tuple[Any, ...]:
    terms = (record.lease_us, record.attempts_max, record.answer_us, record.tombstone_us, record.after_expiry)
    return (record.operation, bulk_kind(record.recipe), record.effects, *terms, _dedup_us(record))


def _dedup_us(record: Record) -> int:
    return record.dedup_until - record.first_started_at


def _deadline_us(record: Record) -> int | None:
    """Return the handler's time limit; only the record of a first start holds it."""
    again = record.effects == Effects.IDEMPOTENT and record.attempt > 1
    return None if again else record.deadline_at - record.first_started_at


def _from_record(engine: Engine, record: Record, count: int) -> Effective:
    known = {int(effects) for effects in Effects}
    effects = Effects(record.effects) if record.effects in known else Effects.EXTERNAL  # damaged: assume the worst
    new = record.after_expiry == AfterExpiry.NEW
    deadline = _deadline_us(record)
    lives = (record.lease_us, deadline or 0, _dedup_us(record), record.attempts_max)
    kept = (record.answer_us, record.tombstone_us, AfterExpiry.NEW if new else AfterExpiry.REFUSE)
    bulk = is_bulk(record.recipe)
    ground = Ground(
        terms=Terms(effects, *lives, *kept, State.PROCESSING),
        capabilities=engine.store.capabilities,
        weak_sync=engine.backend.settings.get("synchronous") == "NORMAL",
        items="undeclared" if bulk else None,
    )
    values: dict[str, Json] = {
        "effects": None if bulk else effects.name.lower(),  # the record's own effects; it says nothing of its items'
        "fingerprint": bulk_kind(record.recipe),
        "lease_seconds": record.lease_us / SECOND_US,
        "deadline_seconds": None if deadline is None else deadline / SECOND_US,
        "answer_seconds": record.answer_us / SECOND_US,
        "tombstone_seconds": record.tombstone_us / SECOND_US,
        "after_expiry": "new" if new else "refuse",
        "dedup_for_seconds": _dedup_us(record) / SECOND_US,
        "attempts_max": record.attempts_max,
    }
    settings = [Setting(name, value, "records") for name, value in values.items() if value is not None]
    name = record.operation
    return Effective(
        name, "", "BULK" if bulk else effects.name, level(ground), settings, promises(ground), caveats(ground), count
    )


# --- the store ----------------------------------------------------------------------------------


def store_settings(engine: Engine, options: argparse.Namespace) -> list[Setting]:
    """Return the settings of an open store."""
    identity = engine.perform("identity", engine.store.identity)
    assert identity is not None  # it was opened
    pending = pending_of(engine.store, identity)
    settings = _backend(engine.backend, source_of_url(options), url_of(options))
    secret = "$SEMEL_ID_SECRET_FILE" if os.environ.get("SEMEL_ID_SECRET_FILE") else "default"
    return [
        *settings,
        Setting("id_secret", "set" if engine.core.id_secret else "none", secret),
        Setting("store_id", identity.store_id, "store"),
        Setting("schema_version", identity.schema_version, "store"),
        Setting("migrations_pending", list(pending), "store"),
    ]


def _backend(backend: Any, source: str, url: str = "") -> list[Setting]:
    named = hide_password(url or backend.url)
    settings = [Setting("url", named or backend.name, source), Setting("store", backend.name, source)]
    for name, value in backend.settings.items():
        settings.append(Setting(name, value, "URL" if f"{name}=" in named else "default"))
    capabilities = backend.store.capabilities
    for field in fields(capabilities):
        settings.append(Setting(field.name, getattr(capabilities, field.name), "store"))
    return settings
