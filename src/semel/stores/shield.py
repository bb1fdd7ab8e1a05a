"""Store calls that no exception from outside cuts in half: threads of Semel's own for sync callers, a task for async.

A time limit (Celery's, Dramatiq's, ``signal.alarm``) raises its exception between any two instructions of the thread
that it is addressed to, also between the two that take a connection out of a pool and note that it was taken. No code
addresses the threads of this module. A caller that is interrupted waits until its call has ended, which the store's
own time-outs bound, and raises the exception then: at most one call of a thread is under way.

The caller's side is made of operations that are atomic for such exceptions: ``SimpleQueue.put`` and a lock's
``acquire``. It holds no lock, and everything it does may be done twice.

On an event loop the exception from outside is a cancellation: :func:`whole` runs a coroutine to its end all the same.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from semel.errors import StoreTimeout
from semel.stores.process import begin_in_children, this_process

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

THREAD_NAME: Final = "semel-call"
IDLE_SECONDS: Final = 5.0  # after which a thread without calls ends
LOOK_SECONDS: Final = 0.05  # longest pause before it looks for an interrupted caller


class CallerInterrupted(StoreTimeout):
    """Ends a wait on behalf of an interrupted caller, who never sees it."""


class Hold(Generic[T]):
    """Holds a call's value for its caller, who may be interrupted before using it.

    Parameters: ``drop`` undoes the value, in a thread of Semel's own, given the exception that the caller left with
    (None: unknown); it is harmless if the value has ended already.

    Make it before the call, and call :meth:`let_go` wherever an exception leaves the block that uses the value: then
    there is no instruction between the two at which the value could be lost. A caller who is interrupted a second
    time, while it lets go, loses the hold itself: then the interpreter has the value undone (see :class:`_Lost`).
    """

    __slots__ = ("__weakref__", "_held", "_number", "_process")

    def __init__(self, drop: Callable[[T, BaseException | None], object]) -> None:
        self._process = this_process()
        self._held = held = _Held(drop)
        lost = _Lost(self, _threads.calls.put)
        lost.held = held
        self._number = number = id(lost)
        _open[number] = lost

    def give(self, value: T) -> None:
        """Hand over the value, from the thread that made it."""
        held = self._held
        held.value = value
        if held.is_left:
            held.undo(None)

    def end(self) -> None:
        """Note that the value has ended, or that another owner will end it."""
        self._held.is_over = True
        _open.pop(self._number, None)

    def let_go(self, error: BaseException) -> None:
        """Undo the value if there is one that has not ended; also one that comes later.

        It does nothing in a child that was forked meanwhile: the value is its parent's.
        """
        if self._process is not this_process():
            return
        held = self._held
        held.is_left = True
        if held.value is not None and not held.is_over:
            run_shielded(lambda: held.undo(error))  # the hold must not know the error, whose frames know the hold
        _open.pop(self._number, None)


class _Held(Generic[T]):
    """The value of a hold, which outlives the hold if the caller was interrupted twice."""

    __slots__ = ("_drop", "is_left", "is_over", "value")

    def __init__(self, drop: Callable[[T, BaseException | None], object]) -> None:
        self._drop = drop
        self.value: T | None = None
        self.is_left = False
        self.is_over = False

    def undo(self, error: BaseException | None) -> None:
        value, self.value = self.value, None
        if value is not None and not self.is_over:
            self._drop(value, error)


class _Lost(weakref.ref["Hold[Any]"]):
    """Undoes the value of a hold whose caller neither used nor released it.

    The interpreter calls ``SimpleQueue.put`` as the hold dies. No instruction of Python's lies between: a ``__del__``
    could itself be interrupted, and its exception is swallowed.
    """

    __slots__ = ("held",)
    held: _Held[Any]

    def perform(self) -> None:
        """Undo the hold's value."""
        _open.pop(id(self), None)
        self.held.is_left = True
        with suppress(Exception):  # no caller waits for it; if the store is away, the lease ends the value
            self.held.undo(None)


_open: Final[dict[int, _Lost]] = {}  # of each hold that has not ended; only a weak reference that is kept calls back


class _Call(Generic[T]):
    """One piece of work, and the caller who waits for it."""

    __slots__ = ("_context", "_once", "_work", "done", "error", "is_done", "is_left", "value")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._context: Context = copy_context()
        self._once = _thread.allocate_lock()
        self.done = _thread.allocate_lock()
        self.done.acquire()
        self.is_done = False
        self.is_left = False
        self.value: T | None = None
        self.error: BaseException | None = None

    def perform(self) -> None:
        """Do the work, unless it was begun, or its caller was interrupted before it was."""
        if not self._once.acquire(blocking=False):
            return  # posted twice by an interrupted caller
        try:
            if not self.is_left:
                _here.call = self
                self.value = self._context.run(self._work)
        except BaseException as error:  # noqa: BLE001 -- the caller raises it
            self.error = error
        finally:
            _here.call = None
            self.is_done = True
            self.done.release()

    def result(self) -> T:
        """Return the work's result, or raise its exception."""
        error, self.error = self.error, None
        if error is None:
            return cast(T, self.value)
        try:
            raise error
        finally:
            del error  # no cycle between the error and this frame


