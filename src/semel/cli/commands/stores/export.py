"""`semel export`: records and dependent rows as JSON lines or CSV, a page at a time, to stdout or a complete file.

An export never contains keys, which the store does not hold, nor requests, nonces and fingerprints. It contains stored
answers only on request.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from typing import Final

from semel.admin.export_rows import KINDS, answer_document, columns, document_of, documents
from semel.admin.failures import UsageFailed
from semel.admin.filters import add_filters, pages, query_of
from semel.admin.words import Json
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.progress import ProgressLine, add_progress
from semel.cli.terminal import Output
from semel.cli.whole_file import WholeFile
from semel.core.model import Find, Record
from semel.engine.sync_engine import Engine
from semel.sealing.rules import Seals
from semel.telemetry import safe

# An answer may have a megabyte: read few at once.
ANSWERS_AT_ONCE: Final = 8
DAMAGED_SHOWN_MAX: Final = 5
# A spreadsheet runs a cell that begins with one of these as a formula. The last four are full-width.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")

Write = Callable[[str], None]
Document = Mapping[str, Json]


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "export",
        "write records, or operations, items, events and messages, as JSON lines or CSV",
        "semel export > records.jsonl\n"
        "semel export --format csv --output records.csv --state unknown\n"
        "semel export --operation payments.create --answers --output answers.jsonl --force\n"
        "semel export --of events > events.jsonl",
        "Streams, so that memory use does not grow with the number of records. Writes the file completely or not at "
        "all, readable only by its owner. Never contains keys, requests or credentials.",
    )
    add_filters(parser)
    parser.add_argument(
        "--of", choices=("records", *KINDS), default="records", help="what to export; only records have filters"
    )
    parser.add_argument("--format", choices=("jsonl", "csv"), default="jsonl", help="jsonl (default) or csv")
    parser.add_argument(
        "--answers",
        action="store_true",
        help="include the stored answers (status, headers and body), the payloads of events and the details of items",
    )
    parser.add_argument(
        "--open",
        action="store_true",
        help="with --answers: decrypt sealed answers with the keys in SEMEL_SEAL_KEYS_FILE",
    )
    parser.add_argument("--output", metavar="FILE", help="where to (default: stdout)")
    parser.add_argument("--force", action="store_true", help="with --output: replace an existing file")
    add_progress(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Export the rows, and report their number."""
    if options.of != "records" and query_of(options) != Find():
        raise UsageFailed("--state, --operation, --tenant, --caller and --lapsed are about records: leave out --of")
    if options.open and not options.answers:
        raise UsageFailed("--open is about the answers: give --answers too")
    if options.output is None or options.output == "-":
        with open_store(options) as engine:
            _export(engine, options, out, out.raw)
        out.flush()
        return Exit.OK
    # Before the export: otherwise an existing file would be noticed an hour too late.
    with WholeFile(options.output, "--output", replace=options.force) as file, open_store(options) as engine:
        count = _export(engine, options, out, file.write)
        file.keep()
    out.document({"exported": count, "of": options.of, "file": options.output, "format": options.format})
    out.say(f"exported: {count} {options.of} to {options.output}")
    return Exit.OK


class _Damaged:
    """Damaged rows, exported without their unreadable parts; a report names the first ones."""

    def __init__(self) -> None:
        self.count = 0
        self.named: list[str] = []

    def add(self, name: str, damage: str) -> None:
        self.count += 1
        if len(self.named) < DAMAGED_SHOWN_MAX:
            self.named.append(f"{name} ({damage})")

    def tell(self, out: Output) -> None:
        if self.count:
            more = "" if self.count <= len(self.named) else f" and {self.count - len(self.named)} more"
            out.note(
                f"semel: damaged, exported without unreadable parts: {'; '.join(self.named)}{more}; restore from a "
                "backup"
            )


def _export(engine: Engine, options: argparse.Namespace, out: Output, write: Write) -> int:
    query, of, contents = query_of(options), options.of, options.answers
    total = None
    if of == "records" and query == Find():
        total = sum(engine.perform("counts", engine.store.counts).values())
    damaged = _Damaged()
    progress = ProgressLine("export", asked=options.progress, total=total)
    if of == "records":
        sealer = engine.core.sealer if options.open else None
        if options.open and sealer is None:
            raise UsageFailed("--open needs the key ring: SEMEL_SEAL_KEYS_FILE names its file")
        found = _documents(engine, query, sealer, damaged.add, answers=contents)
        heads = [
            *_columns(),
            *(("answerHeaders", "answerBody", "answerBodyBase64", "answerSealedUnder") if contents else ()),
        ]
    else:
        found = documents(engine, of, contents=contents, damaged=damaged.add)
        heads = columns(of, contents=contents)
    put = _csv(write, heads, shown=write == out.raw and out.is_terminal) if options.format == "csv" else _lines(write)
    count = 0
    for document in found:
        put(document)
        count += 1
        progress.tell(count)
    progress.end()
    damaged.tell(out)
    return count


def _documents(
    engine: Engine, query: Find, sealer: Seals | None, damaged: Callable[[str, str], None], *, answers: bool
) -> Iterator[Document]:
    for page in pages(engine, query):
        if not answers:
            for record in page.records:
                yield document_of(record, page.now)
            continue
        for start in range(0, len(page.records), ANSWERS_AT_ONCE):
            ids = tuple(record.id for record in page.records[start : start + ANSWERS_AT_ONCE])
            for whole in engine.perform("read", lambda ids=ids: engine.store.read(ids)):  # type: ignore[misc]
                if whole is not None:  # purged between the two reads
                    yield {**document_of(whole, page.now), **answer_document(whole, sealer, damaged)}


def _lines(write: Write) -> Callable[[Document], None]:
    def put(document: Document) -> None:
        write(json.dumps(document) + "\n")

    return put


def _csv(write: Write, heads: list[str], *, shown: bool) -> Callable[[Document], None]:
    """Write rows under one header, also where there are no rows; ``shown`` on a terminal: made safe."""
    buffer = StringIO()
    rows = csv.writer(buffer, lineterminator="\r\n")  # RFC 4180

    def put_row(cells: list[str]) -> None:
        buffer.seek(0)
        buffer.truncate()
        rows.writerow([safe(cell) for cell in cells] if shown else cells)
        write(buffer.getvalue())

    put_row(heads)
    return lambda document: put_row([cell(value) for value in document.values()])


def _columns() -> list[str]:
    nobody = Record(bytes(16), 1, "", "", "", b"", "", b"", 1, 3, 0, b"", "", 1, 0, 0, bytes(16), *(0,) * 10)
    return list(document_of(nobody, 0))


def cell(value: Json) -> str:
    """Format a value as a cell that no spreadsheet takes for a formula.

    >>> cell("=1+1"), cell(-5), cell(None), cell(True), cell([["a", "b"]])
    ("'=1+1", '-5', '', 'true', '[["a", "b"]]')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return json.dumps(value)
