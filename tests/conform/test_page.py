"""The page agrees with the catalogue, with the case file's fields, and with the report."""

from __future__ import annotations

import re

from semel.conform import FORMAT, Report, load_catalogue, parse_case
from semel.conform.case import HOOKS, REQUESTS, EffectCount, Limits
from semel.conform.report import Result
from tests.conform.page import PAGE, page

TEXT = PAGE.read_text("utf-8")


def test_the_page_has_the_catalogue_as_it_is() -> None:
    assert page() == TEXT, "run: python -m tests.conform.page"


def test_the_page_names_every_field_of_a_case() -> None:
    names = {*REQUESTS, *HOOKS, *EffectCount.__dataclass_fields__, *Limits.__dataclass_fields__}
    assert {name for name in names if not re.search(rf"\b{name}\b", TEXT)} == set()


def test_the_example_on_the_page_is_a_case() -> None:
    example = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert example is not None
    assert parse_case(example[1]).requests["other"].path == "/payments"


def test_the_page_names_every_member_of_the_report() -> None:
    report = Report("http://127.0.0.1", "POST /p", "semel", (Result(load_catalogue()[0], "failed", "two effects"),))
    document = report.document()
    assert document["format"] == FORMAT
    assert {name for name in [*document, *document["checks"][0]] if f"`{name}`" not in TEXT} == set()


def test_the_page_of_standards_names_checks_that_exist() -> None:
    rows = re.findall(r"^\|.*\| ([^|]*) \|$", (PAGE.parent / "standards.md").read_text("utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row)}
    assert len(named) > 50
    assert named - {check.id for check in load_catalogue()} == set()
