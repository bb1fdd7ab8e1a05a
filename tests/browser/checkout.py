"""The service's checkout in one tab, as a person uses it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Page, expect

from tests.service.served import Served

PATIENCE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Checkout:
    """``customer`` tells this test's charges from those of others."""

    page: Page
    service: Served
    customer: str

    def visit(self, url: str) -> None:
        self.page.goto(url)
        self.await_state("ready")
        self.page.get_by_label("Customer").fill(self.customer)

    def choose(self, trouble: str) -> None:
        self.page.get_by_label("What goes wrong").select_option(trouble)

    def pay(self) -> None:
        self.page.get_by_role("button", name="Pay", exact=True).click()

    def await_state(self, *states: str) -> None:
        """Wait until the form shows one of these states."""
        expect(self.page.locator("form#pay")).to_have_attribute(
            "data-semel-state", re.compile("|".join(f"^{state}$" for state in states)), timeout=PATIENCE_MS
        )

    @property
    def key(self) -> str:
        return self.page.locator("#key").inner_text()

    @property
    def detail(self) -> str:
        return self.page.locator("#detail").inner_text()

    def receipt(self) -> str:
        """The payment that the page shows, once it is done."""
        self.await_state("done")
        expect(self.page.locator("#detail")).to_have_text(re.compile("^pay_"), timeout=PATIENCE_MS)
        return self.detail.split()[0]

    def charges(self) -> list[str]:
        """Return what the provider has charged this customer."""
        listed: list[dict[str, Any]] = self.service.get("/payments").json
        return [each["paymentId"] for each in listed if each["customerId"] == self.customer]
