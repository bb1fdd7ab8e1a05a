"""The plugin as users meet it: pytest runs in their own folder, with their tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import ROOT
from tests.outbox.conftest import make_place

pytest_plugins = ["pytester"]

# Named, and nothing else loaded: quick, and the same whether or not this checkout is installed with its entry point.
PLUGINS = ("-p", "semel.testing.pytest_plugin", "-p", "anyio.pytest_plugin")

SHOP = """
from semel.testing.idempotent import rows
from tests.testing_plugin import good
from tests.testing_plugin.good import ALICE, BOB, Provider
import pytest

PAY = dict(json={"amount": 1250}, headers=ALICE, other_caller=BOB)
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The applications of these tests, for the runs that they start."""
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, text: str, *options: str) -> pytest.RunResult:
    """In a process of its own, as users do: in this one the modules that it imports would be there twice."""
    pytester.makepyfile(SHOP + text)
    strict = ("-W", "error", "--strict-markers", "-p", "no:cacheprovider")
    return pytester.runpytest_subprocess(*PLUGINS, *strict, *options)


def test_the_fixtures_make_an_application_testable_in_three_lines(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_payments(semel_async_engine, assert_idempotent):
    provider = Provider()
    app = good.fastapi_app(semel_async_engine, provider)
    report = assert_idempotent(app, "POST /payments", **PAY, effects=provider.charges)
    assert len(report.held) == 14
""",
    )
    result.assert_outcomes(passed=1)


def test_the_report_is_what_a_failing_test_shows(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
from tests.testing_plugin.broken import BROKEN

def test_payments(semel_async_engine, assert_idempotent):
    provider = Provider()
    app = BROKEN["effect_before_the_claim"](semel_async_engine, provider)
    assert_idempotent(app, "POST /payments", **PAY, effects=provider.charges)
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*POST /payments of effect_before_the_claim is not safe to retry: 9 findings"])
    result.stdout.fnmatch_lines(["E*change: the effect is outside the protected handler*"])
    result.stdout.no_fnmatch_line("*assertion.py*def *")  # the traceback ends in the user's own line


def test_the_marker_runs_a_test_on_each_store(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.semel_store("memory", "sqlite")
def test_on_both(semel_engine, semel_store, assert_idempotent):
    assert semel_engine.backend.name == semel_store
    provider = Provider()
    app = good.wsgi_app(semel_engine, provider)
    assert_idempotent(app, "POST /payments", json={"amount": 1}, effects=provider.charges)

@pytest.mark.semel_store("sqlite")
def test_atomic(semel_async_engine, semel_database, assert_idempotent):
    good.create_table(semel_database)
    app = good.atomic_app(semel_async_engine)
    assert_idempotent(app, "POST /payments", json={"amount": 1}, effects=rows(semel_database, "payments"))

def test_memory_is_the_default(semel_engine):
    assert semel_engine.backend.name == "memory"
""",
        "-v",
    )
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*test_on_both?memory?*", "*test_on_both?sqlite?*", "*test_atomic?sqlite?*"])


def test_the_marker_takes_the_url_of_a_servers_database(pytester: pytest.Pytester, tmp_path: Path) -> None:
    place = make_place("postgres", tmp_path)
    result = run(
        pytester,
        f"""
@pytest.mark.semel_store("sqlite", {place.url!r})
def test_on_both(semel_async_engine, semel_clock, semel_store, assert_idempotent):
    provider = Provider()
    app = good.fastapi_app(semel_async_engine, provider)
    report = assert_idempotent(app, "POST /payments", **PAY, effects=provider.charges)
    assert len(report.held) == 14
""",
        "-v",
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_on_both?sqlite?*", "*test_on_both?postgresql?*"])
    result.stdout.no_fnmatch_line("*test_on_both*://*")  # a URL may have a password


def test_an_unknown_store_is_refused(pytester: pytest.Pytester) -> None:
    result = run(
        pytester, "@pytest.mark.semel_store('postgres-at-home')\ndef test_it(semel_engine): pass\n", "--collect-only"
    )
    assert result.ret != 0
    result.stdout.fnmatch_lines(
        ["*semel_store takes names of stores, 'memory' or 'sqlite', and URLs of test databases*"]
    )


def test_time_passes_when_the_test_moves_the_clock(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
from semel import Answer, Command, Policy, Scope
from semel.errors import KeyExpiredError

@pytest.mark.semel_store("memory", "sqlite")
def test_expiry(semel_engine, semel_clock):
    command = Command(Scope("a", "b", "c"), "k", bytes(32), "v1", Policy(answer_seconds=60))
    handler = lambda permit: Answer(200, (), b"once")
    semel_engine.run(command, handler)
    semel_clock.advance(seconds=59)
    assert semel_engine.run(command, handler).replayed
    semel_clock.advance(seconds=1)
    with pytest.raises(KeyExpiredError):
        semel_engine.run(command, handler)
""",
    )
    result.assert_outcomes(passed=2)


def test_a_spied_function_is_counted_and_restored(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
provider = Provider()

def test_spy(semel_async_engine, semel_spy, assert_idempotent):
    charges = semel_spy(Provider, "charge")
    app = good.starlette_app(semel_async_engine, provider)
    assert_idempotent(app, "POST /payments", json={"amount": 1250}, effects=charges)
    assert charges.count == len(provider.charges) > 1
    assert charges.calls[0] == ((provider, 1250), {})

def test_after():
    assert type(Provider.charge).__name__ == "function"
""",
    )
    result.assert_outcomes(passed=2)


def test_async_tests_with_anyio(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_payments(semel_async_engine, assert_idempotent_async):
    provider = Provider()
    app = good.fastapi_app(semel_async_engine, provider)
    await assert_idempotent_async(app, "POST /payments", **PAY, effects=provider.charges)
""",
    )
    result.assert_outcomes(passed=1)


def test_a_suite_without_the_fixtures_is_unchanged(pytester: pytest.Pytester) -> None:
    """Fixtures of the same name win, and nothing is collected, parametrised or imported."""
    result = run(
        pytester,
        """
import sys

@pytest.fixture
def semel_engine():
    return "mine"

@pytest.fixture
def assert_idempotent():
    return "mine too"

@pytest.mark.parametrize("semel_store", ["x"])
def test_mine(semel_engine, assert_idempotent, semel_store):
    assert (semel_engine, assert_idempotent, semel_store) == ("mine", "mine too", "x")
""",
    )
    result.assert_outcomes(passed=1)


def test_loading_the_plugin_imports_nothing_but_pytest() -> None:
    probe = (
        "import sys, pytest; before = set(sys.modules); import semel.testing.pytest_plugin; "
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['semel', 'semel.lazy', 'semel.testing', 'semel.testing.pytest_plugin']"
