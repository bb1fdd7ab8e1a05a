"""Claiming *inside* a view in a thread, after authentication and validation; the answer is captured outside.

As in ``asgi.route`` on event loops: a request that the application refuses before its view claims is not recorded,
and the result of a claim, such as a replay, leaves from the place where the answer is captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import get_ident
from typing import Any, Final, NamedTuple

from semel.core.model import Answer, Superseded, Verdict
from semel.engine.permit import Permit
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, InvalidBody, NothingHappened, SemelError, StoreError
from semel.http.body_time import socket_clock
from semel.http.capture import Capture
from semel.http.exchange import Exchange, Unprotected, count_mount, open_exchange, too_large
from semel.http.outage import UNCLAIMED
from semel.http.routing import Params, Route
from semel.http.settings import HttpSettings
from semel.http.wsgi.body import WITHHELD, KeptBody, is_withheld
from semel.policy import Command
from semel.stores.shield import Hold

_REACHED: Final = Answer(204, (), b"")


class Head(NamedTuple):
    """The head of a request: method, raw query, fields with lower-case names, and the announced length of its body.

    ``mount``: the application's mount point.
    """

    method: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    length: int | None
    mount: str = ""


class Given:
    """A permit that exists before its view claims: for a run whose client got a 202 or has disconnected.

    Parameters: ``permit`` None to check only whether the application would reach the view.
    """

    def __init__(self, permit: Permit | None) -> None:
        self.permit = permit
        self.is_reached = False


class InsideCall:
    """One request of an application whose views claim for themselves.

    ``permit`` is its view's, ``instead`` is Semel's own answer that leaves in place of the application's, ``mark`` the
    header of an answer that was not protected.
    """

    def __init__(self) -> None:
        self.permit: Permit | None = None
        self.instead: Answer | None = None
        self.mark: tuple[bytes, bytes] | None = None
        self.failure: BaseException | None = None
        self.own_status: int | None = None
        self.exchange: Exchange | None = None
        self.capture: Capture | None = None
        self.is_over = False
        self.given: Given | None = None
        self._engine: Engine | None = None
        self._hold: Hold[Permit] | None = None

    @property
    def has_claimed(self) -> bool:
        """Whether a view has claimed, with any verdict."""
        return self.capture is not None

    def command(
        self,
        engine: Engine,
        surface: HttpSettings,
        route: Route,
        params: Params,
        request: Any,
        head: Head,
        body: KeptBody,
        environ: Mapping[str, Any],
    ) -> Command | Answer | None:
        """The view's command, the answer that replaces it, or None to run unprotected.

        Parameters: ``request`` that the caller function reads; ``environ`` in which a server exposes its connection.
        """
        if self.has_claimed:
            raise ConfigurationError(
                f"the operation {route.name!r} was called by another operation's handler; a request is one command: "
                "declare only one of the two"
            )
        if self.is_over:
            raise ConfigurationError(f"the operation {route.name!r} was called when its request had been answered")
        if self.given is not None:
            return self._take(self.given, route)
        self._engine, self._hold = engine, engine._hold()
        asked: Mapping[str, Any] = request
        route, params = count_mount(route, params, head.mount)
        opened = open_exchange(surface, route, params, head.method, head.query, head.headers, asked)
        if isinstance(opened, Unprotected):
            self.mark = opened.mark
            return None
        self.capture = Capture(route.keeping)
        if isinstance(opened, Answer):
            return self.replace(opened)
        self.exchange = opened
        if is_withheld(environ):
            return self.replace(surface.problems.of_error(InvalidBody(WITHHELD)))
        fits = fill_in_time(body, environ, surface.body_seconds_max)
        if fits is None:
            return self.replace(surface.problems.body_too_slow(surface.body_seconds_max))
        if not fits:
            return self.replace(surface.problems.of_error(too_large(route)))
        if head.length is not None and body.spool.size < head.length:
            return self.replace(opened.cut_short())
        for chunk in body.spool.chunks():
            refusal = opened.feed(chunk)
            if refusal is not None:
                return self.replace(refusal)
        command = opened.finish(body.spool)
        return self.replace(command) if isinstance(command, Answer) else command

    def _take(self, given: Given, route: Route) -> Command | Answer:
        given.is_reached, self.capture = True, Capture(route.keeping)
        return self.replace(_REACHED) if given.permit is None else given.permit.command

    def claim(self, command: Command) -> Permit | Answer | None:
        """Claim for the view: its permit, the answer that leaves instead, or None to run unprotected."""
        if self.given is not None and self.given.permit is not None:
            self.permit = self.given.permit
            self.permit.handler_thread = get_ident()
            return self.permit
        exchange = self.exchange
        assert exchange is not None
        assert self._engine is not None
        assert self._hold is not None
        try:
            permit = self._engine._claim_into(self._hold, command, exchange.wait_seconds)
        except UNCLAIMED as error:
            return self.answer_unclaimed(error)
        if not isinstance(permit, Permit):
            return self.replace(exchange.present(permit))
        permit.handler_thread = get_ident()
        self.permit = permit
        return permit

    @property
    def wants_async(self) -> bool:
        """Whether the client prefers a 202 over waiting, and the view can finish without it."""
        return self.given is None and self.exchange is not None and self.exchange.wants_async

    def hand_over(self) -> Answer:
        """Give the permit to another call of the same request, which finishes it; the client gets a 202."""
        assert self.permit is not None
        assert self.exchange is not None
        starts = self.permit.asked.policy.terms.starts
        answer = self.exchange.answer_accepted(self.permit.execution_id, starts)
        self.permit = self._hold = None
        return self.replace(answer)

    def prepare(self, further: InsideCall) -> None:
        """Prepare another call of the same request, which will have the permit."""
        further.given = Given(self.permit)
        further.exchange, further._engine, further._hold = self.exchange, self._engine, self._hold

    def check_reached(self) -> None:
        """Raise NothingHappened if an accepted request reached no view, so that nothing was done."""
        if self.given is not None and not self.given.is_reached:
            raise NothingHappened(
                "a request that had been answered with 202 (Prefer: respond-async) was answered again before it "
                "reached its view; middlewares and decorators in front of the view must decide the same way each time"
            )

    def answer_unclaimed(self, error: SemelError) -> Answer | None:
        """The answer for a store that could not take the command, or None to run unprotected."""
        assert self.exchange is not None
        refused = self.exchange.answer_unclaimed(error)
        if isinstance(refused, Answer):
            return self.replace(refused)
        self.mark, self.capture = refused.mark, None
        return None

    def replace(self, answer: Answer) -> Answer:
        """Replace the application's own answer with this one, from here on."""
        self.instead = answer
        return answer

    def note_failure(self, error: BaseException, own_status: int | None = None) -> None:
        """Note what the view raised, even if the framework turns it into an answer.

        Parameters: ``own_status`` if the exception is the view's own answer, such as ``abort(redirect(...))``.
        """
        self.failure, self.own_status = error, own_status

    def mark_not_kept(self) -> bool:
        """Note that the answer cannot be kept, before its first byte leaves. False: it may not leave."""
        assert self._engine is not None
        assert self.permit is not None
        try:
            return self._engine.mark_not_kept(self.permit)
        except StoreError:
            return False

    def settle(self, error: BaseException | None) -> Answer | None:
        """Settle the outcome of the application; returns the answer that may leave, if any."""
        exchange, permit, capture = self.exchange, self.permit, self.capture
        assert exchange is not None
        assert permit is not None
        assert capture is not None
        assert self._engine is not None
        return settle_call(self._engine, exchange, permit, capture, error, self.failure)

    def end(self) -> None:
        """End the request: its grant is settled, or a stream settles it."""
        self.is_over = True
        if self._hold is not None:
            self._hold.end()

    def let_go(self, error: BaseException) -> None:
        """End the grant of an interrupted request."""
        self.is_over = True
        if self._hold is not None:
            self._hold.let_go(error)


def settle_call(
    engine: Engine,
    exchange: Exchange,
    permit: Permit,
    capture: Capture,
    error: BaseException | None,
    failure: BaseException | None = None,
) -> Answer | None:
    """Settle the outcome of an application's call; returns the answer that may leave, if any.

    Parameters: ``error`` that left the application, ``failure`` that left its view.
    """
    outcome = exchange.outcome(permit, capture, error, failure)
    verdict: Verdict | None = None
    unconfirmed: SemelError | None = None
    try:
        reply = engine.settle(permit, outcome)
        if type(reply) is Superseded:
            verdict = engine.reread(permit)
    except SemelError as failed:
        unconfirmed = failed
    return exchange.last_answer(permit, capture, outcome, error, verdict, unconfirmed, failure)


def fill_in_time(body: KeptBody, environ: Mapping[str, Any], seconds: float) -> bool | None:
    """Read the rest of the body from the client. False: it is too long; None: it has not come in time."""
    clock = socket_clock(seconds)
    connection = clock.begin(environ)
    try:
        fits = body.fill()
    except BaseException as error:
        if clock.end(connection) or not isinstance(error, Exception):
            raise
        return None
    return fits if clock.end(connection) else None
