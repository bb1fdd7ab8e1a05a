"""The console as an ASGI application: the server renders every page from the command line's documents.

No page has a key, a request or an answer's body. Every read is bounded. A request that settles something needs an
operator whom ``authorise`` names, the form's token, and the fence that the operator has seen.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import asdict
from importlib.resources import files
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from semel.admin.bulks import find_bulk, newest_bulks, tally_line
from semel.admin.census import census_document, groups, read_census, what_was_read
from semel.admin.describe import has_lapsed, is_unknown_by_lapse, record_document, row_document, state_label
from semel.admin.effective import of_application, of_records
from semel.admin.explain import tell
from semel.admin.failures import CommandFailed
from semel.admin.filters import find_bounded
from semel.admin.find import by_whole_id
from semel.admin.receivers import receivers_behind
from semel.admin.recent import LATE_SECONDS, last_hour, purge_lag
from semel.admin.reconciliations import left_to_operators
from semel.admin.settling import read_import, read_steps
from semel.bulk.rules import ItemState, is_bulk, item_document
from semel.bulk.store import ANY_BULK, Failures, Items
from semel.cli.commands.records.imports import job_line, row_page
from semel.cli.commands.records.messages import message_document
from semel.cli.commands.stores.doctor import examine
from semel.console.settling import (
    ANSWER_BYTES_MAX,
    STEP_FIELD,
    TEXTS,
    Finding,
    NotSettled,
    RecordedSteps,
    call_names,
    form_fields,
    parse_finding,
    recorded_steps,
    settle_all,
)
from semel.core.flow import Flow
from semel.core.identity import derive_key, uuid_bytes, uuid_text
from semel.core.model import CURSOR_MAX, Find, Record, State
from semel.core.timing import span_text
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, SchemaError, StoreError
from semel.imports.rules import OVERDUE_US, TAKE_OVER, ImportJob, ImportState, clock_text, waiting_text
from semel.imports.store import ANY_ID, ImportRows, OverdueImport
from semel.inbox.store import MESSAGE_ID_MAX, InboxRows
from semel.outbox.store import Events
from semel.steps.doubts import step_of
from semel.steps.rules import STEPS_MAX
from semel.stores.sql.dialect import dialect_of

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Authorise = Callable[[Request], "str | Awaitable[str | None] | None"]

PAGE_ROWS: Final = 50
AUDIT_LINES: Final = 20
FORM_BYTES_MAX: Final = 1024 * 1024  # room for a body of ANSWER_BYTES_MAX in a form's encoding
FORM_FIELDS_MAX: Final = 100 + STEPS_MAX  # each step, 50 records, and the form's own fields
LIVE_SECONDS: Final = 3
CODED_ITEMS_MAX: Final = 100_000
POLICY_RECORDS: Final = 500
_SECRET_BYTES_MIN: Final = 16
_TEXT_MAX: Final = 255
_AWAY: Final = (StoreError, SchemaError)
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send a null Origin with forms
    "Cache-Control": "no-store",
}


class _Answer(Exception):
    """A page in place of the requested one."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(text)
        self.status, self.title, self.text = status, title, text


