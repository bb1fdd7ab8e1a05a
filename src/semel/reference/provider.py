"""The payment provider simulator: a third party's system, with its own ledger.

Like some real providers, it does **not** deduplicate by the given key: two requests for a charge are two
charges, and its ledger shows both. Only this makes the demonstration meaningful.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from semel.reference.ledger import Ledger, LedgerLine


class ProviderUnreachable(Exception):
    """The provider could not be reached: nothing was charged."""


class ProviderTimeout(Exception):
    """The provider did not answer in time: it may have charged."""


@dataclass(frozen=True, slots=True)
class Charge:
    """One charge in the provider's ledger."""

    id: str
    key: str
    caller: str
    amount: Decimal
    currency: str
    customer: str


class Provider:
    """Charges customers, and records every charge. ``path`` is the file of its ledger."""

    def __init__(self, path: Path) -> None:
        self._ledger = Ledger(path)

    def charge(
        self, key: str, caller: str, amount: Decimal, currency: str, *, customer: str = "", deduplicate: bool = False
    ) -> Charge:
        """Charge now, durably. Blocks for one fsync.

        Parameters: ``key`` is kept with the charge; only ``deduplicate`` prevents a new charge under a known key.
        """
        detail = {"amount": str(amount), "currency": currency, "customer": customer}
        entry: LedgerLine = {"key": key, "id": f"pay_{secrets.token_hex(8)}", "caller": caller, "detail": detail}
        return _charge(self._ledger.append(entry, once=deduplicate))

    def charges(self, caller: str | None = None) -> list[Charge]:
        """Return all charges, or one caller's, in their order."""
        return [_charge(entry) for entry in self._ledger.entries() if caller is None or entry["caller"] == caller]


def _charge(entry: LedgerLine) -> Charge:
    detail = entry["detail"]
    return Charge(
        entry["id"], entry["key"], entry["caller"], Decimal(detail["amount"]), detail["currency"], detail["customer"]
    )
