"""Bulk commands as views of Flask and Django, in threads: the body is the list, the answer has every item.

The counterpart of ``bulk.endpoint`` in threads. The view is the application's own, with its own authentication.
"""

from __future__ import annotations

import asyncio
import queue
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from semel.bulk.declaration import BulkItem, BulkPolicy, BulkResult
from semel.bulk.http import (
    BulkRequest,
    ListForm,
    Telling,
    accept,
    check_size,
    describe_bulk,
    headers_of,
    items_pointer,
    parse_request,
    refuse,
    status_of,
)
from semel.bulk.run_sync import Bulk
from semel.core.model import Answer
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, InProgressError, InvalidBody
from semel.http.routing import Params
from semel.http.settings import HttpSettings
from semel.http.spelling import without_slashes
from semel.http.wsgi.answer import headers_of as fields_of
from semel.http.wsgi.body import BodyPieces
from semel.http.wsgi.threads import Accepted
from semel.recipe import check_headers

Around = Callable[[Callable[[], None]], Callable[[], None]]
BODY_BYTES_MAX: Final = 64 * 1024 * 1024


class Told(NamedTuple):
    """A whole answer, whose items are read while it is sent."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    pieces: Iterator[bytes]


class BulkView:
    """One bulk command over HTTP, in threads; made by ``semel.bulk(...)``. ``answer`` is the view.

    Parameters: ``operation`` its name, and ``options`` those of :class:`~semel.bulk.declaration.BulkPolicy`;
    ``handler`` a function of an item; ``place`` returns the engine and the surface of the running application;
    ``around`` wraps the run in its own thread if the client got 202.
    """

    answer: Callable[..., Any]
    counts_path = False  # whether the application takes the list at several paths, each a separate command

    def __init__(
        self,
        operation: str,
        handler: Callable[[BulkItem], object],
        options: Mapping[str, Any],
        *,
        place: Callable[[], tuple[Engine, HttpSettings]],
        around: Around,
        body_bytes_max: int,
        items_at: str | None,
        counts: Sequence[str] | None,
    ) -> None:
        if not callable(handler) or asyncio.iscoroutinefunction(handler):
            raise ConfigurationError("a bulk's handler here must be a plain function: def approve(item): ...")
        if type(body_bytes_max) is not int or body_bytes_max < 1:
            raise ConfigurationError(f"body_bytes_max must be a whole number of bytes; it is {body_bytes_max!r}")
        self.policy = BulkPolicy(operation=operation, **options)
        self._handler = handler
        self._options = {"operation": operation, **options}
        self._place = place
        self._around = around
        self._body_bytes_max = body_bytes_max
        self._items_at = items_pointer(items_at)
        self._counts = None if counts is None else check_headers(counts)
        self._bulks: weakref.WeakKeyDictionary[Engine, Bulk] = weakref.WeakKeyDictionary()
        self._accepted = Accepted()

    @property
    def bulk(self) -> Bulk:
        """The bulk on the engine of the running application."""
        engine = self._place()[0]
        found = self._bulks.get(engine)
        if found is None:
            found = self._bulks[engine] = Bulk(engine, **self._options)
        return found

    @property
    def _surface(self) -> HttpSettings:
        return self._place()[1]

    @property
    def taken(self) -> ListForm:
        """How lists are accepted."""
        surface, policy = self._surface, self.policy
        headers = tuple(name.encode() for name in (surface.counts if self._counts is None else self._counts))
        if surface.key_name in headers:
            raise ConfigurationError(f"counts must not name {surface.key_header}: the key never counts")
        honoured = surface.honour_headers(policy.answer_seconds)
        return ListForm(self._body_bytes_max, policy.item_bytes_max, self._items_at, headers, honoured)

    def describe(self, operation: dict[str, Any]) -> None:
        """Complete the operation object of this view in an OpenAPI document."""
        describe_bulk(operation, self.policy, self.taken, self._surface.key_header)

    def close(self) -> None:
        """Wait for lists that were answered with 202."""
        self._accepted.close()

    def respond(self, environ: Mapping[str, Any], request: Any, params: Params, path: str) -> Answer | Told:
        """Run the list of a request, continue it, or replay its answer. Raises errors that concern all items.

        Parameters: ``request`` what the surface's ``caller`` function reads; ``params`` of its ``path``.
        """
        surface, taken = self._surface, self.taken
        query = environ.get("QUERY_STRING", "").encode("latin-1")
        counted = without_slashes(path) if self.counts_path else None
        mount = environ.get("SCRIPT_NAME", "")
        how = parse_request(
            surface, fields_of(environ), request, taken, params=params, query=query, path=counted, mount=mount
        )
        if isinstance(how, Answer):
            return how
        work = _Work(self.bulk, self._handler, how, taken, BodyPieces(environ))
        if not how.wants_async:
            return self._answer_end(work.run(None), how)
        begun: queue.SimpleQueue[str | BulkResult | Exception] = queue.SimpleQueue()
        if not self._accepted.begin(self._around(lambda: work.tell(begun))):
            return self._answer_end(work.run(None), how)
        first = begun.get()
        return accept(surface, first, how) if isinstance(first, str) else self._answer_end(first, how)

    def _answer_end(self, ended: BulkResult | Exception, how: BulkRequest) -> Answer | Told:
        surface = self._surface
        if isinstance(ended, BulkResult):
            return Told(status_of(ended), headers_of(surface, ended, how), self._body(self.bulk, ended, how))
        if how.wants_async and isinstance(ended, InProgressError) and ended.operation_id is not None:
            return accept(surface, ended.operation_id, how)
        answer = refuse(surface, ended, how)
        if answer is None:
            raise ended
        return answer

    def _body(self, bulk: Bulk, result: BulkResult, how: BulkRequest) -> Iterator[bytes]:
        telling, after = Telling(result, how), -1
        yield telling.begin()
        while page := bulk.page(result.operation_id, after=after):
            yield telling.page(page)
            after = page[-1].place
        yield telling.end()


class _Work:
    """One run of one list."""

    def __init__(self, bulk: Bulk, handler: Any, how: BulkRequest, taken: ListForm, pieces: BodyPieces) -> None:
        self._bulk = bulk
        self._handler = handler
        self._how = how
        self._taken = taken
        self._pieces = pieces
        self._size = 0

    def run(self, begun: Callable[[str], object] | None) -> BulkResult | Exception:
        """Run the list, and return its outcome."""
        how = self._how
        try:
            return self._bulk.run(
                self._items(),
                self._handler,
                key=how.key,
                caller=how.caller.id,
                tenant=how.caller.tenant,
                wait_seconds=0 if how.wants_async and how.wait_seconds is None else how.wait_seconds,
                begun=begun,
                counts=how.counts,
                limit=lambda: self._taken.refuse_size(self._size),
            )
        except Exception as error:  # noqa: BLE001 -- presented, or raised in the request's thread
            return error

    def tell(self, begun: queue.SimpleQueue[str | BulkResult | Exception]) -> None:
        """Run the list, and notify the request's thread once, on the claim or at the end. Raises later errors."""
        told: list[str] = []

        def tell_id(id: str) -> None:
            told.append(id)
            begun.put(id)

        ended = self.run(tell_id)
        if not told:
            begun.put(ended)
        elif isinstance(ended, Exception):
            raise ended

    def _items(self) -> Iterator[bytes]:
        how = self._how
        try:
            for piece in self._pieces:
                self._size += len(piece)
                check_size(self._size, self._taken.read_max)
                how.check.feed(piece)
                yield from how.reader.feed(piece)
        except OSError as error:  # the client has gone
            raise InvalidBody("The body is cut short; send it again.") from error
        how.check.finish()  # a list that was cut in transit is refused as such, even if its last item looks valid
        yield from how.reader.end()
