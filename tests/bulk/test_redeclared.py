"""A bulk that is killed under one declaration and goes on under another: the items keep what they were begun under."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.bulk.rules import ItemState, Tally
from semel.errors import SemelError
from tests.bulk.declared import run_declared
from tests.bulk.fellows import Fellow, Home, mariadb_home, postgres_home, sqlite_home, states
from tests.bulk.lists import number_items
from tests.bulk.test_outside import Downstream, Killed
from tests.servers import mariadb
from tests.servers.postgres import postgres, schema

Make = Callable[..., Fellow]
PAIRS = [(was, now) for was in ("external", "idempotent") for now in ("external", "idempotent", "atomic")]


class Place:
    """A store, and the ledger of the calls of all processes."""

    def __init__(self, store: str, folder: Path) -> None:
        self.ledger = folder / "calls"
        if store == "sqlite":
            self.home: Home = sqlite_home(str(folder / "bulk.db"))
            self.url = f"sqlite:///{folder}/bulk.db"
        elif store == "postgres":
            self.home = postgres_home()
            self.url = f"{postgres()}?schema={schema()}"
        else:
            self.home = mariadb_home()
            self.url = mariadb.url(mariadb.mariadb())

    def die(self, effects: str, at: int) -> None:
        """Run a process that kills itself in the handler of this item."""
        command = [sys.executable, "-m", "tests.bulk.declared", self.url, str(self.ledger), effects, str(at)]
        assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL

    def run(self, *effects: str) -> list[str]:
        """Runs to the end here, each on its own engine: its tally, whether it was a replay, the items' states."""
        return [word for each in effects for word in run_declared(self.url, self.ledger, each)]

    def calls(self) -> Counter[int]:
        return Counter(map(int, self.ledger.read_text().split()))


@pytest.mark.parametrize(("was", "now"), PAIRS)
@pytest.mark.parametrize("store", ["sqlite", "postgres", "mariadb"])
def test_an_item_under_kill_9_keeps_the_effects_that_it_was_begun_under(
    store: str, was: str, now: str, tmp_path: Path
) -> None:
    place = Place(store, tmp_path)
    place.die(was, at=2)
    again = was == now == "idempotent"
    told = place.run(now)
    states = ["SUCCEEDED"] * 6 if again else ["SUCCEEDED"] * 2 + ["UNKNOWN"] + ["SUCCEEDED"] * 3
    sums = ["6", "6", "6", "0", "0", "0"] if again else ["6", "6", "5", "0", "0", "1"]
    assert told == [*sums, "False", *states]
    assert place.calls() == {n: 2 if again and n == 2 else 1 for n in range(6)}
    assert place.run("external", "idempotent", "atomic") == 3 * [*sums, "True", *states]
    assert sum(place.calls().values()) == (7 if again else 6)


@pytest.mark.parametrize("store", ["sqlite", "postgres", "mariadb"])
def test_an_atomic_bulk_under_kill_9_continues_under_the_new_declaration(store: str, tmp_path: Path) -> None:
    place = Place(store, tmp_path)
    place.die("atomic", at=2)
    place.die("external", at=3)
    told = place.run("atomic")
    assert told[:7] == ["6", "6", "5", "0", "0", "1", "False"]
    assert told[7:] == ["SUCCEEDED"] * 3 + ["UNKNOWN"] + ["SUCCEEDED"] * 2
    assert place.calls()[3] == 1


def test_an_item_that_an_external_run_began_is_not_called_again_by_the_first_declaration(make_fellow: Make) -> None:
    """Idempotent, external, idempotent: the item of the middle run was begun by a handler that promised nothing."""
    calls: Counter[int] = Counter()

    def dying(at: int) -> Downstream:
        return Downstream(dies_at=at)

    for effects, at in (("idempotent", 1), ("external", 3)):
        downstream = dying(at)
        with pytest.raises((Killed, BaseExceptionGroup)):
            make_fellow(effects=effects).run(number_items(5), downstream.charge)
        calls.update(downstream.calls)
    fellow, downstream = make_fellow(effects="idempotent"), dying(-1)
    done = fellow.run(number_items(5), downstream.charge)
    calls.update(downstream.calls)
    assert calls == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}
    assert done.tally == Tally(5, 5, 3, 0, 0, 2)
    assert states(fellow.outcomes(done))[1] == states(fellow.outcomes(done))[3] == ItemState.UNKNOWN


def test_an_item_begun_by_the_former_version_is_unknown(make_fellow: Make, home: Home) -> None:
    """It wrote no effects beside the item, so that it is unknown whether it may be called again."""
    downstream = Downstream(dies_at=1)
    with pytest.raises((Killed, BaseExceptionGroup)):
        make_fellow(effects="idempotent").run(number_items(3), downstream.charge)
    home.fetch("UPDATE semel_item SET detail = NULL WHERE state = 2")
    fellow = make_fellow(effects="idempotent")
    done = fellow.run(number_items(3), downstream.charge)
    assert states(fellow.outcomes(done)) == [ItemState.SUCCEEDED, ItemState.UNKNOWN, ItemState.SUCCEEDED]
    assert downstream.calls == [0, 1, 2]


def test_a_bulk_whose_sums_do_not_add_up_is_not_settled(make_fellow: Make, home: Home) -> None:
    with pytest.raises((Killed, BaseExceptionGroup)):
        make_fellow(effects="external").run(number_items(3), Downstream(dies_at=2).charge)
    home.fetch("UPDATE semel_bulk SET succeeded = succeeded - 1")
    with pytest.raises(SemelError, match="its totals omit 1 of its items"):
        make_fellow(effects="external").run(number_items(3), Downstream().charge)
    assert [state for (state,) in home.fetch("SELECT state FROM semel_record")] == [1]
