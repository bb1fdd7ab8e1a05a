"""A worker of Dramatiq's in its own process: `python -m tests.inbox.dramatiq_worker PORT DATABASE [dies]`.

With `dies` it kills itself when the effect of message 2 is committed, before that is acknowledged. It prints what it
handles, and ends when each message has come to its end.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Middleware

from semel import Engine, Inbox
from semel.inbox.brokers.dramatiq import InboxMiddleware
from semel.inbox.run import Message

QUEUE = "semel-inbox"


class Told(Middleware):
    """Prints what became of each delivery, and may be the last thing that its process does."""

    def __init__(self, *, dies: bool) -> None:
        self.dies = dies

    def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        print(message.args[0], result if exception is None else type(exception).__name__, flush=True)
        if self.dies and message.args[0] == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def after_skip_message(self, broker: Any, message: Any) -> None:
        print(message.args[0], "skipped", flush=True)


def application(port: int, inbox: Inbox, *, dies: bool = False) -> tuple[RedisBroker, Any]:
    """The broker, and its one actor: 3 fails once, 4 always, and 5 continues to the actor `after`."""
    # A worker without a heartbeat for half a second counts as dead, and all workers look for such ones at once.
    broker: Any = RedisBroker(host="127.0.0.1", port=port, heartbeat_timeout=500, maintenance_chance=1_000_000)  # type: ignore[no-untyped-call]
    broker.add_middleware(InboxMiddleware())
    broker.add_middleware(Told(dies=dies))
    tried: list[int] = []

    @dramatiq.actor(broker=broker, queue_name=QUEUE, inbox=inbox, min_backoff=10, max_backoff=20)
    def bill(message: Message, n: int) -> int:
        message.connection.execute("INSERT INTO effect VALUES (?)", (n,))
        tried.append(n)
        if n == 4 or (n == 3 and tried.count(3) == 1):
            raise ValueError(f"no luck with {n}")
        return n

    @dramatiq.actor(broker=broker, queue_name=QUEUE)
    def after(n: int) -> None:
        """What a pipeline continues with."""

    return broker, bill


def main(port: str, database: str, *dies: str) -> None:
    inbox = Inbox(Engine.connect(f"sqlite:///{database}"), consumer="billing", tries_max=2)
    broker, _ = application(int(port), inbox, dies=bool(dies))
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=20)
    worker.start()
    broker.join(QUEUE, timeout=30_000)
    while any(broker.client.scan_iter("dramatiq:__acks__.*")):  # of a worker that has died, and is not known to be yet
        select.select([], [], [], 0.02)
        broker.join(QUEUE, timeout=30_000)
    worker.join()
    worker.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
