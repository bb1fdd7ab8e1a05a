"""The bench tells the truth: its counts are Semel's promises, and a wrong answer stops it. No time is asserted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.load import REPLAYED_KEYS, Plan, Report, end_of_answer, percentile
from bench.main import main
from bench.processes import ROOT, BenchError, Server, counts, load, serving
from bench.results import Results
from bench.setup import Setup
from bench.subjects import ANSWER_BODY, BARE, REQUEST_BODY, SUBJECTS, Mode
from bench.table import as_text
from tests.servers.running import ENVIRONMENT

pytestmark = pytest.mark.no_cover  # coverage of the bench is not measured

SHORT = ["--rounds", "1", "--seconds", "0.2", "--connections", "1"]
MEASURED = [f"{store}-{mode.value}" for store in ("memory", "sqlite", "redis") for mode in Mode]
OURS = [*SHORT, "--only", ",".join([*MEASURED, "middleware", "limit"])]


@pytest.fixture(scope="module")
def semel_server() -> Iterator[Server]:
    """A counted server under Semel, with a memory store."""
    with serving(Setup(module="bench.protected", store="memory://", counted=True)) as server:
        yield server


def plan(server: Server, mode: Mode = Mode.FRESH, **more: Any) -> Plan:
    settings: dict[str, Any] = {"connections": 2, "seed": 1, "seconds": 10.0, "requests_max": 50, **more}
    return Plan(port=server.port, server=server.pid, mode=mode, **settings)


# --- a whole run ---


def test_a_short_run_measures_every_cell_and_counts_what_is_promised(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OURS, "--json"]) == 0

    said = capsys.readouterr()
    document = json.loads(said.out)
    rows = {row["subject"]: row for row in document["rows"]}
    counted = {name: row["counted"] for name, row in rows.items()}
    assert list(rows) == ["bare", *MEASURED]
    assert all(len(row["rates"]) == 1 and row["rates"][0] > 0 for row in rows.values())
    assert counted == {
        "bare": None,
        "memory-fresh": {"store_calls": 2, "commits": None},
        "memory-replay": {"store_calls": 1, "commits": None},
        "sqlite-fresh": {"store_calls": 2, "commits": 2},
        "sqlite-replay": {"store_calls": 1, "commits": 0},
        "redis-fresh": {"store_calls": 2, "commits": None},
        "redis-replay": {"store_calls": 1, "commits": None},
    }
    assert document["limit"][0]["pairs_per_second"] > 0
    assert document["middleware"][0]["fresh_us"] > 0
    assert document["about"]["command"] == f"python -m bench {' '.join(OURS)} --json"
    assert "bench: 15 of 15" in said.err


def test_a_run_starts_the_servers_that_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.environ.get(ENVIRONMENT)

    wanted = ["--only", "postgresql-atomic,pgbench,postgresql-calls", "--flush-ms", "2"]
    assert main([*SHORT, *wanted, "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    atomic = next(row for row in document["rows"] if row["subject"] == "postgresql-atomic")
    assert atomic["counted"] == {"store_calls": 0, "commits": None}  # all of it is the unit's own
    assert [probe["name"] for probe in document["probes"]] == ["pgbench", "postgresql-calls"]
    assert all(sample["pairs_per_second"] > 0 for probe in document["probes"] for sample in probe["samples"])
    assert "fsync and synchronous_commit on, each flush 2 ms longer" in document["about"]["postgresql"]
    one_client = document["probes"][0]["samples"][0]["pairs_per_second"]
    assert one_client <= 1000 / 2 / 2  # two commits a pair, each of which waits: a claim and a completion
    assert os.environ.get(ENVIRONMENT) == before


def test_the_table_can_be_pasted_and_names_no_place_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--only", "memory-replay"]) == 0

    text = capsys.readouterr().out
    assert "| bare | 1 | " in text
    assert "| memory-replay | 1 | " in text
    assert "sqlite-fresh" not in text
    assert "- command: python -m bench --rounds 1" in text
    assert str(ROOT) not in text
    assert sys.prefix not in text


def test_an_interrupted_run_leaves_nothing_behind() -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "bench", "--only", "sqlite-fresh"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert started.stderr is not None
    first = started.stderr.readline()

    started.send_signal(signal.SIGINT)
    # Its children write to the same stderr: this returns once every one of them has ended.
    out, err = started.communicate(timeout=60)

    assert b"counting sqlite-fresh" in first
    assert started.returncode == 130
    assert out == b""
    assert b"interrupted" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--rounds", "0"], "1 to 100 rounds"),
        (["--seconds", "0"], "0.05 to 600 seconds"),
        (["--connections", "1,9999"], "from 1 to 512"),
        (["--flush-ms", "101"], "0 to 100 milliseconds"),
        (["--only", "sqlite"], "known are bare, memory-fresh"),
    ],
)
def test_an_impossible_option_is_refused(arguments: list[str], remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert remedy in capsys.readouterr().err


# --- wrong answers ---


def test_an_answer_that_is_not_2xx_is_reported(semel_server: Server) -> None:
    with pytest.raises(BenchError, match=r"a wrong one: HTTP/1\.1 404 Not Found"):
        load(plan(semel_server, path="/nowhere"))


def test_an_unexpected_replay_is_reported(semel_server: Server) -> None:
    assert load(plan(semel_server, seed=2)).requests == 50

    with pytest.raises(BenchError, match="50 of 50 answers were replays; it should be 0"):
        load(plan(semel_server, seed=2))


def test_a_false_replay_is_detected(semel_server: Server) -> None:
    with pytest.raises(BenchError, match="0 of 50 answers were replays; it should be 50"):
        load(plan(semel_server, Mode.REPLAY, seed=3, primes=False))


def test_a_server_that_has_ended_is_reported() -> None:
    with serving(Setup(module="bench.bare")) as server:
        pass
    with pytest.raises(BenchError, match="the load generator failed"):
        load(plan(server))


def test_a_server_that_does_not_start_is_reported(tmp_path: Path) -> None:
    setup = Setup(module="bench.protected", store=f"sqlite:///{tmp_path}/no/such/folder/bench.db")
    with pytest.raises(BenchError, match="did not start"), serving(setup):
        raise AssertionError("it cannot have started")


# --- what is printed ---


def reports(rates: list[int], generator_share: float) -> list[Report]:
    return [
        Report(
            requests=rate,
            replayed=0,
            seconds=1.0,
            p50_ms=1.0,
            p99_ms=2.0,
            generator_share=generator_share,
            server_cpu_seconds=None,
            wrong="",
        )
        for rate in rates
    ]


def test_ratios_are_those_of_one_round_and_the_goals_say_whether_they_are_reached() -> None:
    fresh = SUBJECTS[1]
    results = Results({(BARE, 32): reports([1000, 2000, 4000], 0.3), (fresh, 32): reports([800, 1800, 1000], 0.3)})

    text = as_text(results, {})

    assert "| memory-fresh | 32 | 1,000 (800–1,800) | 0.80 (0.25–0.90) | - | 1.00 | 2.00 | - | - | 30% |" in text
    assert "| memory-fresh at 32, at least 0.70 of bare | 0.80 (0.25–0.90) | reached |" in text


def test_no_ratio_is_printed_where_the_generator_was_the_bottleneck() -> None:
    results = Results({(BARE, 32): reports([1000], 0.96), (SUBJECTS[1], 32): reports([800], 0.3)})

    text = as_text(results, {})

    assert text.count("| the load generator was the bottleneck |") == 2
    assert "goal" not in text


# --- the generator ---


def test_it_sends_the_requested_load_and_the_server_counts_the_same(semel_server: Server) -> None:
    before = counts(semel_server)

    report = load(plan(semel_server, Mode.REPLAY, seed=4))

    # The keys of a replay are sent once before the clock runs: two store calls each, then one for each replay.
    assert (report.requests, report.replayed) == (50, 50)
    assert counts(semel_server).store_calls - before.store_calls == 2 * REPLAYED_KEYS + 50


def test_request_and_answer_have_the_declared_size(semel_server: Server) -> None:
    assert 190 <= len(REQUEST_BODY) <= 210
    assert 90 <= len(ANSWER_BODY) <= 110


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"", None),
        (b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n", None),
        (b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nx", None),
        (b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nxy", 45),
        (b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\nx: y\r\n\r\nxyHTTP", 51),
        (b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n2\r\nxy\r\n", None),
        (b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n2\r\nxy\r\n0\r\n\r\n", 64),
        (b"HTTP/1.1 201 Created\r\nconnection: close\r\n\r\n", -1),
    ],
)
def test_the_end_of_an_answer(data: bytes, end: int | None) -> None:
    assert end_of_answer(data) == end


@pytest.mark.parametrize(
    ("ordered", "share", "value"),
    [([], 0.5, 0.0), ([1.0], 0.99, 1.0), ([1.0, 2.0, 3.0], 0.5, 2.0), ([float(n) for n in range(1000)], 0.99, 990.0)],
)
def test_percentiles_are_computed(ordered: list[float], share: float, value: float) -> None:
    assert percentile(ordered, share) == value
