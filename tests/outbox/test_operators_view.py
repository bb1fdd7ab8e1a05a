"""What operators see of the outbox and the inbox: doctor's warnings, `semel messages`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial

import pytest
from starlette.testclient import TestClient

from semel import Engine, Inbox
from semel.cli.main import main
from semel.console import Console
from semel.inbox.run import Message, Poison
from semel.inbox.store import Receipt
from semel.outbox.partitions import Partitions, registration
from tests.outbox.conftest import Place
from tests.outbox.test_receivers import BANK, SHOP, Shore, relay_once


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def words(self) -> str:
        """Return its output without its line breaks."""
        return " ".join(self.out.split())


Run = Callable[..., Ran]


@pytest.fixture
def semel(place: Place, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Ran:
        code = main([*arguments, "--url", place.url])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def findings(ran: Ran) -> dict[str, tuple[str, str, str]]:
    return {
        each["check"]: (each["level"], each["detail"], each["remedy"] or "")
        for each in json.loads(ran.out)["findings"]
        if each["check"] in ("events", "messages")
    }


def raise_poison(message: Message) -> None:
    raise Poison("the currency is unknown\x1b[2J")


def stumbling(message: Message) -> None:
    raise ValueError("not today")


def test_doctor_reports_that_no_relay_publishes(place: Place, semel: Run) -> None:
    place.fill(2)
    level, detail, _ = findings(semel("doctor", "--json"))["events"]
    assert (level, detail) == ("ok", "2 waiting, none parked")
    place.change("UPDATE semel_event SET created_at = created_at - 480000000")
    ran = semel("doctor")
    assert ran.code == 1, ran.out
    assert "WARNING events 2 not published, the oldest for 8 min; no relay runs" in ran.words
    assert "→ start one: semel worker --sink URL" in ran.words


def test_doctor_reports_a_relay_that_makes_no_progress(place: Place, semel: Run) -> None:
    place.fill(1)
    place.change("UPDATE semel_event SET created_at = created_at - 480000000")
    with Engine.connect(place.url) as engine:
        partitions = Partitions(engine.store.dialect)  # type: ignore[attr-defined]
        engine.perform("attend", lambda: partitions.attend("relay-1", 60_000_000, listens=False))
        level, detail, remedy = findings(semel("doctor", "--json"))["events"]
    assert level == "warning"
    assert detail.endswith("although a relay runs")
    assert "whether it reaches the sink" in remedy


def test_doctor_reports_relays_with_different_sinks(place: Place, semel: Run) -> None:
    with Engine.connect(place.url) as engine:
        partitions = Partitions(engine.store.dialect)  # type: ignore[attr-defined]
        for number, sink in enumerate(("nats://a", "nats://a", "redis://b")):
            name = registration(f"vm:{number}:aa", sink, sink)
            engine.perform("attend", partial(partitions.attend, name, 60_000_000, listens=False))
        _, detail, remedy = findings(semel("doctor", "--json"))["events"]
    assert (
        detail
        == "relays publish this store's events to 2 different sinks (nats://a, redis://b): each event goes to one"
    )
    assert "--receivers" in remedy


def test_doctor_and_events_name_the_receiver_that_is_behind(place: Place, semel: Run) -> None:
    shore = Shore()
    shore.away.add("shop")
    place.fill(3)
    asyncio.run(relay_once(place, shore, SHOP, BANK, wait_seconds=30))
    assert findings(semel("doctor", "--json"))["events"][0] == "ok"  # not for long
    place.change("UPDATE semel_event SET created_at = created_at - 480000000")
    ran = semel("doctor")
    assert ran.code == 1
    assert "the receiver 'shop' has not received its webhooks: 3 wait, the oldest for 8 min, 0 parked" in ran.words
    assert "semel events --topic receiver.shop" in ran.words
    assert "'bank'" not in ran.words
    with Engine.connect(place.url) as engine:
        partitions = Partitions(engine.store.dialect)  # type: ignore[attr-defined]
        engine.perform("attend", lambda: partitions.attend("relay-1", 60_000_000, listens=False))
    again = findings(semel("doctor", "--json"))["events"]
    assert again[1].startswith("the receiver 'shop'")  # and nothing about a relay that does not get on
    listed = semel("events")
    assert ["shop", "3", "8", "min", "0"] in [line.split() for line in listed.out.splitlines()]
    [behind] = json.loads(semel("events", "--json").out)["receivers"]
    assert (behind["receiver"], behind["waiting"], behind["parked"]) == ("shop", 3, 0)
    assert behind["oldestSeconds"] >= 480
    with Engine.connect(place.url) as engine:
        page = TestClient(Console(engine, lambda request: "olga"), base_url="http://console.test").get("/events").text
    assert ">shop</th><td>3</td><td>8 min</td><td>0</td>" in page
    place.fill(1, topic="receiver.mine")  # a topic of one's own is no receiver
    named = [each["receiver"] for each in json.loads(semel("events", "--json").out)["receivers"]]
    assert named == ["shop"]
    first = json.loads(semel("events", "--topic", "receiver.shop", "--json").out)["events"][0]
    assert semel("events", "park", first["id"], "--reason", "410 Gone").code == 0
    assert "1 parked; the first was refused: 410 Gone" in semel("doctor").words
    assert "semel events retry --topic receiver.shop" in semel("doctor").words


def test_doctor_names_parked_events_and_the_remedy(place: Place, semel: Run) -> None:
    made = place.fill(1)
    assert semel("events", "park", made[0].id, "--reason", "410 Gone").code == 0
    ran = semel("doctor")
    assert ran.code == 1
    assert "WARNING events 1 parked" in ran.words
    assert "the first is of orders: 410 Gone" in ran.words
    assert "semel events retry ID" in ran.words
    assert "healthy" not in ran.out


def test_doctor_and_messages_name_parked_messages(place: Place, semel: Run) -> None:
    with Engine.connect(place.url) as engine:
        billing, stock = Inbox(engine, consumer="billing"), Inbox(engine, consumer="stock")
        assert billing.handle("m-1", raise_poison) is Receipt.PARKED
        assert billing.handle("m-2", lambda message: None) is Receipt.HANDLED
        with pytest.raises(ValueError, match="not today"):
            stock.handle("m-1", stumbling)
    ran = semel("doctor")
    assert ran.code == 1
    assert "WARNING messages 1 parked, the first for" in ran.words
    assert "semel messages release ID --consumer NAME" in ran.words

    listed = semel("messages")
    assert listed.code == 0
    head, columns, first, second = listed.out.splitlines()
    assert head.startswith("1 tried and not handled yet; 1 parked, the first for ")
    assert columns.split() == ["CONSUMER", "MESSAGE", "ID", "TRIES", "STATE", "REASON"]
    assert first.split()[:4] == ["billing", "m-1", "5", "parked"]
    assert "the currency is unknown\\x1b[2J" in first  # spelled out, not obeyed
    assert second.split()[:4] == ["stock", "m-1", "1", "tried"]

    parked = json.loads(semel("messages", "--parked", "--json").out)
    assert [(each["consumer"], each["messageId"], each["state"]) for each in parked["messages"]] == [
        ("billing", "m-1", "parked")
    ]
    of_stock = json.loads(semel("messages", "--consumer", "stock", "--json").out)
    assert [each["consumer"] for each in of_stock["messages"]] == ["stock"]
    page = json.loads(semel("messages", "--limit", "1", "--json").out)
    assert page["nextAfter"] == ["billing", "m-1"]
    rest = json.loads(semel("messages", "--after", "billing", "m-1", "--json").out)
    assert [each["consumer"] for each in rest["messages"]] == ["stock"]

    released = semel("messages", "release", "m-1", "--consumer", "billing")
    assert released.code == 0
    assert "publish it again" in released.out
    assert semel("messages", "release", "m-1", "--consumer", "billing").code == 4
    assert semel("messages", "release", "m-2", "--consumer", "billing").code == 4
    assert findings(semel("doctor", "--json"))["messages"][0] == "ok"
    with Engine.connect(place.url) as engine:
        assert Inbox(engine, consumer="billing").handle("m-1", lambda message: None) is Receipt.HANDLED


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["release", "m-1"], "needs a MESSAGE_ID and its --consumer"),
        (["release", "--consumer", "billing"], "needs a MESSAGE_ID and its --consumer"),
        (["list", "m-1"], "takes no MESSAGE_ID"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["messages", *arguments]) == 2
    assert words in capsys.readouterr().err
