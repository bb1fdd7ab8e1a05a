"""Remedies for a Redis server's error replies."""

from __future__ import annotations

from typing import Final

from semel.errors import StatementRefused

_RIGHTS: Final = (
    "this user may not do that: allow it EVALSHA, SCRIPT LOAD, INFO, TIME, CLIENT SETNAME, and all reads and writes "
    "of Semel's keys"
)
_REMEDIES: Final = {
    "LOSTRECORDS": "nothing ran; "
    "find out from your own systems which commands ran, then run: semel migrate --records-may-be-lost",
    "READONLY": "the server is a replica, or a failover is on its way: point the URL at the primary",
    "OOM": "the server's memory is full and it evicts nothing: raise maxmemory, or shorten the retention",
    "MISCONF": "the server cannot write to its disk: make room, and check its log",
    "LOADING": "the server is still reading its data: retry with the same key",
    "BUSY": "another client's script blocks the server: end it with SCRIPT KILL",
    "CLUSTERDOWN": "the cluster has lost a part of its slots: check it with 'redis-cli --cluster check'",
    "NOAUTH": "the server wants a password: put it into the URL",
    "WRONGPASS": "the user or the password is wrong: check the URL",
    "NOPERM": _RIGHTS,
    "NOREPLICAS": "too few replicas are connected (min-replicas-to-write): check them",
    "MASTERDOWN": "the primary cannot be reached: retry with the same key",
    "TRYAGAIN": "a slot of the cluster is on its way to another node: retry with the same key",
}
_TELLING: Final = (
    ("Script killed by user", "it was ended with SCRIPT KILL, before it had written: retry with the same key"),
    ("The user executing the script", _RIGHTS),
    ("ACL failure in script", _RIGHTS),
    ("unexpected symbol near '#'", "Semel needs Redis 7.0, Valkey 7.2 or newer: upgrade the server"),
    ("unknown command", "Semel needs Redis 7.0, Valkey 7.2 or newer, with scripts: upgrade the server, or allow them"),
    ("command not allowed when used memory", _REMEDIES["OOM"]),
    ("max number of clients", "raise the server's maxclients, or lower the URL's connections_max"),
    ("DB index is out of range", "the URL's path names a database that the server does not have"),
)


def remedy_of(code: str, text: str) -> str:
    """Return the remedy for an error reply."""
    return next((remedy for word, remedy in _TELLING if word in text), _REMEDIES.get(code, "run: semel doctor"))


def refusal(code: str, text: str) -> StatementRefused:
    """Make Semel's error for a server's error reply: nothing was done."""
    return StatementRefused(f"Redis: {code} {text} ({remedy_of(code, text)})")
