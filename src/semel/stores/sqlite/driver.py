"""The SQLite driver: reads without a lock, writes in groups, one writer gate per process.

A flow's first reads run at once on a reading connection. From its first write on it joins the queue. The holder of the
*gate* commits the whole queue in one transaction (group commit); the flows that queue up meanwhile are the next group.
The gate is held by

- the calling thread, for synchronous callers;
- the event loop itself, for one short commit, while commits are measured to be quick and no other
  process has the file;
- otherwise the driver's writer thread, the only one that ever waits for the file's lock;
- an ATOMIC unit, from its BEGIN IMMEDIATE to its end (see ``transaction``).

The loop therefore never waits for a lock, nor for a commit while recent commits were slow.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeVar

from semel.core.decide import find_replay_in
from semel.core.flow import Flow, MakeFlow
from semel.core.model import Claim, Replay
from semel.errors import StoreTimeout, StoreUnavailable
from semel.stores.clock import Clock, system_clock
from semel.stores.process import start_thread
from semel.stores.sql.statements import Query
from semel.stores.sqlite import fork as sqlite_fork
from semel.stores.sqlite.bundles import BUNDLES
from semel.stores.sqlite.connection import (
    BEGIN,
    COMMIT,
    UNSEEN,
    Answer,
    Answering,
    answering,
    is_busy,
    open_connection,
    outlives_its_cause,
    store_error,
    writes,
)
from semel.stores.sqlite.job import (
    FlowJob,
    Job,
    RequestJob,
    advance_together,
    nothing,
    refuse_all,
    refuse_overdue,
    settle_jobs,
)
from semel.stores.sqlite.readers import Reader, Readers
from semel.stores.sqlite.store import FIND_KEPT_ANSWER, SqliteStore, look_first

T = TypeVar("T")

GROUP_MAX: Final = 200
COMMITS_PER_CHECKPOINT: Final = 250
INLINE_SECONDS_MAX: Final = 0.001  # if recent commits are slower on average, they leave the event loop
BUSY_PAUSE_SECONDS: Final = 0.002
REPLACED: Final = (
    "the database file {path!r} was deleted or replaced while this process had it open: it is not the one that holds "
    "what ran here. Put it back; or find out from your own systems which commands ran, and restart this process"
)


class SqliteDriver:
    """Runs flows on one SQLite file.

    Parameters: ``path`` of the database file; ``synchronous`` "FULL" (default: a commit survives power loss) or
    "NORMAL" (the last commits may be lost with the power, never the file); ``busy_seconds`` how long a write may
    wait for the file before :class:`~semel.errors.StoreUnavailable`; ``clock`` in microseconds; ``answering`` how
    asks are performed on a connection (tests stand in between).
    """

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "FULL",
        busy_seconds: float = 5.0,
        clock: Clock = system_clock,
        inline: bool = True,
        answering: Answering = answering,
    ) -> None:
        self.path = path
        self.store = SqliteStore()  # the store whose flows this driver runs
        self.synchronous = synchronous
        self.clock = clock
        self.answering = answering
        self.commits = 0  # the documents promise a number, which tests check
        self._busy_seconds = busy_seconds
        self._inline = inline
        self._file: tuple[int, int] | None = None  # the file that was opened first
        self._inherited: list[object] = []  # connections of a parent process: never used, never closed
        self._reset()
        sqlite_fork.watch(self)

    def _reset(self) -> None:
        self._gate = threading.Lock()
        self._is_lent = False  # to an ATOMIC unit
        self._queue: deque[Job] = deque()
        self._readers = Readers(self.path, self.synchronous, self.clock, self.answering, self.check_file)
        self._writer: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._work = threading.Condition()
        self._stopping = False
        self._commit_seconds = 0.0
        self._uncheckpointed = 0
        self._ticking: asyncio.AbstractEventLoop | None = None  # the loop whose tick is to commit

    def check_file(self) -> None:
        """Check that the path still names the file that was opened first.

        SQLite keeps using a file that other processes no longer find: a key recorded there would run again elsewhere.

        Raises StoreUnavailable, also if the file system fails, which proves nothing about the file.
        """
        try:
            found = sqlite_fork.file_identity(self.path)
        except OSError as error:
            raise StoreUnavailable(f"SQLite: {error.strerror} ({UNSEEN})") from error
        if self._file is None:
            self._file = found
        elif found != self._file:
            raise StoreUnavailable(REPLACED.format(path=self.path))

    def before_fork(self) -> bool:
        """Close all connections and open none until ``after_fork``; False where one is still in use (see ``fork``)."""
        if not self._gate.acquire(timeout=sqlite_fork.GATE_SECONDS):
            return False
        still = self._readers.hold(sqlite_fork.GATE_SECONDS)
        if still:
            self.close_idle()
        else:
            self.release_gate()
        return still

    def after_fork(self) -> None:
        """Resume in the parent."""
        self._readers.release()
        self.release_gate()

    def begin_process(self) -> None:
        """Start without connections in a forked child, and close none (sqlite.org/howtocorrupt.html §2.6)."""
        self._inherited += [self._readers, self._writer, self._queue]
        self._reset()

    # --- callers ----------------------------------------------------------------------------

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow from an ordinary thread.

        Raises:
            StoreUnavailable: the file is locked, read-only, full or missing; nothing was written.
            StoreTimeout: the commit itself failed; whether it took effect is not known yet.
        """
        job = FlowJob(make, time.monotonic() + self._busy_seconds)
        if self._read_part(job):
            return job.result()
        job.event = threading.Event()
        self._queue.append(job)
        while not job.event.is_set():
            if not self._lending_next() and self._gate.acquire(blocking=False):
                self._serve_group(wait=True)
            else:
                self._wake()
                job.event.wait(BUSY_PAUSE_SECONDS)
                refuse_overdue(self._queue, self.path, is_lent=self._is_lent)
        return job.result()

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow from an event loop. Cancelling the caller does not stop the write. Raises as ``run``."""
        job = FlowJob(make, time.monotonic() + self._busy_seconds)
        if self._read_part(job):
            return job.result()
        loop = asyncio.get_running_loop()
        job.loop = loop
        job.future = future = loop.create_future()
        self._queue.append(job)
        if self._ticking is not loop:  # another loop's tick may never come: it may have been closed
            # At the end of this tick, so that all that became ready in it is one commit.
            self._ticking = loop
            loop.call_soon(self._tick)
        await future
        return job.result()

    def ask_one(self, name: str, verb: Callable[[Sequence[Any]], Flow[list[T]]], request: Any) -> Awaitable[T]:
        """Return the reply to one request; one transaction writes all requests of this tick. As :meth:`run_async`."""
        try:
            bundle = BUNDLES[verb.__func__]  # type: ignore[attr-defined]  # a method of the store's, as nearly all
        except (AttributeError, KeyError):
            is_claim = getattr(verb, "__func__", None) is SqliteStore.claim
            return self._claim_one(request) if is_claim else self._run_one(verb, request)
        if not bundle.fits(request):
            return self._run_one(verb, request)
        loop = asyncio.get_running_loop()
        job = RequestJob(bundle, verb, request, time.monotonic() + self._busy_seconds, loop)
        self._queue.append(job)
        if self._ticking is not loop:  # as in ``run_async``
            self._ticking = loop
            loop.call_soon(self._tick)
        return job.future

    async def _claim_one(self, request: Claim) -> Any:
        """Claim as the store does: look first, and write a new key together with the others of this tick."""
        job = FlowJob(lambda: look_first(request), time.monotonic() + self._busy_seconds)
        self._read_part(job)  # this part writes nothing
        met: Any = job.result()
        if met is None:  # a record that this claim may take over
            return await self._run_one(self.store.claim_unseen, request)
        return met or await self.ask_one("claim", self.store.claim_unseen, request)

    async def _run_one(self, verb: Callable[[Sequence[Any]], Flow[list[T]]], request: Any) -> T:
        return (await self.run_async(lambda: verb((request,))))[0]

    def kept_answer(self, id: bytes, recipe: str, fingerprint: bytes) -> Replay | Literal[False] | None:
        """As :class:`~semel.core.contract.LooksAtOnce`. Raises as ``run``."""
        reader = self._readers.take()
        try:
            asked: Any = (bytearray(id),)  # passed as ``bundles`` passes its values
            rows = reader.answer(Query(FIND_KEPT_ANSWER, asked))
        except BaseException as error:
            self._give_up(reader, error)
            raise
        self._readers.give_back(reader)
        if not rows:
            return False
        row = rows[0]
        return find_replay_in(row[:-1], row[-1] is not None, id, recipe, fingerprint, self.clock())

    def submit(self, job: Job) -> None:
        """Queue a job for the writer thread (ATOMIC units wait for the gate this way)."""
        self._queue.append(job)
        self._wake()

    def _read_part(self, job: FlowJob[Any]) -> bool:
        """Perform a flow up to its first write; True if it has none."""
        if job.begins(with_=writes) or job.done:
            return job.done
        reader = self._readers.take()
        try:
            finished = job.advance(reader.answer, until=writes)
        except BaseException as error:
            self._give_up(reader, error)
            raise
        self._readers.give_back(reader)
        return finished

    def _give_up(self, reader: Reader, error: BaseException) -> None:
        """Close a connection whose read failed. Raises Semel's error for one of SQLite's."""
        self._readers.discard(reader)
        if isinstance(error, sqlite3.Error):
            if outlives_its_cause(error) and self._gate.acquire(blocking=False):  # the gate's holder will meet it, too
                self.close_idle()
                self.release_gate()
            raise store_error(error, self.path) from error

    # --- the gate ---------------------------------------------------------------------------

    def _tick(self) -> None:
        """Commit the tick's group on the event loop if that is quick, or leave it to the thread."""
        self._ticking = None
        if not self._queue:
            return
        quick = self._inline and self._commit_seconds < INLINE_SECONDS_MAX and not self._lending_next()
        if quick and self._writer is not None and self._gate.acquire(blocking=False):
            self._serve_group(wait=False)
            if not self._queue:
                return
        self._wake()

    def _serve_group(self, *, wait: bool) -> None:
        """Commit one group and open the gate. Called with the gate held; a lent gate stays shut."""
        jobs = left = self._take_group()
        try:
            left = self._commit_group(jobs, wait=wait) if jobs else []
        finally:
            settle_jobs([job for job in left if job.done])  # this thread was interrupted before it told their callers
            self._queue.extendleft(job for job in reversed(left) if not job.done)
            self._gate.release()
        if self._uncheckpointed >= COMMITS_PER_CHECKPOINT:
            self._wake()

    def _lending_next(self) -> bool:
        try:
            return self._queue[0].lends
        except IndexError:
            return False

    def _take_group(self) -> list[Job]:
        """Take the jobs up to the first that lends. Called with the gate held."""
        queue = self._queue
        jobs: list[Job] = []
        with suppress(IndexError):
            for _ in range(GROUP_MAX):
                job = queue.popleft()
                if job.lends:
                    queue.appendleft(job)
                    break
                jobs.append(job)
        return jobs

    def _take_lending(self) -> Job | None:
        """Take the queue's first job if it lends."""
        with suppress(IndexError):
            if self._queue[0].lends:
                job = self._queue.popleft()
                if job.lends:
                    return job
                self._queue.appendleft(job)
        return None

    def _commit_group(self, jobs: list[Job], *, wait: bool, bundled: bool = True) -> list[Job]:
        """Run jobs in one transaction; each alone where that fails. Returns those still to be done (busy)."""
        writer = self._begin(jobs, wait=wait)
        if writer is None:
            return [job for job in jobs if not job.done]
        answer = self.answering(writer, self.clock)
        try:
            if bundled:
                usual = advance_together(jobs, answer)
            else:
                usual = True
                for job in jobs:
                    job.advance(answer)
            if usual:
                self.commit(answer)
            else:
                for job in jobs:
                    job.restart()
                self._rollback(writer)
        except BaseException as error:
            # All of them, before anything else: an interrupted thread wakes the callers of the jobs that are done.
            in_doubt = isinstance(error, StoreTimeout) or not isinstance(error, Exception)
            for job in jobs:
                job.restart(in_doubt=in_doubt)
            self._rollback(writer)
            if outlives_its_cause(error):
                self.close_idle()
            if not isinstance(error, Exception):  # this thread is interrupted; the others' writes must still be done
                raise
            if len(jobs) > 1:
                # One job is at fault, or the group was too large: each gets its own transaction.
                left = []
                for job in jobs:
                    left += self._commit_group([job], wait=wait)
                return left
            jobs[0].fail(store_error(error, self.path) if isinstance(error, sqlite3.Error) else error)
            usual = True  # there is no other way
        if not usual:
            return self._commit_group(jobs, wait=wait, bundled=False)
        settle_jobs(jobs)
        return []

    def _begin(self, jobs: list[Job], *, wait: bool) -> sqlite3.Connection | None:
        """Take the file's write lock for the jobs that did not wait too long; None if it is not free."""
        while jobs:
            try:
                writer = self._writer
                if writer is None:
                    writer = self._writer = open_connection(self.path, self.synchronous)
                self.check_file()
                self.answering(writer, self.clock)(BEGIN)
                return writer
            except (sqlite3.Error, StoreUnavailable) as error:
                busy = isinstance(error, sqlite3.Error) and is_busy(error)
                if busy and not wait:
                    return None
                now = time.monotonic()
                over = [job for job in jobs if not busy or job.deadline <= now]
                if over and outlives_its_cause(error):
                    self.close_idle()
                elif not busy:
                    self._forget_writer()
                for job in over:
                    job.fail(store_error(error, self.path) if isinstance(error, sqlite3.Error) else error)
                settle_jobs(over)
                jobs[:] = [job for job in jobs if not job.done]
                if jobs:
                    time.sleep(BUSY_PAUSE_SECONDS)
        return None

    def commit(self, answer: Answer) -> None:
        """Commit a group or an ATOMIC unit on the connection of ``answer``, with the gate held."""
        started = time.perf_counter()
        try:
            answer(COMMIT)
        except sqlite3.Error as error:
            raise store_error(error, self.path, committing=True) from error
        self.commits += 1
        self._uncheckpointed += 1
        self._commit_seconds += (time.perf_counter() - started - self._commit_seconds) / 16

    def _rollback(self, writer: sqlite3.Connection) -> None:
        try:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
        except sqlite3.Error:
            self._forget_writer()  # its state is unknown; a new connection begins clean

    def _forget_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def commit_was_slow(self) -> bool:
        """Whether recent commits were too slow for an event loop."""
        return self._commit_seconds >= INLINE_SECONDS_MAX

    def release_gate(self) -> None:
        """Open the gate, such as at the end of an ATOMIC unit; the jobs that queued up meanwhile are next."""
        self._is_lent = False
        self._gate.release()
        if self._queue or self._uncheckpointed >= COMMITS_PER_CHECKPOINT:
            self._wake()

    # --- the writer thread ------------------------------------------------------------------

    def _wake(self) -> None:
        with self._work:
            if self._thread is None and not self._stopping:
                try:
                    self._thread = start_thread(self._serve, "semel-sqlite-writer", "and nothing was written")
                except StoreUnavailable as error:  # the next call tries again
                    refuse_all(self._queue, str(error))
                    return
            self._work.notify()

    def _serve(self) -> None:
        while True:
            with self._work:
                while not self._queue and not self._stopping and self._uncheckpointed < COMMITS_PER_CHECKPOINT:
                    self._work.wait()
                if self._stopping:
                    return
            if not self._gate.acquire(timeout=0.05):
                refuse_overdue(self._queue, self.path, is_lent=self._is_lent)
            elif self._lending_next():
                self._lend(self._take_lending())
            elif self._queue:
                self._serve_group(wait=True)
            else:
                self._checkpoint()
                self._gate.release()

    def _lend(self, job: Job | None) -> None:
        """Give the gate to an ATOMIC unit; its end releases it. No frame of this thread may keep the unit alive."""
        if job is None:  # it expired in this moment
            self._gate.release()
            return
        try:
            assert isinstance(job, FlowJob)  # no other lends
            self._is_lent = True
            job.finish(job.lend())
        except Exception as error:  # noqa: BLE001 - handed to the caller who asked for the gate
            if outlives_its_cause(error):
                self.close_idle()
            self._is_lent = False
            self._gate.release()
            job.fail(store_error(error, self.path) if isinstance(error, sqlite3.Error) else error)
        settle_jobs([job])

    def _checkpoint(self) -> None:
        self._uncheckpointed = 0
        try:
            if self._writer is None:  # all commits were by ATOMIC units, on their own connections
                self._writer = open_connection(self.path, self.synchronous)
            self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except (sqlite3.Error, StoreUnavailable):
            self._forget_writer()  # a failed checkpoint loses nothing: the WAL keeps every commit

    # --- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Finish the queue, then close every connection. The driver may be used again, even meanwhile.

        It waits for a live ATOMIC unit, but no longer than ``busy_seconds``: the unit closes its own connection.
        """
        if self._queue:
            last = FlowJob(nothing, time.monotonic() + self._busy_seconds)
            last.event = threading.Event()
            self.submit(last)
            last.event.wait()
        with self._work:
            self._stopping = True
            self._work.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        if self._gate.acquire(timeout=self._busy_seconds):
            self.close_idle()
            self._gate.release()
        self._file = None
        with self._work:
            self._stopping = False
            if self._thread is thread:
                self._thread = None
        if self._queue:  # it came in meanwhile
            self._wake()

    def close_idle(self) -> None:
        """Close every idle connection. Called with the gate held."""
        self._readers.close()
        self._forget_writer()

    async def close_async(self) -> None:
        """As ``close``, without blocking the loop."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)
