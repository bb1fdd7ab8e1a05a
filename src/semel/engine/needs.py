"""What the declared operations need of the store, and whether its server's settings give it.

EXTERNAL needs records that outlive the server: where they are forgotten, a retry runs the command again, and nobody
can tell. IDEMPOTENT does not: its derived keys are the same for a record that is made anew, so that the downstream
tells the repetition. ATOMIC is checked beside the backend, which has units or has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.errors import ConfigurationError
from semel.flow import Flow
from semel.model import Effects
from semel.policy import Policy
from semel.stores.base import Identity, Observable, Observed, Store

_FORGETS: Final = (
    "{operation} is effects='external', and the store would forget that it ran: {detail}. {remedy}; or declare "
    "effects='idempotent' with a downstream that deduplicates; or accept the loss with ?persistence=none in the URL"
)
NO_STEPS: Final = (
    "{operation} declares steps, which need a SQL database: sqlite:///, postgresql:// or mysql:// (MariaDB). Use one, "
    "or leave steps=True out"
)


def introduced(store: Store) -> Flow[tuple[Identity | None, list[Observed]]]:
    """Who a store is, and what its server says of itself."""
    identity = yield from store.identity()
    return identity, (yield from store.observe()) if isinstance(store, Observable) else []


class Needs:
    """The needs of one engine's operations."""

    def __init__(self) -> None:
        self._external: set[str] = set()
        self.refuse: Observed | None = None  # what makes EXTERNAL operations impossible

    def declare(self, operation: str, policy: Policy) -> None:
        """An operation that this engine will be used for.

        Raises ConfigurationError where the store, which was looked at before, cannot hold it.
        """
        if policy.effects is Effects.EXTERNAL:
            self._external.add(operation)
        self.check(operation, policy)

    def check(self, operation: str, policy: Policy) -> None:
        """Raise ConfigurationError where the store would forget that this operation ran."""
        if self.refuse is not None and policy.effects is Effects.EXTERNAL:
            raise self._error(operation, self.refuse)

    def learn(self, observed: Sequence[Observed], *, accepts_loss: bool) -> None:
        """Take note of what the store's server says of itself.

        Raises ConfigurationError where it cannot be used, or not for an operation declared so far.
        """
        for seen in observed:
            if seen.level == "unusable":
                raise ConfigurationError(f"{seen.detail}: {seen.remedy}")
        forgets = [seen for seen in observed if seen.level == "forgets"]
        self.refuse = forgets[0] if forgets and not accepts_loss else None
        if self.refuse is not None and self._external:
            raise self._error(min(self._external), self.refuse)

    @staticmethod
    def _error(operation: str, seen: Observed) -> ConfigurationError:
        remedy = seen.remedy[:1].upper() + seen.remedy[1:]
        return ConfigurationError(_FORGETS.format(operation=repr(operation), detail=seen.detail, remedy=remedy))
