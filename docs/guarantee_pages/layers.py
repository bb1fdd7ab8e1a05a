"""The rooms of the package in their rings, as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from guarantee_pages.drawing import box, line, picture, words

SOURCE: Final = Path(__file__).resolve().parents[2] / "src" / "semel"
WIDTH: Final = 980

# Who uses the package from outside, and where the outside is met.
SURFACES: Final = {
    "HTTP and frameworks": ("http", "integrations", "reference"),
    "other ways in": ("functions", "imports", "bulk", "inbox"),
    "the client's side": ("client", "gateway", "proxy"),
    "operators": ("cli", "admin", "console", "exporters", "check", "conform"),
}
FEATURES: Final = (
    *("atomic", "steps", "operations", "outbox", "inbox", "bulk", "imports"),
    *("reconciliation", "resuming", "sealing", "retention"),
)
SUPPORT: Final = ("codec", "telemetry", "testing", "workers")
RINGS: Final = (
    ("present", "http.py, worker.py, commands", "what a user or an operator touches"),
    ("perform", "run.py, driver.py, engine/", "connections, threads, await, clocks"),
    ("describe", "flow.py, store.py, sql/", "generators that yield what they need"),
    ("decide", "rules.py, core/decide.py", "pure functions: no IO, no clock, no async"),
)

RULE: Final = "In each room the file's name says its ring. Imports point to the same ring or down; a test checks it."


def layers() -> str:
    """The picture. Raises LookupError where a room of the package is not in it."""
    drawn = {*(room for rooms in SURFACES.values() for room in rooms), *FEATURES, *SUPPORT, "engine", "stores", "core"}
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    if missing := rooms - drawn:
        raise LookupError(f"draw {', '.join(sorted(missing))} in docs/guarantee_pages/layers.py")
    parts: list[str] = []
    y = 20
    width = (WIDTH - 40 - 3 * 12) / 4
    for column, (name, those) in enumerate(SURFACES.items()):
        x = 20 + column * (width + 12)
        parts += [box(x, y, width, 62, "band"), words(x + width / 2, y + 22, name, "middle title")]
        parts.append(
            words(x + width / 2, y + 44, "  ".join(f"{room}/" for room in those if room in rooms), "middle small")
        )
        parts.append(line(x + width / 2, y + 62, x + width / 2, y + 84, "arrow"))
    y = 106
    parts += [box(20, y, WIDTH - 40, 54), words(WIDTH / 2, y + 22, "engine/", "middle title")]
    parts.append(
        words(
            WIDTH / 2,
            y + 42,
            "claims, permits, leases, replay, settlement; sync and async shells of one logic",
            "middle small",
        )
    )
    parts.append(line(WIDTH / 2, y + 54, WIDTH / 2, y + 76, "arrow"))
    y = 184
    parts += [box(20, y, WIDTH - 40, 54), words(WIDTH / 2, y + 22, "rooms by feature", "middle title")]
    parts.append(words(WIDTH / 2, y + 42, "  ".join(f"{room}/" for room in FEATURES), "middle small"))
    parts.append(line(WIDTH / 2, y + 54, WIDTH / 2, y + 76, "arrow"))
    y = 262
    half = (WIDTH - 52) / 2
    parts += [box(20, y, half, 54), words(20 + half / 2, y + 22, "core/", "middle title")]
    parts.append(
        words(20 + half / 2, y + 42, "the life of one command: states, rules, the store's contract", "middle small")
    )
    x = 32 + half
    parts += [box(x, y, half, 54), words(x + half / 2, y + 22, "stores/", "middle title")]
    databases = "  ".join(
        f"{path.name}/" for path in sorted((SOURCE / "stores").iterdir()) if (path / "__init__.py").exists()
    )
    parts.append(words(x + half / 2, y + 42, databases, "middle small"))
    parts.append(line(x, y + 27, 20 + half, y + 27, "arrow"))
    y = 348
    parts.append(
        words(
            20,
            y,
            RULE,
            "small",
        )
    )
    for number, (name, files, text) in enumerate(RINGS):
        top = y + 14 + number * 40
        parts += [box(20, top, WIDTH - 40, 32, "band"), words(36, top + 21, name, "title")]
        parts += [words(150, top + 21, files), words(430, top + 21, text, "small")]
    title = "The rooms of the package, from the surfaces down to the stores, and the rings inside each room"
    return picture(title, WIDTH, y + 190, parts)
