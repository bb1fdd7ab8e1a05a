"""An application of Celery's, as its worker loads it: `celery --app tests.inbox.celery_app worker`.

SEMEL_TEST_BROKER is its broker, SEMEL_TEST_DATABASE its SQLite file. The task 2 kills its process the first time that
its effect is committed, 4 the first time that it begins, 5 fails once, 6 always.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.concurrency.asynpool import AsynPool

from semel import Engine, Inbox
from semel.inbox.brokers.celery import inbox_task
from semel.inbox.run import Message

AsynPool.timers = property(lambda pool: {pool.maintain_pool: 0.1})  # lost processes are looked for every 5 s otherwise
DATABASE = Path(os.environ["SEMEL_TEST_DATABASE"])
app = Celery("tests.inbox.celery_app", broker=os.environ["SEMEL_TEST_BROKER"])
app.conf.update(broker_connection_retry_on_startup=True, task_default_queue="semel-inbox")
inbox = Inbox(Engine.connect(f"sqlite:///{DATABASE}"), consumer="billing", tries_max=3)


def first(name: str) -> bool:
    """Whether this is the first process that comes here."""
    try:
        (DATABASE.parent / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@app.task(base=inbox_task(inbox, retry_seconds=0.01))  # type: ignore[untyped-decorator]  # Celery ships no types
def bill(message: Message, n: int) -> int:
    message.connection.execute("INSERT INTO effect VALUES (?)", (n,))
    if n == 4 and first("begun"):
        os.kill(os.getpid(), signal.SIGKILL)
    if n == 6 or (n == 5 and first("failed")):
        raise ValueError(f"no luck with {n}")
    return n


@signals.task_postrun.connect  # type: ignore[untyped-decorator]
def dies_before_it_is_acknowledged(args: list[Any], state: str | None = None, **_: Any) -> None:
    if args == [2] and first("committed"):
        os.kill(os.getpid(), signal.SIGKILL)
    with (DATABASE.parent / "told").open("a") as told:
        print(*args, state, file=told)
