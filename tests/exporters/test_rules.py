"""The alert rules and the dashboard that are shipped, by promtool, with series of a real service."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from semel import Engine
from semel.cli.commands.serve.metrics import read_shipped
from semel.core.identity import uuid_text
from semel.core.model import Find, State
from semel.reconciliation.rules import DidNotHappen
from tests.exporters.shop import HOUR_US, KEY, Shop, Story, busy, input_series, pay, shop
from tests.servers.needed import needs, program

pytestmark = needs("prometheus")
EVAL_MINUTES: Final = 18
MINUTES: Final = 220


def quiet(shop: Shop) -> None:
    for number in range(20):
        assert shop.pay(f"key-{number}") == 201
        assert shop.pay(f"key-{number}") == 201


def mismatches(shop: Shop) -> None:
    for number in range(20):
        shop.pay(f"key-{number}")
        assert shop.pay(f"key-{number}", amount="11") == 422


def few_mismatches(shop: Shop) -> None:
    for number in range(5):
        shop.pay(f"key-{number}")
        assert shop.pay(f"key-{number}", amount="11") == 422


def unknown(shop: Shop) -> None:
    assert shop.pay("fails", fail="the provider hung up") == 500


def settle_all(shop: Shop) -> None:
    """Nothing stays UNKNOWN that is settled."""
    unknown(shop)
    with shop.engine(-HOUR_US) as later:
        query = Find(states=(State.UNKNOWN,))
        [record] = later.perform("find", lambda: later.store.find(query)).records
        found = DidNotHappen("the provider has none")
        later.settle_by(uuid_text(record.operation_id), found, "asked the provider", actor="olga")


def flood(shop: Shop) -> None:
    """6,000 keys of one caller, counted by an engine in memory: what the alert sees is what engines report."""
    with Engine.connect("memory://", observer=shop.metrics) as engine:
        for number in range(6_000):
            engine.run(shop.command(f"key-{number}", caller="mallory"), pay)


# What happens -> the alerts that fire because of it, at a minute.
STORIES: Final[Mapping[str, tuple[Story, set[str], int]]] = {
    "quiet": (quiet, set(), EVAL_MINUTES),
    "mismatches": (mismatches, {"SemelHighFingerprintMismatchRate"}, EVAL_MINUTES),
    "few mismatches": (few_mismatches, set(), EVAL_MINUTES),
    "unknown": (unknown, {"SemelUnknownOutcome"}, EVAL_MINUTES),
    "settled": (settle_all, set(), EVAL_MINUTES),
    "stuck": (lambda shop: shop.abandon("dies"), {"SemelStuckProcessing"}, EVAL_MINUTES),
    "flood": (flood, {"SemelCallerKeyFlood"}, EVAL_MINUTES),
    "late retries": (lambda shop: shop.retry_too_late("late"), {"SemelExpiredBeforeRetry"}, EVAL_MINUTES),
    "store errors": (Shop.lose_the_store, {"SemelStoreErrors"}, EVAL_MINUTES),
    "purged": (Shop.purge, set(), EVAL_MINUTES),
    "no purge for hours": (Shop.purge, {"SemelCleanupLags"}, 200),
    "published": (lambda shop: shop.relay("tells"), set(), EVAL_MINUTES),
    "events wait": (lambda shop: shop.relay("tells", refuses=True, tries_max=9), {"SemelEventsWait"}, EVAL_MINUTES),
    "events parked": (lambda shop: shop.relay("tells", refuses=True), {"SemelEventsParked"}, EVAL_MINUTES),
    "no store": (quiet, {"SemelStoreUnreadable"}, EVAL_MINUTES),
}


def promtool(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(program("prometheus")), *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def unit_tests(rules: str, tests: list[dict[str, Any]]) -> str:
    return json.dumps({"rule_files": [rules], "evaluation_interval": "1m", "tests": tests})


def story(name: str, folder: Path) -> list[dict[str, str]]:
    """The series of one story: a service that did little, then did what the story says."""
    folder.mkdir()
    with shop(folder, lost=name == "no store") as running:
        running.pay("first")
        before = running.scrape()
        STORIES[name][0](running)
        after = running.scrape()
    assert KEY not in before + after
    return input_series(before, after, MINUTES)


def test_the_rules_are_well_formed(tmp_path: Path) -> None:
    (tmp_path / "semel.rules.yml").write_text(read_shipped("rules"))
    assert "10 rules found" in promtool(tmp_path, "check", "rules", "semel.rules.yml")


def test_each_alert_fires_only_in_its_own_scenario(tmp_path: Path) -> None:
    (tmp_path / "semel.rules.yml").write_text(read_shipped("rules"))
    tests = []
    for name, (_, alerts, minutes) in STORIES.items():
        expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)]
        firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
        tests.append(
            {
                "name": name,
                "interval": "1m",
                "input_series": story(name, tmp_path / name.replace(" ", "-")),
                "promql_expr_test": [{"expr": firing, "eval_time": f"{minutes}m", "exp_samples": expected}],
            }
        )
    (tmp_path / "tests.yml").write_text(unit_tests("semel.rules.yml", tests))
    promtool(tmp_path, "test", "rules", "tests.yml")
    assert {alert for _, alerts, _ in STORIES.values() for alert in alerts} == {
        line.split(":")[1].strip() for line in read_shipped("rules").splitlines() if "- alert:" in line
    }


def expressions() -> list[str]:
    dashboard = json.loads(read_shipped("dashboard"))
    return [
        target["expr"].replace("$__rate_interval", "15m")
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


def test_every_expression_of_the_dashboard_has_data_of_a_busy_service(tmp_path: Path) -> None:
    rules = [{"alert": f"NoData{n}", "expr": f"absent({expr})"} for n, expr in enumerate(expressions())]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool(tmp_path, "check", "rules", "rules.yml")
    with shop(tmp_path) as running:
        busy(running)
        before = running.scrape()
        busy(running)
        after = running.scrape()
    without = {"expr": "count by (alertname) (ALERTS)", "eval_time": f"{EVAL_MINUTES}m", "exp_samples": []}
    test = {"interval": "1m", "input_series": input_series(before, after, 30), "promql_expr_test": [without]}
    (tmp_path / "tests.yml").write_text(unit_tests("rules.yml", [test]))
    promtool(tmp_path, "test", "rules", "tests.yml")


@pytest.mark.parametrize("name", ["semel_no_such_series", 'semel_records{state="NONE"}'])
def test_an_expression_without_data_is_reported(name: str, tmp_path: Path) -> None:
    rules = [{"alert": "NoData", "expr": f"absent({name})"}]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    missing = {"labels": '{alertname="NoData"}', "value": 1}
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    test = {"interval": "1m", "promql_expr_test": [{"expr": firing, "eval_time": "5m", "exp_samples": [missing]}]}
    (tmp_path / "tests.yml").write_text(unit_tests("rules.yml", [test]))
    promtool(tmp_path, "test", "rules", "tests.yml")
