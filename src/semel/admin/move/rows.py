"""Move the rows other than records into another store: operations, bulks, items, events, messages, steps, imports.

The move copies rows unchanged, in the order in which they were written, a page at a time. It looks for each row first
and reads it back. An interrupted move therefore continues, and a finished one does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from semel.admin.failures import CommandFailed
from semel.admin.words import Json
from semel.cli.progress import ProgressLine
from semel.engine.sync_engine import Engine
from semel.operations.flow import is_kept_by
from semel.stores.sql.statements import Row
from semel.stores.sql.tables import NOUNS, Copies, Holdings, Noun, describe_row, is_alike, is_behind, name_of, place_of


@dataclass(slots=True)
class RowsMoved:
    """The number of rows of each kind that were copied, and that existed already."""

    copied: dict[str, int] = field(default_factory=dict)
    there: dict[str, int] = field(default_factory=dict)

    def document(self) -> dict[str, Json]:
        """Return the counts as JSON."""
        return {name: {"copied": count, "alreadyThere": self.there[name]} for name, count in self.copied.items()}


def holdings(engine: Engine) -> Holdings | None:
    """Count the rows other than records in a store; None if it cannot hold any."""
    if not is_kept_by(engine.store):
        return None
    return engine.perform("move", Copies(engine.store).holdings)


def check_relays(engine: Engine) -> None:
    """Raise CommandFailed while a relay publishes the store's events, because it would publish them twice."""
    alive = engine.perform("move", Copies(engine.store).relay_us) if is_kept_by(engine.store) else 0
    if alive:
        raise CommandFailed(
            f"a relay publishes the events of --from (believed alive for {-(-alive // 1_000_000)} s more): events that "
            "it publishes during the move would be published twice. Stop semel worker, wait that long, and run the "
            "move again"
        )


def check_fits(held: Holdings | None, target: Engine) -> None:
    """Raise CommandFailed if the target cannot hold the source's rows other than records."""
    if held is None or held.is_empty or is_kept_by(target.store):
        return
    wanted = ""
    if held.waiting + held.parked:
        wanted = " First let semel worker publish the waiting events, and drop or retry the parked ones (semel events)."
    raise CommandFailed(
        f"--from holds {describe_holdings(held)}; --to is not a SQL database and cannot hold them.{wanted} Move to a "
        "SQL database, or deliberately leave them behind: --records-only"
    )


def describe_holdings(held: Holdings) -> str:
    """Describe in words the rows of a store other than records.

    >>> describe_holdings(Holdings(2, 1, 40, 3, 0, 0, 5, 0, 12, imports=2, files=1))
    '2 operations, 1 bulks with 40 items, 3 events that are not published, 5 messages, 2 imports, 1 kept files'
    """
    parts = [
        (held.operations, f"{held.operations} operations"),
        (held.bulks, f"{held.bulks} bulks with {held.items} items"),
        (held.waiting, f"{held.waiting} events that are not published"),
        (held.parked, f"{held.parked} parked events"),
        (held.published, f"{held.published} published events"),
        (held.messages, f"{held.messages} messages"),
        (held.steps, f"the steps of {held.steps} executions without an outcome"),
        (held.imports, f"{held.imports} imports"),
        (held.outside, f"{held.outside} of them with bytes in a folder or an object store"),
        (held.files, f"{held.files} kept files"),
        (held.known_rows, f"{held.known_rows} booked rows that imports know"),
    ]
    return ", ".join(text for count, text in parts if count) or "nothing beside records"


def copy_rows(
    source: Engine, target: Engine, held: Holdings, nouns: Sequence[Noun] = NOUNS, *, asked: bool = False
) -> RowsMoved:
    """Copy every row of these kinds, and read it back.

    Raises CommandFailed where the target has a different row in its place; StoreError.
    """
    moved = RowsMoved()
    totals = {**held._asdict(), "events": held.waiting + held.parked + held.published}
    for noun in nouns:
        moved.copied[noun.name] = moved.there[noun.name] = 0
        progress = ProgressLine(f"move {noun.name}", asked=asked, total=totals.get(noun.name))
        for rows in pages_of(source, noun):
            _copy(target, noun, rows, moved)
            progress.tell(moved.copied[noun.name] + moved.there[noun.name])
        progress.end()
    return moved


def pages_of(engine: Engine, noun: Noun) -> Iterator[list[Row]]:
    """Yield every row of a kind, a page at a time."""
    copies = Copies(engine.store)
    after = noun.first
    while True:
        rows = engine.perform("move", lambda after=after: copies.page(noun, after))  # type: ignore[misc]
        if rows:
            yield rows
            after = place_of(noun, rows[-1])
        if len(rows) < noun.page:
            return


def _copy(target: Engine, noun: Noun, rows: Sequence[Row], moved: RowsMoved) -> None:
    copies = Copies(target.store)
    plain = [row[: len(noun.columns)] for row in rows]
    there = target.perform("move", lambda: copies.there(noun, plain))
    left = []
    for row in plain:
        copy = there.get(name_of(noun, row))
        if copy is None or is_behind(noun, row, copy):
            left.append(row)
    if left:
        target.perform("move", lambda: copies.put(noun, left))
        there |= target.perform("move", lambda: copies.there(noun, left))
    for row in plain:
        copy = there.get(name_of(noun, row))
        if copy is None or not is_alike(noun, row, copy):
            if noun.name == "steps" and copy is None:
                continue  # of an expired record, which was left behind
            why = " (or another operation has its business reference)" if noun.name == "operations" else ""
            raise CommandFailed(
                f"{describe_row(noun, row)} could not be verified in the target: a different row is in its place{why}; "
                "compare both stores"
            )
    moved.copied[noun.name] += len(left)
    moved.there[noun.name] += len(plain) - len(left)
