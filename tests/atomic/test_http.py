"""ATOMIC commands over HTTP: one gate, an answer that is committed with its writes, and a loop that goes on."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from semel import AsyncEngine, NothingHappened, Permit
from semel.core.model import State
from semel.integrations.fastapi import Semel
from semel.stores.sql.sqlalchemy import session_on
from tests.atomic.conftest import Outside
from tests.atomic.mapped import Effect
from tests.atomic.over_http import check_rolled_back
from tests.engine.drivers import sqlite
from tests.integrations.driving import Web, both, caller_of

PERMIT: Any = Semel.permit
SESSION: Any = Semel.atomic_session
UNKNOWN = "IDEMPOTENCY_OUTCOME_UNKNOWN"
RUNNING = "IDEMPOTENCY_REQUEST_IN_PROGRESS"
UNAVAILABLE = "IDEMPOTENCY_STORE_UNAVAILABLE"
TOO_LARGE = "IDEMPOTENCY_ANSWER_TOO_LARGE"


@contextmanager
def protect(file: Path, endpoint: Callable[..., Any], depends: Any = None, **options: Any) -> Iterator[Web]:
    """``POST /`` is this ATOMIC command; ``POST /external`` and ``POST /second`` are others."""
    engine = AsyncEngine(sqlite(file, busy_seconds=options.pop("busy_seconds", 5.0)))
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    dependencies = [] if depends is None else [Depends(depends)]
    app.post("/", dependencies=dependencies, status_code=201)(
        semel.command("it", effects="atomic", **options)(endpoint)
    )

    @app.post("/external")
    @semel.command("external", effects="external")
    async def external() -> str:
        return "external"

    @app.post("/second")
    @semel.command("second", effects="atomic")
    async def second(permit: Permit = PERMIT) -> str:
        permit.connection.execute("INSERT INTO effect VALUES (2)")
        return "second"

    semel.install(app)
    web = Web(app, engine)
    try:
        yield web
    finally:
        web.close()


def insert(permit: Permit, n: int = 1) -> None:
    permit.connection.execute("INSERT INTO effect VALUES (?)", (n,))


async def make(permit: Permit = PERMIT) -> str:
    insert(permit)
    return "made"


def make_sync(permit: Permit = PERMIT) -> str:
    insert(permit)
    return "made"


async def make_with_session(permit: Permit = PERMIT) -> str:
    with session_on(permit.connection) as session:
        session.add(Effect(n=1))
        session.commit()
    return "made"


def make_with_session_sync(permit: Permit = PERMIT) -> str:
    with session_on(permit.connection) as session:
        session.add(Effect(n=1))
        session.commit()
    return "made"


async def make_in_its_session(session: Session = SESSION) -> str:
    session.add(Effect(n=1))
    return "made"


def make_in_its_session_sync(session: Annotated[Session, SESSION], permit: Permit = PERMIT) -> str:
    session.add(Effect(n=1))
    return "made"


IN_A_SESSION = [make_in_its_session, make_in_its_session_sync]


@pytest.mark.parametrize("endpoint", [make, make_sync, make_with_session, make_with_session_sync, *IN_A_SESSION])
def test_writes_and_answer_are_one_commit(file: Path, outside: Outside, endpoint: Any) -> None:
    with protect(file, endpoint) as web:
        driver = web.engine.backend.driver
        before = driver.commits
        first, _ = both(web, "/")
        assert (first.status, first.body, driver.commits) == (201, b'"made"', before + 1)
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


# --- how it ends ---


async def fails(permit: Permit = PERMIT) -> None:
    insert(permit)
    raise RuntimeError("no")


def fails_sync(permit: Permit = PERMIT) -> None:
    insert(permit)
    raise RuntimeError("no")


async def fails_in_its_session(session: Session = SESSION) -> None:
    session.add(Effect(n=1))
    session.flush()
    raise RuntimeError("no")


async def breaks_a_rule_in_its_session(session: Session = SESSION) -> str:
    session.add(Effect(n=1))
    session.flush()
    session.expunge_all()
    session.add(Effect(n=1))  # flushed when the endpoint returns
    return "made"


async def unavailable(permit: Permit = PERMIT) -> None:
    insert(permit)
    raise HTTPException(503)


async def nothing_happened(permit: Permit = PERMIT) -> None:
    insert(permit)
    raise NothingHappened


async def too_long(permit: Permit = PERMIT) -> Response:
    insert(permit)
    return PlainTextResponse("x" * 2000)


async def too_long_streamed(permit: Permit = PERMIT) -> Response:
    insert(permit)
    return StreamingResponse(iter([b"x" * 500] * 4))


async def events(permit: Permit = PERMIT) -> Response:
    insert(permit)
    return StreamingResponse(iter([b"data: 1\n\n"]), media_type="text/event-stream")


async def fails_in_background(tasks: BackgroundTasks, permit: Permit = PERMIT) -> str:
    def fail() -> None:
        raise RuntimeError("no")

    insert(permit)
    tasks.add_task(fail)
    return "made"


async def rolled_back_by_sqlite(permit: Permit = PERMIT) -> str:
    insert(permit)
    with pytest.raises(sqlite3.IntegrityError):
        permit.connection.execute("INSERT OR ROLLBACK INTO effect VALUES (1)")
    return "made"


@pytest.mark.parametrize(
    ("endpoint", "status", "code"),
    [
        (fails, 500, None),
        (fails_sync, 500, None),
        (fails_in_its_session, 500, None),
        (breaks_a_rule_in_its_session, 500, None),
        (unavailable, 503, None),
        (nothing_happened, 500, None),
        (too_long, 500, TOO_LARGE),
        (too_long_streamed, 500, TOO_LARGE),
        (events, 500, TOO_LARGE),
        (fails_in_background, 500, None),
        (rolled_back_by_sqlite, 500, None),
    ],
)
def test_an_outcome_without_an_answer_is_rolled_back_and_frees_the_key(
    file: Path, outside: Outside, endpoint: Any, status: int, code: str | None
) -> None:
    with protect(file, endpoint, answer_bytes_max=1000) as web:
        for _ in range(2):
            answer = web.call("/")
            assert (answer.status, answer.header("semel-code")) == (status, code)
            assert (outside.rows(), outside.states) == ([], [])
            outside.writes()


def test_a_definite_refusal_is_rolled_back_and_replayed(file: Path, outside: Outside) -> None:
    async def refuses(permit: Permit = PERMIT) -> None:
        insert(permit)
        raise HTTPException(409, "out of stock")

    with protect(file, refuses) as web:
        first, _ = both(web, "/")
        assert first.status == 409
    assert (outside.rows(), outside.states) == ([], [State.FAILED_REPLAYABLE])


def test_an_answer_stored_meanwhile_is_sent_instead_of_the_refusal(file: Path, outside: Outside) -> None:
    begun = 0

    def interfering(name: str) -> None:
        nonlocal begun
        begun += name == "BEGIN" and outside.states == []
        if name == "BEGIN" and begun == 2:
            with protect(file, make) as other:
                others.append(other.call("/"))

    others: list[Any] = []

    async def refuses(permit: Permit = PERMIT) -> None:
        insert(permit, 7)
        raise HTTPException(409, "out of stock")

    engine = AsyncEngine(sqlite(file, before=interfering))
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    app.post("/")(semel.command("it", effects="atomic")(refuses))
    semel.install(app)
    with closing(Web(app, engine)) as web:
        thread_safe = web.call("/")
    assert [answer.status for answer in others] == [201]
    assert (thread_safe.status, thread_safe.body, thread_safe.replayed) == (201, others[0].body, True)
    assert outside.rows() == [1]


@pytest.mark.parametrize("sync", [False, True])
def test_a_dependency_that_fails_after_the_handler_rolls_everything_back(
    file: Path, outside: Outside, sync: bool
) -> None:
    async def session() -> AsyncIterator[None]:
        yield
        assert outside.rows() == []
        raise RuntimeError("the commit failed")

    with protect(file, make_sync if sync else make, session) as web:
        assert web.call("/").status == 500
        assert (outside.rows(), outside.states) == ([], [])


def test_an_early_commit_is_unknown(file: Path, outside: Outside) -> None:
    async def commits(permit: Permit = PERMIT) -> str:
        insert(permit)
        permit.connection.set_authorizer(None)
        permit.connection.execute("COMMIT")
        return "made"

    with protect(file, commits) as web:
        assert [web.call("/").code for _ in range(2)] == [UNKNOWN, UNKNOWN]
    assert (outside.rows(), outside.states) == ([1], [State.UNKNOWN])


def test_an_early_commit_before_a_refusal_is_unknown_too(file: Path, outside: Outside) -> None:
    async def commits(permit: Permit = PERMIT) -> str:
        insert(permit)
        permit.connection.set_authorizer(None)
        permit.connection.execute("COMMIT")
        raise HTTPException(409, "out of stock")

    with protect(file, commits) as web:
        assert [web.call("/").code for _ in range(2)] == [UNKNOWN, UNKNOWN]
    assert (outside.rows(), outside.states) == ([1], [State.UNKNOWN])


# --- deadlines ---


def test_a_handler_past_its_deadline_is_rolled_back(file: Path, outside: Outside) -> None:
    hung = [True]

    async def hangs(permit: Permit = PERMIT) -> str:
        insert(permit)
        if hung and hung.pop():
            await asyncio.Event().wait()
        return "made"

    with protect(file, hangs, lease_seconds=1, deadline_seconds=1) as web:
        check_rolled_back(web.call("/"))
        assert isinstance(web.raised, TimeoutError)
        assert (outside.rows(), outside.states) == ([], [])
        assert web.call("/").status == 201
    assert outside.rows() == [1]


def interrupt(permit: Permit) -> None:
    """Stop a statement of the handler's, as a limit of its own would."""
    permit.connection.set_progress_handler(lambda: 1, 1)
    try:
        permit.connection.execute("SELECT count(*) FROM effect")
    finally:
        permit.connection.set_progress_handler(None, 1)


