"""The events that an application published: from its outbox, or from a test's own list.

The whole outbox is read, with published events, so that a running relay does not change the result.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from semel.core.flow import Flow
from semel.engine.async_engine import AsyncEngine
from semel.engine.sync_engine import Engine
from semel.http.settings import AnyEngine
from semel.outbox.event import Event, Waiting
from semel.stores.sql.dialect import dialect_of
from semel.stores.sql.statements import Row, compose
from semel.testing.idempotent.case import Case
from semel.testing.idempotent.report import CannotRun

_ALL: Final = compose("all_events", "SELECT CAST(id AS CHAR(36)), topic, payload FROM semel_event ORDER BY seq")
_REMEDY: Final = (
    "events= lists Events, mappings with 'id' (and 'topic' or 'type', 'payload' or 'data'), or ids as texts"
)


class Told(NamedTuple):
    """One event: its id, its topic, and a digest of its payload."""

    id: str
    topic: str
    digest: str


class EventLog:
    """All events of an application: ``given`` by the test, or read from the outboxes of ``engines``."""

    def __init__(self, case: Case, engines: Sequence[AnyEngine]) -> None:
        self.given = case.events
        self._engines = {id(engine.backend.store): engine for engine in engines if engine.core.emits}
        self.visible = self.given is not None or bool(engines)

    async def read_all(self) -> list[Told]:
        """Read every event so far. Raises CannotRun if the test's own list is not a list of events."""
        if self.given is not None:
            return await _read_list(self.given)
        return [told for engine in self._engines.values() for told in await _read(engine)]

    async def since(self, before: Sequence[Told]) -> list[Told]:
        """Return the events published since."""
        left = Counter(before)
        new: list[Told] = []
        for each in await self.read_all():
            if left[each]:
                left[each] -= 1
            else:
                new.append(each)
        return new


async def _read(engine: AnyEngine) -> list[Told]:
    def flow() -> Flow[list[Row]]:
        return dialect_of(engine.backend.store, "events").rows(_ALL, {})

    if isinstance(engine, AsyncEngine):
        rows = await engine.perform("events", flow)
    else:
        rows = await asyncio.to_thread(cast(Engine, engine).perform, "events", flow)
    return [Told(str(id), cast(str, topic), _digest(payload)) for id, topic, payload in rows]


async def _read_list(given: Any) -> list[Told]:
    try:
        things = given() if callable(given) else given
        if inspect.isawaitable(things):
            things = await things
        things = list(things)
    except Exception as error:
        raise CannotRun(f"the list of events failed: {type(error).__name__}: {error}", _REMEDY) from error
    return [as_told(each) for each in things]


def as_told(thing: Any) -> Told:
    """Read an event of a test's list. Raises CannotRun if it has no id.

    >>> as_told({"id": "e-1", "type": "order.placed", "data": {"n": 1}}) == as_told({"id": "e-1", "type": "x"})
    False
    >>> as_told("e-1").id
    'e-1'
    """
    match thing:
        case Waiting():
            return as_told(thing.event)
        case Event():
            return Told(thing.id, thing.topic, _digest(thing.payload))
        case str():
            return Told(thing, "", "")
        case Mapping() if thing.get("id"):
            payload = thing.get("payload", thing.get("data"))
            return Told(str(thing["id"]), str(thing.get("topic", thing.get("type", ""))), _digest(payload))
    raise CannotRun(f"an event that has no id: {thing!r:.120}", _REMEDY)


def _digest(payload: Any) -> str:
    """Return a digest that distinguishes payloads: of bytes themselves, of other values as sorted JSON."""
    raw = payload if isinstance(payload, bytes) else json.dumps(payload, sort_keys=True, default=repr).encode()
    return hashlib.sha256(raw).hexdigest()
