"""The record filters shared by all commands that search records."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from semel.admin.damaged import repair
from semel.admin.describe import RETRYABLE, state_label
from semel.cli.arguments import near
from semel.core.model import OPEN_STATES, Find, Found, State
from semel.engine.sync_engine import Engine

PAGE: Final = 500
_STATES: Final = tuple(state_label(state.name).lower() for state in State)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """``--state``, ``--operation``, ``--tenant``, ``--caller``, ``--lapsed``."""
    parser.add_argument("--state", action="append", type=_state, default=[], help=f"{', '.join(_STATES)}; repeatable")
    parser.add_argument("--operation", help="only this operation's")
    parser.add_argument("--tenant", help="only this tenant's")
    parser.add_argument("--caller", help="only this caller's")
    parser.add_argument("--lapsed", action="store_true", help="only open records whose lease has expired")


def _state(text: str) -> State:
    name = text.upper().replace("-", "_")
    try:
        return State.FAILED_NOT_REPLAYABLE if name == RETRYABLE else State[name]
    except KeyError:
        raise argparse.ArgumentTypeError(f"unknown state {text!r}{near(text, _STATES)}") from None


def query_of(options: argparse.Namespace) -> Find:
    """Return the filters as a query, without a limit."""
    return Find(
        states=tuple(options.state),
        tenant=options.tenant,
        caller=options.caller,
        operation=options.operation,
        lapsed=options.lapsed,
    )


def pages(engine: Engine, query: Find, size: int = PAGE) -> Iterator[Found]:
    """Read every page of a query, newest first, one page in memory at a time. Damaged records are repaired."""
    before = query.before
    while True:
        asked = query._replace(limit=size, before=before)
        page = engine.perform("find", lambda asked=asked: engine.store.find(asked))  # type: ignore[misc]
        yield page._replace(records=tuple(map(repair, page.records)))
        if page.next_before is None:
            return
        before = page.next_before


def find_bounded(engine: Engine, query: Find) -> Found:
    """Find one page of matching records among a bounded number of records, for a store of any size.

    Even where the page is not full, ``next_before`` leads on to the records that were not read yet.
    """
    if query.lapsed and not query.states:
        query = query._replace(states=tuple(sorted(OPEN_STATES)))
    return next(pages(engine, query._replace(looks=engine.store.capabilities.looks_max), query.limit))
