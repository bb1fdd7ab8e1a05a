"""No check without a server that fails it: each wrong server fails exactly the check that looks for its mistake."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from semel.conform import Case, Report, Selection, conform, load_catalogue
from semel.conform.case import Limits
from semel.conform.catalogue import LEVELS, PROFILES, missing
from semel.conform.checks import CHECKS, PLACES
from semel.conform.order import estimate_seconds
from tests.conform.api import RIGHT_OTHERWISE, Api, Asked, Said, pause, serving
from tests.conform.clock import JumpingLoop

AT_ONCE = 12
IDS = [check.id for check in load_catalogue()]

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Waits cost nothing here, and a busy machine shortens none."""
    return "asyncio", {"loop_factory": JumpingLoop}


async def report_of(wrong: str, profile: str, **options: Any) -> Report:
    async with serving(wrong, required=wrong != "key-optional") as (url, case):
        return await conform(url, case, Selection(profile), **options)


def failures(report: Report) -> list[str]:
    return [result.check.id for result in report.failed]


@pytest.mark.parametrize("group", sorted({name.partition("-")[0] for name in IDS}))
async def test_a_server_with_one_mistake_fails_exactly_the_check_that_looks_for_it(group: str) -> None:
    """The servers of a group run at once, on one clock."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def find_failures(wrong: str) -> list[str]:
        async with slots:
            return failures(await report_of(wrong, "draft-07" if wrong == "openapi-errors" else "semel"))

    mistakes = [name for name in IDS if name.partition("-")[0] == group]
    found = await asyncio.gather(*map(find_failures, mistakes))
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


@pytest.mark.parametrize("wrong", ["key-doubled", "key-control", "replay-location", "other-query", "problem-mismatch"])
async def test_one_check_at_a_time_finds_the_same_mistakes(wrong: str) -> None:
    assert failures(await report_of(wrong, "semel", at_once=1)) == [wrong]


def usual_case(case: Case) -> Case:
    """With the limits that a case has which names none, and without hooks."""
    return replace(case, limits=Limits(), hooks={}, slow_seconds=2.0)


async def test_an_api_that_answers_slowly_is_tested_in_half_the_time_with_the_same_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer, loop = Api._answer, asyncio.get_running_loop()

    async def slowly(self: Api, asked: Asked, reader: asyncio.StreamReader) -> Said:
        await pause(0.8)
        return await answer(self, asked, reader)

    async def run(at_once: int) -> tuple[Report, Case, float]:
        told: list[str] = []
        begun = loop.time()
        async with serving() as (url, case):
            usual = usual_case(case)
            report = await conform(
                url, usual, Selection("semel"), at_once=at_once, tell=lambda *each: told.append(each[2])
            )
        assert re.fullmatch(r"about [345] min in all, at 80\d ms a request", told[0])
        return report, usual, loop.time() - begun

    monkeypatch.setattr(Api, "_answer", slowly)
    one, _, alone_seconds = await run(1)
    other, case_used, seconds = await run(8)
    assert [(each.check.id, each.outcome) for each in one.results] == [
        (each.check.id, each.outcome) for each in other.results
    ]
    assert alone_seconds < 275  # 354 where each check counts, and each of three checks races, by itself
    assert seconds < 185
    for at_once, took in ((1, alone_seconds), (8, seconds)):
        tried = [each for each in Selection("semel").checks() if not missing(each, case_used)]
        assert 0.8 < estimate_seconds(tried, PLACES, case_used, at_once, 0.8) / took < 1.2


async def test_an_api_that_ends_while_checks_run_at_once_is_never_green(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Api._answer

    async def dying(self: Api, asked: Asked, reader: asyncio.StreamReader) -> Said:
        if (asked.get("idempotency-key") or "").endswith('" x'):
            assert self._server is not None
            self._server.close()
        return await answer(self, asked, reader)

    monkeypatch.setattr(Api, "_answer", dying)
    async with serving() as (url, case):
        report = await conform(url, case, Selection("semel", only=["key-trailing", "key-list", "multipart"]))
    found = {result.check.id: (result.outcome, result.came) for result in report.results}
    came = "the API ended while 2 checks ran: it takes no connections; run it with --at-once 1"
    assert found["key-trailing"] == found["key-list"] == ("failed", came)
    assert found["multipart-other"] == (
        "not-tried",
        "the API ended during one of key-trailing, key-list: start it again",
    )


async def test_an_effect_while_none_may_happen_fails_only_the_check_that_has_it() -> None:
    async with serving("key-list") as (url, case):
        report = await conform(url, case, Selection("semel", only=["key-trailing", "key-list", "key-empty"]))
    assert failures(report) == ["key-list"]


@pytest.mark.parametrize("at_once", [0, -1, 41])
async def test_a_wrong_number_at_once_names_the_option(at_once: int) -> None:
    async with serving() as (url, case):
        with pytest.raises(ValueError, match=f"--at-once must be 1 to 40, not {at_once}"):
            await conform(url, case, at_once=at_once)


def test_the_catalogue_and_the_code_have_the_same_checks() -> None:
    assert len(IDS) == len(set(IDS)) >= 60
    assert set(IDS) == set(CHECKS) == set(PLACES)


def test_every_entry_of_the_catalogue_is_complete() -> None:
    known = set(IDS)
    for place, check in enumerate(load_catalogue()):
        assert check.level in LEVELS
        assert check.profiles
        assert set(check.profiles) <= set(PROFILES)
        assert all([check.title, check.clause, check.sent, check.means, check.change])
        assert set(check.after) <= known & set(IDS[:place])  # what a check follows is run before it
