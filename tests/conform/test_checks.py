"""No check without a server that fails it: each wrong server fails exactly the check that looks for its mistake."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel.conform import Report, Selection, conform, load_catalogue
from semel.conform.catalogue import LEVELS, PROFILES
from semel.conform.checks import CHECKS
from tests.conform.api import RIGHT_OTHERWISE, serving
from tests.conform.clock import JumpingLoop

AT_ONCE = 12
IDS = [check.id for check in load_catalogue()]

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Waits cost nothing here, and a busy machine shortens none."""
    return "asyncio", {"loop_factory": JumpingLoop}


async def report_of(wrong: str, profile: str) -> Report:
    async with serving(wrong, required=wrong != "key-optional") as (url, case):
        return await conform(url, case, Selection(profile))


def failures(report: Report) -> list[str]:
    return [result.check.id for result in report.failed]


@pytest.mark.parametrize("group", sorted({name.partition("-")[0] for name in IDS}))
async def test_a_server_with_one_mistake_fails_exactly_the_check_that_looks_for_it(group: str) -> None:
    """The servers of a group run at once, on one clock."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def failed(wrong: str) -> list[str]:
        async with slots:
            return failures(await report_of(wrong, "draft-07" if wrong == "openapi-errors" else "semel"))

    mistakes = [name for name in IDS if name.partition("-")[0] == group]
    found = await asyncio.gather(*map(failed, mistakes))
    assert dict(zip(mistakes, found, strict=True)) == {wrong: [wrong] for wrong in mistakes}


@pytest.mark.parametrize("profile", PROFILES)
async def test_a_right_server_passes_every_check(profile: str) -> None:
    report = await report_of("", profile)
    assert failures(report) == []
    assert [result.check.id for result in report.results if result.outcome == "not-tried"] == ["key-optional"]


@pytest.mark.parametrize("way", RIGHT_OTHERWISE)
async def test_a_server_that_is_right_in_another_way_passes_every_check(way: str) -> None:
    assert failures(await report_of(way, "semel")) == []


async def test_a_right_server_with_an_optional_key_passes_every_check() -> None:
    async with serving("", required=False) as (url, case):
        report = await conform(url, case, Selection("semel"))
    assert failures(report) == []
    assert "key-optional" in [result.check.id for result in report.results if result.outcome == "passed"]


def test_the_catalogue_and_the_code_have_the_same_checks() -> None:
    assert len(IDS) == len(set(IDS)) >= 60
    assert set(IDS) == set(CHECKS)


def test_every_entry_of_the_catalogue_is_complete() -> None:
    known = set(IDS)
    for place, check in enumerate(load_catalogue()):
        assert check.level in LEVELS
        assert check.profiles
        assert set(check.profiles) <= set(PROFILES)
        assert all([check.title, check.clause, check.sent, check.means, check.change])
        assert set(check.after) <= known & set(IDS[:place])  # what a check follows is run before it
