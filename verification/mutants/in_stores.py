"""Mutants of the stores: the memory store's verbs, and the text of SQLite's statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from semel.core.decide import decide, is_grant_new
from semel.core.flow import Flow, ask
from semel.core.model import Claim, KeyReused, Proceed, Verdict
from semel.stores.memory.store import TableCall, grant_row
from semel.stores.sqlite.bundles import SETTLE
from semel.stores.sqlite.store import SQL
from verification.explore.replacing import Patch, replace_everywhere, text_replaced
from verification.mutants.mutant import Mutant


def _says(statement: str, passage: str, other: str) -> Patch:
    return lambda: text_replaced(SQL[statement], passage, other)


def _says_together(passage: str, other: str) -> Patch:
    return lambda: text_replaced(SETTLE, passage, other)


def _reads_then_writes(_: Any) -> Any:
    """The claim as two steps: another process may act between them."""

    def claim(self: Any, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        seen = yield from ask(TableCall("read", lambda table, now: [table.row(one.id) for one in claims]))

        def write(table: Any, now: int) -> list[Verdict]:
            verdicts: list[Verdict] = []
            for one, row in zip(claims, seen, strict=True):
                verdict = decide(row, one, now)
                if type(verdict) is Proceed and is_grant_new(row, verdict.grant):
                    table.put(grant_row(row, one, verdict.grant))
                verdicts.append(verdict)
            return verdicts

        return (yield from ask(TableCall("claim", write)))

    return claim


def _deletes_on_conflict(original: Any) -> Any:
    """Another request under the key takes the record with it: the key is free, and what was done is forgotten."""

    def claim(self: Any, claims: Sequence[Claim]) -> Flow[list[Verdict]]:
        verdicts: list[Verdict] = yield from original(self, claims)

        def drop(table: Any, now: int) -> None:
            for one, verdict in zip(claims, verdicts, strict=True):
                row = table.records.get(one.id)
                if type(verdict) is KeyReused and row is not None:
                    table.drop(row)

        yield from ask(TableCall("drop", drop))
        return verdicts

    return claim


MUTANTS: Final = (
    Mutant(
        name="delete-on-conflict",
        does="a conflict deletes the record it is a conflict with",
        breaks="I4",
        part="contract",
        patch=lambda: replace_everywhere("semel.stores.memory.store:MemoryStore.claim", _deletes_on_conflict),
    ),
    Mutant(
        name="claim-reads-then-writes",
        does="a claim of the memory store is a read and a later write",
        breaks="I4",
        part="orders",
        patch=lambda: replace_everywhere("semel.stores.memory.store:MemoryStore.claim", _reads_then_writes),
    ),
    Mutant(
        name="sqlite-claim-overwrites",
        does="SQLite's claim replaces the row that is there",
        breaks="I4",
        part="contract",
        patch=_says(
            "insert_claim",
            "ON CONFLICT (id) DO NOTHING",
            "ON CONFLICT (id) DO UPDATE SET nonce = excluded.nonce, fence = excluded.fence",
        ),
    ),
    Mutant(
        name="sqlite-settle-without-fence",
        does="SQLite's settle does not compare the fence",
        breaks="I3",
        part="contract",
        patch=_says("settle", "AND fence = ?", "AND ? > 0"),
    ),
    Mutant(
        name="sqlite-settle-without-nonce",
        does="SQLite's settle does not compare the nonce",
        breaks="I3",
        part="contract",
        patch=_says("settle", "AND nonce = ?", "AND ? IS NOT NULL"),
    ),
    Mutant(
        name="sqlite-settle-of-anything",
        does="SQLite's settle does not ask whether the record is open",
        breaks="I3",
        part="contract",
        patch=_says("settle", "AND state IN (1, 2)", "AND state > 0"),
    ),
    Mutant(
        name="sqlite-settle-after-giving-back",
        does="SQLite's settle accepts a settlement from a holder that gave its lease back",
        breaks="I3",
        part="contract",
        patch=_says("settle", "AND lease_until > 0", "AND lease_until >= 0"),
    ),
    Mutant(
        name="sqlite-retention-swapped",
        does="SQLite forgets with the answer's retention",
        breaks="I4",
        part="contract",
        patch=_says("settle", "max(answer_us, tombstone_us)", "min(answer_us, tombstone_us)"),
    ),
    Mutant(
        name="sqlite-answers-together-without-fence",
        does="SQLite's statement for many answers does not compare the fence",
        breaks="I3",
        part="contract",
        patch=_says_together("AND fence = ?9", "AND ?9 > 0"),
    ),
    Mutant(
        name="sqlite-answers-together-without-nonce",
        does="SQLite's statement for many answers does not compare the nonce",
        breaks="I3",
        part="contract",
        patch=_says_together("AND nonce = ?10", "AND ?10 IS NOT NULL"),
    ),
    Mutant(
        name="sqlite-answers-together-of-anything",
        does="SQLite's statement for many answers does not ask whether the record is open",
        breaks="I3",
        part="contract",
        patch=_says_together("AND state IN (1, 2)", "AND state > 0"),
    ),
    Mutant(
        name="sqlite-answers-together-after-giving-back",
        does="SQLite's statement for many answers takes a settlement from a holder that gave its lease back",
        breaks="I3",
        part="contract",
        patch=_says_together("AND lease_until > 0", "AND lease_until >= 0"),
    ),
    Mutant(
        name="sqlite-answers-together-retention-swapped",
        does="SQLite's statement for many answers keeps a record only for as long as its answer",
        breaks="I4",
        part="contract",
        patch=_says_together("max(answer_us, tombstone_us)", "min(answer_us, tombstone_us)"),
    ),
    Mutant(
        name="sqlite-write-without-version",
        does="SQLite writes over a record that has changed since it was read",
        breaks="I3",
        part="orders",
        patch=_says(
            "write_record",
            "AND state = ?\n    AND lease_until = ? AND answer_kind = ? AND doubt IS ?",
            "AND ifnull(?, ifnull(?, ifnull(?, ifnull(?, 1)))) IS NOT NULL",
        ),
    ),
    Mutant(
        name="sqlite-doubt-not-compared",
        does="a renewal undoes the holder's own statement that the outcome is unknown",
        breaks="I3",
        part="orders",
        patch=_says("write_record", "AND doubt IS ?", "AND ifnull(?, 1) IS NOT NULL"),
    ),
    Mutant(
        name="sqlite-answer-not-dropped",
        does="the purge of SQLite leaves the body where it is",
        breaks="I2",
        part="contract",
        patch=_says("drop_answer", "SET answer_kind = 2, headers = NULL, body = NULL", "SET answer_kind = 2"),
    ),
    Mutant(
        name="sqlite-lapse-skips",
        does="SQLite's reaper does not see EXTERNAL commands",
        breaks="I6",
        part="contract",
        patch=_says("find_lapsed", "effects <> 2", "effects = 1"),
    ),
)
