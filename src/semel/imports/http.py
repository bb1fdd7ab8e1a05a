"""Imports over HTTP, without IO: the answers, the problems, and the file's description in the request's head."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from semel.core.model import Answer
from semel.errors import (
    ConfigurationError,
    ImportRefused,
    InvalidBody,
    RecordUnreadableError,
    RequestError,
    SchemaError,
    SemelError,
    StoreError,
)
from semel.http.fingerprint.fingerprinter import BodyCheck
from semel.http.fingerprint.multipart import parse_media_type
from semel.http.openapi import describe_responses
from semel.http.problems import CALLER_UNKNOWN, INVALID_BODY, RECORD_UNREADABLE, STORE_UNAVAILABLE, Kind, Problems
from semel.imports.booking import RowOutcome
from semel.imports.preview import Preview
from semel.imports.rules import ImportJob
from semel.imports.run import Imports
from semel.imports.upload import TOO_LARGE

MARK: Final = b"semel-import"
FORM_BYTES: Final = 64 * 1024  # beside the file of a multipart form
KINDS: Final = {
    kind.code.removeprefix("IMPORT_"): kind
    for kind in (
        Kind("IMPORT_EMPTY_FILE", 400, "The file is empty", "keep"),
        Kind("IMPORT_INVALID_SUPPLIER", 400, "The supplier's code is malformed", "keep"),
        Kind("IMPORT_INVALID_VERSION", 400, "The file's version is missing or malformed", "keep"),
        Kind("IMPORT_INVALID_KEY", 400, "The upload's key is missing or malformed", "keep"),
        Kind("IMPORT_NOT_ONE_FILE", 400, "The form does not have one file", "keep"),
        Kind("IMPORT_INVALID_QUERY", 400, "The query cannot be answered", "keep"),
        Kind("IMPORT_NOT_ALLOWED", 403, "The caller may not send files of this supplier", "keep"),
        Kind("IMPORT_NOT_FOUND", 404, "No such import", "keep"),
        Kind("IMPORT_TOO_SLOW", 408, "The file came too slowly", "keep", retryable=True),
        Kind("IMPORT_FILE_TOO_LARGE", 413, "The file is too large", "keep"),
        Kind("IMPORT_MEDIA_TYPE", 415, "The file cannot be read as this media type", "keep"),
        Kind("IMPORT_CONTENT_ENCODING", 415, "The body is compressed", "keep"),
        Kind("IMPORT_KEY_REUSED", 422, "The key belongs to another file", "new"),
        Kind("IMPORT_NO_ROOM", 507, "The server has no room for the file", "keep", retryable=True),
    )
}
_READ: Final = frozenset(
    (b"content-type", b"content-length", b"content-encoding", b"content-digest", b"idempotency-key", b"early-data")
)
_HEADERS: Final = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))


class FileHead(NamedTuple):
    """A file as a request's head describes it. ``boundary`` of a multipart form; None for a raw body."""

    media_type: str
    boundary: bytes | None
    length: int | None
    check: BodyCheck
    client_key: str | None
    is_early: bool


def read_head(headers: Iterable[tuple[bytes, bytes]], imports: Imports) -> FileHead:
    """Read the head of an upload. Raises ImportRefused and InvalidBody before reading the body."""
    read: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _READ:
            read[name] = value if name not in read else read[name] + b", " + value
    if read.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
        raise ImportRefused(
            "send the file as it is, without Content-Encoding: its bytes are its identity", "CONTENT_ENCODING"
        )
    given = read.get(b"content-type", b"").decode("latin-1")
    media = parse_media_type(given)
    if media is None:
        raise ImportRefused("send a Content-Type with the file's media type, such as text/csv", "MEDIA_TYPE")
    boundary = None
    if media.essence == "multipart/form-data":
        boundary = media.boundary.encode("latin-1")
    digits = read.get(b"content-length", b"")
    length = int(digits[:20]) if digits.isdigit() else None
    most = imports.file_bytes_max + (0 if boundary is None else FORM_BYTES)
    if length is not None and length > most:
        raise ImportRefused(TOO_LARGE.format(most=imports.file_bytes_max), "FILE_TOO_LARGE")
    digest = read.get(b"content-digest")
    key = read.get(b"idempotency-key")
    return FileHead(
        given,
        boundary,
        length,
        BodyCheck(None if digest is None else digest.decode("latin-1")),
        None if key is None else _unquote(key.decode("latin-1")),
        b"1" in read.get(b"early-data", b""),
    )


def _unquote(key: str) -> str:
    stripped = key.strip()
    return stripped[1:-1] if len(stripped) > 2 and stripped[0] == stripped[-1] == '"' else stripped


