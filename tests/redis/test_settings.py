"""Start-up and ``semel doctor`` read the server's real settings, and refuse what they cannot promise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from semel import Answer, Engine, Policy
from semel.cli.main import main
from semel.core.contract import Observed
from semel.core.flow import perform
from semel.core.model import Find
from semel.engine.requirements import Needs
from semel.errors import ConfigurationError, IdentityMismatch, SchemaError, StoreUnavailable
from semel.functions import command as declared_command
from semel.http.caller import single_caller
from semel.stores.redis.settings import _judge, info, memory
from tests.engine.shells import MADE, command
from tests.redis.conftest import Opens
from tests.servers import redis as servers
from tests.servers.running import Running, stop

EXTERNAL = Policy(effects="external")
IDEMPOTENT = Policy(effects="idempotent")


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server as it comes: no append-only file."""
    server = servers.start(tmp_path_factory.mktemp("forgetful") / "own")
    yield server
    stop(server)


def make_migrated_engine(port: int, prefix: str) -> Engine:
    """An engine on a store that is there."""
    engine = Engine.connect(f"redis://127.0.0.1:{port}/0?prefix={prefix}")
    engine.migrate()
    return engine


def test_a_server_that_forgets_is_refused_for_external_operations(forgetful: Running, open_engine: Opens) -> None:
    """Before any of them runs, with the remedy and the way out in the message."""
    shell = open_engine(forgetful.port)
    with pytest.raises(ConfigurationError, match=r"Set appendonly yes; or .*effects='idempotent'.*\?persistence=none"):
        shell.run(command(policy=EXTERNAL), lambda permit: MADE)
    assert shell.run(command(policy=IDEMPOTENT), lambda permit: MADE).answer == MADE
    accepted = open_engine(forgetful.port, accepts_loss=True)
    assert accepted.run(command(policy=EXTERNAL), lambda permit: MADE).answer == MADE


def test_a_server_that_forgets_is_refused_at_declaration(forgetful: Running, open_engine: Opens) -> None:
    """Declared before the engine is opened: at its opening. Afterwards: where it is declared."""
    shell = open_engine(forgetful.port, ready=False)
    shell.engine.core.needs.declare("orders.create", IDEMPOTENT)
    shell.open()
    with pytest.raises(ConfigurationError, match=r"'payments\.create' is effects='external'"):
        shell.engine.core.needs.declare("payments.create", EXTERNAL)
    early = open_engine(forgetful.port, ready=False)
    early.engine.core.needs.declare("payments.create", EXTERNAL)
    with pytest.raises(ConfigurationError, match=r"'payments\.create' is effects='external'"):
        early.open()


def test_a_function_is_refused_when_it_is_declared(forgetful: Running) -> None:
    with (
        make_migrated_engine(forgetful.port, servers.prefix()) as engine,
        pytest.raises(ConfigurationError, match="would lose the fact that it ran"),
    ):

        @declared_command(engine, "pay", key="order", caller=single_caller, effects="external")
        def pay(order: str) -> str:
            raise AssertionError("the function ran")


def test_eviction_forgets_and_a_replica_is_unusable(tmp_path: Path, open_engine: Opens) -> None:
    own = servers.start(tmp_path / "own", "appendonly yes", "maxmemory 100mb", "maxmemory-policy volatile-lru")
    try:
        shell = open_engine(own.port)
        with pytest.raises(ConfigurationError, match="maxmemory-policy is volatile-lru: a full server drops records"):
            shell.run(command(), lambda permit: MADE)
        with Redis(port=own.port) as plain:
            plain.config_set("maxmemory-policy", "noeviction")
            shell.open()
            assert shell.run(command(), lambda permit: MADE).answer == MADE
            plain.replicaof("127.0.0.1", 1)
            with pytest.raises(ConfigurationError, match="the server is a replica: point the URL at the primary"):
                shell.open()
    finally:
        stop(own)


