"""Several webhook receivers: each gets its events at its own pace; an unavailable one blocks no other. 5 s."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from semel import AsyncEngine, Engine
from semel.cli.main import main
from semel.errors import ConfigurationError
from semel.outbox.event import Event
from semel.outbox.flow import Away
from semel.outbox.receivers import AT_ONCE, Receiver, Receivers, copy_for, read_receivers, replay_to, webhook_of
from semel.outbox.sinks.base import Refused, Reply, Unreached
from semel.outbox.sinks.webhook import signature
from semel.outbox.store import Events
from semel.outbox.worker import Relay
from semel.stores.sql.dialect import dialect_of
from tests.outbox.conftest import SQLITE, Broker, Place, in_order, make_place
from tests.outbox.sink_stories import SECRET, WRITTEN
from tests.outbox.test_webhook import Receiver as HttpReceiver

SHOP = Receiver(name="shop", url="https://shop.example/hooks", secret=SECRET, topics=("orders",))
BANK = Receiver(name="bank", url="https://bank.example/hooks", secret=SECRET)


class Shore:
    """A broker for each receiver. One that hangs answers when it is let go."""

    def __init__(self) -> None:
        self.brokers: dict[str, Broker] = {}
        self.away: set[str] = set()
        self.hangs: dict[str, asyncio.Event] = {}
        self.flying: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def connect(self, receiver: Receiver) -> Any:
        self.brokers[receiver.name] = broker = Broker()
        shore, name = self, receiver.name

        class At:
            name = "at"

            async def publish(self, events: Sequence[Event]) -> list[Reply]:
                assert len(events) == 1
                shore.flying[name] += 1
                shore.most[name] = max(shore.most[name], shore.flying[name])
                if name in shore.hangs:
                    await shore.hangs[name].wait()
                shore.flying[name] -= 1
                return [Unreached("no route")] if name in shore.away else await broker.publish(events)

            async def close(self) -> None:
                await broker.close()

        return At()


def engine_events(engine: AsyncEngine) -> Events:
    return Events(dialect_of(engine.store, "events"))


async def relay_once(place: Place, shore: Shore, *receivers: Receiver, **options: Any) -> Relay:
    """Run one pass of a relay over the stored events."""
    async with AsyncEngine.connect(place.url) as engine:
        sink = Receivers(engine, receivers, connect=shore.connect, **options)
        relay = Relay(engine, sink)
        await relay.run_once()
        await sink.close()
        return relay


def test_each_receiver_gets_its_topics_unchanged(place: Place) -> None:
    made = [*place.fill(6, aggregates=2), *place.fill(2, topic="stock.low")]
    shore = Shore()
    asyncio.run(relay_once(place, shore, SHOP, BANK, wait_seconds=30))
    assert sorted(shore.brokers["shop"].arrived) == sorted(made[:6])
    assert sorted(shore.brokers["bank"].arrived) == sorted(made)
    assert in_order(shore.brokers["shop"].arrived)
    assert place.waiting == []
    asyncio.run(relay_once(place, shore, SHOP, BANK, wait_seconds=30))
    assert shore.brokers["shop"].arrived == []  # a new one, to which nothing was sent again


def test_an_absent_and_a_hanging_receiver_hold_back_no_other(quick_place: Place) -> None:
    """More waits for each of them than a batch holds."""
    made = quick_place.fill(1200, aggregates=600)
    slow = Receiver(name="slow", url="https://slow.example", secret=SECRET)
    shore = Shore()
    shore.away.add("shop")

    async def story() -> None:
        shore.hangs["slow"] = asyncio.Event()
        async with AsyncEngine.connect(quick_place.url) as engine:
            sink = Receivers(engine, [SHOP, slow, BANK], connect=shore.connect, wait_seconds=0.05)
            async with Relay(engine, sink):
                await shore.brokers["bank"].has(len(made))
                assert shore.brokers["shop"].arrived == shore.brokers["slow"].arrived == []
                assert shore.most["slow"] <= AT_ONCE
                shore.away.clear()
                shore.hangs["slow"].set()
                for name in ("shop", "slow"):
                    await shore.brokers[name].has(len(made))
            await sink.close()

    asyncio.run(story())
    assert quick_place.waiting == []
    for name in ("shop", "slow", "bank"):
        assert sorted(shore.brokers[name].ids) == sorted(event.id for event in made)
        assert in_order(shore.brokers[name].arrived)


def test_a_refusal_parks_one_receivers_event_and_not_the_others(quick_place: Place) -> None:
    made = quick_place.fill(2)
    shore = Shore()

    async def story() -> None:
        async with AsyncEngine.connect(quick_place.url) as engine:
            sink = Receivers(engine, [SHOP, BANK], connect=shore.connect, wait_seconds=30)
            shore.brokers["shop"].says[made[0].id] = Refused("410", for_good=True)
            await Relay(engine, sink).run_once()

    asyncio.run(story())
    assert shore.brokers["bank"].ids == [event.id for event in made]
    assert shore.brokers["shop"].arrived == []  # the second waits behind the first
    assert quick_place.waiting == [copy_for("shop", event).id for event in made]


def test_copies_that_were_written_before_a_crash_are_not_written_again(quick_place: Place) -> None:
    [made] = quick_place.fill(1)
    shore = Shore()
    asyncio.run(relay_once(quick_place, shore, SHOP, wait_seconds=30))
    where = f"WHERE id = '{made.id}'"
    quick_place.change(
        f"UPDATE semel_event SET published_at = NULL {where}"
    )  # as if the relay had died before its mark
    asyncio.run(relay_once(quick_place, shore, SHOP, wait_seconds=30))
    assert quick_place.ids == [made.id, copy_for("shop", made).id]
    assert shore.brokers["shop"].arrived == []


def test_events_of_a_receiver_that_is_no_longer_declared_are_parked_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = make_place(SQLITE, tmp_path)
    place.fill(3, aggregates=3)
    shore = Shore()
    shore.away.update(("shop", "bank"))
    asyncio.run(relay_once(place, shore, SHOP, BANK))
    shore.away.clear()
    asyncio.run(relay_once(place, shore, BANK, wait_seconds=30))
    assert len(shore.brokers["bank"].arrived) == 3

    def semel(*arguments: str) -> Any:
        capsys.readouterr()
        assert main(["--url", place.url, *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    [of] = semel("events", "--by-topic")["topics"]
    assert (of["topic"], of["waiting"], of["parked"]) == ("receiver.shop", 0, 3)
    listed = semel("events", "--topic", "receiver.shop")["events"]
    assert len(listed) == 3
    assert "semel events drop --topic receiver.shop" in listed[0]["reason"]
    assert semel("events", "--topic", "receiver.bank")["events"] == []
    assert semel("events", "retry", "--topic", "receiver.shop")["events"] == 3
    asyncio.run(relay_once(place, shore, SHOP, BANK, wait_seconds=30))
    assert len(shore.brokers["shop"].arrived) == 3
    assert main(["--url", place.url, "events", "drop", "--topic", "receiver.shop"]) == 4
    assert "no event of the topic 'receiver.shop' is parked" in capsys.readouterr().err


def test_a_relay_with_another_sink_parks_copies_and_publishes_none(tmp_path: Path) -> None:
    place = make_place(SQLITE, tmp_path)
    made = place.fill(2)
    shore = Shore()
    shore.away.add("shop")
    asyncio.run(relay_once(place, shore, SHOP))
    [later] = place.fill(1, topic="stock.low")
    broker = Broker()

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            await Relay(engine, broker).run_once()
            found = await engine.perform("find", lambda: engine_events(engine).find(0, 10, parked=True))
            assert "this relay has no receivers" in (found[0].reason or "")
            await engine.perform("retry", lambda: engine_events(engine).retry(found[0].seq))

    asyncio.run(story())
    assert broker.arrived == [later]
    shore.away.clear()
    asyncio.run(relay_once(place, shore, SHOP, wait_seconds=30))
    assert shore.brokers["shop"].arrived == made


def test_a_new_receiver_gets_stored_events_in_order_and_once(place: Place) -> None:
    made = [*place.fill(5, aggregates=2), *place.fill(1, topic="stock.low")]
    shore = Shore()
    asyncio.run(relay_once(place, shore, BANK, wait_seconds=30))
    with Engine.connect(place.url) as engine:
        found = replay_to(engine, SHOP)
        assert found[:3] == (5, 0, 0)
        assert replay_to(engine, SHOP)[:3] == (0, 5, 0)
    asyncio.run(relay_once(place, shore, SHOP, BANK, wait_seconds=30))
    assert sorted(shore.brokers["shop"].arrived) == sorted(made[:5])
    assert in_order(shore.brokers["shop"].arrived)
    assert shore.brokers["bank"].arrived == []
    with Engine.connect(place.url) as engine:
        assert replay_to(engine, SHOP)[:3] == (0, 5, 0)


def test_a_replay_leaves_out_events_that_would_arrive_out_of_order(quick_place: Place) -> None:
    early = quick_place.fill(4, aggregates=2)
    shore = Shore()
    asyncio.run(relay_once(quick_place, shore, BANK, wait_seconds=30))
    quick_place.fill(1, aggregates=2)  # of the aggregate of two of the others
    asyncio.run(relay_once(quick_place, shore, SHOP, BANK, wait_seconds=30))
    with Engine.connect(quick_place.url) as engine:
        assert replay_to(engine, SHOP)[:3] == (2, 1, 2)
        assert replay_to(engine, SHOP, late=True)[:3] == (2, 3, 0)
    asyncio.run(relay_once(quick_place, shore, SHOP, BANK, wait_seconds=30))
    assert sorted(shore.brokers["shop"].arrived) == sorted(early)


def test_replay_starts_at_a_time_and_reports_deleted_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = make_place(SQLITE, tmp_path)
    place.fill(3)
    asyncio.run(relay_once(place, Shore(), BANK, wait_seconds=30))
    file = tmp_path / "receivers.toml"
    file.write_text('[[receiver]]\nname = "shop"\nurl = "https://shop.example"\nsecret_env = "NOT_SET_HERE"\n')

    def semel(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["--url", place.url, "events", "replay", "--receivers", str(file), *arguments])
        streams = capsys.readouterr()
        return code, streams.out + streams.err

    for arguments, told in (
        ((), "needs --to RECEIVER"),
        (("--to", "other"), "declares no receiver 'other'; it has shop"),
        (("--to", "shop", "--since", "yesterday"), "'yesterday' is not a time"),
    ):
        code, said = semel(*arguments)
        assert (code, told in said) == (2, True), said
    code, said = semel("--to", "shop", "--since", "2999-01-01")
    assert (code, "shop: 0 events will be delivered" in said, "keeps events from" in said) == (0, True, False)
    code, said = semel("--to", "shop", "--since", "2020-01-01T00:00:00+02:00")
    assert (code, "shop: 3 events will be delivered" in said, "keeps events from" in said) == (0, True, True)
    code, said = semel("--to", "shop", "--json")
    assert (json.loads(said)["copied"], json.loads(said)["there"]) == (0, 3)


def test_a_refused_webhook_is_retried_for_three_days_and_not_before_its_retry_after(tmp_path: Path) -> None:
    place = make_place(SQLITE, tmp_path)
    [refused] = place.fill(1)
    shore = Shore()

    def try_as(tries: int, reply: Refused) -> tuple[float, bool]:
        """The hours until the next try, and whether the event is parked, of one that was refused so often before."""
        place.change(f"UPDATE semel_event SET tries = {tries}, next_at = 0 WHERE published_at IS NULL")

        async def story() -> None:
            async with AsyncEngine.connect(place.url) as engine:
                sink = Receivers(engine, [SHOP], connect=shore.connect, wait_seconds=30)
                shore.brokers["shop"].says[refused.id] = reply
                await Relay(engine, sink).run_once()

        asyncio.run(story())
        [(next_at, parked_at)] = place.rows("SELECT next_at, parked_at FROM semel_event WHERE published_at IS NULL")
        return (next_at / 1e6 - time.time()) / 3600, parked_at is not None

    for tries, reply, least, most in (
        (0, Refused("500"), -1.0, 0.01),
        (0, Refused("500", wait_seconds=7200), 1.9, 2.1),
        (3, Refused("500"), 1.5, 2.5),
        (8, Refused("500"), 20, 27),
    ):
        hours, is_parked = try_as(tries, reply)
        assert (least < hours < most, is_parked) == (True, False), (tries, hours)
    assert try_as(9, Refused("500"))[1]


def test_a_receivers_retry_after_is_respected() -> None:
    away = Away()
    assert away.note_outcome(
        ["receiver.shop", "receiver.bank"], [], 0.0, 1.0, asked={"receiver.shop": 3600.0}, most=300.0
    )
    assert away.find_passed_over(60.0) == ["receiver.shop"]
    away.note_outcome([], ["receiver.bank"], 60.0, 1.0)  # another one that comes back does not shorten it
    assert (away.find_passed_over(3599.0), away.find_passed_over(3600.0)) == (["receiver.shop"], [])
    for _ in range(20):
        away.note_outcome(["receiver.bank"], [], 0.0, 1.0, most=300.0)
    assert away.find_passed_over(299.0) == ["receiver.bank", "receiver.shop"]


def test_a_receiver_shows_neither_its_secret_nor_its_address() -> None:
    shown = repr(Receiver(name="shop", url="https://shop.example/TOKEN", secret=b"S" * 24))
    assert "shop" in shown
    assert "TOKEN" not in shown
    assert "SSSS" not in shown


def test_a_damaged_copy_is_parked_and_the_others_go_on(quick_place: Place) -> None:
    made = quick_place.fill(2, aggregates=2)
    shore = Shore()
    shore.away.add("shop")
    asyncio.run(relay_once(quick_place, shore, SHOP))
    shore.away.clear()
    damaged = copy_for("shop", made[0]).id
    headers = '{"semel-receiver":"shop"}'
    written = f"CAST('{headers}' AS BLOB)" if quick_place.kind == SQLITE else f"'{headers}'"
    quick_place.change(f"UPDATE semel_event SET headers = {written} WHERE id = '{damaged}'")
    asyncio.run(relay_once(quick_place, shore, SHOP, wait_seconds=30))
    assert shore.brokers["shop"].ids == [made[1].id]
    [(reason,)] = quick_place.rows(f"SELECT reason FROM semel_event WHERE id = '{damaged}' AND parked_at IS NOT NULL")
    assert "semel-of-id" in reason


def test_a_new_receiver_gets_events_from_then_on(quick_place: Place) -> None:
    quick_place.fill(2)
    shore = Shore()
    asyncio.run(relay_once(quick_place, shore, SHOP, wait_seconds=30))
    later = quick_place.fill(1)
    asyncio.run(relay_once(quick_place, shore, SHOP, BANK, wait_seconds=30))
    assert shore.brokers["bank"].arrived == later


def test_the_worker_signs_for_each_receiver_with_its_own_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place(SQLITE, tmp_path)
    [made] = place.fill(1)
    (tmp_path / "bank.secret").write_text("whsec_" + "B" * 32)
    monkeypatch.setenv("SHOP_SECRET", WRITTEN)

    async def story() -> None:
        async with HttpReceiver() as shop, HttpReceiver() as bank:
            (tmp_path / "receivers.toml").write_text(
                f'[[receiver]]\nname = "shop"\nurl = "{shop.url}"\nprivate = true\nsecret_env = "SHOP_SECRET"\n'
                f'[[receiver]]\nname = "bank"\nurl = "{bank.url}"\nprivate = true\ntopics = ["orders.*", "orders"]\n'
                f'secret_file = "{tmp_path}/bank.secret"\n'
            )
            command = [
                "--url",
                place.url,
                "worker",
                "--once",
                "--receivers",
                str(tmp_path / "receivers.toml"),
                "--json",
            ]
            assert await asyncio.to_thread(main, command) == 0
            assert json.loads(capsys.readouterr().out)["published"] == 3  # the event, and its two copies
            for receiver, secret in ((shop, SECRET), (bank, read_receivers(tmp_path / "receivers.toml")[1].secret)):
                [(headers, body)] = receiver.requests
                key = secret if isinstance(secret, bytes) else secret[0]
                assert headers["webhook-id"] == made.id
                assert headers["webhook-signature"] == signature(key, made.id, int(headers["webhook-timestamp"]), body)
                assert headers["semel-topic"] == "orders"
                assert headers["semel-aggregate-id"] == made.aggregate_id
                assert not [name for name in headers if name.startswith("semel-of") or name == "semel-receiver"]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "write one [[receiver]] table"),
        ("[receiver]\nname = 'a'", "write one [[receiver]] table"),
        (
            "[[receiver]]\nname = 'a'\nurl = 'https://a'\nsecret = 'x'",
            "unknown member secret; did you mean secret_env?",
        ),
        ("[[receiver]]\nname = 'a'\nurl = 'https://a'", "give secret_env (a variable's name) or secret_file"),
        ("[[receiver]]\nname = 'a'\nurl = 'https://a'\nsecret_env = 'NO'", "$NO is not set"),
        (
            "[[receiver]]\nname = 'a'\nurl = 'https://a'\nsecret_env = 'SHORT'",
            "secret_env: $SHORT is 'whsec_' and base64",
        ),
        ("[[receiver]]\nname = 'a'\nurl = 'https://[a/'\nsecret_env = 'S'", "url is https://HOST/PATH: its host or"),
        (
            "[[receiver]]\nname = 'a'\nurl = 'https://a:99999/'\nsecret_env = 'S'",
            "url is https://HOST/PATH: its host or",
        ),
        ("[[receiver]]\nname = 'a b'\nurl = 'https://a'\nsecret_env = 'S'", "name is 1 to 64 letters"),
        ("[[receiver]]\nname = 'a'\nurl = 'http://a'\nsecret_env = 'S'", "http:// needs private = true"),
        ("[[receiver]]\nname = 'a'\nurl = 'ftp://a'\nsecret_env = 'S'", "url is https://HOST/PATH"),
        ("[[receiver]]\nname = 'a'\nurl = 'https://a'\nsecret_env = 'S'\ntopics = ['a*']", "a topic is"),
        ("[[receiver]]\nname = 'a'\nurl = 'https://a'\nsecret_env = 'S'\ntopics = 'a'", "topics is a list"),
        ("[[receiver]]\nname = 'a'\nurl = 'https://a'\nsecret_env = 'S'\nseconds = 600", "seconds must be 0.1 to 60"),
        ("[[receiver]]\nname = 'a'\nurl = 'https://a'\nsecret_env = 'S'\nprivate = 'yes'", "private is true or false"),
        ("[[receiver]]\nname = 'a'\nurl = 'https://a'\nsecret_env = 'S'\n" * 2, "two receivers have the same name"),
        ("[[receiver]\n", "cannot be read"),
    ],
)
def test_an_implausible_file_is_refused_with_the_remedy(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "receivers.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as error:
        read_receivers(file, {"S": WRITTEN, "SHORT": "whsec_AAAA"})
    assert told in str(error.value)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda engine: Receivers(engine, []),
        lambda engine: Receivers(engine, [SHOP, SHOP]),
        lambda engine: Receivers(AsyncEngine.connect("memory://?persistence=none"), [SHOP]),
        lambda engine: webhook_of(Receiver(name="a", url="https://a", secret=b"short")),
        lambda engine: webhook_of(Receiver(name="a", url="https://a", secret=(SECRET, SECRET, SECRET))),
        lambda engine: webhook_of(Receiver(name="a", url="https://a", secret=("x" * 24,))),  # type: ignore[arg-type]
    ],
)
def test_impossible_receivers_are_refused(make: Callable[[AsyncEngine], object]) -> None:
    with pytest.raises(ConfigurationError):
        make(AsyncEngine.connect("sqlite:///shop.db"))


def test_the_worker_has_one_sink(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--sink", "python:builtins:print", "--receivers", "receivers.toml"]) == 2
    assert "exclude each other" in capsys.readouterr().err
