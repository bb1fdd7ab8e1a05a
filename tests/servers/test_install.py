"""``scripts/install-servers`` where nothing is installed: it installs what it can, and names the rest."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "install-servers"
TOOLS = ("bash", "chmod", "env", "ls", "mktemp", "rm", "sed", "tail")
Run = Callable[..., tuple[int, str, list[str]]]


@pytest.fixture
def machine(tmp_path: Path) -> Run:
    """Runs the script where nothing is installed, with an apt that knows the named packages, or fails."""
    bin, apt, script = tmp_path / "bin", tmp_path / "apt.log", tmp_path / "install-servers"
    bin.mkdir()
    (tmp_path / "usr" / "sbin").mkdir(parents=True)
    script.write_text(SCRIPT.read_text("utf-8").replace("/usr/", f"{tmp_path}/usr/").replace(":/sbin", ""))
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (bin / tool).symlink_to(found)

    def stub(name: str, *lines: str) -> None:
        (bin / name).write_text("\n".join(["#!/usr/bin/env bash", *lines]) + "\n")
        (bin / name).chmod(0o755)

    def run(*known: str, user: int = 0, works: bool = True, all_servers: str = "") -> tuple[int, str, list[str]]:
        stub("id", f"echo {user}")
        stub(
            "apt-cache", f'for known in {" ".join(known)}; do [ "$known" != "${{@: -1}}" ] || exit 0; done', "exit 100"
        )
        here = f"ls {tmp_path}/usr/sbin"
        stub("apt-get", f'echo "$* with $({here})" >>{apt}', *(() if works else ('[[ "$*" != *install* ]]',)))
        stub("systemctl", f'echo "$*" >>{tmp_path}/systemctl.log')
        world = {"PATH": str(bin), "SEMEL_ALL_SERVERS": all_servers}
        done = subprocess.run([bin / "bash", script], env=world, capture_output=True, text=True, check=False)
        asked = apt.read_text().splitlines() if apt.exists() else []
        return done.returncode, done.stdout + done.stderr, [line for line in asked if " install " in line]

    return run


EVERY = (
    *("postgresql-15", "redis-server", "mariadb-server", "pgbouncer", "rabbitmq-server", "prometheus", "chromium"),
    *("nginx", "haproxy", "caddy", "systemd", "google-cloud-cli-pubsub-emulator"),
)


def test_missing_servers_are_installed_and_not_started(machine: Run, tmp_path: Path) -> None:
    code, said, [asked] = machine(*EVERY)
    assert code == 0, said
    assert asked.endswith("--no-install-recommends " + " ".join(EVERY) + " with policy-rc.d")
    assert not (tmp_path / "usr/sbin/policy-rc.d").exists()


def test_installed_servers_are_not_enabled_for_the_next_boot(machine: Run, tmp_path: Path) -> None:
    machine(*EVERY[1:3])
    assert (tmp_path / "systemctl.log").read_text().splitlines() == ["disable redis-server", "disable mariadb"]


def test_an_unavailable_package_does_not_prevent_the_others(machine: Run) -> None:
    """Ubuntu 24.04 has PostgreSQL 16: asked for 15 as well, apt installs nothing at all."""
    code, said, [asked] = machine(*EVERY[1:])
    assert asked.endswith("--no-install-recommends " + " ".join(EVERY[1:]) + " with policy-rc.d")
    assert "not installed: postgresql-15: this system has no package" in said
    assert "left out and named" in said
    assert code == 0
    code, said, _ = machine(*EVERY[1:], all_servers="1")
    assert (code, "none may be missing here" in said, "left out" in said) == (1, True, False)


def test_without_a_package_manager_the_tests_run_with_installed_servers(machine: Run) -> None:
    """A machine without a network, say. Where none may be missing, it is a failure."""
    code, said, _ = machine(*EVERY, works=False)
    assert (code, "could not be installed" in said, "left out and named" in said) == (0, True, True)
    assert machine(*EVERY, works=False, all_servers="1")[0] == 1
    code, said, _ = machine(*EVERY, user=1000)
    assert (code, "needs root and apt" in said) == (0, True)
