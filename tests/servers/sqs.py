"""moto's server, which speaks SQS: AWS has no official emulator. One a process; each test has queues of its own."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

_numbers = itertools.count()


@cache
def endpoint() -> str:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()  # in a daemon thread: it ends with this process
    host, port = server.get_host_and_port()
    return f"http://127.0.0.1:{port}" if host == "0.0.0.0" else f"http://{host}:{port}"


def sqs_client() -> Any:
    return boto3.client(
        "sqs", "eu-central-1", endpoint_url=endpoint(), aws_access_key_id="x", aws_secret_access_key="x"
    )


def make_queue(client: Any, *, fifo: bool = False, **attributes: str) -> str:
    """A new queue; its URL."""
    name = f"orders-{next(_numbers)}"
    if fifo:
        name, attributes = f"{name}.fifo", {**attributes, "FifoQueue": "true"}
    return str(client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])
