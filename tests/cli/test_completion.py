"""`semel completion`: scripts that shells read, and what they complete."""

from __future__ import annotations

import builtins
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.cli.commands.develop.completion import SHELLS, script
from semel.cli.main import grammar
from semel.extras import install_command
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
CASES = {
    "a command": (["semel", "exp"], {"explain", "export"}),
    "an option": (["semel", "export", "--f"], {"--format", "--force"}),
    "a choice": (["semel", "export", "--format", ""], {"jsonl", "csv"}),
    "a state": (["semel", "list", "--state", "u"], {"unknown"}),
    "a shell": (["semel", "completion", ""], set(SHELLS)),
    "behind a global option": (["semel", "--url", "sqlite:///x.db", "doc"], {"doctor"}),
    "a file": (["semel", "export", "--output", "rec"], {"records.csv"}),
}
ASK_BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
compopt() { :; }  # there is no line being edited
_shtab_semel semel
printf '%s\\n' "${COMPREPLY[@]}"
"""
CHECKS = {shell: shutil.which(shell) for shell in SHELLS}


@pytest.mark.parametrize(("words", "wanted"), CASES.values(), ids=CASES)
def test_bash_completes(words: list[str], wanted: set[str], tmp_path: Path) -> None:
    (tmp_path / "records.csv").touch()
    (tmp_path / "semel.bash").write_text(script("bash"), "utf-8")
    (tmp_path / "ask.bash").write_text(ASK_BASH, "utf-8")
    done = subprocess.run(
        ["bash", "--norc", "ask.bash", "semel.bash", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    assert {word.strip() for word in done.stdout.splitlines()} >= wanted
    if words[-1]:
        assert all(word.startswith(words[-1]) for word in done.stdout.split())


def test_every_installed_shell_can_read_its_script(tmp_path: Path) -> None:
    checked = []
    for shell, program in CHECKS.items():
        if program is None:
            continue
        path = tmp_path / f"semel.{shell}"
        path.write_text(script(shell), "utf-8")
        done = subprocess.run([program, "-n", str(path)], capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, ""), shell
        checked.append(shell)
    assert "bash" in checked


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_every_option_is_known(shell: str) -> None:
    text = script(shell)
    _, commands = grammar()
    for name, parser in commands.choices.items():
        assert name in text
        for spelling in parser.spellings():
            # fish takes options without their dashes: -l for a long one.
            assert (spelling.lstrip("-") if shell == "fish" else spelling) in text


def test_quotes_are_balanced_in_every_script() -> None:
    """A syntax check of sorts where a shell is not installed: no quote of a help text ends a string."""
    for shell in SHELLS:
        for line in script(shell).splitlines():
            bare = line.replace("'\"'\"'", "").replace("\\'", "")
            if not line.lstrip().startswith("#") and '"' not in bare:
                assert bare.count("'") % 2 == 0, (shell, line)


def test_the_command_prints_the_script(semel: Run) -> None:
    ran = semel("completion", "bash")
    assert (ran.code, ran.err, ran.out) == (0, "", script("bash"))
    assert semel("completion", "zsh", "--json").document == {"shell": "zsh", "script": script("zsh")}
    assert semel("completion", "powershell").code == 2


def test_without_shtab_the_remedy_is_reported(semel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **options: Any) -> Any:
        if name == "shtab":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    ran = semel("completion", "bash")
    assert ran.code == 1
    assert install_command("cli") in ran.err
