"""The register of cases: a table of the business, in the database that has Semel's tables too.

``python -m examples.cases.register fill 300`` makes so many cases more, ``list`` prints them as the list of a bulk,
``unlock`` ends every edit, ``show`` says where they stand. ``SEMEL_URL`` names the database.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from typing import Any

from semel import ItemFailed

URL = os.environ.get("SEMEL_URL", "sqlite:///cases.db")
FILE = URL.removeprefix("sqlite:///")


def fill(count: int) -> None:
    """Open cases, of which every 50th is being edited, and every 75th was rejected."""
    with closing(sqlite3.connect(FILE)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS cases (id TEXT PRIMARY KEY, state TEXT, locked_by TEXT)")
        db.execute("CREATE TABLE IF NOT EXISTS approvals (id INTEGER PRIMARY KEY, case_id TEXT, approved_by TEXT)")
        [(known,)] = db.execute("SELECT count(*) FROM cases")
        for number in range(known + 1, known + count + 1):
            state, locked_by = "rejected" if number % 75 == 0 else "open", "bob" if number % 50 == 0 else None
            db.execute("INSERT INTO cases VALUES (?, ?, ?)", (f"case-{number:04}", state, locked_by))


def list_cases() -> list[str]:
    """The open cases, as JSON lines."""
    with closing(sqlite3.connect(FILE)) as db:
        return [json.dumps({"case": id}) for (id,) in db.execute("SELECT id FROM cases WHERE state <> 'approved'")]


def approve(db: sqlite3.Connection, case: str, by: str) -> str:
    """Approve a case; the approval's id. The caller commits the connection. Raises ItemFailed."""
    row = db.execute("SELECT state, locked_by FROM cases WHERE id = ?", (case,)).fetchone()
    if row is None or row[0] != "open":
        raise ItemFailed("NOT_OPEN", written=False)
    if row[1] is not None:
        raise ItemFailed("LOCKED", retryable=True, written=False)
    db.execute("UPDATE cases SET state = 'approved' WHERE id = ?", (case,))
    written = db.execute("INSERT INTO approvals (case_id, approved_by) VALUES (?, ?)", (case, by))
    return f"approval-{written.lastrowid}"


def unlock() -> None:
    """End the editing of a case."""
    with closing(sqlite3.connect(FILE)) as db, db:
        db.execute("UPDATE cases SET locked_by = NULL")


def show() -> dict[str, Any]:
    """How many cases are in each state, and how many approvals there are, once for each case."""
    with closing(sqlite3.connect(FILE)) as db:
        states = dict(db.execute("SELECT state, count(*) FROM cases GROUP BY state ORDER BY state").fetchall())
        [(approvals, cases)] = db.execute("SELECT count(*), count(DISTINCT case_id) FROM approvals")
    return {**states, "approvals": approvals, "casesWithApproval": cases}


def main(words: list[str]) -> str | None:
    """Do what the command line asks for."""
    match words:
        case ["fill", count]:
            fill(int(count))
        case ["list"]:
            print("\n".join(list_cases()))
        case ["unlock"]:
            unlock()
        case ["show"]:
            print(" ".join(f"{name}={value}" for name, value in show().items()))
        case _:
            return "usage: python -m examples.cases.register fill COUNT | list | unlock | show"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
