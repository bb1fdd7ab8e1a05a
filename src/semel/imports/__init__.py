"""Files that suppliers send: identified by their content, imported once, each row booked once."""

from semel.errors import ImportRefused, ItemFailed
from semel.imports.booking import Row, RowOutcome
from semel.imports.content import Content, ContentMissing, DatabaseContent, FolderContent
from semel.imports.preview import Preview
from semel.imports.readers import Csv, JsonArray, JsonLines
from semel.imports.rules import (
    ClientKey,
    ContentKey,
    Counts,
    Facts,
    ImportJob,
    ImportState,
    PeriodKey,
    RowInvalid,
    VersionKey,
)
from semel.imports.run import Imports
from semel.imports.store import Purged
from semel.imports.worker import ImportWorker

__all__ = [
    "ClientKey",
    "Content",
    "ContentKey",
    "ContentMissing",
    "Counts",
    "Csv",
    "DatabaseContent",
    "Facts",
    "FolderContent",
    "ImportJob",
    "ImportRefused",
    "ImportState",
    "ImportWorker",
    "Imports",
    "ItemFailed",
    "JsonArray",
    "JsonLines",
    "PeriodKey",
    "Preview",
    "Purged",
    "Row",
    "RowInvalid",
    "RowOutcome",
    "VersionKey",
]
