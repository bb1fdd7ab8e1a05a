"""One Chromium and one service for the tests of this folder; each test has a context, and a customer, of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, sync_playwright

from tests.browser.checkout import Checkout
from tests.servers.needed import program
from tests.service.served import Served, serving

PATIENCE_MS = 60_000
# A name that is not localhost: without a secure context, as on a shop's test server.
INSECURE = "--host-resolver-rules=MAP shop.test 127.0.0.1"
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", INSECURE)

Open = Callable[..., Checkout]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("checkout")
    with serving(folder) as served:
        yield served


@pytest.fixture(scope="module")
def driver() -> Iterator[Playwright]:
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="module")
def chromium(driver: Playwright) -> Iterator[Browser]:
    browser = driver.chromium.launch(executable_path=program("chromium"), args=list(ARGUMENTS))
    yield browser
    browser.close()


@pytest.fixture
def reviving(driver: Playwright) -> Iterator[Browser]:
    """A browser with a back/forward cache, which the driver otherwise switches off."""
    browser = driver.chromium.launch(
        executable_path=program("chromium"),
        args=list(ARGUMENTS),
        ignore_default_args=["--disable-back-forward-cache"],
    )
    yield browser
    browser.close()


@pytest.fixture
def context(request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    """Of the browser that the test is given by ``indirect`` parameters, else of the module's."""
    browser: Browser = request.getfixturevalue(getattr(request, "param", "chromium"))
    made = browser.new_context()
    made.set_default_timeout(PATIENCE_MS)
    yield made
    made.close()


@pytest.fixture
def checkout(context: BrowserContext, service: Served) -> Iterator[Open]:
    """Opens the checkout in a new tab. At the end no page has met an error or a refusal of its policy."""
    errors: list[str] = []
    customer = f"c-{uuid4().hex}"

    def watch(page: Page) -> None:
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if "Content Security Policy" in line.text else None)

    def open_tab(url: str | None = None) -> Checkout:
        page = context.new_page()
        watch(page)
        opened = Checkout(page, service, customer)
        opened.visit(url or service.url)
        return opened

    yield open_tab
    assert errors == []
