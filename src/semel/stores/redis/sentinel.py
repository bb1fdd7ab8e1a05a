"""Find the primary from the answers of Sentinels. No IO happens here.

A Sentinel is asked when the primary is unknown, has failed or has refused a write. The server that it names is used
once that server itself confirms that it is a primary. This module retries nothing: the engine retries the call that met
the failover.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from semel.errors import StoreError, StoreUnavailable
from semel.stores.redis.routes import REFRESH_SECONDS_MIN, WAYS, Node, NodeExchange, RedisRefused, Refreshing

PRIMARY: Final = b"master"


@dataclass
class Sentinel:
    """The primary of a ``service``, as far as it is known. Not locked: two callers may learn the same address."""

    service: str
    seeds: tuple[Node, ...]
    _node: Node | None = None
    _stale: bool = True
    _asked: float = -1e9
    _deaf: set[Node] = field(default_factory=set)  # Sentinels that did not answer last

    def node_of(self, key: bytes) -> Node:
        """Return the primary. Raises StoreUnavailable where no Sentinel has named one."""
        if self._node is None:
            raise StoreUnavailable(
                f"no Sentinel has named the primary of {self.service!r} yet: retry with the same key"
            )
        return self._node

    def lane(self, key: bytes) -> str:
        """Return one name: all calls share their round trips."""
        return ""

    def stale(self) -> bool:
        """Whether a Sentinel should be asked before anything is sent."""
        return self._node is None or (self._stale and time.monotonic() - self._asked >= REFRESH_SECONDS_MIN)

    def refresh(self) -> Refreshing:
        """Ask one Sentinel after the other, silent ones last; then ask the server that it names to confirm.

        Raises StoreUnavailable: no Sentinel answers, the service is not known, or no primary has taken over yet.
        """
        self._asked = time.monotonic()
        asked: set[Node] = set()
        said: list[str] = []
        for sentinel in sorted(self.seeds, key=lambda node: node in self._deaf):
            [answer] = yield [NodeExchange(sentinel, (("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service),), WAYS)]
            if isinstance(answer, StoreError):
                self._deaf.add(sentinel)
                said.append(str(answer))
                continue
            self._deaf.discard(sentinel)
            named = self._read_named(sentinel, answer[0])
            if isinstance(named, str):
                said.append(named)
            elif named not in asked:
                asked.add(named)
                [role] = yield [NodeExchange(named, (("ROLE",),), WAYS)]
                why = _no_primary(named, role)
                if why is None:
                    self._node, self._stale = named, False
                    return
                said.append(why)
        raise StoreUnavailable(said[-1])

    def _read_named(self, sentinel: Node, reply: Any) -> Node | str:
        """Read the primary that a Sentinel names, or why it names none."""
        if type(reply) is RedisRefused:
            if "unknown command" in reply.text:
                return f"{sentinel} is no Sentinel; name the Sentinels in redis+sentinel://, or the server in redis://"
            return f"Sentinel {sentinel}: {reply.code} {reply.text}"
        if reply is None:
            return f"Sentinel {sentinel} knows no service {self.service!r}: check the path of the URL"
        host, port = reply
        return Node(bytes(host).decode(), int(port))

    def note_failure(self, node: Node) -> None:
        """Note that a server did not answer, or refuses writes: perhaps another has taken over."""
        self._stale = True

    def note_move(self, slot: int, node: Node) -> None:
        """Raise an error: no server under Sentinels is part of a cluster."""
        raise StoreUnavailable("the server is part of a cluster; use redis+cluster:// in the URL")


def _no_primary(node: Node, answer: Any) -> str | None:
    """Say why a server is not the primary that the Sentinels name; None if it is."""
    if isinstance(answer, StoreError):
        return f"{answer}; the Sentinels still name it: no server has taken over yet, retry with the same key"
    role = answer[0]
    if type(role) is RedisRefused:
        return f"Redis at {node}, which the Sentinels name: {role.code} {role.text} (its user needs ROLE)"
    if role[0] != PRIMARY:
        return f"Redis at {node} is a replica, and the Sentinels still name it: a failover is on its way, retry"
    return None
