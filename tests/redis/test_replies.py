"""What a server's replies become on an event loop, with hiredis or without it: in their order, each to its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from semel.errors import StoreTimeout
from semel.stores.deadline import Deadline
from semel.stores.redis import connections
from semel.stores.redis.connections import RedisLoop, RedisServer
from semel.stores.redis.routes import Node, NodeExchange, RedisRefused, Replies

LARGE = bytes(range(256)) * 2_000
NEVER = b""  # what a server answers that says nothing more


@pytest.fixture(params=["hiredis", "redis-py"], autouse=True)
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads."""
    if request.param == "redis-py":
        monkeypatch.setattr(connections, "new_reader", lambda *_: None)


class Server:
    """Answers each command with the next of these texts; None closes the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.connected = 0
        self.serving: list[asyncio.Task[None]] = []

    def begin(self, said: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        self.connected += 1
        self.serving.append(asyncio.get_running_loop().create_task(self._serve(said, answers)))

    async def _serve(self, said: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        while words := await self._words(said):
            answer = b"+OK\r\n" if words[0] == b"CLIENT" else self.answers.pop(0)
            if answer is None:
                break
            answers.write(answer)
        answers.close()
        with suppress(ConnectionError):
            await answers.wait_closed()

    async def _words(self, said: asyncio.StreamReader) -> list[bytes]:
        head = await said.readline()
        sizes = [await said.readexactly(int((await said.readline())[1:]) + 2) for _ in range(int(head[1:] or 0))]
        return [each[:-2] for each in sizes]


Exchanges = Callable[..., Coroutine[Any, Any, Replies]]
Story = Callable[[Exchanges, RedisLoop], Coroutine[Any, Any, None]]


def tell_story(server: Server, story: Story) -> None:
    """Run a story of exchanges with this server: ``await exchange(2)`` sends two commands in one."""

    async def tell() -> None:
        listening = await asyncio.start_server(server.begin, "127.0.0.1", 0)
        node = Node("127.0.0.1", listening.sockets[0].getsockname()[1])
        loop = RedisLoop(RedisServer((node,)))

        async def exchange(commands: int = 1, seconds: float = 5.0) -> Replies:
            return await loop.exchange(NodeExchange(node, (("GET", b"k"),) * commands), Deadline(seconds))

        await story(exchange, loop)
        await loop.close()
        listening.close()
        await asyncio.gather(*server.serving)

    asyncio.run(tell())


def test_replies_come_in_their_order_and_an_error_is_one_of_them() -> None:
    large = b"$%d\r\n%b\r\n" % (len(LARGE), LARGE)
    server = Server(b"$2\r\nhi\r\n", b"-OOM no room\r\n", b"*2\r\n:1\r\n$-1\r\n", large, b"-ERR It is wrong\r\n")

    async def story(exchange: Exchanges, loop: RedisLoop) -> None:
        assert await exchange(3) == [b"hi", RedisRefused("OOM", "no room"), [1, None]]
        assert await exchange(2) == [LARGE, RedisRefused("ERR", "It is wrong")]

    tell_story(server, story)
    assert server.connected == 1


@pytest.mark.parametrize("code", ["READONLY", "CLUSTERDOWN"])
def test_a_server_that_takes_no_writes_is_not_asked_again_on_this_connection(code: str) -> None:
    server = Server(b"-%b no\r\n" % code.encode(), b":7\r\n")

    async def story(exchange: Exchanges, loop: RedisLoop) -> None:
        assert await exchange() == [RedisRefused(code, "no")]
        assert await exchange() == [7]

    tell_story(server, story)
    assert server.connected == 2


def test_a_loading_servers_reply_is_not_read_by_the_next_exchange() -> None:
    server = Server(b"-LOADING it is loading\r\n", b"-LOADING it is loading\r\n", b":7\r\n")

    async def story(exchange: Exchanges, loop: RedisLoop) -> None:
        replies = await exchange(2)
        if isinstance(replies, list):
            assert [reply.code for reply in replies] == ["LOADING"] * 2
        else:  # redis-py reads no further
            assert isinstance(replies, StoreTimeout)
        assert await exchange() == [7]

    tell_story(server, story)
    assert server.connected == 2


@pytest.mark.parametrize(("said", "code"), [(b"LOADING it is loading", "LOADING"), (b"NOAUTH who is it", "NOAUTH")])
def test_a_first_refusal_does_not_refuse_the_rest_of_an_exchange(said: bytes, code: str) -> None:
    """It may end its loading between two commands of one exchange: the second has run."""
    server = Server(b"-%b\r\n" % said, b":7\r\n", b"-%b\r\n" % said, b":8\r\n")

    async def story(exchange: Exchanges, loop: RedisLoop) -> None:
        replies = await exchange(2)
        if isinstance(replies, list):
            assert [getattr(reply, "code", reply) for reply in replies] == [code, 7]
        else:
            assert isinstance(replies, StoreTimeout)
        [alone] = await exchange()  # type: ignore[misc]  # replies: what refused one command alone has refused it
        assert alone.code == code
        assert await exchange() == [8]

    tell_story(server, story)
    assert server.connected == 3


def test_an_unsolicited_message_is_not_a_reply() -> None:
    server = Server(b":1\r\n:2\r\n", b":3\r\n")

    async def story(exchange: Exchanges, loop: RedisLoop) -> None:
        assert await exchange() == [1]
        assert await exchange() == [3]

    tell_story(server, story)
    assert server.connected == 2


@pytest.mark.parametrize("end", [None, NEVER])
def test_an_answer_that_ends_in_the_middle_or_never_comes_is_lost(end: bytes | None) -> None:
    server = Server(b":1\r\n", b"$2\r\nhi\r\n", end, b":3\r\n")

    async def story(exchange: Exchanges, loop: RedisLoop) -> None:
        assert await exchange() == [1]  # connected
        lost = await exchange(2, 5.0 if end is None else 0.2)
        assert isinstance(lost, StoreTimeout)
        assert "not known yet" in str(lost)
        assert await exchange() == [3]

    tell_story(server, story)
    assert server.connected == 2


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b":1\r\n\x15\x03\x03\x00\x02\r\n"])
def test_a_malformed_reply_leaves_the_outcome_open(said: bytes) -> None:
    """Another program listens there by now, or something between changes the replies: what was sent may have run."""
    server = Server(b":1\r\n", said, None, b":3\r\n")

    async def story(exchange: Exchanges, loop: RedisLoop) -> None:
        assert await exchange() == [1]  # connected
        lost = await exchange(2)
        assert isinstance(lost, StoreTimeout)
        assert "not known yet" in str(lost)
        assert await exchange() == [3]

    tell_story(server, story)
    assert server.connected == 2


def test_a_connection_that_has_failed_while_idle_is_not_used() -> None:
    """Its transport says so, and the stream is not at its end."""
    server = Server(b":1\r\n", b":2\r\n")

    async def story(exchange: Exchanges, loop: RedisLoop) -> None:
        assert await exchange() == [1]
        [pool] = loop._pools.values()
        pool.idle[0]._reader.set_exception(ConnectionResetError())
        assert await exchange() == [2]

    tell_story(server, story)