@pytest.mark.parametrize(
    ("facts", "check", "level"),
    [
        ("redis_version:6.2.14", "version", "unusable"),
        ("redis_version:7.2.4\nvalkey_version:8.1.8", "version", "ok"),
        ("redis_version:", "version", "unusable"),
        ("role:slave", "role", "unusable"),
        ("maxmemory:0\nmaxmemory_policy:allkeys-lru", "eviction", "warning"),
        ("maxmemory:1000\nmaxmemory_policy:allkeys-lru", "eviction", "forgets"),
        ("maxmemory:1000\nmaxmemory_policy:noeviction", "eviction", "ok"),
        ("aof_enabled:0", "persistence", "forgets"),
        ("aof_enabled:1\naof_last_write_status:err", "persistence", "warning"),
        ("aof_enabled:1\naof_last_write_status:ok", "persistence", "ok"),
        ("connected_slaves:2", "replicas", "warning"),
    ],
)
def test_findings_follow_from_the_servers_info(facts: str, check: str, level: str) -> None:
    found = {seen.check: seen for seen in _judge(info(facts.encode()), 0)}
    assert found[check].level == level
    assert bool(found[check].remedy) is (level != "ok")


def test_replicas_are_wanted_and_missing() -> None:
    [seen] = [seen for seen in _judge(info(b"connected_slaves:1"), 2) if seen.check == "replicas"]
    assert (seen.level, seen.remedy) == ("warning", "connect more replicas, or lower wait_replicas")


def test_each_servers_memory_is_reported_once() -> None:
    """A server answers for each of its tags, with a little more in use each time."""
    replies = [f"run_id:{run}\nused_memory:{used}\nmaxmemory:9".encode() for used, run in enumerate("aabbba")]
    assert perform(memory((b"t",) * 6), lambda asked: replies) == {(5, 9), (4, 9)}


def test_an_unusable_server_is_refused_even_with_accepted_loss() -> None:
    with pytest.raises(ConfigurationError, match="it is old: upgrade"):
        Needs().learn([Observed("version", "unusable", "it is old", "upgrade")], accepts_loss=True)


