"""Clients over HTTP/2, before a server whose answers break the protocol: the command was sent all the same."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import anyio
import httpx
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded

from semel.client import AsyncClient, AsyncRetryTransport, Budget, Client, Journal, NotYet, RetryTransport
from semel.client.plan import Outcome

BROKEN = {
    "an answer shorter than its length": b"",
    "a frame that HTTP/2 forbids": b"\x00\x00\x04\x08\x00\x00\x00\x00\x00" + bytes(4),  # a window that grows by 0
}


class Breaking:
    """A server on a raw socket: it reads each request, and answers with what HTTP/2 forbids."""

    def __init__(self, answer: bytes) -> None:
        self.requests = 0
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        state = H2Connection(H2Configuration(client_side=False))
        state.initiate_connection()
        connection.sendall(state.data_to_send())
        while data := connection.recv(65536):
            for event in state.receive_data(data):
                if isinstance(event, StreamEnded):
                    self.requests += 1
                    if self._answer:
                        connection.sendall(state.data_to_send() + self._answer)
                        return
                    state.send_headers(event.stream_id, [(":status", "201"), ("content-length", "10")])
                    state.send_data(event.stream_id, b"done", end_stream=True)
                    connection.sendall(state.data_to_send())
                    return
            connection.sendall(state.data_to_send())

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20)


@pytest.fixture(params=BROKEN)
def server(request: pytest.FixtureRequest) -> Iterator[Breaking]:
    breaking = Breaking(BROKEN[request.param])
    yield breaking
    breaking.close()


BUDGET = Budget(attempts=2, seconds=60, pause_seconds=0)


def test_a_broken_answer_is_no_request_that_cannot_be_sent(server: Breaking) -> None:
    def sync() -> Outcome:
        with httpx.Client(http1=False, http2=True, trust_env=False) as http:
            api = Client(server.url, journal=Journal("memory://"), http=http, budget=BUDGET)
            return api.intent("POST", "/payments", json={}).send()

    async def send() -> Outcome:
        async with httpx.AsyncClient(http1=False, http2=True, trust_env=False) as http:
            api = AsyncClient(server.url, journal=Journal("memory://"), http=http, budget=BUDGET)
            return await (await api.intent("POST", "/payments", json={})).send()

    for outcome in (sync(), anyio.run(send)):
        assert isinstance(outcome, NotYet)
        assert (outcome.code, outcome.may_have_happened) == ("NO_ANSWER", True)
    assert server.requests == 4


def test_a_broken_answer_is_retried_beneath_a_client(server: Breaking) -> None:
    def sync() -> None:
        transport = RetryTransport(httpx.HTTPTransport(http1=False, http2=True), budget=BUDGET)
        with httpx.Client(transport=transport) as http, pytest.raises(httpx.LocalProtocolError):
            http.post(server.url, json={})

    async def send() -> None:
        transport = AsyncRetryTransport(httpx.AsyncHTTPTransport(http1=False, http2=True), budget=BUDGET)
        async with httpx.AsyncClient(transport=transport) as http:
            with pytest.raises(httpx.LocalProtocolError):
                await http.post(server.url, json={})

    sync()
    assert server.requests == 2
    anyio.run(send)
    assert server.requests == 4
