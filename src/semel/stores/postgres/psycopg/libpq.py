"""Parses connection strings with libpq, so that a mistake in one is found before anything is opened."""

from __future__ import annotations

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict


def options() -> frozenset[str]:
    """Return the options that this libpq knows, and ``ssl``, which it takes in URLs only.

    >>> {"sslmode", "target_session_attrs", "ssl"} <= options()
    True
    """
    return frozenset({"ssl", *(each.keyword.decode() for each in pq.Conninfo.get_defaults())})


def understands(conninfo: str) -> bool:
    """Whether libpq can read the string. Its error is not passed on, because it quotes parts of the URL.

    >>> understands("postgresql://app@localhost/shop"), understands("postgresql://app:a b@localhost/shop")
    (True, False)
    >>> understands("postgresql://app@localhost/sh%FFop"), understands("postgresql://\\udcff")
    (False, False)
    """
    try:
        conninfo_to_dict(conninfo)
    except (ProgrammingError, UnicodeError):  # the second where it, or what is percent-encoded in it, is no UTF-8
        return False
    return True


__all__ = ["options", "understands"]
