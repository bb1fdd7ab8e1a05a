"""A quota of new keys through both engines: who counts, what is refused, what a store must be able to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Engine, Permit, Policy, Quota
from semel.core.model import QuotaExceeded
from semel.core.outcomes import Refused, Unprovable
from semel.errors import ConfigurationError, PolicyError, QuotaExceededError
from tests.engine.drivers import memory, sqlite
from tests.engine.shells import MADE, Mode, Shell, command

ATOMIC = Policy(effects="atomic")
MakeShell = Callable[..., Shell]


def make_answer(permit: Permit) -> Answer:
    return MADE


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> Mode:
    given: Mode = request.param
    return given


@pytest.fixture
def make_shell(mode: Mode, tmp_path: Path) -> Iterator[MakeShell]:
    shells: list[Shell] = []

    def make(store: str = "sqlite", **options: Any) -> Shell:
        shell = Shell(mode, memory() if store == "memory" else sqlite(tmp_path / "semel.db"), **options)
        shell.open()
        shells.append(shell)
        return shell

    yield make
    for shell in shells:
        shell._end(shell.engine.close())
        if shell.runner is not None:
            shell.runner.close()


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_new_key_beyond_the_quota_is_refused_and_a_retry_is_answered(make_shell: MakeShell, store: str) -> None:
    shell = make_shell(store, quota=Quota(new_keys=2, per_seconds=60))
    for key in ("a", "b"):
        shell.run(command(key), make_answer)
    with pytest.raises(QuotaExceededError) as refused:
        shell.run(command("c"), make_answer)
    assert refused.value.limit == "new_keys"
    assert 0 < (refused.value.retry_after_seconds or 0) <= 63
    assert shell.run(command("a"), make_answer).replayed
    assert not shell.run(command("c", caller="bob"), make_answer).replayed


def test_processes_on_one_file_share_the_count(make_shell: MakeShell) -> None:
    quota = Quota(new_keys=2, per_seconds=60)
    one, other = make_shell(quota=quota), make_shell(quota=quota)
    one.run(command("a"), make_answer)
    other.run(command("b"), make_answer)
    for shell in (one, other):
        assert isinstance(shell.claim(command("c")), QuotaExceeded)


def test_an_operations_own_quota_counts_apart_from_the_engines(make_shell: MakeShell) -> None:
    shell = make_shell("memory", quota=Quota(new_keys=1, per_seconds=60))
    own = Policy(quota=Quota(new_keys=2, per_seconds=60))
    shell.run(command("a"), make_answer)
    assert isinstance(shell.claim(command("b")), QuotaExceeded)
    shell.run(command("b", policy=own), make_answer)
    shell.run(command("c", policy=own), make_answer)
    assert isinstance(shell.claim(command("d", policy=own)), QuotaExceeded)


def test_a_caller_may_have_its_own_quota(make_shell: MakeShell) -> None:
    quota = Quota(new_keys=1, per_seconds=60, callers={"batch": Quota(new_keys=3, per_seconds=60)})
    shell = make_shell("memory", quota=quota)
    for key in "abc":
        shell.run(command(key, caller="batch"), make_answer)
    assert isinstance(shell.claim(command("d", caller="batch")), QuotaExceeded)
    shell.run(command("a"), make_answer)
    assert isinstance(shell.claim(command("b")), QuotaExceeded)


def test_unfinished_and_unknown_commands_are_bounded(make_shell: MakeShell) -> None:
    shell = make_shell(quota=Quota(open_at_once=1, unknown_at_once=1))
    permit = shell.permit(command("a"))
    met = shell.claim(command("b"))
    assert isinstance(met, QuotaExceeded)
    assert met.limit == "open_at_once"
    shell.settle(permit, Unprovable("error"))
    met = shell.claim(command("b"))
    assert isinstance(met, QuotaExceeded)
    assert met.limit == "unknown_at_once"


def test_atomic_commands_are_counted_with_what_they_write(make_shell: MakeShell) -> None:
    """A rolled back one leaves nothing and takes no place; a definite refusal is stored and takes one."""
    shell = make_shell(quota=Quota(new_keys=2, per_seconds=60, open_at_once=1))
    shell.settle(shell.permit(command("gone", policy=ATOMIC)), Unprovable("error"))
    shell.run(command("a", policy=ATOMIC), make_answer)
    shell.settle(shell.permit(command("b", policy=ATOMIC)), Refused(Answer(422, (), b"no")))
    with pytest.raises(QuotaExceededError):
        shell.run(command("c", policy=ATOMIC), make_answer)
    assert shell.run(command("b", policy=ATOMIC), make_answer).answer.status == 422
    assert shell.run(command("a", policy=ATOMIC), make_answer).replayed


@pytest.mark.parametrize("made", [Engine, AsyncEngine])
def test_a_store_that_does_not_count_refuses_a_quota(made: Any) -> None:
    quota = Quota(new_keys=2)
    with pytest.raises(ConfigurationError, match="does not count new keys"):
        made.connect("redis://127.0.0.1:1/0", quota=quota)
    engine = made.connect("redis://127.0.0.1:1/0")
    with pytest.raises(ConfigurationError, match="'pay' declares a quota"):
        engine.core.needs.declare("pay", Policy(quota=quota))
    with pytest.raises(ConfigurationError, match="'pay' declares a quota"):
        engine.core.attempt(command(policy=Policy(quota=quota)))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "limits nothing"),
        ({"new_keys": 0}, "new_keys must be a whole number from 1 to 10000000; it is 0"),
        ({"new_keys": True}, "new_keys must be"),
        ({"open_at_once": 1001}, "open_at_once must be a whole number from 1 to 1000"),
        ({"unknown_at_once": 2.0}, "unknown_at_once must be"),
        ({"new_keys": 1, "per_seconds": 60_000_000}, "per_seconds must be 1 to 2678400 seconds"),
        ({"new_keys": 1, "per_seconds": "60"}, "per_seconds must be"),
        ({"new_keys": 1, "callers": {"a": 5}}, "callers must map"),
        ({"new_keys": 1, "callers": {"a": Quota(new_keys=1, callers={"b": Quota(new_keys=1)})}}, "without callers"),
    ],
)
def test_an_implausible_quota_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        Quota(**options)


def test_an_invalid_quota_is_refused() -> None:
    with pytest.raises(PolicyError, match="quota must be a Quota"):
        Policy(quota=600)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="quota must be a Quota"):
        Engine.connect("memory://?persistence=none", quota=600)  # type: ignore[arg-type]
