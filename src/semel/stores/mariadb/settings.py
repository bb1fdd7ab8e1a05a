"""Check a MariaDB server's settings against the store's guarantees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from semel.core.contract import Observed
from semel.core.flow import Flow, ask
from semel.stores.sql.statements import Query, statements

SQL: Final = statements("semel.stores.mariadb", "sql/upkeep.sql")
PACKET_LEAST: Final = 4 * 1024 * 1024  # a default answer_bytes_max, written out twice as long, and room for a batch

SYNC_WAIT: Final = 7  # reads, UPDATE and DELETE, INSERT: each of Semel's statements is one of them


def observe() -> Flow[list[Observed]]:
    """Read the server's settings."""
    rows = yield from ask(Query(SQL["read_settings"], {}))
    return list(judge({str(name).lower(): str(value) for name, value in rows}))


def judge(settings: Mapping[str, str]) -> Iterator[Observed]:
    """Findings on these global variables.

    >>> [found.level for found in judge({"innodb_flush_log_at_trx_commit": "0"})]
    ['forgets']
    """
    yield _durability(settings)
    if settings.get("innodb_flush_method", "").lower() == "nosync":
        yield Observed(
            "flush", "warning", "the server never waits for its disk: a power failure may lose all of it",
            "set innodb_flush_method to O_DIRECT",
        )  # fmt: skip
    if settings.get("log_bin") == "ON" and settings.get("sync_binlog") != "1":
        yield Observed(
            "binlog", "note",
            "sync_binlog is not 1: after a power failure replicas may have transactions that this server lost",
            "set sync_binlog=1",
        )  # fmt: skip
    if settings.get("read_only") not in (None, "OFF", "0"):
        yield Observed("role", "warning", "the server is read-only", "point the URL at the primary")
    if settings.get("wsrep_on") == "ON":
        yield Observed(
            "galera", "warning", "a node of a Galera cluster: experimental, and a partition may forget claims",
            "point every process at one node, and see docs/mariadb.md",
        )  # fmt: skip
        if int(settings.get("wsrep_sync_wait", "0")) & SYNC_WAIT != SYNC_WAIT:
            yield Observed(
                "galera reads", "note", "wsrep_sync_wait is not 7: what another node acknowledged may not be seen yet",
                "set wsrep_sync_wait=7 where processes ever speak to more than one node",
            )  # fmt: skip
    if int(settings.get("max_allowed_packet", PACKET_LEAST)) < PACKET_LEAST:
        yield Observed(
            "packet", "warning", "max_allowed_packet is small: an answer near answer_bytes_max will not fit",
            "set max_allowed_packet to twice the largest answer and 2 MiB more",
        )  # fmt: skip
    if settings.get("innodb_rollback_on_timeout") == "ON":
        yield Observed(
            "locks", "note", "innodb_rollback_on_timeout is on: users' transactions cannot be joined",
            "switch it off, or use ATOMIC units that Semel opens",
        )  # fmt: skip


def _durability(settings: Mapping[str, str]) -> Observed:
    flush = settings.get("innodb_flush_log_at_trx_commit")
    remedy = "set innodb_flush_log_at_trx_commit=1"
    if flush == "0":
        detail = "commits are written once a second: a server crash loses the last acknowledged commits"
        return Observed("durability", "forgets", detail, remedy)
    if flush == "2":
        detail = "commits reach the disk once a second: a power failure loses the last of them"
        return Observed("durability", "warning", detail, remedy)
    return Observed("durability", "ok", "every commit waits for the log on disk")
