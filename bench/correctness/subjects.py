"""What the table compares: Semel and every peer that is installed, each on its stores."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.peers.environment import Installed


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One column. ``store`` is the kind (memory, sqlite, redis) or a URL; see Peer for the others."""

    package: str
    store: str
    module: str
    python: str = sys.executable
    lease_seconds: float | None = 1.0
    not_offered: Mapping[str, str] = field(default_factory=dict)
    documented: Mapping[str, str] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is called on the command line and in the table."""
        return f"{self.package}-{self.kind}"

    @property
    def kind(self) -> str:
        """The kind of its store."""
        return self.store.partition("://")[0]

    @property
    def durable(self) -> bool:
        """Whether its store outlives its process."""
        return self.kind != "memory"


SEMEL: Final = "bench.protected"


def semel(store: str) -> Subject:
    """Semel on a kind of store, or on a URL."""
    documented = {
        "killed": "If its outcome is unknown (the worker died, …), Semel does not run it again.",
        "reply-3mb": "a longer answer is streamed through and not stored",
        "callers": "A key belongs to its caller, so there is no default.",
        "body-20mb": "a larger request is refused with 413",
    }
    remarks = {
        "killed": "Declared idempotent it would run again with the same derived keys; declared atomic, with its writes "
        "in the record's transaction, nothing would have happened and it would run again.",
        "error": 'Declared `on_error="replay"`, the error would be stored and replayed.',
        "raised": 'Declared `on_error="replay"`, the error would be stored and replayed.',
        "killed-before": "An external handler counts as begun when it is called; declared idempotent or atomic, it "
        "would run again.",
        "raised-before": "Declared `nothing_happened=(...)` or `marks_effects=True`, the key would be released and the "
        "retry would run.",
        "reply-3mb": "The fact is kept: a duplicate is told that it was done.",
    }
    return Subject(package="semel", store=store, module=SEMEL, documented=documented, remarks=remarks)


def subjects(found: Installed, urls: Sequence[str] = ()) -> list[Subject]:
    """Every subject that can be compared here."""
    ours = [semel(store) for store in ("memory", "sqlite", "redis", *urls)]
    peers = [
        Subject(
            package=peer.name,
            store=store,
            module=peer.module,
            python=found.python,
            lease_seconds=peer.lease_seconds,
            not_offered=peer.not_offered,
            documented=peer.documented,
            remarks=peer.remarks,
        )
        for peer in found.peers()
        for store in peer.stores
    ]
    return ours + peers
