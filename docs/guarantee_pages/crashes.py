"""The path of a request through the rooms, and what its retry gets after a crash in each place, as SVG."""

from __future__ import annotations

from typing import Final, NamedTuple

from guarantee_pages.drawing import box, line, picture, words
from guarantee_pages.named_tests import link_to

WIDTH: Final = 980
STEP: Final = 74


class Place(NamedTuple):
    """A stage of a request, where it is in the code, and what a retry meets if the process dies right after it."""

    stage: str
    room: str
    external: str
    idempotent: str
    atomic: str
    test: str  # that kills a process there


PAYMENT: Final = "tests/examples/test_faults.py::test_a_payment_is_charged_once_after_each_fault"
ORDER: Final = "tests/examples/test_faults.py::test_an_order_is_written_once_after_each_fault"
AGAIN: Final = "runs again, same derived keys"
ROLLED_BACK: Final = "runs: everything rolled back"
PLACES: Final = (
    Place("the request arrives", "http/", *("runs",) * 3, PAYMENT),
    Place("the key is claimed", "engine/, stores/", *("runs, after the lease",) * 2, ROLLED_BACK, PAYMENT),
    Place("the handler has begun", "your code", "UNKNOWN", AGAIN, ROLLED_BACK, ORDER),
    Place("the effect has happened", "your code", "UNKNOWN", AGAIN, ROLLED_BACK, ORDER),
    Place("the answer is stored", "core/settle, stores/", *("replay of the first answer",) * 3, ORDER),
    Place("half of the answer is sent", "http/", *("replay of the whole answer",) * 3, PAYMENT),
)
TAIL: Final = "UNKNOWN: nothing runs until the handler itself, a reconciler or an operator settles it."


def crashes() -> str:
    """The picture. Raises LookupError where a test that it relies on is not there."""
    for place in PLACES:
        link_to(place.test)
    columns = (20, 330, 545, 765)
    parts = [words(columns[0], 30, "One request, from the top down", "title")]
    for x, text in zip(columns[1:], ("EXTERNAL", "IDEMPOTENT", "ATOMIC"), strict=True):
        parts.append(words(x, 30, f"killed at \u2715, {text}: a retry", "small"))
    for number, place in enumerate(PLACES):
        y = 48 + number * STEP
        parts += [box(columns[0], y, 250, 46), words(columns[0] + 125, y + 20, place.stage, "middle title")]
        parts.append(words(columns[0] + 125, y + 37, place.room, "middle small"))
        if number + 1 < len(PLACES):
            parts.append(line(columns[0] + 125, y + 46, columns[0] + 125, y + STEP - 2, "arrow"))
        middle = y + STEP - 14
        parts.append(f'<path class="c" style="stroke:#b3261e" d="M{columns[0] + 262} {middle}l8 -8m0 8l-8 -8"/>')
        for x, width, text in zip(columns[1:], (200, 205, 195), place[2:5], strict=True):
            doubt = text == "UNKNOWN"
            parts += [box(x, middle - 20, width, 32, "crash" if doubt else "band")]
            parts.append(words(x + width / 2, middle + 1, text, "middle" if doubt else "middle small"))
    height = 48 + len(PLACES) * STEP + 30
    parts.append(words(20, height - 12, TAIL, "small"))
    return picture("A request's path, and what its retry gets after a crash in each place", WIDTH, height, parts)
