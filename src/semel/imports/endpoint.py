"""Imports as endpoints of Starlette and FastAPI applications: a file is taken, a job is answered."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, cast, get_args

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from semel.core.identity import uuid_bytes
from semel.core.model import Answer
from semel.errors import ConfigurationError, ImportRefused, InvalidBody, SemelError
from semel.http.caller import Caller
from semel.http.settings import HttpSettings
from semel.imports.booking import Verdict
from semel.imports.http import (
    FORM_BYTES,
    FileHead,
    check_length,
    describe_path,
    describe_upload,
    problem_of,
    read_head,
    shown_job,
    shown_jobs,
    shown_preview,
    shown_rows,
    submitted,
)
from semel.imports.parts import FileParts
from semel.imports.rules import checked_supplier, supplier_of_key
from semel.imports.run import Imports
from semel.imports.upload import Upload
from semel.integrations.starlette import response_of

IDLE_SECONDS: Final = 60.0
ROWS_MAX: Final = 1000
May = Callable[[Request, str], Any]
SupplierOf = Callable[[Request], object]


class ImportEndpoint:
    """The upload endpoint of one kind of imports, and the questions about its jobs. Made by ``semel.imports(...)``."""

    def __init__(
        self,
        surface: HttpSettings,
        imports: Imports,
        supplier: SupplierOf,
        may: May,
        jobs_path: str,
        idle_seconds: float,
    ) -> None:
        self.imports = imports
        self._surface = surface
        self._supplier = supplier
        self._may = may
        self._jobs_path = jobs_path
        self._idle_seconds = idle_seconds

    def describe(self, operation: dict[str, Any]) -> None:
        """Complete the operation object of this endpoint in an OpenAPI document."""
        describe_upload(operation, self.imports)

    async def upload(self, request: Request) -> Response:
        """Take a file: 202 for a new job, 200 for the one that it has already; `preview=1` says what a run would do."""
        problems = self._surface.problems
        try:
            caller = self._caller(request)
            if caller is None:
                return response_of(problems.caller_unknown())
            supplier = checked_supplier(self._supplier(request))
            if not await self.allows(request, supplier):
                raise ImportRefused("this caller may not send files of this supplier", "NOT_ALLOWED")
            head = read_head(request.scope["headers"], self.imports)
            if head.is_early:
                return response_of(problems.too_early())
            return response_of(await self._take(request, head, caller, supplier))
        except ClientDisconnect:
            return response_of(problem_of(problems, InvalidBody("The body is cut short; send it again.")))
        except TimeoutError:
            slow = ImportRefused(f"no byte of the file came for {self._idle_seconds:g} seconds", "TOO_SLOW")
            return response_of(problem_of(problems, slow))
        except SemelError as error:
            return response_of(self.problem(error))

    async def _take(self, request: Request, head: FileHead, caller: Caller, supplier: str) -> Answer:
        form = None if head.boundary is None else FileParts(head.boundary)
        with self.imports.upload() as upload:
            await self._read(request, head, form, upload)
            media_type = head.media_type if form is None else form.media_type or ""
            version_field = getattr(self.imports.key, "field", None)
            fields = {} if form is None else form.fields
            version = (
                None if version_field is None else request.query_params.get(version_field, fields.get(version_field))
            )
            named: dict[str, Any] = {
                "supplier": supplier,
                "media_type": media_type,
                "tenant": caller.tenant,
                "version": version,
                "client_key": head.client_key,
            }
            if request.query_params.get("preview", "") in ("1", "true"):
                return shown_preview(await self.imports.preview_upload(upload, **named))
            filename = request.query_params.get("filename") if form is None else form.filename
            job = await self.imports.submit_upload(upload, filename=filename, **named)
            return submitted(job, self._jobs_path)

    async def _read(self, request: Request, head: FileHead, form: FileParts | None, upload: Upload) -> None:
        size = 0
        most = self.imports.file_bytes_max + (0 if form is None else FORM_BYTES)
        async for piece in self._pieces(request):
            size += len(piece)
            head.check.feed(piece)
            if size > most:
                raise ImportRefused(f"the file has more than {self.imports.file_bytes_max} bytes", "FILE_TOO_LARGE")
            if form is not None:
                form.feed(piece)
                piece = form.taken()
            await upload.feed(piece)
        check_length(size, head)
        head.check.finish()
        if form is not None:
            form.end()
            await upload.feed(form.taken())
        await upload.flush()
        upload.end()

    async def _pieces(self, request: Request) -> AsyncIterator[bytes]:
        stream = request.stream().__aiter__()
        while True:
            async with asyncio.timeout(self._idle_seconds):
                try:
                    piece = await stream.__anext__()
                except StopAsyncIteration:
                    return
            yield piece

    def _caller(self, request: Request) -> Caller | None:
        assert self._surface.caller is not None
        return self._surface.caller(request)

    async def allows(self, request: Request, supplier: str) -> bool:
        """Whether this request may see and send what is this supplier's."""
        allowed = self._may(request, supplier)
        return bool(await allowed if inspect.isawaitable(allowed) else allowed)

    def problem(self, error: SemelError) -> Answer:
        """The answer to what was refused; a store's failure is logged."""
        if not isinstance(error, ImportRefused):
            self._surface.outage.tell(error)
        return problem_of(self._surface.problems, error)


