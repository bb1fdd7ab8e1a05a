"""Progress: on stderr, for terminals and for who asked, with rate and the time that is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from io import StringIO

import pytest

from semel.cli import progress
from semel.cli.progress import ProgressLine, show_elapsed
from semel.errors import StoreUnavailable
from tests.cli.conftest import Ran, Shelf

Run = Callable[..., Ran]


class Terminal(StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def clock(*seconds: float) -> Callable[[], float]:
    times: Iterator[float] = iter(seconds)
    return lambda: next(times)


def show_progress(
    stream: StringIO, dones: Iterable[int], times: tuple[float, ...], *, asked: bool, total: int | None
) -> str:
    telling = ProgressLine("purge", asked=asked, total=total, stream=stream, clock=clock(*times))
    for done in dones:
        telling.tell(done, "3 forgotten")
    telling.end()
    return stream.getvalue()


def test_progress_is_printed_only_on_request() -> None:
    assert show_progress(StringIO(), (1, 2), (), asked=False, total=9) == ""


def test_progress_prints_a_line_every_few_seconds() -> None:
    text = show_progress(StringIO(), (100, 200, 700), (0, 1, 2, 7), asked=True, total=1000)
    assert text.splitlines() == [
        "purge: 100 of 1000, 100/s, about 9 s left, 3 forgotten",
        "purge: 700 of 1000, 100/s, about 3 s left, 3 forgotten",
    ]


def test_a_terminal_gets_one_line_that_is_erased_at_the_end() -> None:
    text = show_progress(Terminal(), (100, 150, 200, 300), (0, 0.1, 1, 1.1, 2), asked=False, total=None)
    assert text == "\r\x1b[2Kpurge: 150, 150/s, 3 forgotten\r\x1b[2Kpurge: 300, 150/s, 3 forgotten\r\x1b[2K"


def test_more_than_the_expected_count_never_shows_a_negative_rest() -> None:
    assert show_progress(StringIO(), (30,), (0, 1), asked=True, total=10) == "purge: 30 of 30, 30/s, 3 forgotten\n"


def test_work_without_a_count_is_timed_and_its_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    noticed = threading.Event()

    class Noticing(Terminal):
        def write(self, text: str) -> int:
            if "s so far" in text:
                noticed.set()
            return super().write(text)

    stream = Noticing()
    monkeypatch.setattr(progress.sys, "stderr", stream)  # type: ignore[attr-defined]
    monkeypatch.setattr(progress, "SHOWN_AFTER_SECONDS", 0.0)

    def work() -> int:
        return 7 if noticed.wait(30) else 0

    assert show_elapsed("integrity check", work, asked=False) == 7
    assert "integrity check: 0 s so far" in stream.getvalue()

    def fail() -> int:
        raise StoreUnavailable("gone")

    with pytest.raises(StoreUnavailable, match="gone"):
        show_elapsed("integrity check", fail, asked=False)


@pytest.mark.parametrize("command", ["purge", "export", "explain"])
def test_commands_report_progress_only_on_request(semel: Run, shelf: Shelf, command: str) -> None:
    for number in range(3):
        shelf.succeed(f"key-{number}")
    arguments = [command, *(["key-0"] if command == "explain" else [])]
    assert semel(*arguments).err == ""
    name = "search" if command == "explain" else command
    assert semel(*arguments, "--progress").err.startswith(f"{name}: ")


@pytest.mark.parametrize("command", ["migrate", "doctor"])
def test_commands_without_progress_accept_the_option(semel: Run, command: str) -> None:
    assert semel(command, "--progress").code == 0
