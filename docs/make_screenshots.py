"""Makes docs/images/*.png from the running reference service: ``python docs/make_screenshots.py``.

It needs Chromium and the requirements of the tests. Each image is small enough for a page; the keys in it are random.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Browser, ViewportSize, expect, sync_playwright  # noqa: E402

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


def main() -> None:
    """Make all images."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as service, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=["--no-sandbox"])
        take(browser, service.url, "checkout-replayed", DESK, "lost", "done", dark=False)
        take(browser, service.url, "checkout-unknown", PHONE, "timeout", "unknown", dark=True)
        browser.close()


if __name__ == "__main__":
    main()
