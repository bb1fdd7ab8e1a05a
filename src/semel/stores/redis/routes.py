"""Choose the node for each command: one server, or a cluster whose map changes. No IO happens here.

``perform`` is a generator of *exchanges*: commands for one node, in one round trip. Its driver sends them and passes
each exchange its replies. It retries only commands that certainly did not run: a script that the server had forgotten
(NOSCRIPT), or a command that a node refused because the slot had moved (MOVED, ASK). A lost reply is never retried.
"""

from __future__ import annotations

import time
from binascii import crc_hqx
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from semel.errors import StatementRefused, StoreError, StoreTimeout, StoreUnavailable
from semel.stores.clock import Clock
from semel.stores.redis.remedies import refusal
from semel.stores.redis.scripts import RedisCall

SLOTS: Final = 16384
ROUNDS_MAX: Final = 6  # redirections of one call; a cluster that needs more is being rebuilt
REFRESH_SECONDS_MIN: Final = 0.2
MARK_MS: Final = 30 * 24 * 3600 * 1000  # time to live of the key that only makes replicas confirm
# With these errors a server refuses writes; another server may accept them by now.
TAKEN_OVER: Final = frozenset({"READONLY", "CLUSTERDOWN", "MASTERDOWN", "LOADING", "NOREPLICAS"})

WAYS: Final = 4  # a node that only redirects gets a quarter of the time left; if it hangs, others can still be asked

Command = tuple[Any, ...]


class Node(NamedTuple):
    """Where a server listens: host and port, or the path of a socket (then the port is 0)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


@dataclass(frozen=True, slots=True)
class RedisRefused:
    """A server's error reply. Nothing of that command has been done."""

    code: str
    text: str


class NodeExchange(NamedTuple):
    """Commands for one node in one round trip. Answered by a list of replies, or by a StoreError.

    ``ways``: how many ways the call's remaining time is divided, because other nodes can be asked instead.
    """

    node: Node
    commands: tuple[Command, ...]
    ways: int = 1


Replies = list[Any] | StoreError
Performing = Generator[list[NodeExchange], list[Replies], list[Any]]
Refreshing = Generator[list[NodeExchange], list[Replies], None]


@dataclass(frozen=True, slots=True)
class RouteTerms:
    """The terms by which calls become commands. Parameters as in :class:`semel.stores.redis.driver.RedisServer`."""

    wait_replicas: int = 0
    wait_seconds: float = 1.0
    clock: Clock | None = None

    def command(self, call: RedisCall) -> Command:
        """Make the command of a call."""
        if call.script is None:
            return (call.command, *call.keys, *call.arguments)
        keys, now = call.keys, b"" if self.clock is None else self.clock()
        return ("EVALSHA", call.script.sha, len(keys), *keys, now, *call.arguments)

    def waits(self, calls: Sequence[RedisCall]) -> tuple[Command, ...]:
        """Make the commands with which the node confirms that its replicas hold all that these calls wrote or read.

        WAIT covers only the connection's own last write, so there must be one: a call retried after a lost answer
        writes nothing, and may run on another connection.
        """
        if not self.wait_replicas or not any(call.script is not None and call.script.writes for call in calls):
            return ()
        tag, brace, _ = calls[0].keys[0].partition(b"}")
        own = (tag if brace else b"{" + tag) + b"}:wait"  # in the slot of what was written
        wait = ("WAIT", self.wait_replicas, round(self.wait_seconds * 1000))
        # A full server refuses SET, but accepts PEXPIRE of an existing key, which is a write each time.
        return (("SET", own, b""), ("PEXPIRE", own, MARK_MS), wait)


def slot(key: bytes) -> int:
    """Return the cluster's slot of a key, by its braces if it has some.

    >>> slot(b"foo"), slot(b"{foo}:r:1"), slot(b"123456789") == 0x31C3 % SLOTS
    (12182, 12182, True)
    """
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1)
    return crc_hqx(key[begin + 1 : end] if begin >= 0 and end > begin + 1 else key, 0) % SLOTS


