"""The names of what libpq takes in a connection string, so that a misspelt one is told before anything is opened."""

from __future__ import annotations

from psycopg import pq


def options() -> frozenset[str]:
    """All that this libpq knows, and ``ssl``, which it takes in URLs only.

    >>> {"sslmode", "target_session_attrs", "ssl"} <= options()
    True
    """
    return frozenset({"ssl", *(each.keyword.decode() for each in pq.Conninfo.get_defaults())})


__all__ = ["options"]