class Jobs:
    """The questions about jobs, of all imports of an application that share a path."""

    def __init__(self, surface: HttpSettings) -> None:
        self._surface = surface
        self.endpoints: dict[str, ImportEndpoint] = {}

    async def read(self, request: Request) -> Response:
        """A job as it stands now."""

        async def answer(endpoint: ImportEndpoint, id: str) -> Answer:
            job = await endpoint.imports.job(id)
            if job is None:
                raise ImportRefused("there is no such import", "NOT_FOUND")
            return shown_job(job)

        return await self._of_job(request, answer)

    async def rows(self, request: Request) -> Response:
        """What became of a job's rows: `state`, `after` a row's number, at most `limit`."""

        async def answer(endpoint: ImportEndpoint, id: str) -> Answer:
            query = request.query_params
            after, limit = _whole(query.get("after"), 0, 10**12, 0), _whole(query.get("limit"), 1, ROWS_MAX, 100)
            state = query.get("state")
            if state is not None and state.upper() not in get_args(Verdict):
                raise ImportRefused(f"state must be one of {', '.join(get_args(Verdict))}", "INVALID_QUERY")
            wanted = None if state is None else cast(Verdict, state.upper())
            return shown_rows(*await endpoint.imports.outcomes(id, after=after, limit=limit, state=wanted))

        return await self._of_job(request, answer)

    async def find(self, request: Request) -> Response:
        """Jobs by their key, or by its beginning: `key=ACME:a3f8…`."""
        try:
            caller = self._caller(request)
            if caller is None:
                return response_of(self._surface.problems.caller_unknown())
            key = request.query_params.get("key", "").rstrip("\u2026")
            supplier = supplier_of_key(key)
            if supplier is None:
                raise ImportRefused("key must be an import's key or its beginning, such as ACME:a3f8", "INVALID_QUERY")
            found = []
            for endpoint in self.endpoints.values():
                if await endpoint.allows(request, supplier):
                    found += await endpoint.imports.find(key, tenant=caller.tenant)
            return response_of(shown_jobs(found))
        except SemelError as error:
            return response_of(self._problem(error))

    async def _of_job(self, request: Request, answer: Callable[[ImportEndpoint, str], Any]) -> Response:
        try:
            caller = self._caller(request)
            if caller is None:
                return response_of(self._surface.problems.caller_unknown())
            id = request.path_params["import_id"]
            for endpoint in self.endpoints.values() if uuid_bytes(id) is not None else ():
                job = await endpoint.imports.job(id)
                if job is not None and job.tenant == caller.tenant and await endpoint.allows(request, job.supplier):
                    return response_of(await answer(endpoint, id))
            raise ImportRefused("there is no such import", "NOT_FOUND")
        except SemelError as error:
            return response_of(self._problem(error))

    def _caller(self, request: Request) -> Caller | None:
        assert self._surface.caller is not None
        return self._surface.caller(request)

    def _problem(self, error: SemelError) -> Answer:
        return next(iter(self.endpoints.values())).problem(error)