class KeyRoutes(Protocol):
    """The nodes that hold keys: one server, a cluster, or the primary that Sentinels name (``sentinel``)."""

    def node_of(self, key: bytes) -> Node:
        """Return the node that has a key. Raises StoreUnavailable where none does."""

    def lane(self, key: bytes) -> str:
        """Return the name that all calls of one round trip share."""

    def stale(self) -> bool:
        """Whether to refresh before anything is sent."""

    def refresh(self) -> Refreshing:
        """Ask the nodes for the map. Raises StoreUnavailable where none knows it."""

    def note_failure(self, node: Node) -> None:
        """Note that a node did not answer, or refuses writes."""

    def note_move(self, slot: int, node: Node) -> None:
        """Note that a node named the new owner of a slot."""


class Single:
    """One server for everything."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def node_of(self, key: bytes) -> Node:
        """Return the server."""
        return self.node

    def lane(self, key: bytes) -> str:
        """Return one name: all calls share their round trips."""
        return ""

    def stale(self) -> bool:
        """Return False: there is no topology to ask for."""
        return False

    def refresh(self) -> Refreshing:
        """Does nothing: there is no map to learn."""
        yield from ()

    def note_failure(self, node: Node) -> None:
        """Does nothing: there is no other node."""

    def note_move(self, slot: int, node: Node) -> None:
        raise StoreUnavailable("the server is part of a cluster; use redis+cluster:// in the URL")


@dataclass
class Cluster:
    """The cluster's map, as far as it is known. Not locked: two callers may learn the same map."""

    seeds: tuple[Node, ...]
    _nodes: dict[int, Node] = field(default_factory=dict)
    _suspects: set[Node] = field(default_factory=set)
    _stale: bool = True
    _asked: float = -1e9

    def node_of(self, key: bytes) -> Node:
        """Return the primary of the key's slot. Raises StoreUnavailable where the map has none."""
        node = self._nodes.get(slot(key))
        if node is None:
            raise StoreUnavailable(
                "no node of the cluster serves a part of its slots: check it with 'redis-cli --cluster check'"
            )
        return node

    def lane(self, key: bytes) -> str:
        """Return the node's name: its calls share their round trips, and if it hangs it delays no other node."""
        return str(self._nodes.get(slot(key), ""))

    def stale(self) -> bool:
        """Whether the map should be asked for before anything is sent."""
        return not self._nodes or (self._stale and time.monotonic() - self._asked >= REFRESH_SECONDS_MIN)

    def nodes_to_ask(self) -> list[Node]:
        """Return the nodes to ask; those that have failed come last."""
        known = list(dict.fromkeys((*self._nodes.values(), *self.seeds)))
        self._asked = time.monotonic()
        return sorted(known, key=lambda node: node in self._suspects)

    def learn(self, source: Node, ranges: Sequence[Any]) -> bool:
        """Take over the map of a CLUSTER SLOTS reply; return False if it is none."""
        nodes: dict[int, Node] = {}
        for first, last, primary, *_ in ranges:
            host = bytes(primary[0] or b"").decode() or source.host
            node = Node(host, int(primary[1]))
            nodes.update(dict.fromkeys(range(int(first), int(last) + 1), node))
        if not nodes:
            return False
        self._nodes, self._stale = nodes, False
        self._suspects.clear()
        return True

    def refresh(self) -> Refreshing:
        """Ask one node after the other for the map."""
        error: StoreError | None = None
        for node in self.nodes_to_ask():
            [answer] = yield [NodeExchange(node, (("CLUSTER", "SLOTS"),), WAYS)]
            if isinstance(answer, StoreError):
                self.note_failure(node)
                error = error or answer
            elif type(answer[0]) is RedisRefused:
                error = error or _no_map(answer[0])
            elif self.learn(node, answer[0]):
                return
        raise StoreUnavailable(str(error or "no node of the cluster has a map of it")) from error

    def note_failure(self, node: Node) -> None:
        """Note that a node did not answer: perhaps another has taken over."""
        self._suspects.add(node)
        self._stale = True

    def note_move(self, slot: int, node: Node) -> None:
        """Note that a node named the new owner of a slot; the rest of the map is probably old too."""
        self._nodes[slot] = node
        self._stale = True


