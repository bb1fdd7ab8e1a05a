"""Choose how a SQL store searches one page of a list: in the short list of open records, or along all records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from semel.core.flow import Flow, ask
from semel.core.model import Find
from semel.stores.sql.statements import Query, Statement


def choose_look(query: Find, sql: Mapping[str, Statement], *, is_listed: bool) -> Flow[tuple[bool, int]]:
    """Return whether the page comes from the short list, and the cursor behind which it reads no record.

    The short list has no order of its own, so a page reads all of it. If it is longer than ``query.looks``, the page
    instead walks along that many of all records, newest first.

    Parameters: ``sql`` the store's statements, with ``count_listed`` and ``read_newest``; ``is_listed`` whether all
    records that fit are on the list.
    """
    if not query.looks or query.attention:
        return is_listed, 0
    if is_listed:
        [(listed,)] = yield from ask(Query(sql["count_listed"], {"look": query.looks + 1}))
        if cast(int, listed) <= query.looks:
            return True, 0
    elif not any((query.states, query.tenant, query.caller, query.operation, query.lapsed)):
        return False, 0
    top = query.before
    if top is None:
        [(newest,)] = yield from ask(Query(sql["read_newest"], {}))
        top = cast(int, newest) + 1
    return False, max(0, top - 1 - query.looks)


def next_page(last: int | None, after: int) -> int | None:
    """Return the next page's cursor, after one that ended at ``last`` (None: not full) and read down to ``after``."""
    return last if last is not None or not after else after + 1
