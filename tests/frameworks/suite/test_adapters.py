"""The declarations of the adapters: each feature has a case, and the page says what they say."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import DOCS
from tests.frameworks.suite import test_suite
from tests.frameworks.suite.adapters import ADAPTERS, Adapter, Feature
from tests.frameworks.suite.conftest import features_of
from tests.frameworks.suite.host import CLIENTS, SERVERS

CASES = [case for name, case in vars(test_suite).items() if name.startswith("test_")]
LINES = [
    re.split(r" *\| *", line)[1:-1] for line in (DOCS / "frameworks.md").read_text("utf-8").splitlines() if "|" in line
]
ROWS = {heading: cells for heading, *cells in LINES[2:]}


def test_every_feature_has_a_case() -> None:
    assert {feature for case in CASES for feature in features_of(case)} == set(Feature)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=str)
def test_the_table_says_what_an_adapter_declares(adapter: Adapter) -> None:
    assert (adapter.server in SERVERS, adapter.client in CLIENTS) == (True, True)
    column = [f"[{adapter.name}]({adapter.page})" == heading for heading in LINES[0][1:]].index(True)
    told = {Feature(heading): cells[column] for heading, cells in ROWS.items()}
    assert told == {feature: adapter.cannot.get(feature, "yes") for feature in Feature}
