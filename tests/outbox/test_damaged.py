"""Damaged rows beside records: each is named and set aside, and everything beside it continues."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest

from semel import Answer, AsyncEngine, Command, Engine, Inbox, Permit, Policy, Scope
from semel.bulk.rules import ItemState
from semel.bulk.store import Items
from semel.cli.main import main
from semel.errors import RecordUnreadableError
from semel.inbox.store import Receipt
from semel.operations.run import find_execution
from semel.outbox.store import Events
from semel.outbox.worker import Relay
from tests.outbox.conftest import MARIADB, POSTGRES, SQLITE, Broker, Place, make_place

BROKEN: dict[str, str] = {
    SQLITE: "UPDATE semel_event SET headers = CAST('{' AS BLOB) WHERE seq = {seq}",
    POSTGRES: "UPDATE semel_event SET headers = '{{'::bytea WHERE seq = {seq}",
    MARIADB: "UPDATE semel_event SET headers = '{{' WHERE seq = {seq}",
}
# What SQLite alone takes: a value of any type in any column.
ODD = (
    "headers = '[1]'",
    "headers = CAST('[1]' AS BLOB)",
    "headers = CAST('{\"a\": 1}' AS BLOB)",
    "headers = x'ff'",
    "payload = 'text'",
    "topic = x'00'",
    "id = x'00'",
    "aggregateid = x'00'",
    "created_at = 'yesterday'",
    "operation_id = x'00'",
)


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def relay_once(url: str, broker: Broker) -> Relay:
    async def story() -> Relay:
        async with AsyncEngine.connect(url) as engine:
            relay = Relay(engine, broker)
            async with asyncio.timeout(60):
                await relay.run_once()
            return relay

    return asyncio.run(story())


def break_event(place: Place, number: int) -> None:
    seq = place.rows("SELECT seq FROM semel_event ORDER BY seq")[number][0]
    place.change(BROKEN[place.kind].replace("{{", "{").replace("{seq}", str(seq)))


def test_one_damaged_event_is_parked_and_the_others_are_published(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    made = place.fill(6, aggregates=6)
    break_event(place, 1)
    broker = Broker()
    relay = relay_once(place.url, broker)
    assert sorted(broker.ids) == sorted(event.id for event in made if event.id != made[1].id)
    assert relay.parked == 1
    assert place.waiting == [made[1].id]
    with closing(Engine.connect(place.url)) as engine:
        [parked] = engine.perform(
            "find",
            lambda: Events(engine.store.dialect).find(0, 9, parked=True),  # type: ignore[attr-defined]
        )
    assert parked.reason == parked.damage == "damaged: headers is not a JSON object of texts"

    code, out, _ = ran(capsys, "events", "--url", place.url)
    assert code == 0
    assert f"{made[1].id}  orders  order/1    1      damaged, parked  damaged: headers is not a JSON" in out
    code, out, _ = ran(capsys, "events", "--json", "--url", place.url)
    [listed] = json.loads(out)["events"]
    assert (listed["state"], listed["damage"]) == ("damaged, parked", parked.damage)
    code, out, err = ran(capsys, "export", "--of", "events", "--answers", "--url", place.url)
    assert code == 0
    assert len(out.splitlines()) == 6
    assert f"event {made[1].id} (damaged: headers is not a JSON object of texts)" in err
    code, out, _ = ran(capsys, "doctor", "--url", place.url)
    assert code == 1
    assert f"1 damaged: event {made[1].id}" in " ".join(out.split())
    assert "1 parked" in out


def test_a_damaged_event_can_be_dropped(quick_place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    made = quick_place.fill(2)
    break_event(quick_place, 0)
    relay_once(quick_place.url, Broker())
    assert ran(capsys, "events", "drop", made[0].id, "--url", quick_place.url)[0] == 0
    broker = Broker()
    relay_once(quick_place.url, broker)
    assert broker.ids == [made[1].id]  # it had waited behind the damaged one of its aggregate


def test_a_parked_event_is_named_by_its_place(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    made = place.fill(2)
    break_event(place, 0)
    relay_once(place.url, Broker())
    _, out, _ = ran(capsys, "events", "--json", "--url", place.url)
    parked, behind = (str(event["place"]) for event in json.loads(out)["events"])
    code, _, err = ran(capsys, "events", "retry", behind, "--url", place.url)
    assert code != 0
    assert f"no event at place {behind} is parked; see semel events" in err
    code, out, _ = ran(capsys, "events", "retry", parked, "--json", "--url", place.url)
    assert (code, json.loads(out)) == (0, {"place": int(parked), "action": "retry"})
    assert ran(capsys, "events", "park", parked, "--reason", "damaged", "--url", place.url)[0] == 0
    assert ran(capsys, "events", "drop", parked, "--url", place.url)[1] == f"{parked}: no more attempts\n"
    assert place.waiting == [made[1].id]


def test_an_event_with_an_unreadable_id_is_retried_after_a_repair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = make_place(SQLITE, tmp_path)
    [made] = place.fill(1)
    place.change("UPDATE semel_event SET id = x'00'")
    relay_once(place.url, Broker())
    [(seq,)] = place.rows("SELECT seq FROM semel_event")
    assert f"\n{seq} " in ran(capsys, "events", "--url", place.url)[1]
    place.change(f"UPDATE semel_event SET id = '{made.id}'")
    assert ran(capsys, "events", "retry", str(seq), "--url", place.url)[0] == 0
    broker = Broker()
    relay_once(place.url, broker)
    assert broker.ids == [made.id]


@pytest.mark.parametrize("given", ["", "x", "-", "0", "1.5", "9223372036854775808", "\u0661"])
def test_an_argument_that_is_neither_id_nor_place_is_refused(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = make_place(SQLITE, tmp_path)
    code, _, err = ran(capsys, "events", "retry", given, "--url", place.url)
    assert code == 2
    assert "needs an EVENT_ID, a UUID as semel events lists it, or the event's PLACE" in " ".join(err.split())


@pytest.mark.parametrize("damage", ODD)
def test_an_event_with_any_damaged_column_is_named_and_the_others_are_published(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = make_place(SQLITE, tmp_path)
    made = place.fill(3, aggregates=3)
    place.change(f"UPDATE semel_event SET {damage} WHERE id = '{made[1].id}'")
    broker = Broker()
    relay_once(place.url, broker)
    assert sorted(broker.ids) == sorted((made[0].id, made[2].id))
    assert len(place.waiting) == 1
    assert place.rows("SELECT count(*) FROM semel_event WHERE parked_at IS NOT NULL") == [(1,)]
    for command in (["events"], ["export", "--of", "events", "--answers"]):
        code, out, err = ran(capsys, *command, "--url", place.url)
        assert code == 0, command
        assert "damaged" in out + err
    code, out, _ = ran(capsys, "doctor", "--url", place.url)
    assert code == 1
    assert "1 damaged" in out


def test_a_damaged_item_is_named_and_the_others_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = make_place(SQLITE, tmp_path)
    operation = "11" * 16
    place.change(
        "INSERT INTO semel_item (operation_id, place, item_id, state, retryable, settled_at) VALUES "
        f"(x'{operation}', 0, 'a', 3, 0, 1), (x'{operation}', 1, 'b', 9, 0, 1), (x'{operation}', 2, 'c', 3, 0, 1)"
    )
    with closing(Engine.connect(place.url)) as engine:
        items = Items(engine.store)
        page = engine.perform("bulk", lambda: items.page(bytes.fromhex(operation), -1, 10, None, False))
    assert [(item.item_id, item.state, item.error_code) for item in page] == [
        ("a", ItemState.SUCCEEDED, None),
        ("b", ItemState.UNKNOWN, "damaged: state is 9"),
        ("c", ItemState.SUCCEEDED, None),
    ]
    code, out, err = ran(capsys, "export", "--of", "items", "--url", place.url)
    assert code == 0
    assert "DAMAGED (9)" in out
    assert "item b of operation 11111111-" in err
    assert "damaged: state is 9" in " ".join(ran(capsys, "doctor", "--url", place.url)[1].split())


def test_a_damaged_message_is_named_and_handled_when_it_comes_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = make_place(SQLITE, tmp_path)
    place.change(
        "INSERT INTO semel_inbox (consumer, message_id, tries, reason, forget_after) VALUES "
        "('billing', 'm-1', 'three', x'00', 1), ('billing', 'm-2', 1, 'no', 1)"
    )
    code, out, _ = ran(capsys, "messages", "--url", place.url)
    assert code == 0
    assert "damaged: tries holds str" in out
    assert "m-2" in out
    code, out, err = ran(capsys, "export", "--of", "messages", "--url", place.url)
    assert (code, len(out.splitlines())) == (0, 2)
    assert "message m-1 of consumer billing (damaged: tries holds str)" in err
    with Engine.connect(place.url) as engine:
        inbox = Inbox(engine, consumer="billing")
        assert inbox.handle("m-1", lambda message: None) is Receipt.HANDLED
        assert inbox.handle("m-1", lambda message: None) is Receipt.DUPLICATE


def test_a_damaged_operation_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = make_place(SQLITE, tmp_path)
    seen: list[str] = []

    def pay(permit: Permit) -> Answer:
        seen.append(permit.operation_id)
        return Answer(201, (), b"paid")

    with Engine.connect(place.url) as engine:
        policy = Policy.of(operation_seconds=10**7)
        engine.run(Command(Scope("demo", "alice", "pay"), "key-1", bytes(32), "test", policy), pay)
    place.change("DELETE FROM semel_record")  # its key is forgotten, its operation is not
    place.change("UPDATE semel_operation SET state = 42")
    with Engine.connect(place.url) as engine, pytest.raises(RecordUnreadableError, match="its state is 42; restore it"):
        find_execution(engine, seen[0])
    code, _, err = ran(capsys, "operation", seen[0], "--url", place.url)
    assert code == 1
    assert "its state is 42" in err
    code, out, err = ran(capsys, "export", "--of", "operations", "--url", place.url)
    assert code == 0
    assert "DAMAGED (42)" in out
    assert f"operation {seen[0]} (damaged: state is 42)" in err
    assert f"operation {seen[0]} (damaged: state is 42)" in " ".join(
        ran(capsys, "doctor", "--url", place.url)[1].split()
    )


def test_damaged_steps_are_named_by_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = make_place(SQLITE, tmp_path)

    def begin_step(permit: Permit) -> Answer:
        def hangs_up() -> str:
            raise ConnectionError("the provider hung up")

        permit.step("charge", hangs_up)
        raise AssertionError("it had raised")

    command = Command(Scope("demo", "alice", "pay"), "key-1", bytes(32), "test", Policy.of(steps=True))
    with Engine.connect(place.url) as engine, pytest.raises(ConnectionError):
        engine.run(command, begin_step)
    sound = ran(capsys, "doctor", "--json", "--url", place.url)[1]
    assert next(each for each in json.loads(sound)["findings"] if each["check"] == "rows")["level"] == "ok"
    place.change("UPDATE semel_record SET steps = x'00'")
    code, out, _ = ran(capsys, "doctor", "--json", "--url", place.url)
    assert code == 1
    rows = next(each for each in json.loads(out)["findings"] if each["check"] == "rows")
    assert rows["level"] == "problem"
    assert "the list of steps is damaged" in rows["detail"]