class Console:
    """An ASGI application with the operators' pages of one store.

    Parameters: ``engine`` a sync :class:`~semel.Engine`, which the application opens and closes; ``authorise`` a
    function of the request that returns the operator's name for the audit trail, or None to refuse the request (it may
    be async); ``read_only`` shows no form and refuses every change; ``application`` such as ``shop.main:app``, whose
    declared policies are shown in place of those of the newest records; ``secret`` signs the forms: several processes
    behind one address need the same one, of at least 16 bytes.

    Raises ConfigurationError where ``engine`` is not a sync engine or ``authorise`` is not a function.

    >>> from semel import Engine
    >>> Console(Engine.connect("memory://"), lambda request: request.headers.get("x-operator")).read_only
    False
    """

    def __init__(
        self,
        engine: Engine,
        authorise: Authorise,
        *,
        read_only: bool = False,
        application: str | None = None,
        secret: bytes | None = None,
    ) -> None:
        if not isinstance(engine, Engine):
            raise ConfigurationError(f"the console needs a sync Engine, not {type(engine).__name__}")
        if not callable(authorise):
            raise ConfigurationError("authorise must be a function of the request that returns the operator's name")
        if secret is not None and len(secret) < _SECRET_BYTES_MIN:
            raise ConfigurationError(f"secret must have at least {_SECRET_BYTES_MIN} bytes; it has {len(secret)}")
        self.read_only = read_only
        self._engine = engine
        self._authorise = authorise
        self._application = application
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._templates = Environment(
            loader=PackageLoader("semel.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._pages: dict[str, Callable[[Request], dict[str, Any]]] = {
            "overview": self._overview,
            "records": self._records,
            "settle": self._settle_form,
            "bulks": self._bulks,
            "imports": self._imports,
            "messages": self._messages,
            "events": self._events,
            "doctor": self._doctor,
            "policies": self._policies,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError("the console answers HTTP requests; mount it under a path")
        request = Request(scope, receive)
        response = await self._respond(request)
        for name, value in _HEADERS.items():
            response.headers[name] = value
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        path = request.scope["path"].removeprefix(request.scope.get("root_path", "")).strip("/")
        if path == "console.css":
            return Response(files("semel.console").joinpath("console.css").read_text("utf-8"), media_type="text/css")
        operator = self._authorise(request)
        if inspect.isawaitable(operator):
            operator = await operator
        if not isinstance(operator, str) or not operator.strip():
            return self._page(
                request, "message", {"title": "No access", "text": "You are not allowed to see this page."}, 403
            )
        if len(operator) > _TEXT_MAX or not operator.isprintable():
            text = f"The operator's name must be at most {_TEXT_MAX} printable characters: the audit trail keeps it."
            return self._page(request, "message", {"title": "No access", "text": text}, 403)
        request.state.operator = operator
        try:
            if request.method == "POST":
                return await self._change(request, path, await _form(request))
            if request.method not in ("GET", "HEAD"):
                refused = {"title": "Not allowed", "text": "Read pages with GET; only their forms make changes."}
                response = self._page(request, "message", refused, 405)
                response.headers["Allow"] = "GET, HEAD, POST"
                return response
            return await run_in_threadpool(self._read, request, path)
        except _Answer as answer:
            return self._page(request, "message", {"title": answer.title, "text": answer.text}, answer.status)
        except _AWAY as error:
            text = "The store does not answer; this page tries again every 5 seconds. Running commands keep their keys."
            if isinstance(error, SchemaError):  # missing tables, a missing file, or newer than this Semel
                text = f"The store cannot be used: {error}."
            return self._page(request, "message", {"title": "No store", "text": text, "refresh": 5}, 503)
        except (CommandFailed, ConfigurationError) as error:
            context = {"title": "Cannot be shown", "text": f"{error}; see: semel doctor"}
            return self._page(request, "message", context, 500)

    # --- reading --------------------------------------------------------------------------------------

    def _read(self, request: Request, path: str) -> Response:
        self._engine.open()
        room, slash, id = path.partition("/")
        if slash and room in _ONES:
            one: dict[str, Callable[[Request, str], dict[str, Any]]] = {
                "records": self._record,
                "bulks": self._bulk,
                "imports": self._import,
            }
            return self._page(request, _ONES[room], one[room](request, id))
        name = path or "overview"
        if name not in self._pages:
            raise _Answer(404, "No such page", "The menu above has every page.")
        if name == "records" and (id := request.query_params.get("id", "").strip()):
            return RedirectResponse(f"{_base(request)}/records/{self._find(id)[0]}", 303)
        return self._page(request, name, self._pages[name](request))

    def _overview(self, request: Request) -> dict[str, Any]:
        seen = read_census(self._engine)
        events = messages = None
        if self._engine.store.capabilities.holds_features:
            messages = self._engine.perform("inbox", InboxRows(self._engine.store, "", 1, 0).backlog)
            events = self._engine.perform("events", Events(dialect_of(self._engine.store, "events")).depth)
        lag = purge_lag(self._engine, seen)
        return {
            "title": "Overview",
            "census": census_document(seen),
            "read": what_was_read(seen),
            "doubts": groups(seen, "doubt"),
            "operations": groups(seen, "operation")[:PAGE_ROWS],
            "events": events,
            "messages": messages,
            "oldest_open": span_text(seen.now - seen.open[0].created_at) if seen.open else None,
            "oldest": span_text(events.oldest_us) if events is not None and events.waiting else None,
            "hour": last_hour(self._engine, seen),
            "lag": lag,
            "lag_is_late": lag.seconds > LATE_SECONDS,
            "refresh": 10 if request.query_params.get("refresh") else None,
        }

    def _records(self, request: Request) -> dict[str, Any]:
        given = {name: request.query_params.get(name, "")[:_TEXT_MAX] for name in _FILTERS}
        if given["state"] and given["state"] not in _STATES:
            raise _Answer(400, "Unknown state", f"state must be one of {', '.join(_STATES)}.")
        before = given["before"]
        if before and not (
            before.isascii() and before.isdecimal() and len(before) < 20 and 0 < int(before) <= CURSOR_MAX
        ):
            raise _Answer(400, "Unknown page", "before must come from the link to older records.")
        query = Find(
            states=(_STATES[given["state"]],) if given["state"] else (),
            tenant=given["tenant"] or None,
            caller=given["caller"] or None,
            operation=given["operation"] or None,
            lapsed=bool(given["lapsed"]),
            limit=PAGE_ROWS,
            before=int(before) if before else None,
        )
        page = find_bounded(self._engine, query)
        left = left_to_operators(self._engine, page.records)
        rows = [
            {
                **row_document(record, page.now),
                "state": state_label(str(row_document(record, page.now)["state"])),
                "age": span_text(page.now - record.created_at),
                "left": record.id in left,
                "settles": _may_be_settled(record, page.now),
            }
            for record in page.records
        ]
        older = None
        if page.next_before is not None:
            older = urlencode({**{key: value for key, value in given.items() if value}, "before": page.next_before})
        return {
            "title": given["state"] if given["state"] == "UNKNOWN" else "Records",
            "rows": rows,
            "given": given,
            "states": list(_STATES),
            "older": older,
        }

    def _record(self, request: Request, id: str) -> dict[str, Any]:
        _, record = self._find(id)
        audit = self._engine.perform("audit", lambda: self._engine.store.audit(record.id, AUDIT_LINES))
        now, listed = self._now(), read_steps(self._engine, record)
        document = record_document(record, now, audit)
        document["state"] = state_label(str(document["state"]))
        asked = request.query_params.get("derived", "").strip()[:_TEXT_MAX]
        names = [*([asked] if asked else []), *call_names(record, listed)]
        return {
            "asked": asked,
            "derived": {name: derive_key(record.id, record.generation, name) for name in names},
            "title": f"{record.operation}, {document['state']}",
            "id": uuid_text(record.operation_id),
            "fields": [(name, value) for name, value in document.items() if name != "audit" and value is not None],
            "audit": document["audit"],
            "story": tell(record, audit, now, listed, read_import(self._engine, record)),
            "bulk": is_bulk(record.recipe),
            "settles": _may_be_settled(record, now),
        }

    def _outbox(self) -> Events:
        if not self._engine.store.capabilities.holds_features:
            raise _Answer(404, "No outbox", "This store holds no events: an outbox needs a SQL database.")
        return Events(dialect_of(self._engine.store, "events"))

    def _events(self, request: Request) -> dict[str, Any]:
        events = self._outbox()
        parked = bool(request.query_params.get("parked"))
        depth = self._engine.perform("events", events.depth)
        found = self._engine.perform("events", lambda: events.find(0, PAGE_ROWS, parked=parked))
        behind = receivers_behind(self._engine)[0] if depth.waiting or depth.parked else []
        return {
            "title": "Events",
            "depth": depth,
            "found": found,
            "parked": parked,
            "receivers": [(each, span_text(each.depth.oldest_us) if each.depth.waiting else "") for each in behind],
        }

    def _bulks(self, request: Request) -> dict[str, Any]:
        before = _id_or(request.query_params.get("before"), ANY_BULK)
        bulks = self._of_database("bulks", lambda: newest_bulks(self._engine, before, PAGE_ROWS))
        return {
            "title": "Bulks",
            "rows": [(uuid_text(each.id), each) for each in bulks],
            "older": uuid_text(bulks[-1].id) if len(bulks) == PAGE_ROWS else None,
            **_live(request, any(each.is_running for each in bulks)),
        }

    def _bulk(self, request: Request, id: str) -> dict[str, Any]:
        raw = uuid_bytes(id)
        bulk = None if raw is None else self._of_database("bulks", lambda: find_bulk(self._engine, raw))
        if bulk is None:
            raise _Answer(404, "No such bulk", "No bulk of this store has this operation id.")
        given = request.query_params.get("state", "")
        if given and given not in _ITEM_STATES:
            raise _Answer(400, "Unknown state", f"state must be one of {', '.join(_ITEM_STATES)}.")
        after = _place(request, "after")
        items = Items(self._engine.store)
        state = ItemState[given] if given else None
        found = self._engine.perform("bulk", lambda: items.page(bulk.id, after - 1, PAGE_ROWS, state, False))
        codes: list[Failures] | None = []
        if bulk.tally.failed or bulk.tally.unknown:
            is_small = bulk.tally.total <= CODED_ITEMS_MAX  # the codes look at every item
            codes = self._engine.perform("bulk", lambda: items.codes(bulk.id, PAGE_ROWS)) if is_small else None
        name = "a forgotten operation" if bulk.record is None else bulk.record.operation
        return {
            "title": f"Bulk of {name}",
            "id": uuid_text(bulk.id),
            "bulk": bulk,
            "document": bulk.document(),
            "codes": codes,
            "items": [item_document(each) for each in found],
            "states": _ITEM_STATES,
            "given": given,
            "after": found[-1].place + 1 if len(found) == PAGE_ROWS else None,
            **_live(request, bulk.is_running),
        }

    def _imports(self, request: Request) -> dict[str, Any]:
        before = _id_or(request.query_params.get("before"), ANY_ID)
        given = {name: request.query_params.get(name, "")[:_TEXT_MAX] for name in ("state", "operation", "supplier")}
        if given["state"] and given["state"] not in ImportState.__members__:
            raise _Answer(400, "Unknown state", f"state must be one of {', '.join(ImportState.__members__)}.")
        state = int(ImportState[given["state"]]) if given["state"] else 0
        rows = self._of_database("imports", lambda: ImportRows(self._engine.store))

        def read() -> Flow[tuple[list[ImportJob], list[OverdueImport]]]:
            page = yield from rows.page(
                before, PAGE_ROWS, state=state, operation=given["operation"], supplier=given["supplier"]
            )
            shown = []
            for job in page:
                shown.append((yield from rows.show(job)))
            return shown, (yield from rows.overdue(OVERDUE_US, PAGE_ROWS))

        jobs, overdue = self._engine.perform("import", read)
        older = None
        if len(jobs) == PAGE_ROWS:
            older = urlencode({**{key: value for key, value in given.items() if value}, "before": jobs[-1].id})
        return {
            "title": "Imports",
            "jobs": jobs,
            "given": given,
            "states": list(ImportState.__members__),
            "older": older,
            "overdue": {uuid_text(each.id): waiting_text(each.state, each.lapse_us) for each in overdue},
            "take_over": TAKE_OVER,
            **_live(request, any(not job.is_over for job in jobs)),
        }

    def _import(self, request: Request, id: str) -> dict[str, Any]:
        raw = uuid_bytes(id)
        rows = self._of_database("imports", lambda: ImportRows(self._engine.store))
        job = None if raw is None else self._engine.perform("import", lambda: rows.by_id(raw))
        if job is None:
            raise _Answer(404, "No such import", "No import of this store has this id.")
        given = request.query_params.get("state", "")
        if given and given not in _ROW_STATES:
            raise _Answer(400, "Unknown state", f"state must be one of {', '.join(_ROW_STATES)}.")
        after = _place(request, "after")
        shown = self._engine.perform("import", lambda: rows.show(job))
        lapse_us = 0 if shown.is_over else self._engine.perform("import", lambda: rows.lapse(job))
        is_overdue = lapse_us > OVERDUE_US
        found = row_page(self._engine, job, given.lower() or None, after, PAGE_ROWS, [])
        return {
            "title": f"Import of {shown.supplier}, {shown.state.name}",
            "job": shown,
            "time": clock_text,
            "rows": found,
            "states": _ROW_STATES,
            "given": given,
            "after": found[-1].number if len(found) == PAGE_ROWS else None,
            "overdue": f"{waiting_text(shown.state, lapse_us)}: {TAKE_OVER}" if is_overdue else None,
            **_live(request, not shown.is_over and not is_overdue),
        }

    def _messages(self, request: Request) -> dict[str, Any]:
        parked = bool(request.query_params.get("parked"))
        given = [request.query_params.get(name, "") for name in ("consumer", "after_consumer", "after")]
        if any(len(each) > MESSAGE_ID_MAX or "\0" in each for each in given):
            raise _Answer(400, "Unknown page", "consumer and after must come from the list of messages.")
        consumer, after = given[0], (given[1], given[2])
        rows = self._of_database("messages", lambda: InboxRows(self._engine.store, consumer, 1, 0))
        backlog = self._engine.perform("inbox", rows.backlog)
        found = self._engine.perform("inbox", lambda: rows.open(after, PAGE_ROWS, parked=parked))
        more = None
        if len(found) == PAGE_ROWS:
            last = {"after_consumer": found[-1].consumer, "after": found[-1].message_id}
            every = {"consumer": consumer, "parked": "1" if parked else "", **last}
            more = urlencode({key: value for key, value in every.items() if value})
        return {
            "title": "Messages",
            "backlog": backlog,
            "oldest": span_text(backlog.parked_us) if backlog.parked else None,
            "found": [(each, message_document(each)) for each in found],
            "parked": parked,
            "consumer": consumer,
            "more": more,
        }

    def _of_database(self, what: str, read: Callable[[], T]) -> T:
        """Read data of a SQL database; raise a page that explains a store that is not one."""
        try:
            return read()
        except ConfigurationError:
            text = f"This store holds no {what}: they need a SQL database."
            raise _Answer(404, f"No {what}", text) from None

    def _doctor(self, request: Request) -> dict[str, Any]:
        whole = bool(request.query_params.get("whole"))
        findings, usable = examine(self._engine, quick=not whole)
        return {"title": "Doctor", "findings": [asdict(each) for each in findings], "usable": usable, "whole": whole}

    def _policies(self, request: Request) -> dict[str, Any]:
        if self._application is not None:
            found = of_application(self._application)[0]
        else:
            found = of_records(self._engine, POLICY_RECORDS)
        return {"title": "Policies", "policies": found, "declared": self._application}

    # --- changing -------------------------------------------------------------------------------------

    async def _change(self, request: Request, path: str, form: list[tuple[str, str]]) -> Response:
        host = request.headers.get("host", "")
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
        token = next((value for name, value in form if name == "token"), "")
        is_own = origin is None or (host != "" and origin in (f"http://{host}", f"https://{host}"))
        foreign = not is_own or site not in ("same-origin", "none")
        if foreign or not hmac.compare_digest(token.encode(), self._token(request).encode()):
            raise _Answer(403, "Refused", "The form is not from this console, or has expired: load the page again.")
        if self.read_only:
            raise _Answer(403, "Read-only", "This console changes nothing. Use: semel settle, semel events")
        return await run_in_threadpool(self._apply_change, request, path, form)

    def _apply_change(self, request: Request, path: str, form: list[tuple[str, str]]) -> Response:
        self._engine.open()
        if path == "settle":
            return self._settle(request, form)
        if path == "events":
            return self._retry_event(request, dict(form))
        if path == "messages":
            return self._release(request, dict(form))
        raise _Answer(404, "No such page", "The menu above has every page.")

    def _settle_form(self, request: Request) -> dict[str, Any]:
        ids = request.query_params.getlist("id")
        doubt, operation = request.query_params.get("doubt"), request.query_params.get("operation")
        if doubt is not None:
            found = [
                record
                for record in read_census(self._engine).unknown
                if (record.doubt or "lapsed") == doubt and operation in (None, record.operation)
            ]
            records = found[:PAGE_ROWS]
        else:
            records = [self._find(id)[1] for id in dict.fromkeys(ids[: PAGE_ROWS + 1])]
        if not 1 <= len(records) <= PAGE_ROWS:
            raise _Answer(400, "Choose records", f"Choose 1 to {PAGE_ROWS} records to settle.")
        return _settle_context(records, Finding(), {}, recorded_steps(self._engine, records))

    def _settle(self, request: Request, form: list[tuple[str, str]]) -> Response:
        seen = [value for name, value in form if name == "seen"]
        if not 1 <= len(seen) <= PAGE_ROWS:
            raise _Answer(400, "Choose records", f"Choose 1 to {PAGE_ROWS} records to settle.")
        records = [self._find(each.partition(":")[0])[1] for each in seen]
        recorded = recorded_steps(self._engine, records)
        finding, errors = parse_finding(dict(form), records, recorded)
        context = _settle_context(records, finding, errors, recorded)
        if errors or ("change", "yes") in form:
            stale = {"seen_before": seen}
            return self._page(request, "settle", {**context, **stale}, 400 if errors else 200)
        operator = request.state.operator
        confirmed = ("confirmed", "yes") in form
        results = settle_all(
            self._engine, list(zip(seen, records, strict=True)), finding, operator, self._now(), write=confirmed
        )
        name = "settled" if confirmed else "confirm"
        refused = any(isinstance(result, NotSettled) for _, result in results)
        return self._page(request, name, {**context, "results": results}, 409 if confirmed and refused else 200)

    def _retry_event(self, request: Request, form: Mapping[str, str]) -> Response:
        events = self._outbox()
        place = form.get("place", "")
        if not (place.isascii() and place.isdecimal() and len(place) < 19):
            raise _Answer(400, "Unknown event", "place must be a whole number from the list of events.")
        if not self._engine.perform("events", lambda: events.retry(int(place))):
            raise _Answer(409, "Not parked", "That event is no longer parked: load the list again.")
        return RedirectResponse(f"{_base(request)}/events?parked=1", 303)

    def _release(self, request: Request, form: Mapping[str, str]) -> Response:
        """Release a parked message for its next delivery, if it has not changed since the operator loaded it."""
        consumer, id, seen = (form.get(name, "") for name in ("consumer", "message", "seen"))
        if not consumer or not id or max(len(consumer), len(id)) > MESSAGE_ID_MAX or "\0" in consumer + id:
            raise _Answer(400, "Unknown message", "consumer and message must come from the list of messages.")
        rows = self._of_database("messages", lambda: InboxRows(self._engine.store, consumer, 1, 0))

        def release() -> Flow[bool]:
            known = yield from rows.look(id)
            if known is None or known.parked_at is None or f"{known.parked_at}:{known.tries}" != seen:
                return False
            return (yield from rows.release(id))

        if not self._engine.perform("inbox", release):
            text = "That message is no longer parked, or has been parked again: load the list again."
            raise _Answer(409, "Not parked", text)
        return RedirectResponse(f"{_base(request)}/messages?parked=1", 303)

    # --- parts ----------------------------------------------------------------------------------------

    def _find(self, id: str) -> tuple[str, Record]:
        record = None if uuid_bytes(id) is None else by_whole_id(self._engine, id)
        if record is None:
            raise _Answer(404, "No such record", "No record of this store has this operation id.")
        return uuid_text(record.operation_id), record

    def _now(self) -> int:
        return self._engine.perform("now", self._engine.store.now)

    def _token(self, request: Request) -> str:
        return hmac.new(self._secret, request.state.operator.encode(), hashlib.sha256).hexdigest()

    def _page(self, request: Request, name: str, context: dict[str, Any], status: int = 200) -> HTMLResponse:
        known = hasattr(request.state, "operator")
        whole = {
            "refresh": None,
            **context,
            "base": _base(request),
            "operator": request.state.operator if known else None,
            "token": self._token(request) if known else "",
            "read_only": self.read_only,
            "store": self._engine.backend.name,
            "tally_line": tally_line,
            "job_line": job_line,
            "span": lambda seconds: span_text(int(seconds * 1_000_000)),
        }
        return HTMLResponse(self._templates.get_template(f"{name}.html").render(whole), status)


_ONES: Final = {"records": "record", "bulks": "bulk", "imports": "import"}
_ITEM_STATES: Final = tuple(state.name for state in ItemState)
_ROW_STATES: Final = ("FAILED", "UNKNOWN")  # states that items distinguish: no other is searched row by row
_FILTERS: Final = ("state", "operation", "tenant", "caller", "lapsed", "before")
_STATES: Final = {state_label(state.name): state for state in State}


def _base(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _settle_context(
    records: list[Record], finding: Finding, errors: dict[str, str], recorded: RecordedSteps
) -> dict[str, Any]:
    return {
        "title": "Settle",
        "records": [form_fields(each) for each in records],
        "step": step_of(records[0].doubt) if len(records) == 1 else None,
        "finding": finding,
        "recorded": recorded,
        "step_field": STEP_FIELD,
        "texts": TEXTS,
        "errors": errors,
        "seen_before": None,
        "body_max": ANSWER_BYTES_MAX,
    }


def _id_or(given: str | None, other: bytes) -> bytes:
    """Parse the id at which a page ends; ``other`` where none is given."""
    if not given:
        return other
    id = uuid_bytes(given)
    if id is None:
        raise _Answer(400, "Unknown page", "before must come from the link to older ones.")
    return id


def _place(request: Request, name: str) -> int:
    given = request.query_params.get(name, "") or "0"
    if not (given.isascii() and given.isdecimal() and len(given) < 13):
        raise _Answer(400, "Unknown page", f"{name} must come from the link to more rows.")
    return int(given)


def _live(request: Request, is_running: bool) -> dict[str, Any]:
    """Return whether the page reloads itself, and the link that toggles this."""
    stopped = request.query_params.get("live") == "0"
    others = [(name, value) for name, value in request.query_params.multi_items() if name != "live"]
    query = urlencode(others if stopped else [*others, ("live", "0")])
    return {"running": is_running, "refresh": LIVE_SECONDS if is_running and not stopped else None, "live": f"?{query}"}


def _may_be_settled(record: Record, now: int) -> bool:
    return record.state == State.UNKNOWN or has_lapsed(record, now) or is_unknown_by_lapse(record)


async def _form(request: Request) -> list[tuple[str, str]]:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_BYTES_MAX:
            raise _Answer(413, "Too long", "The form is longer than 1 MiB; for a long body: semel settle --body-file")
    try:
        return parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX, errors="strict")
    except ValueError:
        raise _Answer(400, "Not a form", "The form cannot be read: send it as the page does.") from None
