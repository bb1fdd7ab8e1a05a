"""`semel worker --reconcile`: reconcilers of one's own, by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semel import Answer, Command, Engine, Permit, Policy, Scope
from semel.cli.main import main

WHAT = Command(Scope("acme", "alice", "pay"), "k", bytes(32), "test", Policy())
SHOP = """
from semel import Answer
from semel.reconciliation.worker import SucceededWith, reconciler

@reconciler("pay", quiet_for=0)
def ask(case):
    return SucceededWith(Answer(201, (), b"found"))

nothing = 7
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "reconciled_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    url = f"sqlite:///{tmp_path}/app.db"
    engine = Engine.connect(url)
    engine.migrate()
    engine.close()
    return url


def lose(permit: Permit) -> Answer:
    raise TimeoutError


def test_the_worker_asks_and_settles(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Engine.connect(url) as engine, pytest.raises(TimeoutError):
        engine.run(WHAT, lose)
    assert main(["--url", url, "worker", "--once", "--reconcile", "reconciled_shop:ask", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["asked"], done["settled"], done["gaveUp"]) == (1, 1, 0)
    with Engine.connect(url) as engine:
        assert engine.run(WHAT, lose).answer.body == b"found"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("reconciled_shop", "must be MODULE:NAME"),
        ("reconciled_shop:nothing", "'nothing' is not a reconciler but int"),
        ("reconciled_shop:absent", "is not a reconciler but NoneType"),
        ("no_such_module:ask", "there is no module 'no_such_module'"),
    ],
)
def test_a_wrong_reconcile_argument_is_reported(
    url: str, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--url", url, "worker", "--once", "--reconcile", name, "--json"]) == 2
    assert said in json.loads(capsys.readouterr().out)["error"]
