"""The connector's configuration on the page, against the table as it is and against what the Kafka sink sends. 2 s."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import Engine
from semel.outbox.run import own_event
from semel.outbox.sinks.base import message_headers
from semel.outbox.store import Events
from tests.outbox.conftest import MARIADB, POSTGRES, Place, make_place
from tests.servers import mariadb

PAGE = Path(__file__).parents[2] / "docs" / "outbox.md"
SMT = "transforms.outbox."
# The router's options as its documentation lists them, with their defaults; those that name a column first.
COLUMNS = {
    "table.field.event.id": "id",
    "table.field.event.key": "aggregateid",
    "table.field.event.payload": "payload",
    "table.field.event.timestamp": "",
    "table.field.event.schema.version": "",
    "route.by.field": "aggregatetype",
}
OTHERS = {
    "route.topic.regex": "(?<routedByValue>.*)",
    "route.topic.replacement": "outbox.event.${routedByValue}",
    "route.tombstone.on.empty.payload": "false",
    "table.op.invalid.behavior": "warn",
    "table.expand.json.payload": "false",
    "table.json.payload.null.behavior": "ignore",
    "table.fields.additional.placement": "",
    "table.fields.additional.error.on.missing": "true",
    "type": "",
}


def _configurations() -> dict[str, dict[str, str]]:
    """By database: the first block of the page whole, the second one with what it has in place of the first's."""
    blocks = re.findall(r"```text\n(connector\.class=.*?)```", PAGE.read_text(), flags=re.S)
    first, second = (dict(line.split("=", 1) for line in block.splitlines()) for block in blocks)
    return {POSTGRES: first, MARIADB: {name: each for name, each in first.items() if name != "plugin.name"} | second}


def _router(configuration: dict[str, str]) -> dict[str, str]:
    given = {name.removeprefix(SMT): each for name, each in configuration.items() if name.startswith(SMT)}
    assert set(given) <= set(COLUMNS) | set(OTHERS)  # a misspelt option would be left aside
    return {**COLUMNS, **OTHERS, **given}


def _read_placement(router: dict[str, str]) -> list[tuple[str, str, str]]:
    """Columns, where they go and under which name."""
    trios = (each.split(":") for each in router["table.fields.additional.placement"].split(","))
    return [(column, placement, alias) for column, placement, alias in trios]


@pytest.fixture(params=[POSTGRES, pytest.param(MARIADB, marks=mariadb.MARK)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request.param, tmp_path)


def _row(place: Place) -> dict[str, Any]:
    names = [
        str(name)
        for (name,) in place.rows(
            "SELECT DISTINCT column_name FROM information_schema.columns WHERE table_name = 'semel_event'"
        )
    ]
    [row] = place.rows(f"SELECT {', '.join(names)} FROM semel_event")
    return dict(zip(names, row, strict=True))


def _route(router: dict[str, str], row: dict[str, Any]) -> tuple[str, str, bytes, dict[str, Any]]:
    """What the router makes of an inserted row: the message's topic, key, value and headers."""
    assert router["route.topic.regex"] == OTHERS["route.topic.regex"]
    topic = router["route.topic.replacement"].replace("${routedByValue}", row[router["route.by.field"]])
    headers = {"id": str(row[router["table.field.event.id"]])}
    for column, placement, alias in _read_placement(router):
        assert placement == "header"
        headers[alias] = row[column] if column != "id" else str(row[column])
    return topic, row[router["table.field.event.key"]], bytes(row[router["table.field.event.payload"]]), headers


def test_the_router_sends_the_same_as_the_kafka_sink(place: Place) -> None:
    event = own_event(None, "orders.placed", {"n": 1}, "OrderPlaced", ("order", "7é"), {"trace": "1"}, "acme")
    with closing(Engine.connect(place.url)) as engine:
        engine.perform("write", lambda: Events(engine.store.dialect).write([event]))  # type: ignore[attr-defined]
    configuration = _configurations()[place.kind]
    router, row = _router(configuration), _row(place)
    named = {router[option] for option in COLUMNS} | {column for column, _, _ in _read_placement(router)}
    assert named - {""} <= set(row)
    assert re.fullmatch(r"\w+\.semel_event", configuration["table.include.list"])
    topic, key, value, headers = _route(router, row)
    assert (topic, key, value) == (event.topic, event.aggregate_id, event.payload)
    sent = message_headers(event)
    own = json.loads(headers.pop("semel-headers"))
    assert {name: each for name, each in headers.items() if name != "id"} | own == sent
    assert headers["id"] == event.id
    assert configuration["key.converter"].endswith(".StringConverter")  # the key as it is, as the sink has it


def test_the_router_reads_no_timestamp_from_a_plain_number() -> None:
    for configuration in _configurations().values():
        assert _router(configuration)["table.field.event.timestamp"] == ""
