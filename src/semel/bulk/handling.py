"""The handling of items for sync and async bulks: flows that yield each handler call to their caller.

The meaning of a failure, the end of a chunk and retries are thus written once; the shells only call and wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semel.bulk.declaration import (
    BulkItem,
    BulkPolicy,
    ItemRollback,
    failure_outside,
    left_by,
    make_item,
    may_repeat,
    success_outcome,
)
from semel.bulk.flow import Handled, HandleInside
from semel.bulk.rules import ItemOutcome, ListedItem
from semel.core.flow import Ask, Flow, ask
from semel.core.model import Grant, Scope
from semel.errors import is_wrong_for_all
from semel.sealing.rules import Seals, about_item, seal_part
from semel.stores.backend import Backend


class CallHandler(Ask[object]):
    """Call the handler for one item, and return its result. Its exception is thrown into the flow."""

    __slots__ = ("item",)

    def __init__(self, item: BulkItem) -> None:
        self.item = item


class Pipelined(Ask[Handled]):
    """Perform a flow with the connection's statements pipelined."""

    __slots__ = ("connection", "flow")

    def __init__(self, connection: Any, flow: Flow[Handled]) -> None:
        self.connection = connection
        self.flow = flow


@dataclass(frozen=True, slots=True)
class Handling:
    """The handling of one run's items, under its grant. ``clock`` in seconds."""

    policy: BulkPolicy
    backend: Backend
    scope: Scope
    grant: Grant
    sealer: Seals | None = None
    clock: Callable[[], float] = time.monotonic

    def inside(self, needed: HandleInside) -> Flow[Handled]:
        """Handle a chunk's items in its transaction. Raises errors that concern all items."""
        connection = needed.unit.connection
        items = self._one_by_one(needed, connection)
        if needed.exact or not self.policy.pipelined or not hasattr(connection, "pipeline"):
            return (yield from items)
        try:
            handled = yield from ask(Pipelined(connection, items))
        except Exception as error:
            if is_wrong_for_all(error):
                raise
            return Handled([], blurred=True)  # the item at fault is unknown: the chunk is repeated, one by one
        return handled if handled.failed is None and handled.conflict is None else Handled([], blurred=True)

    def _one_by_one(self, needed: HandleInside, connection: Any) -> Flow[Handled]:
        ends = self.clock() + self.policy.chunk_seconds
        outcomes: list[ItemOutcome] = []
        for listed in needed.items:
            needed.called += 1
            if listed.error is not None:
                outcomes.append(listed.as_refused())
                continue
            if listed.place in needed.known:
                outcomes.append(listed.as_known())
                continue
            if (rollback := getattr(connection, "rollback", None)).__class__ is ItemRollback:
                rollback.begin_item()
            try:
                returned = yield CallHandler(make_item(listed, self.scope, self.grant, connection))
                outcomes.append(self._cover(success_outcome(listed, returned)))
            except Exception as error:  # noqa: BLE001 - an item's failure is its outcome; an error for all is raised
                ended = left_by(self.backend, outcomes, listed, error, self._cover)
                if ended is not None:
                    return ended
            if self.clock() >= ends:
                break
        return Handled(outcomes)

    def _cover(self, outcome: ItemOutcome) -> ItemOutcome:
        """Return an outcome with its detail in stored form."""
        if outcome.detail is None or self.policy.answers == "keep":
            return outcome
        if self.policy.answers == "forget":
            return outcome._replace(detail=None)
        return outcome._replace(detail=self._seal(outcome.place, outcome.detail))

    def describe_by(self, describe: Callable[[int], bytes]) -> Callable[[int], bytes]:
        """Make a function that returns an item's detail, in stored form, by its place."""
        return lambda place: self._seal(place, describe(place))

    def _seal(self, place: int, detail: bytes) -> bytes:
        return seal_part(detail, about_item(self.grant.operation_id, place), self.policy.answers, self.sealer)

    def outside(self, listed: ListedItem) -> Flow[ItemOutcome]:
        """Handle one item with external effects, with its retries. Raises errors that concern all items."""
        item, tried = make_item(listed, self.scope, self.grant, None), 0
        while True:
            tried += 1
            try:
                return self._cover(success_outcome(listed, (yield CallHandler(item))))
            except Exception as error:  # an item's failure is its outcome
                if is_wrong_for_all(error):
                    raise
                if not may_repeat(error, self.policy, tried):
                    return self._cover(failure_outside(listed, error, self.policy))
