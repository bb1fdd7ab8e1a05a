"""A service of payments: ``python -m examples.grpc.server --port 8000``.

``PAYMENTS`` names the SQLite file, ``payments.db`` by default. The messages are ones that googleapis-common-protos
ships; yours come from your own ``.proto`` files.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RequestInfo
from google.rpc.status_pb2 import Status

from semel import Engine, Policy
from semel.integrations.grpc import Caller, SemelInterceptor, permit_of

FILE = os.environ.get("PAYMENTS", "payments.db")
SERVICE = "shop.Payments"
charges: list[str] = []  # stands for your payment provider


def caller(call: Any) -> Caller | None:
    """The account is the name: replace this by your authentication."""
    account = call.metadata.get("account")
    return Caller("shop", account) if account in ("alice", "bob") else None


def book(request: Any, context: Any) -> Any:
    """Write a payment. Its row and the response are one commit."""
    found: sqlite3.Connection = permit_of(context).connection
    number = found.execute("INSERT INTO payment (invoice) VALUES (?)", (request.serving_data,)).lastrowid
    return Status(code=number or 0, message=f"booked {request.serving_data}")


def charge(request: Any, context: Any) -> Any:
    """Charge a card, once; or refuse it, for good."""
    if request.serving_data == "stolen":
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this card is stolen")
    charges.append(permit_of(context).key_for("charge"))  # a key for the provider, the same in every retry
    return Status(code=len(charges), message=f"charged {request.serving_data}")


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=8000)
    port = options.parse_args().port

    engine = Engine.connect(f"sqlite:///{FILE}")
    engine.migrate()
    with sqlite3.connect(FILE) as db:
        db.execute("CREATE TABLE IF NOT EXISTS payment (number INTEGER PRIMARY KEY, invoice TEXT NOT NULL)")
    db.close()
    once = SemelInterceptor(
        engine,
        caller=caller,
        operations={
            f"/{SERVICE}/Book": Policy(effects="atomic"),
            f"/{SERVICE}/Charge": Policy(effects="external"),
        },
    )
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(method, RequestInfo.FromString, Status.SerializeToString)
        for name, method in (("Book", book), ("Charge", charge))
    }
    server = grpc.server(ThreadPoolExecutor(8), interceptors=[once])  # last: authentication comes before it
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    ended = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: ended.set())
    with engine:
        server.start()
        ended.wait()
        server.stop(5).wait()


if __name__ == "__main__":
    main()
