"""Compare-and-set on records, for stores that write without holding a lock since they read.

A rule makes a new row of the record that was read; it is written only if the record is still the same. If another
writer was quicker, the record is read and the rule asked again, so safety depends on no transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from semel.core.contract import Known
from semel.core.decide import (
    KEPT_COLUMNS,
    decide,
    find_replay_in,
    is_grant_new,
    needs_steps,
)
from semel.core.flow import Flow
from semel.core.model import Claim, Proceed, Record, Replay, Settlement, Settling, Terms, Verdict
from semel.core.settle import settle_row
from semel.steps.store import decide_with_steps
from semel.stores.memory.store import grant_row
from semel.stores.sql.dialect import Dialect
from semel.stores.sql.statements import Value

Seen = tuple[int, Record]  # the time to decide by, and the record as it was then
Rule = Callable[[Record, int], Record | None]
Verdicts = dict[tuple[bytes, bytes], Verdict]  # by a claim's first two fields: its record's id and its nonce


@lru_cache(maxsize=256)
def numbers_of(terms: Terms) -> dict[str, Value]:
    """Return a policy's terms as numbers, by a record's column names; they recur with each of its commands."""
    numbers: dict[str, Value] = {name: int(number) for name, number in terms._asdict().items()}
    return {"state": numbers.pop("starts"), **numbers}


def find_kept_in(rows: Sequence[Sequence[Any]], asked: Sequence[Known]) -> list[Replay | None]:
    """Find the kept answers in rows of the time, whether the record is sound, and :data:`KEPT_COLUMNS`.

    None if only a claim can tell.
    """
    found = {row[_ID_OF_KEPT]: row for row in rows}
    met = [found.get(id) for id, _, _ in asked]
    return [
        None if row is None else find_replay_in(tuple(row[2:]), row[1] == 1, *known, now=row[0])
        for row, known in zip(met, asked, strict=True)
    ]


_ID_OF_KEPT: Final = 2 + KEPT_COLUMNS.index("id")


@dataclass(frozen=True, slots=True)
class Versions:
    """A store's statements for compare-and-set.

    Parameters: ``look`` returns the records of these ids; ``replace`` writes the second record over the first, and
    returns False if the first has changed, or has another list of steps than the given one; ``dialect``
    of the statements for steps.
    """

    look: Callable[[Sequence[bytes]], Flow[dict[bytes, Seen]]]
    replace: Callable[..., Flow[bool]]
    dialect: Dialect

    def decide(self, claim: Claim, now: int, row: Record, verdicts: Verdicts, *, in_unit: bool = False) -> Flow[None]:
        """Decide on an existing record, and write the grant; no verdict if it was deleted meanwhile.

        Parameters: ``in_unit``: in a transaction that is open already, and holds the row's lock.
        """
        while True:
            verdict, steps = decide(row, claim, now), None
            if needs_steps(verdict):
                verdict, steps = yield from decide_with_steps(self.dialect, row, claim, now, locked=in_unit)
            if type(verdict) is not Proceed or not is_grant_new(row, verdict.grant):
                verdicts[claim[:2]] = verdict
                return
            if (yield from self.replace(row, grant_row(row, claim, verdict.grant), steps=steps)):
                verdicts[claim[:2]] = verdict
                return
            found = yield from self.look([claim.id])
            if claim.id not in found:
                return
            now, row = found[claim.id]

    def look_at(self, claims: Sequence[Claim]) -> Flow[list[Verdict | None]]:
        """Return the verdict on each claim's record; None if there is no record, or a claim would write."""
        found = yield from self.look(sorted({claim.id for claim in claims}))
        verdicts: list[Verdict | None] = []
        for claim in claims:
            if claim.id not in found:
                verdicts.append(None)
                continue
            now, row = found[claim.id]
            verdict = decide(row, claim, now)
            if needs_steps(verdict):
                verdict, _ = yield from decide_with_steps(self.dialect, row, claim, now)
            writes = type(verdict) is Proceed and is_grant_new(row, verdict.grant)
            verdicts.append(None if writes else verdict)
        return verdicts

    def rewrite_all(self, rules: Mapping[bytes, Rule]) -> Flow[set[bytes]]:
        """Apply each rule to its record; returns the ids of the written ones."""
        done: set[bytes] = set()
        left = sorted(rules)
        while left:
            found = yield from self.look(left)
            again = []
            for id in left:
                if id not in found:
                    continue
                now, row = found[id]
                written = rules[id](row, now)
                if written is None:
                    continue
                if (yield from self.replace(row, written)):
                    done.add(id)
                else:
                    again.append(id)
            left = again
        return done

    def settle(self, settlement: Settlement) -> Flow[Settling]:
        """Settle one record by the rule."""
        while True:
            found = yield from self.look([settlement.id])
            now, row = found.get(settlement.id, (0, None))
            reply, written = settle_row(row, settlement, now)
            if row is None or written is None:
                return reply
            if (yield from self.replace(row, written)):
                return reply
