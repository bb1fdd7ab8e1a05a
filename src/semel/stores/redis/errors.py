"""Map redis-py's exceptions to Semel's, with the remedy in the message.

A command that the server refused with an error did nothing. A connection that could not be opened sent nothing. If the
connection or the answer was lost, the outcome is not known yet. No message holds a password.
"""

from __future__ import annotations

import redis

from semel.errors import StoreTimeout, StoreUnavailable
from semel.stores.redis.remedies import remedy_of
from semel.stores.redis.routes import Node, NodeExchange, RedisRefused, Replies

# redis-py removes the first word of these replies, and makes it a class.
_CODES = (
    (redis.exceptions.NoScriptError, "NOSCRIPT"),
    (redis.exceptions.ReadOnlyError, "READONLY"),
    (redis.exceptions.OutOfMemoryError, "OOM"),
    (redis.exceptions.BusyLoadingError, "LOADING"),
    (redis.exceptions.AuthenticationError, "NOAUTH"),  # a password was set meanwhile
    (redis.exceptions.NoPermissionError, "NOPERM"),
    (redis.exceptions.MovedError, "MOVED"),
    (redis.exceptions.AskError, "ASK"),
    (redis.exceptions.TryAgainError, "TRYAGAIN"),
    (redis.exceptions.MasterDownError, "MASTERDOWN"),
    (redis.exceptions.ClusterDownError, "CLUSTERDOWN"),
    (redis.exceptions.ClusterCrossSlotError, "CROSSSLOT"),
)
_CODE_MIN = 4  # BUSY; a shorter first word is one of the text
# Error replies on which redis-py closes the connection.
REFUSALS = (redis.exceptions.BusyLoadingError, redis.exceptions.AuthenticationError)


def error_reply(error: redis.RedisError) -> RedisRefused:
    """Make an error reply a value."""
    text = _line(error)
    if isinstance(error, (redis.exceptions.MovedError, redis.exceptions.AskError)):
        text = str(getattr(error, "message", text))
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    if code is not None:
        return RedisRefused(code, text.removeprefix(f"{code} "))
    first, _, rest = text.partition(" ")
    if first.isupper() and len(first) >= _CODE_MIN:
        return RedisRefused(first, rest)
    return RedisRefused("ERR", text)


def cannot_connect(node: Node, error: redis.RedisError | OSError) -> StoreUnavailable:
    """Make the error for a connection that could not be opened: nothing was sent."""
    text = _line(error)
    if isinstance(error, redis.exceptions.AuthenticationError):
        remedy = remedy_of("NOAUTH" if "required" in text else "WRONGPASS", "")
        return StoreUnavailable(f"Redis at {node} does not let us in: {text} ({remedy})")
    if isinstance(error, redis.ResponseError):
        refused = error_reply(error)
        return StoreUnavailable(
            f"Redis at {node}: {refused.code} {refused.text} ({remedy_of(refused.code, refused.text)})"
        )
    if "max number of clients" in text:
        return StoreUnavailable(f"Redis at {node}: {text} ({remedy_of('ERR', text)})")
    if "SSL" in text:
        remedy = "TLS failed: check ssl_ca_certs and the server's certificate; redis:// where it has no TLS"
    else:
        remedy = "check that the server runs, and the URL; rediss:// where it speaks TLS"
    return StoreUnavailable(f"Redis at {node} cannot be reached: {text} ({remedy})")


def judge_lost(wanted: NodeExchange, replies: list[object], error: redis.RedisError | OSError) -> Replies:
    """Judge an exchange whose connection failed.

    redis-py closes the connection on some replies that refuse one command. The commands behind it may have run: a
    server may finish loading between two commands.
    """
    if len(wanted.commands) == 1 and isinstance(error, REFUSALS):
        return [error_reply(error)]
    return StoreTimeout(
        f"Redis at {wanted.node}: the answer was lost ({_line(error)}): not known yet whether it took effect"
    )


def _line(error: BaseException) -> str:
    text = str(error)
    return text.splitlines()[0] if text else type(error).__name__