async def is_interrupted(permit: Permit = PERMIT) -> None:
    insert(permit)
    interrupt(permit)


def is_interrupted_sync(permit: Permit = PERMIT) -> None:
    insert(permit)
    interrupt(permit)


async def is_interrupted_in_its_session(session: Annotated[Session, SESSION], permit: Permit = PERMIT) -> None:
    session.add(Effect(n=1))
    session.flush()
    try:
        interrupt(permit)
    except sqlite3.Error as error:
        raise DBAPIError("SELECT", {}, error) from error


async def says_so_itself(permit: Permit = PERMIT) -> None:
    insert(permit)
    raise HTTPException(500, "later") from TimeoutError()


async def says_504_itself(permit: Permit = PERMIT) -> None:
    insert(permit)
    raise HTTPException(504, "later") from TimeoutError()


STOPPED = [is_interrupted, is_interrupted_sync, is_interrupted_in_its_session]


@pytest.mark.parametrize("endpoint", STOPPED)
def test_a_statement_that_was_stopped_is_rolled_back(file: Path, outside: Outside, endpoint: Any) -> None:
    with protect(file, endpoint) as web:
        check_rolled_back(web.call("/"))
        assert web.raised is not None  # the server's log has it
        assert (outside.rows(), outside.states) == ([], [])


