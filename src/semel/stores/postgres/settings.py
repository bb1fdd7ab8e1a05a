"""Checks a PostgreSQL server's settings, and this user's rights, against the store's guarantees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from semel.core.contract import Observed
from semel.core.flow import Flow, ask
from semel.stores.sql.statements import Query, statements

SQL: Final = statements("semel.stores.postgres", "sql/settings.sql")
VERSION_MIN: Final = 140_000
# Without these a handler would run and its end could not be written.
_NEEDED: Final = frozenset({("semel_record", "SELECT"), ("semel_record", "INSERT"), ("semel_record", "UPDATE")})


def observe() -> Flow[list[Observed]]:
    """Ask the server for its settings and for the rights of this user."""
    settings = yield from ask(Query(SQL["read_settings"], {}))
    lacking = yield from ask(Query(SQL["read_grants"], {}))
    found = list(judge({str(name): str(value) for name, value in settings}))
    return [*found, judge_rights([(str(table), str(right)) for table, right in lacking])]


def judge(settings: Mapping[str, str]) -> Iterator[Observed]:
    """Findings on these settings.

    >>> [found.level for found in judge({"synchronous_commit": "off"}) if found.check == "durability"]
    ['forgets']
    """
    version = int(settings.get("server_version_num", VERSION_MIN))
    if version < VERSION_MIN:
        detail = f"the server is PostgreSQL {version // 10_000}, which lacks what the statements use"
        yield Observed("version", "unusable", detail, "upgrade to PostgreSQL 14 or newer")
    else:
        yield Observed("version", "ok", f"PostgreSQL {version // 10_000}.{version % 10_000}")
    yield _durability(settings)
    if settings.get("fsync", "on") == "on" and settings.get("full_page_writes", "on") == "off":
        detail = "full_page_writes is off: a power failure may leave damaged pages"
        yield Observed("pages", "warning", detail, "set full_page_writes = on")
    if settings.get("in_recovery") == "on":
        yield Observed(
            "role", "warning", "the server is a standby: nothing can be written",
            "point the URL at the primary, or name all hosts with target_session_attrs=read-write",
        )  # fmt: skip
    elif settings.get("default_transaction_read_only") == "on":
        yield Observed(
            "role", "warning", "default_transaction_read_only is on: nothing can be written", "set it off for this role"
        )
    yield from _standbys(settings)


def _durability(settings: Mapping[str, str]) -> Observed:
    if settings.get("synchronous_commit") == "off":
        detail = "synchronous_commit is off: a server crash loses the last acknowledged commits"
        return Observed("durability", "forgets", detail, "set synchronous_commit = on for this role or database")
    if settings.get("fsync") == "off":
        detail = "fsync is off: a power failure may lose or damage everything"
        return Observed("durability", "warning", detail, "set fsync = on")
    return Observed("durability", "ok", "every commit waits for the log on disk")


def _standbys(settings: Mapping[str, str]) -> Iterator[Observed]:
    names, level = settings.get("synchronous_standby_names", ""), settings.get("synchronous_commit", "on")
    if names and level == "local":
        yield Observed(
            "standbys", "warning", "synchronous_commit is local: a failover loses commits that no standby has",
            "set synchronous_commit = on for this role or database",
        )  # fmt: skip
    elif names:
        yield Observed("standbys", "ok", f"each commit waits for its standbys: {names}")
    elif settings.get("replicas", "0") != "0":
        yield Observed(
            "standbys", "warning", "the standbys are asynchronous: a failover loses commits not yet on them",
            "set synchronous_standby_names where a failover must not run a command twice",
        )  # fmt: skip


def judge_rights(lacking: Sequence[tuple[str, str]]) -> Observed:
    """Judge the rights that this user lacks: pairs of table and right.

    >>> judge_rights([("semel_bulk", "INSERT"), ("semel_bulk", "UPDATE"), ("semel_item", "DELETE")]).remedy
    'GRANT INSERT, UPDATE ON semel_bulk to this user; GRANT DELETE ON semel_item to this user'
    """
    if not lacking:
        return Observed("grants", "ok", "this user may do all that the store needs")
    rights: dict[str, list[str]] = {}
    for table, right in lacking:
        rights.setdefault(table, []).append(right)
    tables: dict[str, list[str]] = {}  # tables that lack the same rights, together: a read-only user lacks fifty
    for table, lacked in rights.items():
        tables.setdefault(", ".join(lacked), []).append(table)
    listed = "; ".join(f"{lacked} on {', '.join(named)}" for lacked, named in tables.items())
    remedy = "; ".join(f"GRANT {lacked} ON {', '.join(named)} to this user" for lacked, named in tables.items())
    if _NEEDED.isdisjoint(lacking):
        return Observed("grants", "warning", f"this user lacks {listed}: upkeep and operators will be refused", remedy)
    return Observed("grants", "unusable", f"this user lacks {listed}: no end of a command could be written", remedy)


__all__ = ["judge", "judge_rights", "observe"]
