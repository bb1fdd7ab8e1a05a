"""Makes docs/images/*.png from the running reference service: ``python docs/make_screenshots.py``.

It needs Chromium and the requirements of the tests. Each image is small enough for a page; the keys in it are random.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import uvicorn  # noqa: E402
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright  # noqa: E402

from semel import Answer, Bulk, Command, Engine, ItemFailed, Permit, Policy, Scope  # noqa: E402
from semel.bulk.declaration import BulkItem  # noqa: E402
from semel.console import Console  # noqa: E402
from semel.inbox.run import Inbox, Poison  # noqa: E402
from tests.servers.needed import program  # noqa: E402
from tests.service.served import serving  # noqa: E402

IMAGES: Final = Path(__file__).resolve().parent / "images"
BYTES_MAX: Final = 150 * 1024
PATIENCE_MS: Final = 60_000
DESK: Final[ViewportSize] = {"width": 960, "height": 660}
PHONE: Final[ViewportSize] = {"width": 390, "height": 760}


def take(browser: Browser, url: str, name: str, size: ViewportSize, trouble: str, state: str, *, dark: bool) -> None:
    """One image of the checkout once a payment with this trouble has come to this state."""
    context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.goto(url)
    form = page.locator("form#pay")
    expect(form).to_have_attribute("data-semel-state", "ready", timeout=PATIENCE_MS)
    page.get_by_label("What goes wrong").select_option(trouble)
    page.get_by_role("button", name="Pay", exact=True).click()
    expect(form).to_have_attribute("data-semel-state", state, timeout=PATIENCE_MS)
    expect(page.locator("#detail")).not_to_be_empty(timeout=PATIENCE_MS)
    expect(page.locator("#effects li").first).to_be_visible(timeout=PATIENCE_MS)
    file = IMAGES / f"{name}.png"
    page.screenshot(path=file, animations="disabled", caret="hide")
    context.close()
    if file.stat().st_size > BYTES_MAX:
        raise SystemExit(f"{file} has {file.stat().st_size} bytes; at most {BYTES_MAX} belong on a page")


@contextmanager
def serve_console(folder: Path) -> Iterator[str]:
    """Serve the console of a shop after a bad night; give its address."""
    made = Engine.connect(f"sqlite:///{folder}/shop.db")
    made.migrate()
    with made as engine, socket.create_server(("127.0.0.1", 0)) as listening:
        for number in range(40):
            engine.run(command("orders.create", number), lambda permit: Answer(201, (), b"{}"))
        for number in range(3):
            with suppress(TimeoutError):
                engine.run(command("payments.create", number), away)
        with suppress(TimeoutError):
            engine.run(command("shop.ship", 1), ship)
        for number in range(2):
            Inbox(engine, consumer="billing").handle(f"order-{number}-placed", poison)
        config = uvicorn.Config(Console(engine, lambda request: "olga"), log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        running, seen = threading.Event(), threading.Event()

        def item(each: BulkItem) -> str:
            if each.place % 9 == 4:
                raise ItemFailed("CASE_CLOSED")
            if each.place == 260:
                running.set()
                seen.wait()
            return f"case-{each.place}"

        bulk = Bulk(engine, operation="cases.approve", effects="idempotent", chunk_items=20)
        cases = [{"clientItemId": f"case-{number}"} for number in range(400)]
        worker = threading.Thread(target=lambda: bulk.run(cases, item, key="monday", caller="alice"))
        worker.start()
        try:
            running.wait()
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            seen.set()
            worker.join()
            server.should_exit = True
            thread.join()


def command(operation: str, number: int) -> Command:
    policy = Policy(steps=operation == "shop.ship")
    return Command(Scope("acme", "alice", operation), f"key-{number}", bytes(32), "v1", policy)


def away(permit: Permit) -> Answer:
    raise TimeoutError


def ship(permit: Permit) -> Answer:
    permit.step("charge", lambda: "ch_81")
    return Answer(201, (), str(permit.step("parcel", stuck)).encode())


def stuck() -> str:
    raise TimeoutError


def poison(message: object) -> None:
    raise Poison("the currency XXX is not known")


def shoot(page: Page, name: str) -> None:
    file = IMAGES / f"{name}.png"
    page.screenshot(path=file, animations="disabled", caret="hide")
    if file.stat().st_size > BYTES_MAX:
        raise SystemExit(f"{file} has {file.stat().st_size} bytes; at most {BYTES_MAX} belong on a page")


def take_console(browser: Browser, folder: Path) -> None:
    """The console's overview, a bulk that runs, and the form that settles a step."""
    with serve_console(folder) as url:
        page = browser.new_context(viewport=DESK).new_page()
        page.goto(f"{url}/")
        shoot(page, "console")
        page.goto(f"{url}/bulks")
        page.locator("td.id a").first.click()
        expect(page.get_by_role("heading", name="Items", exact=True)).to_be_visible(timeout=PATIENCE_MS)
        shoot(page, "console-bulk")
        page.goto(f"{url}/")
        page.get_by_role("link", name="all of shop.ship").click()
        page.get_by_label("The step parcel succeeded").check()
        page.get_by_label("What it returned").fill('"parcel 7"')
        page.get_by_label("How you know").fill("parcel 7 is on its way, says the carrier")
        page.set_viewport_size({"width": 960, "height": 1460})
        page.evaluate("() => scrollTo(0, 0)")
        shoot(page, "console-settle")
        page.context.close()


def main() -> None:
    """Make all images."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as service, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=["--no-sandbox"])
        take(browser, service.url, "checkout-replayed", DESK, "lost", "done", dark=False)
        take(browser, service.url, "checkout-unknown", PHONE, "timeout", "unknown", dark=True)
        take_console(browser, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
