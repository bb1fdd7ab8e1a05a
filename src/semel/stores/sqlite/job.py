"""One flow, or one request, on its way through the SQLite driver, and how its caller gets the result."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, cast

from semel.core.flow import Ask, Flow, MakeFlow, perform
from semel.errors import StoreUnavailable
from semel.stores.failures import still_unknown
from semel.stores.sqlite.connection import FileLocked

if TYPE_CHECKING:
    from semel.stores.sqlite.bundles import Bundle

T = TypeVar("T")
_NO_LOOP: Final = object()
_BUSY: Final = "SQLite: the database was busy for too long; retry with the same key"
_LENT: Final = (
    "SQLite: a transaction of this process, of an ATOMIC handler or a message's, held the file's only write lock for "
    "too long. A command that its handler calls can never run inside it: call it before or after. Any other: retry "
    "with the same key"
)


class FlowJob(Generic[T]):
    """A flow, its position, and its waiter: a thread's event or a loop's future.

    A job that ``lends`` runs no flow: it asks for the gate itself (see ``transaction``).
    """

    __slots__ = (
        "_error",
        "_flow",
        "_make",
        "_needed",
        "_value",
        "deadline",
        "done",
        "event",
        "forsaken",
        "future",
        "in_doubt",
        "lend",
        "lends",
        "loop",
    )
    bundle: ClassVar[None] = None
    in_doubt: bool  # set by ``restart`` alone; most jobs never have the attribute

    def __init__(self, make: MakeFlow[T] | None, deadline: float, lend: Callable[[], T] | None = None) -> None:
        self._make = make
        self._flow: Flow[T] | None = None
        self._needed: Ask[Any] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self.deadline = deadline  # monotonic seconds
        self.done = False
        self.event: threading.Event | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[None] | None = None
        self.forsaken: Callable[[FlowJob[T]], None] | None = None  # what to do with the value if its caller is gone
        self.lends = make is None
        self.lend = lend if lend is not None else _nothing_to_lend

    def begins(self, with_: Callable[[Ask[Any]], bool]) -> bool:
        """Make the flow, and return whether its first ask is such a one. A flow may end without any."""
        assert self._make is not None
        self._flow = self._make()
        try:
            self._needed = next(self._flow)
        except StopIteration as stop:
            self.finish(stop.value)
            return False
        return with_(self._needed)

    def advance(self, answer: Callable[[Ask[Any]], Any], *, until: Callable[[Ask[Any]], bool] | None = None) -> bool:
        """Perform requests from the flow's position to its end, or to the first one for which ``until`` holds."""
        flow = self._flow
        try:
            if flow is None:
                assert self._make is not None
                flow = self._flow = self._make()
                self._needed = next(flow)
            needed = cast("Ask[Any]", self._needed)
            while until is None or not until(needed):
                needed = self._needed = flow.send(answer(needed))
        except StopIteration as stop:
            self.finish(stop.value)
            return True
        return False

    def restart(self, *, in_doubt: bool = False) -> None:
        """Forget a try: the flow is made anew. ``in_doubt``: whether it was rolled back or committed is not known."""
        if in_doubt:
            self.in_doubt = True
        self._flow = self._needed = self._value = self._error = None
        self.done = False

    def finish(self, value: T) -> None:
        """End the job with its value. ``settle_jobs`` wakes the caller after the commit."""
        self._value = value
        self.done = True

    def fail(self, error: BaseException) -> None:
        """End the job with an error."""
        self._error = _judge(self, error)
        self.done = True

    def result(self) -> T:
        """Return the flow's result, once; raises its error."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # no cycle between the error and this frame
        value, self._value = self._value, None  # handed over: the thread that served the job must not keep it alive
        return cast(T, value)

    def tell(self) -> None:
        """Wake the caller on its loop, in the loop's own thread."""
        assert self.future is not None
        if not self.future.done():
            self.future.set_result(None)