def perform(routes: KeyRoutes, terms: RouteTerms, calls: Sequence[RedisCall]) -> Performing:
    """Send calls to the nodes of their keys; return the replies in order.

    Raises:
        StoreUnavailable: nothing was done.
        StatementRefused: a server refused one call, or a part of them could not be brought to its node.
        StoreTimeout: an answer was lost, or the replicas did not confirm in time: not known yet.
    """
    answers: list[Replies] | None = None
    if type(routes) is Single and not terms.wait_replicas:  # then nearly all that arrives is replies
        answers = yield [NodeExchange(routes.node, tuple([terms.command(call) for call in calls]))]
        [answer] = answers
        if type(answer) is list and RedisRefused not in map(type, answer):
            return answer
    elif routes.stale():
        yield from routes.refresh()
    replies: list[Any] = [None] * len(calls)
    pending = list(range(len(calls)))
    asking: dict[int, Node] = {}
    try:
        for _ in range(ROUNDS_MAX):
            pending, asking = yield from _round(routes, terms, calls, pending, asking, replies, answers)
            if not pending:
                return replies
            answers = None
    except StoreUnavailable as error:
        if len(pending) < len(calls):  # the others have run: send each call alone
            raise StatementRefused(str(error)) from error
        raise
    said = StatementRefused if len(pending) < len(calls) else StoreUnavailable
    raise said("the cluster sends this call from node to node: it is being rebuilt; retry with the same key")


def _round(
    routes: KeyRoutes,
    terms: RouteTerms,
    calls: Sequence[RedisCall],
    pending: list[int],
    asking: dict[int, Node],
    replies: list[Any],
    answers: list[Replies] | None,
) -> Generator[list[NodeExchange], list[Replies], tuple[list[int], dict[int, Node]]]:
    """Send the pending calls and fill ``replies``; return those to send again, and the targets that ASK named.

    Parameters: ``answers`` if the calls were sent already.
    """
    groups = _groups(routes, calls, pending, asking)
    if answers is None:
        answers = yield [_exchange(terms, node, calls, places, asking) for node, places in groups.items()]
    _check(routes, groups, answers)
    again: list[int] = []
    asked: dict[int, Node] = {}
    loads: dict[Node, dict[str, bytes]] = {}
    for (node, places), answer in zip(groups.items(), answers, strict=True):
        assert not isinstance(answer, StoreError)
        own = _own(answer, places, asking)
        refused = [place for place, reply in zip(places, own, strict=True) if type(reply) is RedisRefused]
        if terms.wait_replicas:
            _check_replicas(terms, [calls[place] for place in places if place not in refused], answer)
        for place, reply in zip(places, own, strict=True):
            replies[place] = reply
        for place in refused:
            reply, script = replies[place], calls[place].script
            if reply.code in TAKEN_OVER:  # the next call looks up the primary again
                routes.note_failure(node)
            if reply.code == "NOSCRIPT" and script is not None:
                loads.setdefault(node, {})[script.sha] = script.text
                if place in asking:
                    asked[place] = node
            elif reply.code in ("MOVED", "ASK"):
                number, target = _target(reply, node)
                if reply.code == "MOVED":
                    routes.note_move(number, target)
                else:
                    asked[place] = target
            else:
                continue
            again.append(place)
    if loads:
        yield from _load(routes, loads)
    return again, asked


def _groups(
    routes: KeyRoutes, calls: Sequence[RedisCall], pending: list[int], asking: dict[int, Node]
) -> dict[Node, list[int]]:
    """Group the calls by the node that they go to."""
    if isinstance(routes, Single):
        return {routes.node: pending}
    groups: dict[Node, list[int]] = {}
    for place in pending:
        groups.setdefault(asking.get(place) or routes.node_of(calls[place].place), []).append(place)
    return groups


