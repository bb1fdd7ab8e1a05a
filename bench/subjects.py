"""What is measured: the servers, and what is asked of each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bench.peers.environment import Installed
from bench.peers.registry import PEERS


class Mode(Enum):
    """What a cell sends."""

    FRESH = "fresh"  # every key is new
    REPLAY = "replay"  # every key has its answer already


@dataclass(frozen=True, slots=True)
class Subject:
    """A server under one kind of request.

    ``store`` is a kind of store (memory, sqlite, redis, postgresql, postgresql+asyncpg, mariadb) or a URL, and None
    for a bare application. ``module`` builds it, ``python`` runs it, ``bare`` names the bare application that it is
    compared with. ``peer`` says that it is not Semel: its store is not counted, and its replays are told by the runs
    of its handler, because not all of them mark a replay.
    """

    name: str
    store: str | None
    mode: Mode
    module: str = "bench.protected"
    python: str = sys.executable
    bare: str = "bare"
    peer: bool = False

    @property
    def server(self) -> tuple[str, str | None]:
        """What subjects of one server have in common."""
        return self.module, self.store


@dataclass(frozen=True, slots=True)
class Probe:
    """Something that is measured without HTTP, at the numbers of connections that HTTP is measured at.

    ``kind`` is one of those in ``bench.probes``; ``store`` as of a subject.
    """

    name: str
    kind: str
    store: str


def _of_store(name: str, store: str) -> list[Subject]:
    return [Subject(f"{name}-{mode.value}", store, mode) for mode in Mode]


def _in_fastapi(store: str) -> list[Subject]:
    return [
        Subject(f"fastapi-{store}-{mode.value}", store, mode, module="bench.protected_fastapi", bare="bare-fastapi")
        for mode in Mode
    ]


def _atomic(name: str, store: str) -> Subject:
    return Subject(f"{name}-atomic", store, Mode.FRESH, module="bench.atomic")


def _commits(name: str, store: str) -> Subject:
    return Subject(f"{name}-commits", store, Mode.FRESH, module="bench.commits")


def _by_hand(name: str, store: str) -> Subject:
    return Subject(f"{name}-by-hand", store, Mode.FRESH, module="bench.by_hand", peer=True)


BARE: Final = Subject("bare", None, Mode.FRESH, module="bench.bare")
BARE_FASTAPI: Final = Subject("bare-fastapi", None, Mode.FRESH, module="bench.bare_fastapi", bare="bare-fastapi")
BARES: Final = (BARE, BARE_FASTAPI)
SUBJECTS: Final = (
    BARE,
    *_of_store("memory", "memory"),
    *_of_store("sqlite", "sqlite"),
    _atomic("sqlite", "sqlite"),
    *_of_store("redis", "redis"),
    *_of_store("postgresql", "postgresql"),
    _atomic("postgresql", "postgresql"),
    _commits("postgresql", "postgresql"),
    _by_hand("postgresql", "postgresql"),
    *_of_store("asyncpg", "postgresql+asyncpg"),
    _atomic("asyncpg", "postgresql+asyncpg"),
    _commits("asyncpg", "postgresql+asyncpg"),
    _by_hand("asyncpg", "postgresql+asyncpg"),
    *_of_store("mariadb", "mariadb"),
    _atomic("mariadb", "mariadb"),
    *_in_fastapi("memory"),
    *_in_fastapi("sqlite"),
    *_in_fastapi("redis"),
    *_in_fastapi("postgresql"),
    Subject("fastapi-unprotected", "memory", Mode.FRESH, module="bench.unprotected_fastapi", bare="bare-fastapi"),
)
PROBES: Final = (
    Probe("pgbench", "pgbench", "postgresql"),
    Probe("postgresql-calls", "calls", "postgresql"),
    Probe("postgresql-plain", "plain", "postgresql"),
    Probe("asyncpg-calls", "calls", "postgresql+asyncpg"),
    Probe("asyncpg-plain", "plain", "postgresql+asyncpg"),
    Probe("redis-benchmark", "redis-benchmark", "redis"),
    Probe("redis-calls", "calls", "redis"),
    Probe("mariadb-calls", "calls", "mariadb"),
)

MIDDLEWARE: Final = "middleware"
LIMIT: Final = "limit"
PEER_NAMES: Final = tuple(
    f"{peer.name}-{store}-{mode.value}" for peer in PEERS for store in peer.stores for mode in Mode
)
NAMES: Final = (
    *(subject.name for subject in SUBJECTS),
    BARE_FASTAPI.name,
    *(probe.name for probe in PROBES),
    *PEER_NAMES,
    MIDDLEWARE,
    LIMIT,
)

PATH: Final = "/payments"
COUNTS_PATH: Final = "/_counts"
REQUEST_BODY: Final = (
    b'{"customerId":"cus_5f1c2b7e90d14a38","amount":"129.90","currency":"EUR",'
    b'"description":"Order 2041, two items, by express mail",'
    b'"metadata":{"cart":"7d2e41f0-53a8-4c1b","channel":"web","locale":"en-GB"}}'
)
ANSWER_BODY: Final = (
    b'{"paymentId":"pay_0000000000000001","status":"captured","amount":"129.90","currency":"EUR","version":1}'
)
KEY_TEMPLATE: Final = b"%08x-5eed-4000-8000-%012x"  # the form of a UUID, which is what clients send


def of_peers(found: Installed) -> list[Subject]:
    """The peers that are installed, fresh and replay on each of their stores."""
    return [
        Subject(
            f"{peer.name}-{store}-{mode.value}",
            store,
            mode,
            module=peer.module,
            python=found.python,
            bare=peer.bare,
            peer=True,
        )
        for peer in found.peers()
        for store in peer.stores
        for mode in Mode
    ]


def of_url(url: str) -> list[Subject]:
    """Semel on a store by its URL, such as ``postgresql://shop@db/shop``; named ``url-`` and the URL's scheme."""
    scheme = url.partition("://")[0]
    return _of_store(f"url-{scheme}", url)


def with_bare(chosen: Sequence[Subject]) -> list[Subject]:
    """The chosen ones, after the bare applications that they are compared with: a ratio needs them."""
    needed = {subject.bare for subject in chosen}
    return [*(bare for bare in BARES if bare.name in needed), *(one for one in chosen if one not in BARES)]
