"""ATOMIC views: Django's own transaction also writes the record, and its commit makes both final."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.atomic.run import Atomic
from semel.core.model import Answer
from semel.core.outcomes import Refused, Succeeded, classify_answer
from semel.errors import CommandError, HandlerRefused, StoreError, StoreTimeout
from semel.http.capture import Capture
from semel.http.exchange import Exchange
from semel.http.outage import NO_STORE, UNCLAIMED
from semel.integrations.django.answer import in_place_of, lines_of, response_of, whole_of, with_lines
from semel.integrations.django.call import DjangoCall
from semel.integrations.django.orm_writes import refusing_writes_beside
from semel.integrations.django.site import ProjectStore
from semel.policy import Command
from semel.stores.sql import django as databases


class _RolledBack(Exception):
    """Leaves the atomic block of an answer, to roll back its writes."""


class AtomicRun:
    """The rest of an ATOMIC view's work, after Django's transaction has ended.

    It stores a definite refusal, and adds the key's headers to an answer that the store knows.
    """

    def __init__(self, exchange: Exchange, place: ProjectStore) -> None:
        self.refusal: Answer | None = None
        self.block: Atomic | None = None
        self.error: BaseException | None = None  # which the view raised
        self.is_settled = False  # whether all that is left is Django's commit
        self._uncommitted: BaseException | None = None  # which that raised
        self._exchange = exchange
        self._place = place
        self._is_committed = False

    def note_commit(self) -> None:
        """Note that Django's transaction is committed, and the record with it."""
        self._is_committed = True

    def note_error(self, error: BaseException) -> None:
        """Note an exception that Django met, in the view or after it."""
        if self.is_settled and self.error is None:
            self._uncommitted = error

    def conclude(self, response: Any) -> Any:
        """Choose the response that may leave, once the transaction has ended."""
        if self.block is None:
            return response
        if self.refusal is not None:
            try:
                verdict = self.block.refuse(self.refusal)
            except StoreError:
                return response  # nothing is done: a retry runs the view again
            if verdict is not None:
                return in_place_of(response, self._exchange.present(verdict))
        elif not self._is_committed:
            answer = self._answer_failed(response.status_code)
            return response if answer is None else in_place_of(response, answer)
        assert self.block.permit is not None
        return with_lines(response, self._exchange.honours(self.block.permit))

    def _answer_failed(self, status: int) -> Answer | None:
        """Answer in place of an error page if the view, or the commit after it, failed temporarily."""
        if self.error is not None:
            return self._answer_stopped(status, self.error)
        error, self._uncommitted = self._uncommitted, None  # its frames refer back to this object
        if error is None or not self._exchange.is_stopped(status, error):
            return None
        return self._place.surface.problems.of_error(StoreTimeout(str(error)), maybe_done=True)

    def _answer_stopped(self, status: int, error: BaseException) -> Answer | None:
        """Answer in place of an error page if the view was stopped for a temporary reason."""
        self.error = None  # its frames refer back to this object
        if 400 <= status < 500 or not self._exchange.is_stopped(status, error):
            return None
        assert self.block is not None
        assert self.block.permit is not None
        grant, engine, problems = self.block.permit.grant, self._place.engine, self._place.surface.problems
        try:
            [row] = engine.perform("read", lambda: engine.store.read((grant.id,)))
        except NO_STORE as unread:
            return problems.of_error(unread, maybe_done=True)
        # The view's own commits were not rolled back.
        return None if row is not None and row.nonce == grant.nonce else problems.rolled_back()


def run_atomic(
    call: DjangoCall, place: ProjectStore, alias: str, command: Command, request: Any, view: Callable[[], Any]
) -> Any:
    """Call the view in the outermost block of its database, with the command's record in it.

    A definite refusal (4xx), like anything else that rolls the block back, undoes the view's writes.
    """
    exchange = call.exchange
    assert exchange is not None
    run = call.atomic = AtomicRun(exchange, place)
    block = place.engine.atomic(databases.connection_of(alias), command)
    with databases.outermost_block(alias):
        try:
            block.__enter__()
        except CommandError:
            assert block.verdict is not None
            return response_of(exchange.present(block.verdict))
        except UNCLAIMED as error:
            databases.roll_back(alias)
            if isinstance(error, NO_STORE):
                place.surface.outage.tell(error)
            return response_of(place.surface.problems.of_error(error))
        if block.replayed:
            block.__exit__(None)
            assert block.verdict is not None
            return response_of(exchange.present(block.verdict))
        run.block = block
        is_in_test_case = databases.is_in_test_case(alias)
        if not is_in_test_case:
            databases.when_committed(alias, run.note_commit)
        getattr(request, "_request", request).semel_permit = block.permit
        response: Any = None
        before = databases.failures()
        try:
            with _Entered(block):
                with refusing_writes_beside(alias, place.beside):
                    response = _render(view(), request)
                answer = _capture_answer(exchange, response)
                if answer is None:
                    response = response_of(place.surface.problems.answer_too_large())
                    raise _RolledBack
                if databases.rolls_back(alias):  # as the view did, or REST framework for an exception
                    _check_success(response, databases.failure_since(before))
                    raise _RolledBack
                outcome = classify_answer(answer, command.policy, begun=True)
                if isinstance(outcome, Refused) and not is_in_test_case:
                    run.refusal = answer
                if not isinstance(outcome, Succeeded):
                    raise _RolledBack
                block.answer = answer
            run.is_settled = True
            if is_in_test_case:  # which never commits
                run.note_commit()
        except _RolledBack:
            databases.roll_back(alias)
        except NO_STORE as error:  # the record could not be settled
            databases.roll_back(alias)
            if isinstance(error, HandlerRefused):
                raise  # caused by the view's writes: treat it as the view's exception
            response = response_of(place.surface.problems.of_error(error))
        except BaseException as error:  # even if an outer layer answers: that layer may commit its block
            run.error = error
            databases.roll_back(alias)
            raise
        return response


def _check_success(response: Any, failure: BaseException | None) -> None:
    """Refuse a success whose writes will not be committed. Raises HandlerRefused."""
    if failure is not None and response.status_code < 400:
        raise HandlerRefused(
            f"the view answered {response.status_code} after {type(failure).__name__}, for which Django rolls its "
            "transaction back: write the statement that may fail in an atomic() block of its own"
        ) from failure


class _Entered:
    """A block that has been entered, as a context manager."""

    def __init__(self, block: Atomic) -> None:
        self._block = block

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, *_: object) -> None:
        self._block.__exit__(kind)


def _capture_answer(exchange: Exchange, response: Any) -> Answer | None:
    """Capture the answer for storage; None if it is too long."""
    capture = Capture(exchange.route.keeping)
    fits = capture.start(response.status_code, lines_of(response))
    fits = capture.add(response.content) and fits
    capture.end()
    return capture.to_store() if fits else None


def _render(response: Any, request: Any) -> Any:
    """Render the response, and read its stream, because both may read the transaction's rows."""
    if getattr(response, "is_rendered", True) is False:
        if hasattr(response, "data") and hasattr(request, "accepted_renderer"):  # REST framework's
            response.accepted_renderer = request.accepted_renderer
            response.accepted_media_type = request.accepted_media_type
            response.renderer_context = request.parser_context["view"].get_renderer_context()
        response = response.render()
    if getattr(response, "streaming", False):
        response = whole_of(response, b"".join(response))
    return response
