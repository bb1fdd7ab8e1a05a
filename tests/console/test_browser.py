"""The console in a real browser: a command in doubt is found and ended by the keyboard alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from semel import Engine
from semel.core.model import State
from tests.console.conftest import migrate
from tests.console.test_console import CANARY, EVIL, between_steps, command, pay_with_canary, state_of, unknown
from tests.servers.needed import needs, program

pytestmark = needs("chromium")
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, Engine, str]]:
    """The page behind the printed link, the store, and the id of what is in doubt."""
    url = f"sqlite:///{tmp_path_factory.mktemp('console')}/semel.db"
    with migrate(url) as engine:
        id = unknown(engine, "lost")
        process = subprocess.Popen(
            [sys.executable, "-m", "semel.cli", "console", "--url", url, "--json"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            link = json.loads(process.stdout.readline())["url"]
            with sync_playwright() as playwright:
                arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
                browser = playwright.chromium.launch(executable_path=program("chromium"), args=arguments)
                made = browser.new_page()
                made.set_default_timeout(PATIENCE_MS)
                made.goto(link)
                expect(made.get_by_role("heading", name="Overview", exact=True)).to_be_visible(timeout=PATIENCE_MS)
                yield made, engine, id
                browser.close()
        finally:
            process.terminate()
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()


def press_until_focused(page: Page, text: str) -> None:
    """Go on by the tabulator to the link or button of this text."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.textContent.trim()") == text:
            return
    raise AssertionError(f"the keyboard does not reach {text!r}")


def test_a_doubt_can_be_settled_by_keyboard_alone(page: tuple[Page, Engine, str]) -> None:
    pages, engine, id = page
    errors: list[str] = []
    pages.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    press_until_focused(pages, "all of payments.create")
    pages.keyboard.press("Enter")
    expect(pages.get_by_role("heading", name="Settle", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    pages.get_by_label("It did not happen").focus()
    pages.keyboard.press("Space")
    pages.get_by_label("The handler has stopped").focus()
    pages.keyboard.press("Space")
    pages.get_by_label("How you know").focus()
    pages.keyboard.type("the provider has no charge")
    press_until_focused(pages, "Preview the change")
    pages.keyboard.press("Enter")
    expect(pages.get_by_role("status")).to_contain_text("Nothing is written yet", timeout=PATIENCE_MS)
    assert state_of(engine, id) is State.UNKNOWN
    press_until_focused(pages, "Settle")
    pages.keyboard.press("Enter")
    expect(pages.get_by_role("status")).to_contain_text("Done", timeout=PATIENCE_MS)
    assert state_of(engine, id) is State.FAILED_NOT_REPLAYABLE
    assert engine.run(command("lost"), pay_with_canary).answer.status == 201
    assert CANARY not in pages.content()
    assert errors == []


def test_a_command_between_its_steps_can_be_ended_by_keyboard_alone(page: tuple[Page, Engine, str]) -> None:
    pages, engine, _ = page
    calls: list[str] = []
    id, retry = between_steps(engine, "between", calls)
    pages.goto(f"{pages.url.split('/', 3)[0]}//{pages.url.split('/', 3)[2]}/records/{id}")
    press_until_focused(pages, "Settle it")
    pages.keyboard.press("Enter")
    pages.get_by_label("The whole command has ended without").focus()
    pages.keyboard.press("Space")
    pages.get_by_role("group", name=f"What became of {EVIL}").get_by_label("It did not happen").focus()
    pages.keyboard.press("Space")
    pages.get_by_label("Status, such as 201").focus()
    pages.keyboard.type("409")
    pages.get_by_label("The handler has stopped").focus()
    pages.keyboard.press("Space")
    pages.get_by_label("How you know").focus()
    pages.keyboard.type("refunded")
    press_until_focused(pages, "Preview the change")
    pages.keyboard.press("Enter")
    expect(pages.get_by_role("status")).to_contain_text("Nothing is written yet", timeout=PATIENCE_MS)
    press_until_focused(pages, "Settle")
    pages.keyboard.press("Enter")
    expect(pages.get_by_role("status")).to_contain_text("Done", timeout=PATIENCE_MS)
    assert state_of(engine, id) is State.FAILED_REPLAYABLE
    assert (retry().status, calls) == (409, ["charge", "mail"])


def test_the_pages_fit_a_phone_and_dark_mode(page: tuple[Page, Engine, str]) -> None:
    pages, engine, _ = page
    form = f"/settle?id={unknown(engine, 'narrow')}"
    pages.set_viewport_size({"width": 360, "height": 740})
    pages.emulate_media(color_scheme="dark")
    for path in ("/", "/records", "/bulks", "/imports", "/messages", "/events", "/doctor", "/policies", form):
        pages.goto(f"{pages.url.split('/', 3)[0]}//{pages.url.split('/', 3)[2]}{path}")
        assert pages.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), path
        assert pages.evaluate("() => getComputedStyle(document.body).colorScheme") == "light dark"
