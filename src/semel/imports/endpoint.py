"""Imports as endpoints of ASGI frameworks: they accept a file and answer with a job."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Protocol, cast, get_args

from semel.articles import name_type
from semel.core.identity import uuid_bytes
from semel.core.model import Answer
from semel.errors import ConfigurationError, ImportRefused, RequestError, SemelError
from semel.http.asgi.request import AsgiRequest
from semel.http.caller import Caller
from semel.http.settings import HttpSettings
from semel.imports.booking import Verdict
from semel.imports.http import (
    FORM_BYTES,
    FileHead,
    answer_job,
    answer_jobs,
    answer_preview,
    answer_rows,
    answer_submission,
    check_length,
    check_media_type,
    describe_upload,
    problem_of,
    read_head,
)
from semel.imports.parts import FileParts
from semel.imports.rules import checked_supplier, supplier_of_key
from semel.imports.run import Imports
from semel.imports.upload import Upload

IDLE_SECONDS: Final = 60.0
ROWS_MAX: Final = 1000
May = Callable[[Any, str], Any]
SupplierOf = Callable[[AsgiRequest], object]


class AddRoute(Protocol):
    """Adds one endpoint to an application: its path as ``/imports/{import_id}``, its method, and its function."""

    def __call__(
        self, path: str, method: str, respond: Callable[[AsgiRequest], Any], endpoint: ImportEndpoint | None
    ) -> None: ...


class ImportEndpoint:
    """The upload endpoint of one kind of imports, made by ``semel.imports(...)``."""

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

    async def upload(self, request: AsgiRequest) -> Answer:
        """Accept a file: 202 for a new job, 200 for an existing one; `preview=1` describes a run without doing it."""
        problems = self._surface.problems
        try:
            caller = self._caller(request)
            if caller is None:
                return problems.caller_unknown()
            supplier = checked_supplier(self._supplier(request))
            if not await self.allows(request, supplier):
                raise ImportRefused("this caller may not send files of this supplier", "NOT_ALLOWED")
            head = read_head(request.headers, self.imports)
            if head.is_early:
                return problems.too_early()
            return await self._take(request, head, caller, supplier)
        except TimeoutError:
            slow = ImportRefused(f"no byte of the file came for {self._idle_seconds:g} seconds", "TOO_SLOW")
            return problem_of(problems, slow)
        except SemelError as error:
            return self.problem(error)

    async def _take(self, request: AsgiRequest, head: FileHead, caller: Caller, supplier: str) -> Answer:
        form = None if head.boundary is None else FileParts(head.boundary)
        with self.imports.upload() as upload:
            await self._read(request, head, form, upload)
            media_type = head.media_type if form is None else form.media_type or ""
            check_media_type(media_type, self.imports, in_form=form is not None)
            version_field = getattr(self.imports.key, "field", None)
            fields = {} if form is None else form.fields
            query = request.fields
            version = None if version_field is None else query.get(version_field, fields.get(version_field))
            named: dict[str, Any] = {
                "supplier": supplier,
                "media_type": media_type,
                "tenant": caller.tenant,
                "version": version,
                "client_key": head.client_key,
            }
            if query.get("preview", "") in ("1", "true"):
                return answer_preview(await self.imports.preview_upload(upload, **named))
            filename = query.get("filename") if form is None else form.filename
            job = await self.imports.submit_upload(upload, filename=filename, **named)
            return answer_submission(job, self._jobs_path)

    async def _read(self, request: AsgiRequest, head: FileHead, form: FileParts | None, upload: Upload) -> None:
        size = 0
        most = self.imports.file_bytes_max + (0 if form is None else FORM_BYTES)
        async for piece in self._pieces(request):
            size += len(piece)
            head.check.feed(piece)
            if size > most:
                raise ImportRefused(f"the file has more than {self.imports.file_bytes_max} bytes", "FILE_TOO_LARGE")
            if form is not None:
                form.feed(piece)
                piece = form.take()
            await upload.feed(piece)
        check_length(size, head)
        head.check.finish()
        if form is not None:
            form.end()
            await upload.feed(form.take())
        await upload.flush()
        upload.end()

    async def _pieces(self, request: AsgiRequest) -> AsyncIterator[bytes]:
        stream = request.pieces().__aiter__()
        while True:
            async with asyncio.timeout(self._idle_seconds):
                try:
                    piece = await stream.__anext__()
                except StopAsyncIteration:
                    return
            yield piece

    def _caller(self, request: AsgiRequest) -> Caller | None:
        assert self._surface.caller is not None
        return self._surface.caller(request.asked)

    async def allows(self, request: AsgiRequest, supplier: str) -> bool:
        """Return whether this request may see and send this supplier's files."""
        allowed = self._may(request.own, supplier)
        return bool(await allowed if inspect.isawaitable(allowed) else allowed)

    def problem(self, error: SemelError) -> Answer:
        """Return the answer to a refused request, and log a store's failure."""
        if not isinstance(error, RequestError):
            self._surface.outage.tell(error)
        return problem_of(self._surface.problems, error)


