"""An application of Celery's whose tasks meet its soft time limit inside an ATOMIC command.

SEMEL_TEST_BROKER is its broker, SEMEL_TEST_DATABASE its SQLite file.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from semel import Answer, Engine, Permit, Policy
from tests.engine.shells import command

DATABASE = Path(os.environ["SEMEL_TEST_DATABASE"])
app = Celery("tests.outside.celery_app", broker=os.environ["SEMEL_TEST_BROKER"])
app.conf.update(broker_connection_retry_on_startup=True, task_default_queue="semel-outside")
engine = Engine.connect(f"sqlite:///{DATABASE}")


@app.task(soft_time_limit=0.3)  # type: ignore[untyped-decorator]  # Celery ships no types
def pay(key: str, slow: bool) -> None:
    def handler(permit: Permit) -> Answer:
        permit.connection.execute("INSERT INTO effect VALUES (?)", (key,))
        if slow:
            threading.Event().wait(60)  # until the limit
        return Answer(201, (), b"made")

    try:
        said = "replayed" if engine.run(command(key, policy=Policy(effects="atomic")), handler).replayed else "made"
    except SoftTimeLimitExceeded:
        said = "limited"
    with (DATABASE.parent / "told").open("a") as told:
        told.write(f"{key} {said}\n")