def check_media_type(media_type: str, imports: Imports, *, in_form: bool) -> None:
    """Check that a declared format takes a file. Raises ImportRefused, which explains how to name the type.

    Parameters: ``in_form`` whether the type is that of a form's file part, which has its own header.
    """
    known = [name for form in imports.formats for name in form.media_types]
    essence = media_type.partition(";")[0].strip().lower()
    if essence in known:
        return
    given = f"the media type {essence[:100]!a}" if essence else "no media type"
    what = "the file part of the form" if in_form else "the body"
    curl = f"-F 'file=@FILE;type={known[0]}'" if in_form else f"-H 'Content-Type: {known[0]}' --data-binary @FILE"
    where = "in the part's own Content-Type header" if in_form else "in the Content-Type header"
    raise ImportRefused(
        f"{what} has {given}; it must be one of {', '.join(known)}, {where}: with curl {curl}",
        "MEDIA_TYPE",
    )


def check_length(size: int, head: FileHead) -> None:
    """Raise InvalidBody where the body ended before its Content-Length."""
    if head.length is not None and size != head.length:
        raise InvalidBody("The body is cut short; send it again.")


def answer_submission(job: ImportJob, jobs_path: str) -> Answer:
    """Answer 202 for a new job, 200 for an existing one, with its current state."""
    location = f"{jobs_path}/{job.id}".encode()
    headers = [*_HEADERS, (MARK, b"created" if job.is_new else b"existing"), (b"location", location)]
    if not job.is_over:
        headers.append((b"retry-after", b"1"))
    return _answer(202 if job.is_new else 200, job.document(), headers)


def answer_job(job: ImportJob) -> Answer:
    """Answer with the current state of a job."""
    return _answer(200, job.document(), [*_HEADERS, *([] if job.is_over else [(b"retry-after", b"1")])])


def answer_jobs(jobs: list[ImportJob]) -> Answer:
    """Answer with the jobs found by a key."""
    return _answer(200, {"imports": [job.document() for job in jobs]}, [*_HEADERS])


def answer_rows(rows: list[RowOutcome], after: int | None) -> Answer:
    """Answer with a page of rows' outcomes."""
    return _answer(200, {"rows": [row.document() for row in rows], "after": after}, [*_HEADERS])


def answer_preview(preview: Preview) -> Answer:
    """Answer with the preview of a run."""
    return _answer(200, preview.document(), [*_HEADERS])


def _answer(status: int, document: Mapping[str, Any], headers: list[tuple[bytes, bytes]]) -> Answer:
    body = json.dumps(document, separators=(",", ":")).encode()
    return Answer(status, (*headers, (b"content-length", b"%d" % len(body))), body)


def problem_of(problems: Problems, error: SemelError) -> Answer:
    """Return the answer to a refused upload or query. Nothing of the file is kept."""
    match error:
        case ImportRefused():
            kind = KINDS.get(error.code.removeprefix("IMPORT_"), KINDS["INVALID_QUERY"])
            text = str(error)
            return problems.answer(kind, f"{text[:1].upper()}{text[1:]}.")
        case RecordUnreadableError() | ConfigurationError():  # the error names keys, which only the log may have
            text = "What is kept of these rows is sealed, and this server cannot open it. Ask its operator."
            return problems.answer(RECORD_UNREADABLE, text)
        case RequestError() | StoreError() | SchemaError():
            return problems.of_error(error)
        case _:
            raise error


def describe_path(path: str, *, reads: bool) -> dict[str, Any]:
    """Describe in OpenAPI a path whose endpoint takes only the request.

    Parameters: ``reads`` whether the endpoint reads jobs, and may refuse to.

    >>> described = describe_path("/suppliers/{supplier}/imports/{id:int}", reads=True)
    >>> [parameter["name"] for parameter in described["parameters"]], list(described["responses"])
    (['supplier', 'id'], ['400', '401', '404', '503'])
    """
    names = re.findall(r"\{(\w+)(?::\w+)?\}", path)
    operation: dict[str, Any] = {
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    }
    if reads:
        describe_responses(operation, (KINDS["INVALID_QUERY"], CALLER_UNKNOWN, KINDS["NOT_FOUND"], STORE_UNAVAILABLE))
    return operation


def describe_upload(operation: dict[str, Any], imports: Imports) -> None:
    """Complete the operation object of an upload in an OpenAPI document."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    content: dict[str, Any] = {name: binary for form in imports.formats for name in form.media_types}
    file = {"type": "string", "format": "binary"}
    content["multipart/form-data"] = {"schema": {"type": "object", "properties": {"file": file}, "required": ["file"]}}
    operation["requestBody"] = {"required": True, "content": content}
    responses = operation.setdefault("responses", {})
    job = {"application/json": {"schema": {"type": "object"}}}
    for status, description in (
        ("200", "These bytes are an import already: the job as it is now; or what a run would do (preview=1)"),
        ("202", "The file is kept, and its import is queued"),
    ):
        responses[status] = {"description": description, "content": job}
    describe_responses(operation, (*KINDS.values(), CALLER_UNKNOWN, INVALID_BODY, STORE_UNAVAILABLE))
    operation["x-semel"] = {
        "operation": imports.operation,
        "effects": "IMPORT",
        "rowEffects": imports.bulk.policy.effects,
    }
