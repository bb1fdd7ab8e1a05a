"""`semel openapi`: the OpenAPI document of an application, with what Semel promises and refuses for each operation.

FastAPI describes its own operations; for any other application the document has only the declarations to Semel, without
bodies. The command imports the application and does not start it.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
from typing import Any, Final

from semel.admin.failures import UsageFailed
from semel.check.application import DJANGO_HINT, load_server
from semel.check.discovery import CheckedOperation, discover, parts_of
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit
from semel.cli.terminal import Output
from semel.errors import SemelError
from semel.http.openapi import add_schemas, describe_operation, operation_responses
from semel.http.problems import KINDS, MIDDLEWARE_KINDS
from semel.operations.http import BAD_QUERY, NOT_FOUND

_PARAMETER: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")
_SCHEMAS: Final = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "uuid": {"type": "string", "format": "uuid"},
}


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "openapi",
        "print the OpenAPI document of an application, with the key, the refusals and the promise of each operation",
        "semel openapi shop.main:app > openapi.json\nsemel openapi 'shop.main:make_app()'",
        "Completes a FastAPI application's own document; for any other application, prints the operations declared to "
        "Semel. The application is imported, not started.",
    )
    parser.add_argument("application", nargs="?", metavar="APPLICATION", help="module:app or module:make_app()")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Print the document."""
    spec = options.application or getattr(options.project, "application", None)
    if spec is None:
        raise UsageFailed("give an application, such as shop.main:app (see semel openapi --help)")
    app = load_server(spec)
    try:
        document = document_of(app)
    except SemelError as error:
        raise UsageFailed(f"APPLICATION {spec}: {error}") from error
    if not document["paths"]:
        raise UsageFailed(
            f"APPLICATION {spec} declares no operation that can be seen: use @semel.command or Operation{DJANGO_HINT}"
        )
    out.document(document)
    out.say(*json.dumps(document, indent=2).splitlines())
    return Exit.OK


def document_of(app: Any) -> dict[str, Any]:
    """Return the OpenAPI document of an ASGI or WSGI application."""
    document = _own_document(app)
    paths: dict[str, Any] = document["paths"]
    used: set[str] = set()  # operation ids, which must be unique in a document
    declared = [each for each in discover(app).operations if not each.path.endswith("*") and each.bulk is None]
    for operation in declared:
        path = _PARAMETER.sub(r"{\1}", operation.path)
        for method in operation.methods:
            described = paths.setdefault(path, {}).setdefault(method.lower(), _bare(operation))
            if "x-semel" not in described:
                _describe(described, operation, method, used)
    for operation in declared:
        _add_status(paths, operation)
    if declared:
        add_schemas(document)
    return document


def _own_document(app: Any) -> dict[str, Any]:
    for part, _ in parts_of(app):
        make = getattr(part, "openapi", None)
        if callable(make) and isinstance(getattr(part, "openapi_version", None), str):  # FastAPI
            found: dict[str, Any] = copy.deepcopy(make())
            found.setdefault("paths", {})
            return found
    title = next(
        (name for part, _ in parts_of(app) if isinstance(name := getattr(part, "name", None), str)), "Commands"
    )
    return {"openapi": "3.1.0", "info": {"title": title, "version": "0"}, "paths": {}}


def _bare(operation: CheckedOperation) -> dict[str, Any]:
    """Describe an operation that its framework does not describe: only the parameters of its path."""
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _SCHEMAS.get(kind, {"type": "string"})}
        for name, kind in _PARAMETER.findall(operation.path)
    ]
    return {"parameters": parameters, "responses": {"2XX": {"description": "What the application answers"}}}


def _describe(described: dict[str, Any], operation: CheckedOperation, method: str, used: set[str]) -> None:
    surface = operation.surface
    header = "Idempotency-Key" if surface is None else surface.key_header
    kinds = (*KINDS, *MIDDLEWARE_KINDS) if operation.way == "middleware" else KINDS
    methods, _, path = operation.name.partition(" ")
    name = f"{method} {path}" if methods == "|".join(operation.methods) else operation.name  # one for each, unnamed
    if "operationId" not in described:
        base = f"{name}.{method.lower()}" if len(operation.methods) > 1 else name
        described["operationId"] = base if base not in used else f"{base} {operation.path}"
        used.add(base)
    describe_operation(described, name, operation.policy, header, kinds=kinds)


def _add_status(paths: dict[str, Any], operation: CheckedOperation) -> None:
    """Add the status resource that the links in this operation's answers lead to."""
    path = None if operation.surface is None else operation.surface.problems.operations_path
    if path is None or not path.startswith("/"):
        return
    responses = {str(status): each for status, each in operation_responses((BAD_QUERY, NOT_FOUND)).items()}
    one = {"name": "operation_id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}
    known = {_PARAMETER.sub("{}", each) for each in paths}
    if path.replace("{id}", "{}") not in known:
        summary = "The status of an operation"
        paths[path.replace("{id}", "{operation_id}")] = {
            "get": {"summary": summary, "parameters": [one], "responses": responses}
        }
