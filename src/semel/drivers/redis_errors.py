"""What a Redis error means to Semel, with the remedy in the message.

An error that the server replies with has done nothing. A connection that was lost, or an answer that did not come,
leaves it open: not known yet. A connection that could not be made has sent nothing.
"""

from __future__ import annotations

from typing import Final

import redis

from semel.errors import StatementRefused, StoreError, StoreTimeout, StoreUnavailable

_REMEDIES: Final = (
    ("READONLY", "the server is a replica, or a failover is on its way: point the URL at the primary"),
    ("OOM", "the server's memory is full and it evicts nothing: raise maxmemory, or shorten the retention"),
    ("MISCONF", "the server cannot write to its disk: make room, and check its log"),
    ("LOADING", "the server is reading its data: retry with the same key"),
    ("CLUSTERDOWN", "the cluster has lost a part of its slots: check its nodes"),
    ("NOAUTH", "the server wants a password: put it into the URL"),
    ("WRONGPASS", "the user or the password is wrong: check the URL"),
    ("NOPERM", "this user may not do that: allow it EVALSHA, SCRIPT LOAD, SCAN and Semel's keys"),
    ("NOREPLICAS", "too few replicas are connected (min-replicas-to-write): check them"),
    ("MASTERDOWN", "the primary is away: retry with the same key"),
)


def store_error(error: redis.RedisError | OSError) -> StoreError:
    """The error to raise for what redis-py raised."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, redis.exceptions.AuthenticationError):
        return StoreUnavailable(f"Redis: {text} (check the URL's user and password)")
    if isinstance(error, redis.exceptions.MaxConnectionsError) or "No connection available" in text:
        return StoreUnavailable(
            "all connections to the store are busy; retry with the same key, or raise the URL's connections_max"
        )
    if _never_sent(error):
        return StoreUnavailable(f"Redis cannot be reached: {text} (check that the server runs, and the URL)")
    if isinstance(error, (redis.TimeoutError, redis.ConnectionError, OSError)) and not _replied(text):
        return StoreTimeout(f"Redis: the answer was lost ({text}): whether it took effect is not known yet")
    remedy = next((remedy for word, remedy in _REMEDIES if text.startswith(word)), "run: semel doctor")
    return StatementRefused(f"Redis: {text} ({remedy})")


def _replied(text: str) -> bool:
    """redis-py makes connection errors of some replies, such as LOADING."""
    return any(text.startswith(word) for word, _ in _REMEDIES) or "loading the dataset" in text


def _never_sent(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, ConnectionRefusedError) or " connecting to " in text or "Name or service" in text
