"""The checkout page in a real browser: mistakes of people and networks leave one effect and the first result."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.browser.checkout import PATIENCE_MS, Checkout
from tests.browser.conftest import Open
from tests.servers.needed import needs
from tests.service.served import Served

pytestmark = needs("chromium")

UNKNOWN = "IDEMPOTENCY_OUTCOME_UNKNOWN"
DENY_STORAGE = """
for (const name of ["localStorage", "sessionStorage"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
}
"""


def test_a_double_click_and_enter_make_one_charge(checkout: Open) -> None:
    shop = checkout()
    shop.choose("slow")
    shop.page.get_by_role("button", name="Pay", exact=True).dblclick()
    shop.page.get_by_label("Amount").press("Enter")
    paid = shop.receipt()
    shop.page.get_by_label("Amount").press("Enter")
    expect(shop.page.locator("#detail")).to_have_text(f"{paid} (the first answer, replayed)", timeout=PATIENCE_MS)
    assert shop.charges() == [paid]


def test_a_lost_answer_is_requested_again_with_the_same_key(checkout: Open) -> None:
    shop = checkout()
    shop.choose("lost")
    key = shop.key
    shop.pay()
    paid = shop.receipt()
    assert "replayed" in shop.detail
    assert (shop.key, shop.charges()) == (key, [paid])
    expect(shop.page.locator("#effects")).to_contain_text(paid, timeout=PATIENCE_MS)


def test_a_reload_during_the_request_shows_the_first_result(checkout: Open) -> None:
    shop = checkout()
    shop.choose("slow")
    key = shop.key
    with shop.page.expect_request("**/payments"):
        shop.pay()
    shop.await_state("sending")
    shop.page.reload()
    paid = shop.receipt()
    assert (shop.key, shop.charges()) == (key, [paid])


def test_a_tab_that_is_closed_and_opened_again_shows_the_first_result(context: BrowserContext, checkout: Open) -> None:
    closed = checkout()
    closed.choose("slow")
    url, key = closed.page.url, closed.key
    with closed.page.expect_request("**/payments"):
        closed.pay()
    closed.page.close()

    again = Checkout(context.new_page(), closed.service, closed.customer)
    again.page.goto(url)
    again.await_state("open")
    again.page.get_by_label("Customer").fill(closed.customer)
    again.choose("slow")
    again.pay()
    paid = again.receipt()
    assert (again.key, again.charges()) == (key, [paid])


def test_a_new_form_after_the_result_is_a_new_intent(checkout: Open) -> None:
    shop = checkout()
    shop.pay()
    first, key = shop.receipt(), shop.key
    shop.page.reload()
    shop.await_state("ready")
    assert shop.key != key
    shop.visit(shop.service.url)
    shop.pay()
    second = shop.receipt()
    assert shop.charges() == [first, second]


def test_two_tabs_with_one_form_make_one_charge(checkout: Open) -> None:
    one, two = checkout(), checkout()
    assert one.key == two.key
    for shop in (one, two):
        shop.choose("slow")
    one.pay()
    two.pay()
    paid = one.receipt()
    assert two.receipt() == paid
    assert one.charges() == [paid]


def test_without_a_secure_context_two_tabs_make_one_charge(checkout: Open, service: Served) -> None:
    url = service.url.replace("127.0.0.1", "shop.test")
    one, two = checkout(url), checkout(url)
    missing = "() => [isSecureContext, typeof crypto.randomUUID, typeof navigator.locks]"
    assert one.page.evaluate(missing) == [False, "undefined", "undefined"]
    assert one.key == two.key
    one.choose("lost")
    one.pay()
    paid = one.receipt()
    two.choose("lost")
    two.pay()
    assert two.receipt() == paid
    assert one.charges() == [paid]


def test_without_storage_the_key_is_kept_in_the_page_with_a_notice(context: BrowserContext, checkout: Open) -> None:
    context.add_init_script(DENY_STORAGE)
    shop = checkout()
    assert "in memory alone" in shop.key
    shop.choose("lost")
    shop.page.get_by_role("button", name="Pay", exact=True).dblclick()
    paid = shop.receipt()
    assert shop.charges() == [paid]


def test_an_offline_submission_is_sent_when_the_connection_is_back(context: BrowserContext, checkout: Open) -> None:
    shop = checkout()
    context.set_offline(True)
    shop.pay()
    shop.await_state("offline")
    assert shop.charges() == []
    context.set_offline(False)
    paid = shop.receipt()
    assert shop.charges() == [paid]


@pytest.mark.parametrize("context", ["chromium", "reviving"], indirect=True)
def test_the_back_button_to_a_finished_form_shows_its_result(checkout: Open) -> None:
    shop = checkout()
    shop.pay()
    paid, key = shop.receipt(), shop.key
    shop.page.goto(f"{shop.service.url}/checkout")
    shop.page.go_back(wait_until="commit")  # a page that is revived does not load
    shop.await_state("ready", "done")  # done: revived by the back/forward cache
    assert shop.key == key
    shop.page.get_by_label("Customer").fill(shop.customer)
    shop.pay()
    expect(shop.page.locator("#detail")).to_have_text(f"{paid} (the first answer, replayed)", timeout=PATIENCE_MS)
    assert shop.charges() == [paid]


def test_a_server_killed_after_the_charge_is_unknown_until_it_is_settled(checkout: Open, service: Served) -> None:
    shop = checkout()
    shop.choose("crash")
    shop.pay()
    shop.await_state("unknown")
    expect(shop.page.locator("#detail")).to_have_text(re.compile(f"{UNKNOWN}.*/operations/"), timeout=PATIENCE_MS)
    operation = shop.detail.rpartition("/")[2]
    button = shop.page.get_by_role("button", name="Pay", exact=True)
    expect(button).to_have_attribute("aria-disabled", "true")
    shop.page.reload()  # which does not make it forget
    shop.await_state("unknown")
    shop.page.get_by_label("Amount").press("Enter")
    assert len(shop.charges()) == 1
    settle = ["settle", operation, "--succeeded", "--status", "201", "--reason", "seen", "--force"]
    subprocess.run([sys.executable, "-m", "semel.cli", *settle, "--url", service.store], check=True)
    shop.await_state("done")
    assert len(shop.charges()) == 1


def test_a_form_without_scripts_is_charged_once_even_after_the_back_button(chromium: Browser, service: Served) -> None:
    context = chromium.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(f"{service.url}/checkout")
        customer = f"plain-{page.locator('[name=_key]').input_value()}"
        page.get_by_label("Customer").fill(customer)
        page.get_by_role("button", name="Pay", exact=True).click()
        page.wait_for_url("**/checkout/receipts/*")
        receipt = page.url
        page.go_back()
        page.get_by_label("Customer").fill(customer)
        page.get_by_role("button", name="Pay", exact=True).click()
        page.wait_for_url("**/checkout/receipts/*")
        assert page.url == receipt
        assert len([each for each in service.get("/payments").json if each["customerId"] == customer]) == 1
    finally:
        context.close()


def test_the_page_fits_a_phone_and_is_used_by_keyboard(chromium: Browser, service: Served) -> None:
    context = chromium.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    try:
        page = context.new_page()
        page.goto(service.url)
        expect(page.locator("form#pay")).to_have_attribute("data-semel-state", "ready", timeout=PATIENCE_MS)
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        page.keyboard.press("Tab")
        page.keyboard.type("keyboard")
        for _ in range(3):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("form#pay")).to_have_attribute("data-semel-state", "done", timeout=PATIENCE_MS)
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.id") == "another"
    finally:
        context.close()