def _whole(text: str | None, least: int, most: int, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not least <= int(text[:15]) <= most:
        raise ImportRefused(f"after and limit must be whole numbers; limit from 1 to {ROWS_MAX}", "INVALID_QUERY")
    return int(text)


def add_imports(
    semel: Any,
    app: Starlette,
    imports: Imports,
    *,
    path: str,
    supplier: str | SupplierOf,
    may: May,
    jobs_path: str,
    idle_seconds: float,
    dependencies: Sequence[Any],
    responses: Mapping[int | str, dict[str, Any]],
) -> ImportEndpoint:
    """What ``semel.imports`` does. Raises ConfigurationError, when the application is built."""
    if not isinstance(imports, Imports) or imports.engine is not semel.engine:
        raise ConfigurationError(
            "semel.imports takes Imports on the engine of this Semel: Imports(semel.engine, operation=...)"
        )
    if not callable(may):
        raise ConfigurationError(
            "may must be a function of the request and the supplier's code: who may send its files"
        )
    if semel.surface.caller is None:
        raise ConfigurationError(
            "imports need caller=: a function of the request that says who asks, and of which tenant"
        )
    _ = imports.handler
    jobs = semel.import_jobs.setdefault(jobs_path, Jobs(semel.surface))
    if any(imports.operation in each.endpoints for each in semel.import_jobs.values()):
        raise ConfigurationError(f"two imports are named {imports.operation!r}: their keys would collide")
    endpoint = ImportEndpoint(semel.surface, imports, supplier_source(supplier), may, jobs_path, idle_seconds)
    is_first = not jobs.endpoints
    jobs.endpoints[imports.operation] = endpoint
    add: Callable[..., Any] = getattr(app, "add_api_route", _adder(app))
    settings: dict[str, Any] = {}
    if hasattr(app, "add_api_route"):
        settings = {"dependencies": list(dependencies), "tags": ["imports"], "response_model": None}
        settings["responses"] = dict(responses)
    elif dependencies or responses:
        raise ConfigurationError("dependencies and responses are FastAPI's; in Starlette a middleware authenticates")

    def route(path: str, answer: Callable[..., Any], method: str) -> None:
        described = {"openapi_extra": describe_path(path, reads=method == "GET")} if settings else {}
        add(path, answer, methods=[method], **settings, **described)

    route(path, endpoint.upload, "POST")
    if is_first:
        route(jobs_path, jobs.find, "GET")
        route(f"{jobs_path}/{{import_id}}", jobs.read, "GET")
        route(f"{jobs_path}/{{import_id}}/rows", jobs.rows, "GET")
    return endpoint


def _adder(app: Starlette) -> Callable[..., None]:
    def add(path: str, endpoint: Any, *, methods: list[str]) -> None:
        app.router.routes.append(Route(path, endpoint, methods=methods))

    return add


def supplier_source(supplier: str | SupplierOf) -> SupplierOf:
    """Where a request says whose file it is: ``"path:NAME"``, ``"header:NAME"``, ``"query:NAME"``, or a function."""
    if callable(supplier):
        return supplier
    kind, _, name = supplier.partition(":") if isinstance(supplier, str) else ("", "", "")
    sources: dict[str, SupplierOf] = {
        "path": lambda request: request.path_params.get(name),
        "header": lambda request: request.headers.get(name),
        "query": lambda request: request.query_params.get(name),
    }
    if kind not in sources or not name:
        raise ConfigurationError(
            f"supplier must be 'path:NAME', 'header:NAME', 'query:NAME' or a function of the request, not {supplier!r}"
        )
    return sources[kind]