def _doctor(port: int, prefix: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    url = f"redis://127.0.0.1:{port}/0?prefix={prefix}"
    code = main(["doctor", "--json", "--url", url])
    return code, {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}


def test_doctor_finds_what_is_wrong(forgetful: Running, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = servers.prefix()
    with make_migrated_engine(forgetful.port, prefix):
        pass
    code, found = _doctor(forgetful.port, prefix, capsys)
    assert code == 1
    assert (found["persistence"]["level"], found["persistence"]["remedy"]) == ("problem", "set appendonly yes")
    assert found["eviction"]["level"] == "ok"


def test_doctor_finds_nothing_on_a_durable_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = servers.start(tmp_path / "kept", "appendonly yes", "appendfsync always")
    prefix = servers.prefix()
    try:
        with make_migrated_engine(server.port, prefix):
            pass
        code, found = _doctor(server.port, prefix, capsys)
    finally:
        stop(server)
    assert code == 0, found
    assert [found[name]["level"] for name in ("persistence", "appendfsync", "schema")] == ["ok"] * 3


@pytest.mark.parametrize(
    ("option", "expected", "level"), [("", 1, "warning"), ("&persistence=none", 0, "note")], ids=["required", "none"]
)
def test_doctor_warns_of_a_server_that_syncs_each_second_unless_the_url_accepts_the_loss(
    option: str, expected: int, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = servers.prefix()
    with make_migrated_engine(servers.valkey(), prefix):
        pass
    code, found = _doctor(servers.valkey(), f"{prefix}{option}", capsys)
    assert (code, found["appendfsync"]["level"]) == (expected, level), found
    assert "last second or two" in found["appendfsync"]["detail"]
    assert "EXTERNAL commands run twice" in found["appendfsync"]["detail"]
    assert "appendfsync always" in found["appendfsync"]["remedy"]


def test_a_cluster_answers_for_all_its_nodes(open_engine: Opens) -> None:
    """Each node has settings of its own: the three of this run's cluster keep no file."""
    shell = open_engine(servers.cluster(), cluster=True)
    seen = shell.perform("observe", shell.engine.store.observe)
    assert [each.check for each in seen if each.level == "forgets"] == ["persistence"]
    assert shell.run(command(policy=IDEMPOTENT), lambda permit: Answer(200, (), b"")).answer.status == 200
    assert len(shell.perform("find", lambda: shell.engine.store.find(Find())).records) == 1


def test_the_documented_rights_are_enough_and_one_that_is_missing_is_reported() -> None:
    prefix, port = servers.prefix(), servers.valkey()
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    [line] = [each for each in page.splitlines() if each.startswith("ACL SETUSER app")]
    words = line.replace("shop", prefix).replace("…", "pw").replace(" app ", f" {prefix} ").split()
    with make_migrated_engine(port, prefix), Redis(port=port) as plain:
        plain.execute_command(*words)
        with Engine.connect(f"redis://{prefix}:pw@127.0.0.1:{port}/0?prefix={prefix}&persistence=none") as engine:
            assert engine.run(command(), lambda permit: MADE).answer == MADE
            assert engine.run(command(), lambda permit: MADE).replayed
            for right in ("-evalsha", "-time", "-set"):
                plain.execute_command("ACL", "SETUSER", prefix, right)
                with pytest.raises(StoreUnavailable, match="allow it EVALSHA, SCRIPT LOAD, INFO, TIME, CLIENT SETNAME"):
                    engine.run(command("new"), lambda permit: MADE)
                plain.execute_command("ACL", "SETUSER", prefix, right.replace("-", "+"))
        plain.execute_command("ACL", "DELUSER", prefix)


FAR: int = 10**12  # bytes: a bound that this server never reaches


@pytest.fixture
def evicting(tmp_path: Path) -> Iterator[Running]:
    """A server that keeps its file, until a test lets it evict."""
    server = servers.start(tmp_path / "evicting", "appendonly yes")
    yield server
    stop(server)


def doctor(port: int, capsys: pytest.CaptureFixture[str], prefix: str) -> dict[str, dict[str, str]]:
    """The findings of `semel doctor`, by their names."""
    main(["doctor", "--json", "--url", f"redis://127.0.0.1:{port}/0?prefix={prefix}"])
    return {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}


def test_a_flushed_server_grants_no_external_command(evicting: Running, open_engine: Opens) -> None:
    """Under a running engine; what is idempotent by its derived keys goes on."""
    shell = open_engine(evicting.port)
    assert shell.run(command(policy=EXTERNAL), lambda permit: MADE).answer == MADE
    with Redis(port=evicting.port) as plain:
        plain.flushall()
    with pytest.raises(StoreUnavailable, match=r"LOSTRECORDS .*semel migrate --records-may-be-lost"):
        shell.run(command(policy=EXTERNAL), lambda permit: pytest.fail("it ran twice"))
    assert shell.run(command(policy=IDEMPOTENT), lambda permit: MADE).answer == MADE


def test_accepted_loss_grants_on_a_flushed_server(evicting: Running, open_engine: Opens) -> None:
    shell = open_engine(evicting.port, accepts_loss=True)
    with Redis(port=evicting.port) as plain:
        plain.flushall()
    assert shell.run(command(policy=EXTERNAL), lambda permit: MADE).answer == MADE


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "volatile-lru", "allkeys-random"])
def test_a_server_that_begins_to_evict_grants_nothing_again(policy: str, evicting: Running, open_engine: Opens) -> None:
    """What was executed before the eviction is replayed or refused, and never runs again."""
    shell = open_engine(evicting.port)
    ran: list[str] = []
    names = [f"k{number}" for number in range(40)]

    def run(name: str) -> None:
        def handler(permit: Any) -> Answer:
            ran.append(name)
            return Answer(201, (), b"x" * 2_000)

        shell.run(command(name, policy=EXTERNAL), handler)

    for name in names:
        run(name)
    with Redis(port=evicting.port) as plain:
        markers = set(plain.scan_iter("*marker*", count=10_000))
        assert len(markers) == 128  # of each tag one with the store's name, which claims rely on, and one without
        assert all(plain.ttl(marker) > 10**9 for marker in markers)  # volatile policies may choose them, too
        plain.config_set("maxmemory-policy", policy)
        plain.delete(*markers)  # what such a server drops first: nothing has touched them since the migration
        plain.delete(*plain.scan_iter("*:r:*", count=10_000))
    for name in names:
        with pytest.raises(StoreUnavailable, match="LOSTRECORDS"):
            run(name)
    assert ran == names


def test_a_claim_does_not_touch_its_marker(evicting: Running, open_engine: Opens) -> None:
    """What looks idle is evicted first: the marker looks as old as the store, however many claims ask for it."""
    shell = open_engine(evicting.port)
    with Redis(port=evicting.port) as plain:
        plain.config_set("maxmemory-policy", "allkeys-lfu")
        [first, *_] = plain.scan_iter("*marker*", count=10_000)
        before = plain.object("FREQ", first)
        for number in range(200):
            shell.run(command(f"k{number}", policy=EXTERNAL), lambda permit: MADE)
        assert all(plain.object("FREQ", marker) <= before for marker in plain.scan_iter("*marker*", count=10_000))


def test_migrate_refuses_a_store_that_has_lost_keys(evicting: Running, capsys: pytest.CaptureFixture[str]) -> None:
    """Until an operator accepts the loss: then claims are granted again."""
    url = f"redis://127.0.0.1:{evicting.port}/0?prefix=shop"
    with Redis(port=evicting.port) as plain, make_migrated_engine(evicting.port, "shop") as engine:
        for gone in ("{shop:07}:marker", "shop:meta"):
            plain.delete(gone)
            assert main(["migrate", "--url", url]) != 0
            assert "--records-may-be-lost" in capsys.readouterr().err
            assert doctor(evicting.port, capsys, "shop")
            assert main(["migrate", "--url", url, "--records-may-be-lost"]) == 0
            capsys.readouterr()
            assert engine.run(command(gone, policy=EXTERNAL), lambda permit: MADE).answer == MADE


def test_an_engine_refuses_to_open_on_a_store_that_has_lost_keys(evicting: Running) -> None:
    make_migrated_engine(evicting.port, "shop").close()
    with Redis(port=evicting.port) as plain:
        plain.delete("{shop:07}:marker")
    engine = Engine.connect(f"redis://127.0.0.1:{evicting.port}/0?prefix=shop")
    engine.core.needs.declare("payments.create", EXTERNAL)
    with pytest.raises(ConfigurationError, match="1 of 64 markers are missing"):
        engine.open()
    engine.close()


def test_doctor_names_the_policy_where_the_identity_is_gone(
    evicting: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    make_migrated_engine(evicting.port, "shop").close()
    with Redis(port=evicting.port) as plain:
        plain.flushall()
        plain.config_set("maxmemory-policy", "allkeys-lru")
        plain.config_set("maxmemory", FAR)
    found = doctor(evicting.port, capsys, "shop")
    assert found["identity"]["level"] == "problem"
    assert "allkeys-lru" in found["eviction"]["detail"]
    assert "records may be lost" in found["records"]["detail"]


def test_doctor_reports_that_a_flushed_store_may_have_lost_records(
    evicting: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    make_migrated_engine(evicting.port, "shop").close()
    with Redis(port=evicting.port) as plain:
        plain.config_set("maxmemory-policy", "noeviction")
        plain.config_set("appendonly", "yes")
        plain.flushall()
    found = doctor(evicting.port, capsys, "shop")
    assert (found["eviction"]["level"], found["records"]["level"]) == ("ok", "warning")
    assert "records may be lost" in found["records"]["detail"]
    assert "before you run: semel migrate" in found["records"]["remedy"]


def test_a_store_of_the_first_version_still_works(evicting: Running, open_engine: Opens) -> None:
    """It has no markers yet: `semel migrate` writes them, and engines that are open meanwhile notice nothing."""
    with Redis(port=evicting.port) as plain, make_migrated_engine(evicting.port, "old") as engine:
        plain.delete(*plain.scan_iter("*marker*", count=10_000))
        plain.hset("old:meta", "schema_version", "1")
        with Engine.connect(f"redis://127.0.0.1:{evicting.port}/0?prefix=old") as old:
            assert old.run(command(policy=EXTERNAL), lambda permit: MADE).answer == MADE
            assert engine.migrate() == ["0002_markers", "0003_named_markers"]
            assert old.run(command("other", policy=EXTERNAL), lambda permit: MADE).answer == MADE


def test_a_store_of_the_second_version_still_works(evicting: Running) -> None:
    """Its markers have no name: they are relied on until `semel migrate` has run and the engine is opened again."""
    with Redis(port=evicting.port) as plain, make_migrated_engine(evicting.port, "old") as engine:
        plain.delete(*plain.scan_iter("*marker:*", count=10_000))
        plain.hset("old:meta", "schema_version", "2")
        with Engine.connect(f"redis://127.0.0.1:{evicting.port}/0?prefix=old") as old:
            assert old.run(command(policy=EXTERNAL), lambda permit: MADE).answer == MADE
            assert engine.migrate() == ["0003_named_markers"]
            assert old.run(command("other", policy=EXTERNAL), lambda permit: MADE).answer == MADE
            plain.delete(*plain.scan_iter("*marker*", count=10_000))
            with pytest.raises(StoreUnavailable, match="LOSTRECORDS"):
                old.run(command("third", policy=EXTERNAL), lambda permit: MADE)


def test_a_recreated_store_grants_nothing_to_engines_of_the_former_one(
    evicting: Running, open_engine: Opens, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flush, then a plain migrate by the next process: engines that were open before do not run commands again."""
    shell = open_engine(evicting.port)
    url = f"redis://127.0.0.1:{evicting.port}/0?prefix={shell.engine.store.keys.meta.decode().removesuffix(':meta')}"
    ran: list[int] = []

    def handler(permit: Any) -> Answer:
        ran.append(1)
        return MADE

    def run() -> Any:
        return shell.run(command(policy=EXTERNAL), handler)

    run()
    with Redis(port=evicting.port) as plain:
        plain.flushall()
    with pytest.raises(SchemaError, match="records-may-be-lost"):
        shell.perform("migrate", lambda: shell.engine.store.migrate(*shell.engine.core.first_identity()))
    capsys.readouterr()
    assert main(["migrate", "--url", url]) == 0
    assert "keys that were issued before may run again" in capsys.readouterr().out
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="LOSTRECORDS"):
            run()
    with pytest.raises(IdentityMismatch, match="emptied or replaced"):
        shell.open_again()
    assert ran == [1]
    assert main(["migrate", "--url", url, "--records-may-be-lost"]) == 0
    run()
    shell.open_again()
    assert ran == [1, 1]


def test_accepted_loss_is_refused_where_the_store_must_be_durable(forgetful: Running) -> None:
    engine = Engine.connect(f"redis://127.0.0.1:{forgetful.port}/0?persistence=none", require_durable=True)
    engine.migrate()
    engine.core.needs.declare("payments.create", EXTERNAL)
    with pytest.raises(ConfigurationError, match="keeps no append-only file"):
        engine.open()
    engine.close()