class _Here(threading.local):
    """The thread's own state: whether it is one of Semel's, and its current call."""

    is_own = False
    call: _Call[Any] | None = None


class _Threads:
    """The threads: one for each call under way, and those that have just become idle."""

    def __init__(self) -> None:
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start without threads: at first, and in a forked child."""
        self.calls: SimpleQueue[_Call[Any] | _Lost] = SimpleQueue()
        self._lock = threading.Lock()  # only ever taken by the threads of this class
        self._idle = 0

    def post(self, call: _Call[Any]) -> None:
        """Submit the work. Atomic in the end: an interrupted caller submits it again."""
        self.calls.put(call)
        if not self._idle:
            try:
                _thread.start_new_thread(self._start, ())
            except RuntimeError:  # no thread can start: better interrupted than never done
                call.perform()

    def _start(self) -> None:
        """Start a named thread from a bare one: ``Thread.start`` is not safe in a caller's thread."""
        try:
            threading.Thread(target=self._serve, args=(self.calls,), name=THREAD_NAME, daemon=True).start()
        except RuntimeError:  # no second thread can start beside this one
            self._serve_waiting()

    def _serve_waiting(self) -> None:
        """Run the waiting calls in this thread: no other thread runs them, and their callers wait."""
        was_own, _here.is_own = _here.is_own, True
        with suppress(Empty):
            while True:
                self.calls.get_nowait().perform()
        _here.is_own = was_own

    def _serve(self, calls: SimpleQueue[_Call[Any] | _Lost]) -> None:
        _here.is_own = True
        self._count(1)
        while True:
            try:
                call = calls.get(timeout=IDLE_SECONDS)
            except Empty:
                self._count(-1)
                if calls.empty():
                    return
                self._count(1)  # posted by a caller who still saw this thread idle
                continue
            if self._count(-1) == 0 and not calls.empty():  # likewise
                self._start()
            call.perform()
            del call  # only the caller may keep the call's result
            self._count(1)

    def serve_lost(self) -> None:
        """Run work that was submitted without waking an idle thread."""
        if not self._idle and not self.calls.empty():
            with suppress(RuntimeError):  # no thread can start: the next beat tries again
                _thread.start_new_thread(self._start, ())  # as ``post``: the caller's own thread has leases to renew

    def _count(self, change: int) -> int:
        with self._lock:
            self._idle += change
            return self._idle


_here = _Here()
_threads = _Threads()


def begin_own_thread() -> None:
    """Note that this thread is Semel's own: it is never interrupted, and performs its calls itself."""
    _here.is_own = True


def run_shielded(work: Callable[[], T]) -> T:
    """Do the work in a thread of Semel's own, and wait for it; in this one where it is Semel's own already.

    Raises the work's exception; one from outside only once the work has ended. The caller then cannot know whether the
    work had begun: see :class:`Hold` for a value that it may have made.
    """
    if _here.is_own or sys.is_finalizing():
        return work()
    call = _Call(work)
    try:
        _threads.post(call)
        call.done.acquire()
    except BaseException:
        call.is_left = True
        while not call.is_done:
            with suppress(BaseException):  # one more, of which the first is raised
                _threads.post(call)  # again: the exception may have come before the first
                call.done.acquire()
        raise
    return call.result()


def later(work: Callable[[], object]) -> None:
    """Run the work in one of Semel's threads without waiting, such as the cleanup of a ``__del__``."""
    if sys.is_finalizing():
        work()
    else:
        _threads.post(_Call(work))


def serve_lost() -> None:
    """Undo values that interrupted callers have lost, if no thread is idle. Called every beat while a permit lives."""
    _threads.serve_lost()


def check_caller() -> None:
    """Raise :class:`CallerInterrupted` where this thread works for a caller who has been interrupted meanwhile."""
    call = _here.call
    if call is not None and call.is_left:
        raise CallerInterrupted("the caller was interrupted while it waited; retry with the same key")


def pause(woken: threading.Event, seconds: float) -> None:
    """Wait for the event, at most so long. Raises CallerInterrupted once the caller is interrupted."""
    ends = time.monotonic() + seconds
    check_caller()
    while (left := ends - time.monotonic()) > 0 and not woken.wait(min(left, LOOK_SECONDS)):
        check_caller()


async def whole(work: Coroutine[Any, Any, T]) -> tuple[T, asyncio.CancelledError | None]:
    """Run a coroutine to completion in its own task, however often the caller is cancelled meanwhile.

    Returns its result, and the cancellation if there was one: the caller then ends what the result began, and raises
    the cancellation. If the work raised, raises its exception, or the cancellation if there was one.
    """
    import asyncio  # threads need no event loop

    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and (task.cancelled() or task.exception() is not None):
        raise cancelled
    return task.result(), cancelled
