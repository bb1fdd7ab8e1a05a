"""The eight questions, asked of a real Prometheus that scrapes the real service; one lease lapses by its own time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

import pytest

from semel.cli.commands.serve.metrics import read_shipped
from semel.reference.settings import DEMO_LEASE_SECONDS
from tests.exporters.test_questions import questions
from tests.servers import prometheus
from tests.servers.needed import needs
from tests.servers.running import Running, stop
from tests.service.served import await_true, serving
from tests.service.test_eight_questions import ANSWERS, KEY, traffic

pytestmark = needs("prometheus")
REPLAYED = 'idempotency_replays_total{operation="orders.create"}'
LAPSED = 'semel_records_lapsed{operation="notes.create"}'


@dataclass
class Scraped:
    """The server, and when the traffic began, in seconds since 1970."""

    server: Running
    began: float


@pytest.fixture(scope="module")
def scraped_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    environment = {"SEMEL_METRICS": "127.0.0.1:0"}
    with serving(tmp_path_factory.mktemp("scraped"), environment=environment) as service:
        server = prometheus.start(
            tmp_path_factory.mktemp("prometheus"), urlsplit(str(service.serving["metrics"])).netloc
        )
        try:
            began = time.time()
            traffic(service, "first", waits=True)
            await_true(lambda: bool(prometheus.query(server, f"{REPLAYED} >= 1")), "the first scrape of the traffic")
            traffic(service, "second", waits=True)
            await_true(lambda: bool(prometheus.query(server, f"{REPLAYED} >= 2")), "the second")
            await_true(lambda: bool(prometheus.query(server, f"{LAPSED} == 2")), "both leases to lapse by themselves")
            yield Scraped(server, began)
        finally:
            stop(server)


def test_a_lease_lapses_at_its_time_and_not_before(scraped_service: Scraped) -> None:
    asked = {"query": f"{LAPSED} > 0", "start": scraped_service.began, "end": time.time(), "step": 1}
    [series] = prometheus.ask(scraped_service.server, f"query_range?{urlencode(asked)}")["result"]
    assert series["values"][0][0] - scraped_service.began >= DEMO_LEASE_SECONDS


@pytest.mark.parametrize("row", questions(), ids=lambda row: str(row[0]))
def test_the_panel_names_the_situation(row: list[str], scraped_service: Scraped) -> None:
    question, _, panel, _ = row
    panels = {each["title"]: each for each in json.loads(read_shipped("dashboard"))["panels"]}
    expression = panels[panel]["targets"][0]["expr"].replace("$__rate_interval", "5m")
    expected = ANSWERS[question][1]
    if expression.startswith("topk(10, "):
        expression = expression.replace("topk(10, ", "topk(1, ")
    found = prometheus.query(
        scraped_service.server, f"count by ({', '.join(sorted(expected[0]))}) (({expression}) > 0)"
    )
    assert sorted(sorted(each["metric"].items()) for each in found) == sorted(sorted(each.items()) for each in expected)
    assert KEY not in json.dumps(found)


def test_the_server_has_read_the_rules_and_an_unknown_outcome_is_pending_or_fires(scraped_service: Scraped) -> None:
    def states() -> dict[str, str]:
        [group] = prometheus.ask(scraped_service.server, "rules")["groups"]
        assert all(rule["health"] != "err" for rule in group["rules"]), group
        return {rule["name"]: rule["state"] for rule in group["rules"]}

    await_true(lambda: states()["SemelUnknownOutcome"] in ("pending", "firing"), "the alert")
    assert states()["SemelStoreUnreadable"] == "inactive"


def test_no_key_is_scraped(scraped_service: Scraped) -> None:
    labels = prometheus.ask(scraped_service.server, "labels")
    values = [prometheus.ask(scraped_service.server, f"label/{name}/values") for name in labels]
    assert KEY not in json.dumps(values)