def _exchange(
    terms: RouteTerms, node: Node, calls: Sequence[RedisCall], places: list[int], asking: dict[int, Node]
) -> NodeExchange:
    if not asking and not terms.wait_replicas:
        return NodeExchange(node, tuple([terms.command(calls[place]) for place in places]))
    commands: list[Command] = []
    for place in places:
        if place in asking:
            commands.append(("ASKING",))
        commands.append(terms.command(calls[place]))
    *marks, wait = terms.waits([calls[place] for place in places]) or ((),)
    for mark in marks:
        commands += [("ASKING",), mark] if places[0] in asking else [mark]  # it lies in that slot
    return NodeExchange(node, (*commands, wait) if wait else tuple(commands))


def _own(answer: list[Any], places: list[int], asking: dict[int, Node]) -> list[Any]:
    """Return the replies to the calls, without those of ASKING and WAIT."""
    if not asking:
        return answer[: len(places)]  # behind them are those of the replicas
    found, at = [], 0
    for place in places:
        at += 1 if place in asking else 0
        found.append(answer[at])
        at += 1
    return found


def _check(routes: KeyRoutes, groups: dict[Node, list[int]], answers: list[Replies]) -> None:
    """Raise the error of a node that sent no replies."""
    errors = [answer for answer in answers if isinstance(answer, StoreError)]
    for node, answer in zip(groups, answers, strict=True):
        if isinstance(answer, StoreError):
            routes.note_failure(node)
    if not errors:
        return
    lost = next((error for error in errors if isinstance(error, StoreTimeout)), None)
    if lost is None and len(groups) > 1:  # other nodes have done their part: send each call alone
        raise StatementRefused(str(errors[0])) from errors[0]
    raise lost or errors[0]


def _check_replicas(terms: RouteTerms, calls: Sequence[RedisCall], answer: list[Any]) -> None:
    if not terms.waits(calls):
        return
    *_, mark, reached = answer
    if mark != 1:  # WAIT without a write before it confirms nothing
        reached = next((reply for reply in (mark, *answer[-4:-2]) if type(reply) is RedisRefused), 0)
    if type(reached) is RedisRefused or int(reached) < terms.wait_replicas:
        said = reached.text if type(reached) is RedisRefused else f"{reached} of {terms.wait_replicas} replicas have it"
        raise StoreTimeout(
            f"Redis: the primary has written it, but {said} after {terms.wait_seconds:g} s (wait_replicas): "
            "not known yet whether it would survive a failover; check the replicas"
        )


def _target(reply: RedisRefused, node: Node) -> tuple[int, Node]:
    number, _, place = reply.text.partition(" ")
    host, _, port = place.split(" ")[0].rpartition(":")
    return int(number), Node(host or node.host, int(port))


def _load(routes: KeyRoutes, loads: dict[Node, dict[str, bytes]]) -> Generator[list[NodeExchange], list[Replies], None]:
    exchanges = [
        NodeExchange(node, tuple(("SCRIPT", "LOAD", text) for text in texts.values())) for node, texts in loads.items()
    ]
    answers = yield exchanges
    for exchange, answer in zip(exchanges, answers, strict=True):
        if isinstance(answer, StoreError):
            routes.note_failure(exchange.node)
            # A script that was not loaded has not run, even if the answer was lost.
            raise answer if isinstance(answer, StoreUnavailable) else StoreUnavailable(str(answer)) from answer
        for reply in answer:
            if type(reply) is RedisRefused:
                raise refusal(reply.code, reply.text)


def _no_map(reply: RedisRefused) -> StoreError:
    if "cluster support disabled" in reply.text:
        return StoreUnavailable("the server is no cluster; use redis:// in the URL")
    return StoreUnavailable(f"Redis: {reply.code} {reply.text}")