class Jobs:
    """The read endpoints for jobs, of all imports of an application that share a path."""

    def __init__(self, surface: HttpSettings) -> None:
        self._surface = surface
        self.endpoints: dict[str, ImportEndpoint] = {}

    async def read(self, request: AsgiRequest) -> Answer:
        """The current state of a job."""

        async def answer(endpoint: ImportEndpoint, id: str) -> Answer:
            job = await endpoint.imports.job(id)
            if job is None:
                raise ImportRefused("there is no such import", "NOT_FOUND")
            return answer_job(job)

        return await self._of_job(request, answer)

    async def rows(self, request: AsgiRequest) -> Answer:
        """The outcomes of a job's rows: `state`, `after` a row's number, at most `limit`."""

        async def answer(endpoint: ImportEndpoint, id: str) -> Answer:
            query = request.fields
            after, limit = _whole(query.get("after"), 0, 10**12, 0), _whole(query.get("limit"), 1, ROWS_MAX, 100)
            state = query.get("state")
            if state is not None and state.upper() not in get_args(Verdict):
                raise ImportRefused(f"state must be one of {', '.join(get_args(Verdict))}", "INVALID_QUERY")
            wanted = None if state is None else cast(Verdict, state.upper())
            return answer_rows(*await endpoint.imports.outcomes(id, after=after, limit=limit, state=wanted))

        return await self._of_job(request, answer)

    async def find(self, request: AsgiRequest) -> Answer:
        """Jobs by their key, or by its beginning: `key=ACME:a3f8…`."""
        try:
            caller = self._caller(request)
            if caller is None:
                return self._surface.problems.caller_unknown()
            key = request.fields.get("key", "").rstrip("\u2026")
            supplier = supplier_of_key(key)
            if supplier is None:
                raise ImportRefused("key must be an import's key or its beginning, such as ACME:a3f8", "INVALID_QUERY")
            found = []
            for endpoint in self.endpoints.values():
                if await endpoint.allows(request, supplier):
                    found += await endpoint.imports.find(key, tenant=caller.tenant)
            return answer_jobs(found)
        except SemelError as error:
            return self._problem(error)

    async def _of_job(self, request: AsgiRequest, answer: Callable[[ImportEndpoint, str], Awaitable[Answer]]) -> Answer:
        try:
            caller = self._caller(request)
            if caller is None:
                return self._surface.problems.caller_unknown()
            id = str(request.params["import_id"])
            for endpoint in self.endpoints.values() if uuid_bytes(id) is not None else ():
                job = await endpoint.imports.job(id)
                if job is not None and job.tenant == caller.tenant and await endpoint.allows(request, job.supplier):
                    return await answer(endpoint, id)
            raise ImportRefused("there is no such import", "NOT_FOUND")
        except SemelError as error:
            return self._problem(error)

    def _caller(self, request: AsgiRequest) -> Caller | None:
        assert self._surface.caller is not None
        return self._surface.caller(request.asked)

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
    add: AddRoute,
    imports: Imports,
    *,
    path: str,
    supplier: str | Callable[[Any], object],
    may: May,
    jobs_path: str,
    idle_seconds: float,
) -> ImportEndpoint:
    """Implement ``semel.imports``. Raises ConfigurationError when the application is built."""
    if not isinstance(imports, Imports):
        raise ConfigurationError(
            f"semel.imports takes one Imports, not {name_type(imports)}; call it once for each, with its own path"
        )
    if imports.engine is not semel.engine:
        raise ConfigurationError(
            "semel.imports takes Imports on the engine of this Semel: Imports(semel.engine, operation=...)"
        )
    if not callable(may):
        raise ConfigurationError(
            "may must be a function of the request and the supplier's code: who may send its files"
        )
    if semel.surface.caller is None:
        raise ConfigurationError(
            "imports need caller=: a function of the request that returns the caller and its tenant"
        )
    _ = imports.handler
    jobs = semel.import_jobs.setdefault(jobs_path, Jobs(semel.surface))
    if any(imports.operation in each.endpoints for each in semel.import_jobs.values()):
        raise ConfigurationError(f"duplicate imports {imports.operation!r}: their keys would collide")
    endpoint = ImportEndpoint(semel.surface, imports, supplier_source(supplier), may, jobs_path, idle_seconds)
    is_first = not jobs.endpoints
    jobs.endpoints[imports.operation] = endpoint
    add(path, "POST", endpoint.upload, endpoint)
    if is_first:
        add(jobs_path, "GET", jobs.find, None)
        add(f"{jobs_path}/{{import_id}}", "GET", jobs.read, None)
        add(f"{jobs_path}/{{import_id}}/rows", "GET", jobs.rows, None)
    return endpoint


def supplier_source(supplier: str | Callable[[Any], object]) -> SupplierOf:
    """Return the function that reads a request's supplier from ``"path:NAME"``, ``"header:NAME"`` and so on."""
    if callable(supplier):
        return lambda request: supplier(request.own)
    kind, _, name = supplier.partition(":") if isinstance(supplier, str) else ("", "", "")
    sources: dict[str, SupplierOf] = {
        "path": lambda request: request.params.get(name),
        "header": lambda request: request.header(name),
        "query": lambda request: request.fields.get(name),
    }
    if kind not in sources or not name:
        raise ConfigurationError(
            f"supplier must be 'path:NAME', 'header:NAME', 'query:NAME' or a function of the request, not {supplier!r}"
        )
    return sources[kind]
