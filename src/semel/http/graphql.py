"""GraphQL over HTTP: an answer of 200 may hold errors, and then it is not a success."""

from __future__ import annotations

import gzip
import io
import json
from typing import Final, Literal

from semel.core.model import Answer

_ENCODING = b"content-encoding"
_BYTES_MAX: Final = 16 * 1024 * 1024  # the limit of a gzipped answer after decompression


def graphql_success(answer: Answer) -> bool | Literal["nothing"]:
    """Judge a GraphQL answer: ``Policy(success=graphql_success)``.

    Parameters: ``answer`` of one request, or of a batch (a JSON array); gzip is read.

    Returns True if there are no errors; ``"nothing"`` if there are errors and no ``data``: the document was refused
    before a field ran; False if fields ran and there are errors: their effects are not known. For a batch, True if all
    parts succeeded, ``"nothing"`` if none ran.

    Raises ValueError if the body is not a GraphQL answer: the outcome is then unknown.

    Source: GraphQL specification (October 2021), 7.1: no ``data`` entry where the error came before execution began.

    >>> from semel.core.model import Answer
    >>> graphql_success(Answer(200, (), b'{"data": {"pay": {"id": "17"}}}'))
    True
    >>> graphql_success(Answer(200, (), b'{"data": null, "errors": [{"message": "timed out"}]}'))
    False
    >>> graphql_success(Answer(200, (), b'{"errors": [{"message": "Cannot query field"}]}'))
    'nothing'
    """
    coding = [value.strip().lower() for name, value in answer.headers if name.lower() == _ENCODING]
    if coding not in ([], [b"gzip"]):
        raise ValueError("the answer has a Content-Encoding that Semel cannot decode; compress it outside of Semel")
    document = json.loads(_unpack(answer.body) if coding else answer.body)
    parts = document if isinstance(document, list) and document else [document]
    meanings = {_meaning(part) for part in parts}
    return meanings.pop() if len(meanings) == 1 else False


def _unpack(body: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
        plain = packed.read(_BYTES_MAX + 1)
    if len(plain) > _BYTES_MAX:
        raise ValueError(f"the answer has more than {_BYTES_MAX} bytes after decompression and is not parsed")
    return plain


def _meaning(part: object) -> bool | Literal["nothing"]:
    if not isinstance(part, dict) or not ("data" in part or part.get("errors")):
        raise ValueError("the answer is not a GraphQL answer: it has neither data nor errors")
    if not part.get("errors"):
        return True
    return False if "data" in part else "nothing"
