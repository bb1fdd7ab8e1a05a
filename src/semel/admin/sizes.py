"""Estimate the size of a store from the measurements in docs/growth.md and docs/redis.md.

The constants here are the only ones; a test compares the table of docs/growth.md with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DAY_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class Measured:
    """The bytes of one record in a store, and the speed of a purge.

    ``row`` without an answer; ``answer`` the overhead beside the answer's own bytes; ``indexes`` all of them, ``ids``
    the one that must be in memory; ``fill`` how full pages are; ``in_memory``: the whole store is; ``purged`` rows a
    second, None where rows expire by themselves.
    """

    row: int
    answer: int
    indexes: int
    ids: int
    fill: float
    in_memory: bool
    purged: int | None


MEASURED: Final[dict[str, Measured]] = {
    "postgresql": Measured(row=360, answer=61, indexes=117, ids=54, fill=0.85, in_memory=False, purged=13_288),
    "sqlite": Measured(row=333, answer=61, indexes=57, ids=28, fill=1.0, in_memory=False, purged=23_392),
    "mariadb": Measured(row=337, answer=61, indexes=116, ids=481, fill=0.7, in_memory=False, purged=9_007),
    "redis": Measured(row=900, answer=0, indexes=0, ids=0, fill=1.0, in_memory=True, purged=None),
}


@dataclass(frozen=True, slots=True)
class Size:
    """A store's steady size, once as many records expire as begin. Rates are per second, sizes in bytes.

    ``memory`` is the memory that claims need to stay as fast; ``purge_share`` the share of time that a
    purge works, None where records expire by themselves.
    """

    engine: str
    rows: int
    bytes: int
    memory: int
    purges_per_second: float
    purge_share: float | None


def sizes(per_second: float, answer_bytes: int, keep_seconds: float, answer_seconds: float) -> list[Size]:
    """Estimate the size of each engine's store.

    Parameters: ``per_second`` new keys; ``answer_bytes`` of a stored answer with its headers; ``keep_seconds`` how long
    a record is kept, and ``answer_seconds`` its answer.

    >>> [size.rows for size in sizes(10, 500, 86_400, 3_600)]
    [864000, 864000, 864000, 864000]
    """
    rows = per_second * keep_seconds
    answered = per_second * min(answer_seconds, keep_seconds)
    drops = per_second if answer_seconds < keep_seconds else 0.0
    found = []
    for name, one in MEASURED.items():
        table = (rows * one.row + answered * (one.answer + answer_bytes)) / one.fill
        total = table + rows * one.indexes
        purges = per_second + drops
        found.append(
            Size(
                name,
                round(rows),
                round(total),
                round(total if one.in_memory else rows * one.ids),
                purges,
                None if one.purged is None else purges / one.purged,
            )
        )
    return found
