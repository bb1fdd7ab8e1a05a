"""Checks of the operation's entry in the API's OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from semel.conform.attempt import Failed, NotTried, Try
from semel.conform.case import Request
from semel.conform.checks.registry import check
from semel.conform.checks.replies import problem
from semel.conform.order import BESIDE_OTHERS
from semel.conform.wire import exchange

_REFERENCES_MAX: Final = 10  # the longest chain of references


async def _document(t: Try) -> dict[str, Any]:
    request = Request("GET", t.case.openapi, b"", "")
    reply = await exchange(t.target, t.encode(None, request), "GET", t.case.limits.timeout_seconds)
    document = problem(reply)
    if reply.ok and not document:
        raise NotTried(f"{t.case.openapi} is not a JSON object; give the path of the document as JSON")
    item = _path_item(document, t.case.request.path.partition("?")[0])
    operation = item.get(t.case.request.method.lower())
    if not isinstance(operation, dict):
        raise Failed(f"{t.case.openapi} ({reply.text()}) has no {t.case.request.method} {t.case.request.path}")
    given = [*_list_of(operation.get("parameters")), *_list_of(item.get("parameters"))]
    responses = operation.get("responses")
    return {
        "parameters": [_resolve(document, each) for each in given],
        "responses": responses if isinstance(responses, dict) else {},
    }


def _list_of(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _path_item(document: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the document's item for a path, matched literally or by a template such as /orders/{id}."""
    paths = document.get("paths")
    if not isinstance(paths, dict):
        return {}
    found = paths.get(path)
    for template, item in paths.items():
        parts = [re.escape(part) for part in re.split(r"\{[^{}/]*\}", template)]
        if found is None and re.fullmatch("[^/]+".join(parts), path):
            found = item
    item = _resolve(document, found)
    return item if isinstance(item, dict) else {}


def _resolve(document: Mapping[str, Any], value: Any) -> Any:
    """Resolve a reference within the document; return any other value unchanged."""
    for _ in range(_REFERENCES_MAX):
        reference = value.get("$ref") if isinstance(value, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        value = document
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            value = value.get(name) if isinstance(value, dict) else None
    return value


@check("openapi-header", BESIDE_OTHERS)
async def _(t: Try) -> None:
    found = (await _document(t)).get("parameters", [])
    names = [str(each.get("name", "")).lower() for each in found if isinstance(each, dict)]
    if t.case.key_header.lower() not in names:
        raise Failed(f"the operation documents no header {t.case.key_header}")


@check("openapi-errors", BESIDE_OTHERS)
async def _(t: Try) -> None:
    found = set((await _document(t)).get("responses", {}))
    lacks = [status for status in ("400", "409", "422") if status not in found]
    if lacks:
        raise Failed(f"the operation does not document {', '.join(lacks)}")


@check("openapi-required", BESIDE_OTHERS)
async def _(t: Try) -> None:
    for each in (await _document(t)).get("parameters", []):
        if isinstance(each, dict) and str(each.get("name", "")).lower() == t.case.key_header.lower():
            if each.get("required", False) is not t.case.key_required:
                raise Failed(f"{t.case.key_header} is documented with required: {each.get('required', False)}")
            return
    raise NotTried(f"the operation documents no header {t.case.key_header}")


@check("openapi-statuses", BESIDE_OTHERS)
async def _(t: Try) -> None:
    documented = {str(status) for status in (await _document(t)).get("responses", {})}
    status = (await t.first(t.key())).status
    if not {str(status), f"{status // 100}XX", "default"} & documented:
        raise Failed(f"the operation answers {status} and documents {', '.join(sorted(documented)) or 'nothing'}")
