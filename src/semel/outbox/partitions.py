"""Which relay delivers which lanes: leased, so that a dead relay's are taken over, and shared out evenly.

Lanes save work: that an aggregate's events arrive in order does not hang on them (``outbox/worker.py`` says why).
"""

from __future__ import annotations

from typing import Final, cast

from semel.core.flow import Flow
from semel.outbox.rules import LANES
from semel.stores.sql.dialect import Dialect, Values

NOUN: Final = "lanes"


class Lanes:
    """The lanes of one outbox."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._sql = dialect.statements(NOUN)

    def attend(self, holder: str, lease_us: int, *, bell: bool) -> Flow[int]:
        """Be there, keep what is this relay's, take what is its share; the lanes it holds now, a bit for each.

        Parameters: ``holder`` this relay's own name; ``bell`` whether it listens.
        """
        dialect, sql = self._dialect, self._sql
        mine: Values = {"holder": holder, "lease": lease_us}
        yield from dialect.together()
        yield from dialect.write(sql["attend"], {**mine, "bell": int(bell)})
        yield from dialect.write(sql["renew"], mine)
        [(relays,)] = yield from dialect.rows(sql["count"], {})
        share = -(-LANES // max(1, cast(int, relays)))
        held = yield from self._mine(holder)
        for lane in held[share:]:  # for those that have come since
            yield from dialect.write(sql["give"], {"holder": holder, "lane": lane})
        if len(held) < share:
            yield from dialect.write(sql["take"], {**mine, "limit": share - len(held)})
            held = yield from self._mine(holder)
        return sum(1 << lane for lane in held[:share])

    def _mine(self, holder: str) -> Flow[list[int]]:
        rows = yield from self._dialect.rows(self._sql["mine"], {"holder": holder})
        return [cast(int, lane) for (lane,) in rows]

    def leave(self, holder: str, lease_us: int) -> Flow[None]:
        """Be gone, and leave everything to others. Those that were not heard of for ten leases are forgotten, too."""
        yield from self._dialect.together()
        yield from self._dialect.write(self._sql["leave"], {"holder": holder})
        yield from self._dialect.write(self._sql["sign_off"], {"holder": holder})
        yield from self._dialect.write(self._sql["forget"], {"lease": lease_us})