class RequestJob:
    """One request of a verb that begins with its write, and the future of its reply.

    One transaction writes the requests of one ``bundle`` together; otherwise each runs its own flow.
    """

    __slots__ = ("_error", "_verb", "bundle", "deadline", "done", "future", "in_doubt", "loop", "request", "value")
    lends: ClassVar[bool] = False
    event: ClassVar[None] = None
    forsaken: ClassVar[None] = None  # the caller repeats the request, or gives it up
    in_doubt: bool  # as a FlowJob's

    def __init__(
        self,
        bundle: Bundle,
        verb: Callable[[Sequence[Any]], Flow[list[Any]]],
        request: Any,
        deadline: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.bundle = bundle
        self._verb = verb
        self.request = request
        self.deadline = deadline  # monotonic seconds
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.value: Any  # once it is done and has no error
        self._error: BaseException | None = None
        self.done = False

    def advance(self, answer: Callable[[Ask[Any]], Any]) -> None:
        """Perform the request's own flow."""
        [self.value] = perform(self._verb((self.request,)), answer)
        self.done = True

    def restart(self, *, in_doubt: bool = False) -> None:
        """As :meth:`FlowJob.restart`."""
        if in_doubt:
            self.in_doubt = True
        self._error = None
        self.done = False

    def fail(self, error: BaseException) -> None:
        """End the job with an error."""
        self._error = _judge(self, error)
        self.done = True

    def tell(self) -> None:
        """Give the caller its reply, in the loop's own thread."""
        future, error = self.future, self._error
        if future.done():
            return  # the caller was cancelled, or has its reply
        if error is None:
            future.set_result(self.value)
        else:
            self._error = None  # no cycle between the error and this job, which its frames hold
            future.set_exception(error)


Job = FlowJob[Any] | RequestJob


def advance_together(jobs: Sequence[Job], answer: Callable[[Ask[Any]], Any]) -> bool:
    """Perform jobs in one transaction, the requests of each bundle together, and then the others in their order.

    Return False if a request is not as usual: the caller rolls back and performs each flow by itself.
    """
    bundles: defaultdict[Bundle, dict[bytes, RequestJob]] = defaultdict(dict)
    others: list[Job] = []
    for job in jobs:
        # The request already in its bundle is another one for the same record.
        if job.bundle is None or bundles[job.bundle].setdefault(job.request.id, job) is not job:
            others.append(job)
    for bundle, members in bundles.items():
        replies = perform(bundle.write([job.request for job in members.values()]), answer)
        if replies is None:
            return False
        for member, reply in zip(members.values(), replies, strict=True):
            member.value = reply
            member.done = True
    for job in others:
        job.advance(answer)
    return True


def _judge(job: Job, error: BaseException) -> BaseException:
    """Make the error of a job: if an earlier try is in doubt, only the last one is known to have written nothing."""
    if isinstance(error, StoreUnavailable) and getattr(job, "in_doubt", False):
        return still_unknown(error, "an earlier commit of it failed in the middle")
    return error


def nothing() -> Flow[None]:
    """Do nothing in a turn."""
    yield from ()


def _nothing_to_lend() -> Any:
    raise AssertionError("only a lending job is asked to lend")


def refuse_overdue(queue: deque[Job], path: str, *, is_lent: bool) -> None:
    """Refuse a flow that waited too long for its turn: it has written nothing.

    Parameters: ``path`` of the file; ``is_lent`` whether a transaction of this process has the turn.
    """
    now = time.monotonic()
    overdue = [job for job in list(queue) if job.deadline <= now]
    _refuse(queue, overdue, lambda: FileLocked(_LENT if is_lent else _BUSY, path))


def refuse_all(queue: deque[Job], why: str) -> None:
    """Refuse all jobs that wait for a thread that cannot start: they have written nothing."""
    _refuse(queue, list(queue), lambda: StoreUnavailable(f"SQLite: {why}"))


def _refuse(queue: deque[Job], jobs: Sequence[Job], why: Callable[[], StoreUnavailable]) -> None:
    for job in jobs:
        try:
            queue.remove(job)
        except ValueError:
            continue  # another thread has taken it in the meantime
        job.fail(why())
        settle_jobs([job])


def settle_jobs(jobs: Sequence[Job]) -> None:
    """Give every caller its reply; wake a loop once for all its callers, or reply at once on its own thread."""
    here: object
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = _NO_LOOP
    elsewhere: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        loop = job.loop
        if loop is here:
            job.tell()
        elif job.event is not None:
            job.event.set()
        elif loop is not None:
            elsewhere.setdefault(loop, []).append(job)
    for loop, told in elsewhere.items():
        try:
            loop.call_soon_threadsafe(_tell, told)
        except RuntimeError:  # the loop is closed: no caller is left, the write remains
            for job in told:
                if job.forsaken is not None:
                    job.forsaken(job)


def _tell(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.tell()
