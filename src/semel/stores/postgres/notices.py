"""Detects the notice that a commit was not confirmed by the synchronous standby.

A wait for a synchronous standby that is cut short (``pg_cancel_backend``, or a shutdown) ends with OK and a warning:
what was committed is here, and a failover may lose it.
"""

from __future__ import annotations

from typing import Any, Final

from semel.errors import NotReplicated

UNREPLICATED: Final = "canceling wait for synchronous replication"


class Notices:
    """Listens for the notice on one connection; once heard, its last commit counts as unconfirmed."""

    __slots__ = ("unreplicated",)

    def __init__(self) -> None:
        self.unreplicated = False

    def __call__(self, diagnostic: Any) -> None:
        """Hear a notice, as psycopg calls its handlers."""
        if UNREPLICATED in (diagnostic.message_primary or ""):
            self.unreplicated = True

    def hear(self, _: object, message: object) -> None:
        """Hear a notice, as asyncpg calls its listeners."""
        if UNREPLICATED in str(message):
            self.unreplicated = True

    def check(self) -> None:
        """Raise NotReplicated if the notice was heard."""
        if self.unreplicated:
            raise NotReplicated("PostgreSQL: committed here, but not known to be on the standby: not known yet")
