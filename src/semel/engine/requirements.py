"""Check that the store and its server's settings meet the needs of the declared operations.

EXTERNAL needs records that survive a restart of the server: if they are lost, a retry silently runs the command
again. IDEMPOTENT does not: a record that is made anew derives the same keys, so that the downstream recognises the
repetition. ATOMIC is checked with the backend, which supports units or does not.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from semel.core.contract import Capabilities, Identity, Observable, Observed, Store
from semel.core.flow import Flow
from semel.core.model import Effects
from semel.errors import ConfigurationError
from semel.policy import Policy
from semel.sealing.rules import Seals, check_sealer

_FORGETS: Final = (
    "{operation} is effects='external', and the store would lose the fact that it ran: {detail}. {remedy}; or declare "
    "effects='idempotent' with a downstream that deduplicates; or accept the loss with ?persistence=none in the URL"
)
NO_STEPS: Final = (
    "{operation} declares steps, which need a SQL database: sqlite:///, postgresql:// or mysql:// (MariaDB). Use one, "
    "or leave steps=True out"
)

_NO_QUOTAS: Final = (
    "{where} declares a quota, and a store on {name} does not count new keys: use memory://, sqlite:///, "
    "postgresql:// or a single redis://, or leave the quota out and limit requests at the proxy"
)
_OWN_MEMORY: Final = (
    "%s keeps its records in this process alone, and %s is declared on it: a retry runs again if it reaches another "
    "worker process, or this one after a restart. Use sqlite:/// or a server; or accept it with %s://?persistence=none"
)
_LOG: Final = logging.getLogger("semel")


def introduce(store: Store) -> Flow[tuple[Identity | None, list[Observed]]]:
    """Read the store's identity and its server's settings."""
    identity = yield from store.identity()
    return identity, (yield from store.observe()) if isinstance(store, Observable) else []


class Needs:
    """The needs of one engine's operations."""

    def __init__(self, sealer: Seals | None = None) -> None:
        self.policies: dict[str, Policy] = {}  # of the declared operations, by name
        self._sealer = sealer
        self._external: set[str] = set()
        self._protected: set[str] = set()  # EXTERNAL and IDEMPOTENT ones
        self._volatile: str | None = None  # the name of a store that lives and dies with this process
        self.require_durable = False
        self.counts_not: str | None = None  # the name of a store that does not count new keys
        self.refuse: Observed | None = None  # observations that rule out EXTERNAL operations

    def declare(self, operation: str, policy: Policy) -> None:
        """Check and record an operation that this engine will run.

        Raises ConfigurationError if the store was already inspected and cannot hold it.
        """
        check_sealer(operation, policy, self._sealer)
        if policy.quota is not None:
            self.check_counts(repr(operation))
        self.policies[operation] = policy
        if policy.effects is Effects.EXTERNAL:
            self._external.add(operation)
        if policy.effects is not Effects.ATOMIC:
            self._protected.add(operation)
            self._warn()
        self.check(operation, policy)

    def check_counts(self, where: str) -> None:
        """Raise ConfigurationError if new keys must be counted and the store cannot count them."""
        if self.counts_not is not None:
            raise ConfigurationError(_NO_QUOTAS.format(where=where, name=self.counts_not))

    def check(self, operation: str, policy: Policy) -> None:
        """Raise ConfigurationError if the store could forget that this operation ran."""
        if self.refuse is not None and policy.effects is Effects.EXTERNAL:
            raise self._error(operation, self.refuse)

    def learn_kind(self, name: str, capabilities: Capabilities, *, accepts_loss: bool) -> None:
        """Record the durability of this kind of store.

        Raises ConfigurationError if it must be durable and is not.
        """
        if capabilities.survives_process_crash and capabilities.shared_between_processes:
            return
        if self.require_durable:
            raise ConfigurationError(
                f"require_durable=True, and {name} keeps its records in this process alone; use sqlite:/// or a server"
            )
        if not accepts_loss:
            self._volatile = name
            self._warn()

    def _warn(self) -> None:
        """Warn once that the declared operations are safe in this process alone."""
        if self._volatile is not None and self._protected:
            name, self._volatile = self._volatile, None
            _LOG.warning(_OWN_MEMORY, name, repr(min(self._protected)), name)

    def learn(self, observed: Sequence[Observed], *, accepts_loss: bool) -> None:
        """Record the observations about the store's server.

        Raises ConfigurationError if it cannot be used, or not for an operation declared so far.
        """
        for seen in observed:
            if seen.level == "unusable":
                raise ConfigurationError(f"{seen.detail}: {seen.remedy}")
        forgets = [seen for seen in observed if seen.level == "forgets"]
        self.refuse = forgets[0] if forgets and (self.require_durable or not accepts_loss) else None
        if self.refuse is not None and self._external:
            raise self._error(min(self._external), self.refuse)

    @staticmethod
    def _error(operation: str, seen: Observed) -> ConfigurationError:
        remedy = seen.remedy[:1].upper() + seen.remedy[1:]
        return ConfigurationError(_FORGETS.format(operation=repr(operation), detail=seen.detail, remedy=remedy))
