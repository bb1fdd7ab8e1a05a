"""Old and new processes share a store: records that each revision wrote are read by the other one's code.

The previous revision's code is in ``semel-59a3202.zip`` beside this file, not taken out of git: a shallow clone, a
source archive or a rewritten history has no such commit, and then half of this test would be missing. It is
``src/semel`` of that commit without the packages that are not needed here; it is never changed, and the next release
adds its own beside it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

from tests.servers.postgres import postgres, schema
from tests.servers.running import once
from verification.subjects.postgres import empty_schema

HERE: Final = Path(__file__).parent
ACTS: Final = HERE / "acts.py"
FORMER: Final = HERE / "semel-59a3202.zip"
REVISIONS: Final = ("old", "new")
RETRIES: Final[dict[str, list[Any]]] = {
    "succeeded": ["replayed", "paid"],
    "succeeded atomic": ["replayed", "paid"],
    "succeeded in steps": ["replayed", "paid in steps"],
    "succeeded kept": ["replayed", "paid"],
    "refused": ["replayed", "declined"],
    "unknown": ["OutcomeUnknownError"],
    "given back": ["ran", "paid", "pay"],
    "nothing happened": ["ran", "paid", "pay"],
    "abandoned": ["OutcomeUnknownError"],
    "abandoned idempotent": ["ran", "paid", "pay"],
    "no step begun": ["ran", "paid in steps", "charge", "mail"],
    "in doubt": ["OutcomeUnknownError"],
    "charged": ["ran", "paid in steps", "mail"],
    "charged, resumable": ["ran", "paid in steps", "mail"],
    "bulk whole": [True, 6, 0, 0],
    "bulk half": [False, 5, 0, 1, "item-4", "item-5"],
}


def act(code: str, store: tuple[str, str], what: str) -> dict[str, Any]:
    """Have one revision's process do something; what it saw."""
    home = str(code_of(code))
    command = [sys.executable, "-W", "error", str(ACTS), home, *store, what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["code"].startswith(home), "another revision's code was imported"
    return said


def code_of(code: str) -> Path:
    """Where a revision's code is. The former one is unpacked once a run: from the archive, nothing stays compiled."""
    if code == "new":
        return HERE.parents[1] / "src"

    def unpack(folder: Path) -> None:
        with zipfile.ZipFile(FORMER) as archive:
            archive.extractall(folder)

    return once(FORMER.stem, unpack)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A file, or a server and an empty schema in it."""
    if request.param == "sqlite":
        return str(tmp_path / "semel.db"), ""
    empty_schema(postgres(), schema())
    return postgres(), schema()


@pytest.mark.parametrize("reader", REVISIONS)
@pytest.mark.parametrize("writer", REVISIONS)
def test_each_revision_reads_the_others_records(writer: str, reader: str, store: tuple[str, str]) -> None:
    assert act("old", store, "migrate")["ran"] == ["0001_first", "0002_many_effects"]
    # Not migrated by the new one: both work on the former schema until then, and no old process starts behind it.
    act(writer, store, "write")
    retries = dict(RETRIES)
    if (writer, reader) == ("new", "old"):  # it knows no bulk whose path and query count, and runs none
        retries |= {key: ["RecordUnreadableError"] for key in ("bulk whole", "bulk half")}
    assert act(reader, store, "read")["seen"] == retries
    final = {key: ["replayed", told[1]] for key, told in RETRIES.items() if told[0] == "ran"}
    again = act(writer, store, "read")["seen"]  # and what the reader wrote, by the first one
    assert {key: again[key] for key in final} == final


def test_the_former_revisions_records_are_read_after_the_migration(store: tuple[str, str]) -> None:
    act("old", store, "migrate")
    act("old", store, "write")
    added = [*(["turns"] if store[0] == postgres() else []), "quotas", "waiting_messages"]  # they raise no version
    assert act("new", store, "migrate")["ran"] == ["0003_imports", *added]
    assert act("new", store, "read")["seen"] == RETRIES


def test_records_with_steps_of_the_former_revision_are_not_run_without_them(store: tuple[str, str]) -> None:
    """The former revision charged twice here: its records are as safe as new ones once its code is gone."""
    act("old", store, "migrate")
    act("old", store, "write")
    assert act("new", store, "read without steps")["seen"] == {
        "charged as external": ["RecordUnreadableError"],
        "charged as idempotent": ["RecordUnreadableError"],
        "charged, resumable as atomic": ["RecordUnreadableError"],
        "no step begun as external": ["ran", "paid", "pay"],
        "abandoned idempotent as external": ["OutcomeUnknownError"],
        "given back as atomic": ["OutcomeUnknownError"],
    }


@pytest.mark.parametrize("reader", REVISIONS)
def test_a_process_that_cannot_open_an_answer_never_runs_its_command_again(reader: str, store: tuple[str, str]) -> None:
    act("old", store, "migrate")  # behind the new one's migration no old process starts
    act("new", store, "write withheld")
    assert act(reader, store, "read withheld")["seen"] == {
        # The former revision knows none of them: it was done, and that is all that it can say.
        "sealed": ["RecordUnreadableError" if reader == "new" else "NotReplayableError"],
        "redacted": ["replayed", '{"id":7,"pin":null}'],
        "rebuilt": ["NotReplayableError"],
        "forgotten": ["NotReplayableError"],
        "charged, sealed": ["ConfigurationError" if reader == "new" else "StepError"],
    }


def test_the_first_version_of_the_fingerprint_is_what_it_was(tmp_path: Path) -> None:
    store = str(tmp_path / "semel.db"), ""
    act("old", store, "migrate")
    assert act("new", store, "fingerprints")["seen"] == act("old", store, "fingerprints")["seen"]


def test_the_frozen_code_is_the_previous_revision() -> None:
    """It must not be edited: then it would prove nothing about what is deployed."""
    digest = hashlib.sha256(FORMER.read_bytes()).hexdigest()
    assert digest == "4ee32b65fe6c17cafea1f8f9c8bb61819a693cf62dff714e084da9e74f3c4bf0"
