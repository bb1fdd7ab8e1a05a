"""Assignment of partitions to relays: evenly shared, and leased, so that other relays take over from a dead one.

Partitions only save work: the order of an aggregate's events does not depend on them (``outbox/worker.py`` says why).
Idle relays hold no partitions, and take turns to look for events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, NamedTuple, cast

from semel.core.flow import Flow
from semel.outbox.rules import PARTITIONS
from semel.outbox.store import Depth
from semel.stores.sql.dialect import Dialect, Values
from semel.stores.sql.statements import Params
from semel.workers.rules import Turn, read_turn

NOUN: Final = "partitions"
IDLE_SEEN_US: Final = 600_000_000  # how long an idle relay still counts as publishing
SHOWN_US: Final = IDLE_SEEN_US // 2  # after which an idle relay renews its sink's mark
SILENT_LEASES: Final = 10  # after which a silent relay is forgotten, unless it is idle and still counts as publishing
_HOLDER_MAX: Final = 191
_SINK: Final = re.compile(r":([0-9a-f]{8}) (.*)\Z", re.DOTALL)


def registration(name: str, sink: str, identity: str) -> str:
    """Return the name a relay registers under: its own and its sink's, so that other relays see where its events go.

    Parameters: ``sink`` a name for people, truncated if too long; ``identity`` tells two sinks apart.

    >>> registration("vm:7:c0ffee", "nats://mq.example", "nats://mq.example")
    'vm:7:c0ffee:b146520c nats://mq.example'
    """
    return f"{name}:{mark_of(identity)} {sink}"[:_HOLDER_MAX]


def sink_of(holder: str) -> tuple[str, str] | None:
    """Return the mark and the name of a registered relay's sink; None for a relay version that does not register it.

    >>> sink_of("vm:7:c0ffee:b146520c nats://mq.example"), sink_of("vm:7:c0ffee")
    (('b146520c', 'nats://mq.example'), None)
    """
    found = _SINK.search(holder)
    return None if found is None else (found[1], found[2])


def mark_of(identity: str) -> str:
    """Return the mark that tells a sink from others."""
    return sha256(identity.encode()).hexdigest()[:8]


class OutboxLook(NamedTuple):
    """An idle relay's look at its turn: how full the outbox is, and to which sinks relays publish."""

    depth: Depth
    sinks: dict[str, str]  # their names, by their marks
    shown: frozenset[str]  # the marks that need no renewal: those of relays that work now, or did recently


def rivals_of(sinks: dict[str, str], identity: str) -> list[str]:
    """Return the other sinks to which relays publish these events: each event goes to only one of the sinks."""
    return sorted({name for mark, name in sinks.items() if mark != mark_of(identity)})


class Partitions:
    """The partitions of one outbox."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._sql = dialect.statements(NOUN)

    def attend(self, holder: str, lease_us: int, *, listens: bool) -> Flow[int]:
        """Register, renew this relay's partitions and take its share; return the partitions it holds, one bit each.

        Parameters: ``holder`` this relay's own name; ``listens`` whether it listens.
        """
        dialect, sql = self._dialect, self._sql
        mine: Values = {"holder": holder, "lease": lease_us}
        yield from dialect.commit_together()
        yield from dialect.write(sql["attend"], {**mine, "bell": int(listens)})
        yield from dialect.write(sql["renew"], mine)
        [(relays,)] = yield from dialect.rows(sql["count"], {})
        share = -(-PARTITIONS // max(1, cast(int, relays)))
        held = yield from self._mine(holder)
        for partition in held[share:]:  # to relays that started in the meantime
            yield from dialect.write(sql["give"], {"holder": holder, "lane": partition})
        if len(held) < share:
            yield from dialect.write(sql["take"], {**mine, "limit": share - len(held)})
            held = yield from self._mine(holder)
        return sum(1 << partition for partition in held[:share])

    def _mine(self, holder: str) -> Flow[list[int]]:
        rows = yield from self._dialect.rows(self._sql["mine"], {"holder": holder})
        return [cast(int, partition) for (partition,) in rows]

    def leave(self, holder: str, lease_us: int) -> Flow[None]:
        """Unregister and release everything. Also deletes relays that were silent for ten minutes and ten leases."""
        yield from self._dialect.commit_together()
        yield from self._dialect.write(self._sql["leave"], {"holder": holder})
        yield from self._dialect.write(self._sql["sign_off"], {"holder": holder})
        yield from self._dialect.write(self._sql["forget"], {"silent": max(lease_us * SILENT_LEASES, IDLE_SEEN_US)})

    def retire(self, holder: str) -> Flow[None]:
        """Release everything while idle, and register as idle; the registration for notifications remains."""
        yield from self._dialect.commit_together()
        yield from self._dialect.write(self._sql["leave"], {"holder": holder})
        yield from self.show(holder)

    def show(self, holder: str) -> Flow[None]:
        """Register as idle from now on, so that other relays see this one."""
        yield from self._dialect.write(self._sql["retire"], {"holder": holder})

    def sinks(self) -> Flow[dict[str, str]]:
        """Return the sinks of relays that publish now or did within ten minutes: their names, by their marks."""
        rows = yield from self._dialect.rows(self._sql["registered"], {"idle": IDLE_SEEN_US})
        return _sinks_of(cast(str, holder) for (holder,) in rows)

    def free(self) -> Flow[int]:
        """Return the number of partitions that no relay holds."""
        [(partitions,)] = yield from self._dialect.rows(self._sql["free"], {})
        return cast(int, partitions)

    def call(self) -> Flow[None]:
        """Wake all relays that listen, where the database notifies."""
        if "call" in self._sql:
            yield from self._dialect.rows(self._sql["call"], {})

    def turn(
        self,
        kind: str,
        mine: int | None,
        every_us: int,
        records: Params,
        holder: str,
        *,
        hold: bool,
        listens: bool,
        gauge: bool,
    ) -> Flow[tuple[Turn, OutboxLook | None]]:
        """Return the ask for an idle relay's next turn (:class:`~semel.workers.rules.TakesTurns`), in one statement.

        Parameters: ``records`` which records the turn sees, for the workers beside the relay (a store's
        ``turn_params``); ``holder`` and ``listens`` as in :meth:`attend`; ``hold`` as in ``Events.due``; ``gauge``
        whether to also read the outbox's depth and the publishing relays.

        Raises SchemaError if the migration ``turns`` has not run.
        """
        params: Params = {
            **records,
            **{"kind": kind, "mine": (yield from self._dialect.take_turn(kind, mine, every_us)), "every": every_us},
            **{"holder": holder, "bell": int(listens), "idle": IDLE_SEEN_US, "hold": int(hold), "gauge": int(gauge)},
        }
        [row] = yield from self._dialect.rows(self._sql["turn"], params)
        now, following, found, due, waiting, parked, oldest, relays = cast(
            "tuple[int, int | None, str, int, int, int, int | None, str | None]", row
        )
        turn = read_turn(now, now + every_us // 2 if following is None else following, found, due)
        if not gauge:
            return turn, None
        there: list[tuple[str, int]] = json.loads(relays or "[]")
        shown = _sinks_of(holder for holder, heard_of in there if heard_of > now - SHOWN_US)
        depth = Depth(waiting, parked, max(0, now - oldest) if isinstance(oldest, int) else 0)
        return turn, OutboxLook(depth, _sinks_of(holder for holder, _ in there), frozenset(shown))


def _sinks_of(holders: Iterable[str]) -> dict[str, str]:
    return dict(filter(None, map(sink_of, holders)))