@pytest.mark.parametrize(("endpoint", "status"), [(says_so_itself, 500), (says_504_itself, 504)])
def test_an_answer_of_the_applications_own_stays(file: Path, outside: Outside, endpoint: Any, status: int) -> None:
    with protect(file, endpoint) as web:
        answer = web.call("/")
        assert (answer.status, answer.body) == (status, b'{"detail":"later"}')
        assert (outside.rows(), outside.states) == ([], [])


@pytest.mark.parametrize("place", ["background", "stream", "dependency"])
def test_work_that_outlives_the_handler_ends_at_its_deadline(file: Path, outside: Outside, place: str) -> None:
    """The transaction stays open until the framework's call returns, so all of it is under the deadline."""
    hung = [True]

    async def hang() -> None:
        if hung and hung.pop():
            await asyncio.Event().wait()

    async def stream() -> AsyncIterator[bytes]:
        yield b"x"
        await hang()

    async def session() -> AsyncIterator[None]:
        yield
        if place == "dependency":
            await hang()

    async def endpoint(tasks: BackgroundTasks, permit: Permit = PERMIT) -> Any:
        insert(permit)
        if place == "background":
            tasks.add_task(hang)
        return StreamingResponse(stream()) if place == "stream" else "made"

    with protect(file, endpoint, session, lease_seconds=1, deadline_seconds=1) as web:
        check_rolled_back(web.call("/"))
        assert isinstance(web.raised, TimeoutError)
        assert (outside.rows(), outside.states) == ([], [])
        outside.writes()
        assert web.call("/").status in (200, 201)
    assert outside.rows() == [1]


