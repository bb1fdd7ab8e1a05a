"""Records in Django's admin: a list, one record, and settling by hand. No page shows a key, a request or an answer.

Viewing requires the permission ``semel.view_record``; settling also ``semel.settle_record``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_safe

from semel.admin.describe import (
    RETRYABLE,
    has_lapsed,
    is_unknown_by_lapse,
    record_document,
    row_document,
    state_label,
)
from semel.admin.explain import tell
from semel.admin.failures import CommandFailed
from semel.admin.filters import find_bounded
from semel.admin.find import by_whole_id
from semel.admin.reconciliations import left_to_operators
from semel.admin.settling import REASON_LENGTH_MAX, consequence, foresee, read_import, read_steps, settle
from semel.core.identity import uuid_text
from semel.core.model import CURSOR_MAX, Answer, Find, Record, Resolution, State
from semel.core.timing import span_text
from semel.errors import RecordUnreadableError, SchemaError, StoreError
from semel.integrations.django.models import Record as RecordModel
from semel.integrations.django.site import ProjectStore, site
from semel.steps.doubts import step_of

PAGE_ROWS: Final = 50
AUDIT_LINES: Final = 20
_TEXT_MAX: Final = 255
_GONE_ON: Final = "refused: the record has changed since you loaded it"
_FORCE: Final = "confirm that it has stopped"
_AWAY: Final = (StoreError, SchemaError)


class FilterForm(forms.Form):  # type: ignore[misc]  # Django ships no types
    """The filter of the record list."""

    id = forms.CharField(required=False, max_length=64, label="Operation id")
    state = forms.ChoiceField(
        required=False,
        choices=[("", "any state"), *((state_label(each.name),) * 2 for each in State)],
    )
    operation = forms.CharField(required=False, max_length=_TEXT_MAX)
    tenant = forms.CharField(required=False, max_length=_TEXT_MAX)
    caller = forms.CharField(required=False, max_length=_TEXT_MAX)
    lapsed = forms.BooleanField(required=False)
    before = forms.IntegerField(required=False, min_value=1, max_value=CURSOR_MAX, widget=forms.HiddenInput)
    database = forms.CharField(required=False, max_length=_TEXT_MAX, widget=forms.HiddenInput)

    def query(self) -> Find:
        """Make the query for one page."""
        given = self.cleaned_data
        name = given["state"]
        states = () if not name else (State.FAILED_NOT_REPLAYABLE if name == RETRYABLE else State[name],)
        return Find(
            states=states,
            tenant=given["tenant"] or None,
            caller=given["caller"] or None,
            operation=given["operation"] or None,
            limit=PAGE_ROWS,
            before=given["before"],
            lapsed=given["lapsed"],
        )


class SettleForm(forms.Form):  # type: ignore[misc]
    """An operator's finding about records whose outcome is unknown."""

    finding = forms.ChoiceField(
        label="What you found out",
        choices=[
            ("did-not-happen", "It did not happen (or the step in doubt did not): a retry may run it"),
            ("succeeded", "It succeeded: a retry never runs it again"),
        ],
        widget=forms.RadioSelect,
    )
    status = forms.IntegerField(
        required=False,
        min_value=200,
        max_value=599,
        help_text=(
            "The status that retries of a success get, with an empty body; for an answer with a body: manage.py semel "
            "settle"
        ),
    )
    no_answer = forms.BooleanField(
        required=False,
        help_text="A success without a status is final: no retry ever gets an answer, only the fact that it was done",
    )
    force = forms.BooleanField(
        required=False, label="Before its deadline", help_text="You know that the handler has stopped"
    )
    reason = forms.CharField(
        max_length=REASON_LENGTH_MAX,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 80}),
        help_text="How you know; the audit trail keeps it",
    )

    def clean(self) -> Any:
        """Refuse an answer without a success, and a success without a choice of answer."""
        given = super().clean()
        if given.get("finding") == "did-not-happen":
            for name in ("status", "no_answer"):
                if given.get(name):
                    self.add_error(name, "Only a success has an answer.")
        elif given.get("finding") == "succeeded" and "status" not in self.errors:
            if given.get("status") is None and not given.get("no_answer"):
                self.add_error("status", "Give the status that retries get, or confirm that they get no answer.")
            if given.get("status") is not None and given.get("no_answer"):
                self.add_error("no_answer", "Give either a status or no answer, not both.")
        return given

    def resolution(self, record: Record, actor: str) -> Resolution:
        """Make the resolution of one record, as it was read."""
        given = self.cleaned_data
        happened = given["finding"] == "succeeded"
        answer = None if not happened or given["status"] is None else Answer(given["status"], (), b"")
        step = None if happened else step_of(record.doubt)
        reason, force = given["reason"], given["force"]
        return Resolution(record.id, record.fence, happened, answer, actor, reason, force, step=step)


