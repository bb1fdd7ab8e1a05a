"""The peers are optional: nothing of the bench needs them, and one that is missing is named with its remedy."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from bench import main as program
from bench import servers
from bench.arguments import parse
from bench.correctness.cases import CASES as ALL_CASES
from bench.correctness.cases import NAMES as CASES
from bench.load import Report
from bench.machine import command_line
from bench.peers.environment import Installed, find_installed
from bench.peers.registry import PEERS
from bench.processes import ROOT
from bench.results import Results
from bench.subjects import BARE, BARE_FASTAPI, Mode, of_peers, of_url, with_bare
from bench.table import as_text

REQUIREMENTS = ROOT / "bench" / "peers" / "requirements.txt"
EVERYBODY = Installed("/nowhere/python", {peer.name: "1.0" for peer in PEERS})


def test_the_bench_imports_no_peer() -> None:
    names = [peer.name.replace("-", "_") for peer in PEERS]
    asked = "import sys, json, bench.main, bench.correctness.main; print(json.dumps(sorted(sys.modules)))"

    said = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, check=True).stdout

    assert set(names) & set(json.loads(said)) == set()
    assert "bench.peers.registry" in json.loads(said)


def test_every_peer_has_an_adapter_and_names_existing_cases() -> None:
    for peer in PEERS:
        assert importlib.util.find_spec(peer.module) is not None
        spoken_of = [*peer.not_offered, *peer.documented, *peer.remarks]
        assert {name.partition("/")[0] for name in spoken_of} <= set(CASES)
        assert {name.partition("/")[2] for name in spoken_of} <= {"", *peer.stores}


def test_the_peers_are_locked() -> None:
    text = REQUIREMENTS.read_text("utf-8")
    packages = re.findall(r"^[^\s#].*(?:\n +--hash.*)*", text, flags=re.MULTILINE)

    assert {peer.name for peer in PEERS} <= {package.partition("==")[0] for package in packages}
    assert [package for package in packages if "==" not in package or "--hash=sha256:" not in package] == []
    assert "://" not in text


def test_a_missing_environment_has_no_peers(tmp_path: Path) -> None:
    found = find_installed(tmp_path / "bin" / "python")

    assert found.peers() == []
    assert of_peers(found) == []
    assert found.left_out() == (
        "not installed: idemkit, idemgate, fastapi-idempotency, fastapi-idempotency-key, exactly-once "
        "(`make peers` installs them)"
    )


def test_an_environment_is_asked_for_the_versions_that_it_has(tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=False)
    python = tmp_path / "bin" / "python"
    packages = tmp_path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "idemgate-9.9.dist-info").mkdir()
    (packages / "idemgate-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: idemgate\nVersion: 9.9\n"
    )

    found = find_installed(python)

    assert found.versions == {"idemgate": "9.9"}
    assert [peer.name for peer in found.peers()] == ["idemgate"]
    assert "idemgate" not in str(found.left_out())
    assert found.describe(found.peers()) == "idemgate 9.9"


def test_subjects_of_peers_bring_the_bare_application_they_are_compared_with() -> None:
    found = Installed("python", {"idemgate": "0.1.0"})

    chosen = with_bare(of_peers(found))

    assert [subject.name for subject in chosen] == ["bare-fastapi", "idemgate-redis-fresh", "idemgate-redis-replay"]


def test_a_password_is_not_printed() -> None:
    given = ["--url", "postgresql://shop:secret@db/shop", "--only", "bare"]
    assert command_line("bench", given) == "python -m bench --url postgresql://shop:...@db/shop --only bare"
    assert command_line("bench", ["--url", "redis://db:6379/0"]) == "python -m bench --url redis://db:6379/0"


def test_a_store_url_is_a_subject_of_semel() -> None:
    fresh, replay = of_url("postgresql://shop@db/shop")

    assert (fresh.name, replay.name) == ("url-postgresql-fresh", "url-postgresql-replay")
    assert fresh.server == replay.server == ("bench.protected", "postgresql://shop@db/shop")
    assert parse(["--url", "redis://db", "--only", "url-redis-fresh"]).only == ("url-redis-fresh",)


def test_a_run_without_peers_names_them_and_measures_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "find_installed", lambda: Installed("/nowhere/python", {}))

    short = ["--rounds", "1", "--seconds", "0.05", "--connections", "1"]
    assert program.main([*short, "--only", "memory-fresh,idemkit-*"]) == 0

    said = capsys.readouterr()
    assert "bench: left out: not installed: idemkit, idemgate" in said.err
    assert "| memory-fresh | 1 | " in said.out
    assert "- left out: not installed: idemkit" in said.out


def test_a_peer_that_cannot_be_measured_is_noted_in_its_cell_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The bare application in a peer's place: it runs again what it should replay.
    monkeypatch.setattr(program, "find_installed", lambda: Installed(sys.executable, {"idemkit": "1.0"}))
    monkeypatch.setattr("bench.peers.registry.Peer.module", property(lambda peer: "bench.bare"))

    short = ["--rounds", "1", "--seconds", "0.5", "--connections", "2"]
    assert program.main([*short, "--only", "idemkit-memory-*"]) == 0

    out = capsys.readouterr().out
    assert re.search(r"\| idemkit-memory-replay \| 2 \| - \| not measured: its handler ran \d+ times for 256 keys", out)
    assert re.search(r"\| idemkit-memory-fresh \| 2 \| [\d,]+ ", out)


def test_a_subject_in_fastapi_is_compared_with_bare_fastapi() -> None:
    def report(rate: int) -> list[Report]:
        return [
            Report(
                requests=rate,
                replayed=0,
                seconds=1.0,
                p50_ms=1.0,
                p99_ms=2.0,
                generator_share=0.3,
                server_cpu_seconds=None,
                wrong="",
            )
        ]

    fresh = of_peers(Installed("python", {"idemgate": "0.1.0"}))[0]
    assert fresh.mode is Mode.FRESH
    rates = {(BARE, 32): report(1000), (BARE_FASTAPI, 32): report(500), (fresh, 32): report(250)}

    assert "| idemgate-redis-fresh | 32 | 250 (250–250) | 0.50 (0.50–0.50) |" in as_text(Results(rates), {})


def test_a_store_server_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "redis_program", lambda: None)

    chosen, _, words = program.choose(parse(["--only", "idemgate-*,idemkit-memory-fresh"]), EVERYBODY)

    assert [subject.name for subject in chosen] == ["bare", "idemkit-memory-fresh"]
    assert "idemgate-redis-fresh, idemgate-redis-replay: no Redis server here (install redis-server" in words[0]


# --- the page ---


def test_the_page_shows_every_case_and_the_versions_that_are_locked() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text("utf-8")
    versions = dict(re.findall(r"^([a-z-]+)==(\S+)", REQUIREMENTS.read_text("utf-8"), flags=re.MULTILINE))

    assert [case.title for case in ALL_CASES if f"| {case.title} | " not in page] == []
    assert [peer.name for peer in PEERS if f"{peer.name} {versions[peer.name]}" not in page] == []