def test_a_threads_handler_past_its_deadline_is_rolled_back_and_its_late_write_fails(
    file: Path, outside: Outside
) -> None:
    goes_on = threading.Event()
    late: list[BaseException | None] = []

    def hangs(permit: Permit = PERMIT) -> str:
        insert(permit)
        goes_on.wait(10)
        try:
            insert(permit, 2)
            late.append(None)
        except sqlite3.Error as error:
            late.append(error)
        return "made"

    with protect(file, hangs, lease_seconds=1, deadline_seconds=1) as web:
        check_rolled_back(web.call("/"))
        assert (outside.rows(), outside.states) == ([], [])
        outside.writes()
        goes_on.set()
    assert (outside.rows(), len(late), type(late[0])) == ([], 1, sqlite3.ProgrammingError)


# --- the gate ---


class Slow:
    """A handler that waits in its transaction until it may go on."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ends = asyncio.Event()

    async def __call__(self, permit: Permit = PERMIT) -> str:
        insert(permit)
        self.begun.set()
        await self.ends.wait()
        return "slow"


def test_two_parallel_atomic_commands_take_turns_and_do_not_block_the_loop(file: Path, outside: Outside) -> None:
    slow = Slow()

    async def story(web: Web) -> None:
        first = asyncio.create_task(web.ask("/"))
        await slow.begun.wait()
        second = asyncio.create_task(web.ask("/second"))
        external = asyncio.create_task(web.ask("/external"))
        for _ in range(200):
            await asyncio.sleep(0)  # the loop turns, and neither of them gets on
        assert (second.done(), external.done(), outside.rows()) == (False, False, [])
        slow.ends.set()
        assert [(await task).status for task in (first, second, external)] == [201, 200, 200]

    with protect(file, slow) as web:
        web.runner.run(story(web))
    assert (outside.rows(), len(outside.states)) == ([1, 2], 3)


def test_replays_and_status_queries_are_answered_while_a_transaction_is_open(file: Path) -> None:
    slow = Slow()

    async def story(web: Web) -> None:
        assert (await web.ask("/external")).status == 200
        first = asyncio.create_task(web.ask("/"))
        await slow.begun.wait()
        again = await web.ask("/external")
        assert (again.status, again.replayed) == (200, True)
        found = await web.ask("/operations", method="GET", query="key=k&operation=external", key=None)
        assert found.status == 404
        slow.ends.set()
        assert (await first).status == 201

    with protect(file, slow) as web:
        web.runner.run(story(web))


def test_a_wait_for_the_gate_times_out_and_nothing_runs(file: Path, outside: Outside) -> None:
    slow = Slow()

    async def story(web: Web) -> None:
        first = asyncio.create_task(web.ask("/"))
        await slow.begun.wait()
        for path in ("/second", "/external"):
            refused = await web.ask(path)
            assert (refused.status, refused.code) == (503, UNAVAILABLE)
        slow.ends.set()
        assert (await first).status == 201
        assert (await web.ask("/second")).status == 200

    with protect(file, slow, busy_seconds=0.2) as web:
        web.runner.run(story(web))
    assert outside.rows() == [1, 2]


@pytest.mark.parametrize("patient", [False, True])
def test_a_duplicate_waits_within_its_budget_without_a_transaction(file: Path, outside: Outside, patient: bool) -> None:
    slow = Slow()

    async def story(web: Web) -> None:
        first = asyncio.create_task(web.ask("/"))
        await slow.begun.wait()
        duplicate = asyncio.create_task(web.ask("/"))
        if patient:
            while web.engine.core.waiting == 0:  # noqa: ASYNC110 - the engine's own count
                await asyncio.sleep(0)
        else:
            assert (await duplicate).code == RUNNING
        other = await web.ask("/", query="another=request")
        assert other.status == 422
        slow.ends.set()
        answers = [await first, await duplicate]
        if patient:
            assert [(answer.status, answer.body) for answer in answers] == [(201, b'"slow"')] * 2

    with protect(file, slow, wait_seconds=15 if patient else 0) as web:
        web.runner.run(story(web))
    assert outside.rows() == [1]


def test_a_client_that_disconnects_changes_nothing(file: Path, outside: Outside) -> None:
    slow = Slow()

    async def story(web: Web) -> None:
        first = asyncio.create_task(web.ask("/"))
        await slow.begun.wait()
        first.cancel()
        await asyncio.wait({first})
        slow.ends.set()
        again = await web.ask("/", headers=[("Prefer", "wait=15")])
        assert (again.status, again.replayed) == (201, True)

    with protect(file, slow) as web:
        web.runner.run(story(web))
    assert outside.rows() == [1]


def test_a_background_task_holds_the_transaction_because_frameworks_run_it_before_the_call_returns(
    file: Path, outside: Outside
) -> None:
    """Its effects belong to the command, and while it runs the file is locked: the deadline is its own, too."""
    seen: list[Any] = []

    async def endpoint(tasks: BackgroundTasks, permit: Permit = PERMIT) -> str:
        def mail() -> None:
            seen.append((permit.connection.in_transaction, outside.rows()))
            insert(permit, 2)

        insert(permit)
        tasks.add_task(mail)
        return "made"

    with protect(file, endpoint) as web:
        assert web.call("/").status == 201
    assert (seen, outside.rows()) == ([(True, [])], [1, 2])


def test_atomic_on_a_store_without_transactions_is_refused_when_it_is_declared() -> None:
    from semel.errors import ConfigurationError

    semel = Semel(AsyncEngine.connect("memory://"), caller=caller_of)
    with pytest.raises(ConfigurationError, match="sqlite:///"):
        semel.command("it", effects="atomic")


def test_the_answer_of_a_former_process_is_replayed(file: Path, outside: Outside) -> None:
    for replayed in (False, True):
        with protect(file, make) as web:
            answer = web.call("/")
            assert (answer.status, answer.replayed) == (201, replayed)
    assert outside.rows() == [1]


def test_the_handler_can_read_the_request_in_the_transaction(file: Path, outside: Outside) -> None:
    async def reads(request: Request, permit: Permit = PERMIT) -> int:
        for n in await request.json():
            insert(permit, n)
        return 1

    with protect(file, reads) as web:
        both(web, "/", [1, 2, 3])
    assert outside.rows() == [1, 2, 3]