class Named(NamedTuple):
    """One record of one store."""

    database: str
    place: ProjectStore
    record: Record

    @property
    def name(self) -> str:
        """The record's name in the pages' forms."""
        return f"{self.database}:{uuid_text(self.record.operation_id)}"

    @property
    def seen(self) -> str:
        """The version that the operator looked at: if the record has changed since, settling is refused."""
        return f"{self.name}:{self.record.fence}:{step_of(self.record.doubt) or ''}"


@admin.register(RecordModel)
class RecordAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """The records of the project's stores."""

    def has_add_permission(self, request: Any) -> bool:
        """Never."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Never: settling needs a separate permission."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Never."""
        return False

    def has_settle_permission(self, request: Any) -> bool:
        """Return whether this user may settle the records that it may see."""
        return bool(self.has_view_permission(request) and request.user.has_perm("semel.settle_record"))

    def get_urls(self) -> list[Any]:
        """Route to the list, to one record, and to the pages that settle."""
        guarded = self.admin_site.admin_view
        return [
            path("", guarded(require_safe(self.changelist_view)), name="semel_record_changelist"),
            path("settle/", guarded(self.settle_view), name="semel_record_settle"),
            path("<str:database>/<uuid:operation_id>/", guarded(require_safe(self.record_view)), name="semel_record"),
        ]

    # --- looking --------------------------------------------------------------------------------------

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Show one page of records, newest first."""
        self._check_may_see(request)
        form = FilterForm(request.GET)
        rows: list[dict[str, Any]] = []
        context = {"title": "Records", "form": form, "rows": rows, "may_settle": self.has_settle_permission(request)}
        context |= extra_context or {}
        if not form.is_valid():
            return self._page(request, "list", context, 400)
        database, place = _place(form.cleaned_data["database"])
        context |= {"database": database, "databases": sorted(_places())}
        try:
            if form.cleaned_data["id"]:
                record = by_whole_id(place.engine, form.cleaned_data["id"].strip())
                if record is not None:
                    return HttpResponseRedirect(self._url("", database, uuid_text(record.operation_id)))
                form.add_error("id", "No record of this store has this operation id.")
                return self._page(request, "list", context)
            query = form.query()
            page = find_bounded(place.engine, query)
            left = left_to_operators(place.engine, page.records)
        except _AWAY as error:
            return self._away(request, "list", context, error)
        for record in page.records:
            row = row_document(record, page.now)
            rows.append(
                {
                    **row,
                    "name": f"{database}:{row['operationId']}",
                    "state": state_label(str(row["state"])),
                    "age": span_text(page.now - record.created_at),
                    "needsOperator": record.id in left,
                    "settles": _may_be_settled(record, page.now),
                    "url": self._url("", database, uuid_text(record.operation_id)),
                }
            )
        if page.next_before is not None:
            context["next"] = urlencode({**request.GET.dict(), "before": page.next_before})
        return self._page(request, "list", context)

    def record_view(self, request: Any, database: str, operation_id: Any) -> Any:
        """Show everything that an operator may see of one record, and the outcome of a retry."""
        self._check_may_see(request)
        context: dict[str, Any] = {"title": "Record"}
        try:
            found = _find(f"{database}:{operation_id}")
            engine, record = found.place.engine, found.record
            audit = engine.perform("audit", lambda: engine.store.audit(record.id, AUDIT_LINES))
            now, job = _now(found), read_import(engine, record)
        except _AWAY as error:
            return self._away(request, "one", context, error)
        document = record_document(record, now, audit)
        document["state"] = state_label(str(document["state"]))
        context |= {
            "fields": [(name, value) for name, value in document.items() if name != "audit" and value is not None],
            "audit": document["audit"],
            "story": tell(record, audit, now, job=job),
        }
        if self.has_settle_permission(request) and _may_be_settled(record, now):
            context["settle"] = f"{self._url('_settle')}?{urlencode({'id': found.name})}"
        return self._page(request, "one", context)

    # --- settling -------------------------------------------------------------------------------------

    def settle_view(self, request: Any) -> Any:
        """Settle some records: show a form, then a preview, then do it."""
        self._check_may_see(request)
        if not self.has_settle_permission(request):
            raise PermissionDenied
        context: dict[str, Any] = {"title": "Settle records"}
        if request.method != "POST":
            names = list(dict.fromkeys(request.GET.getlist("id")))
        else:
            names = [_name_of(seen) for seen in request.POST.getlist("seen")]
        if not 1 <= len(names) <= PAGE_ROWS:
            self.message_user(request, f"Choose 1 to {PAGE_ROWS} records to settle.", messages.ERROR)
            return HttpResponseRedirect(self._url("_changelist"))
        try:
            found = [_find(name) for name in names]
            form = SettleForm(request.POST if request.method == "POST" else None)
            # Keep the versions that the page was made with, so that a stale page never becomes fresh.
            seen = request.POST.getlist("seen") if request.method == "POST" else [each.seen for each in found]
            records = [self._record_fields(each, before) for each, before in zip(found, seen, strict=True)]
            context |= {"form": form, "records": records}
            if request.method != "POST" or not form.is_valid():
                return self._page(request, "settle", context)
            actor = f"{request.user.get_username()} (Django user {request.user.pk})"
            resolutions = [form.resolution(each.record, actor) for each in found]
            if request.POST.get("confirmed") != "yes":
                for shown, before, each, resolution in zip(records, seen, found, resolutions, strict=True):
                    shown["said"] = _foreseen(each, resolution) if before == each.seen else _GONE_ON
                return self._page(request, "confirm", context)
            for before, each, resolution in zip(seen, found, resolutions, strict=True):
                self._settle(request, before, each, resolution)
        except _AWAY as error:
            return self._away(request, "settle", context, error)
        if len(found) == 1:
            return HttpResponseRedirect(self._url("", found[0].database, uuid_text(found[0].record.operation_id)))
        return HttpResponseRedirect(self._url("_changelist"))

    def _settle(self, request: Any, before: str, found: Named, resolution: Resolution) -> None:
        id = uuid_text(found.record.operation_id)
        if before != found.seen:
            self.message_user(request, f"{id}: {_GONE_ON}", messages.ERROR)
            return
        try:
            state = settle(found.place.engine, found.record, resolution, force=_FORCE)
        except (CommandFailed, RecordUnreadableError) as error:
            self.message_user(request, f"{id}: {error}", messages.ERROR)
        else:
            self.message_user(request, f"{id} is settled: {consequence(resolution, state)}", messages.SUCCESS)

    def _record_fields(self, found: Named, seen: str) -> dict[str, Any]:
        record = found.record
        return {
            "seen": seen,
            "operationId": uuid_text(record.operation_id),
            "operation": record.operation,
            "caller": f"{record.tenant}/{record.caller}",
            "state": state_label(State(record.state).name) if record.state in tuple(State) else "DAMAGED",
            "doubt": record.doubt,
            "url": self._url("", found.database, uuid_text(record.operation_id)),
        }

    # --- pages ----------------------------------------------------------------------------------------

    def _check_may_see(self, request: Any) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _page(self, request: Any, name: str, context: dict[str, Any], status: int = 200) -> Any:
        request.current_app = self.admin_site.name  # as the admin's own pages do: there may be several
        whole = {**self.admin_site.each_context(request), "opts": self.opts, **context}
        return TemplateResponse(request, f"admin/semel/record/{name}.html", whole, status=status)

    def _away(self, request: Any, name: str, context: dict[str, Any], error: Exception) -> Any:
        """Show a page for an unavailable store, without the error's text."""
        tables = "its tables do not fit this version: run manage.py migrate"
        away = tables if isinstance(error, SchemaError) else "it did not answer; try again"
        return self._page(request, name, {**context, "away": away}, 503)

    def _url(self, name: str, *args: str) -> str:
        found: str = reverse(f"{self.admin_site.name}:semel_record{name}", args=args)
        return found


def _places() -> dict[str, ProjectStore]:
    return dict(site().stores())


def _place(database: str) -> tuple[str, ProjectStore]:
    places = _places()
    name = database or site().database
    if name not in places:
        raise Http404("no store of this project is in that database")
    return name, places[name]


def _find(name: str) -> Named:
    """Find a record by its name on the pages. Raises Http404, and the store's errors."""
    database, _, id = name.partition(":")
    database, place = _place(database)
    record = by_whole_id(place.engine, id)
    if record is None or uuid_text(record.operation_id) != id:
        raise Http404("no record of this store has this operation id")
    return Named(database, place, record)


def _name_of(seen: str) -> str:
    return ":".join(seen.split(":")[:2])


def _now(found: Named) -> int:
    engine = found.place.engine
    return engine.perform("now", engine.store.now)


def _may_be_settled(record: Record, now: int) -> bool:
    return record.state == State.UNKNOWN or has_lapsed(record, now) or is_unknown_by_lapse(record)


def _foreseen(found: Named, resolution: Resolution) -> str:
    try:
        listed = read_steps(found.place.engine, found.record)
        return consequence(resolution, foresee(found.record, resolution, _now(found), listed=listed, force=_FORCE))
    except CommandFailed as error:
        return str(error)
