"""Runs the blocks of a page in their order, in one folder, and compares what they print with what the page shows.

- ``python``: all blocks of a page share one namespace. Comment lines ``# > …`` are what the block prints. A block whose
  first line is a file's name, such as ``# shop.py``, is that file: it is written, and not run.
- ``console``: lines that begin with ``$`` are commands (``>`` continues one), the others what they print. Three dots
  stand for any text. One shell runs a block, so that a later command sees an earlier one's variables.
- ``sh``: a script to copy and paste, without prompts. What it prints is the next block, where that is ``text prints``.

The address of the reference service and the URL ``DATABASE`` are replaced by the tests' own. ``make``, ``pip install``
and commands that serve until they are stopped are not run to their end: their target, their package and their options
are checked.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from semel.cli.arguments import parse
from semel.cli.main import grammar
from semel.reference.greeting import greeting
from semel.reference.settings import Settings
from tests.docs.pages import ROOT, Block

ADDRESS = "127.0.0.1:8080"
SECONDS_MAX = 120.0
CURL = Path(__file__).with_name("curl.py")
_MARK = "--- the next command of this block ---"
DATABASE = "postgresql://localhost/shop"
PSQL = Path(__file__).with_name("psql.py")
_CHECKED = re.compile(r"(make|pip install|semel serve|semel demo|uvicorn)\b")


def file_of(block: Block) -> str | None:
    """The name of the file that a block is; None for one that is run."""
    found = re.match(r"# (\w+\.py)\n", block.text)
    return found[1] if found is not None and block.language == "python" else None


def run_python(block: Block, page: str, namespace: dict[str, Any], served: str | None = None) -> None:
    """Run a block in the page's namespace; ``served`` is the address of the reference service."""
    printed = io.StringIO()
    # Without this module's own __future__: a reader has none, and no dataclass can read annotations that are texts.
    code = compile(
        "\n" * (block.line - 1) + block.text.replace(ADDRESS, served or ADDRESS), page, "exec", dont_inherit=True
    )
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    expected = "".join(f"{line[4:]}\n" for line in block.text.splitlines() if line.startswith("# > "))
    assert expected or not printed.getvalue(), f"{page}:{block.line} prints what it does not show: {printed.getvalue()}"
    assert_shown(expected, printed.getvalue(), f"{page}:{block.line}")


def run_console(block: Block, page: str, folder: Path, served: str | None) -> None:
    """Run a block's commands; ``served`` is the address of the reference service."""
    commands = parse_console(block.text)
    real = [(command, shown) for command, shown in commands if not _CHECKED.match(command)]
    for command, shown in commands:
        if _CHECKED.match(command):
            assert_shown(shown, check(command, folder), f"{page}:{block.line}: {command}")
    script = "".join(f"echo '{_MARK}'\n{command}\n" for command, _ in real)
    if served is not None:
        script = script.replace(ADDRESS, served)
    assert ADDRESS not in script, f"{page}:{block.line} needs the service, but the page does not start it"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS_MAX,
    )
    said = done.stdout.decode().replace("\r\n", "\n").replace(served or ADDRESS, ADDRESS).split(f"{_MARK}\n")[1:]
    assert len(said) == len(real), done.stdout.decode()
    for (command, shown), printed in zip(real, said, strict=True):
        assert_shown(shown, printed, f"{page}:{block.line}: {command}")


def run_shell(block: Block, page: str, folder: Path, served: str | None, shown: str = "") -> None:
    """Run a script; ``shown`` is what the page says that it prints."""
    lines = re.findall(r"(?:[^\n]*\\\n)*[^\n]*\n", block.text)
    checked = [line for line in lines if _CHECKED.match(line)]
    for line in checked:
        check(line, folder)
    rest = "".join(line for line in lines if line not in checked)
    if rest.strip():
        script = "$ " + "> ".join(rest.splitlines(keepends=True))
        run_console(Block("console", script + shown, block.line), page, folder, served)


def parse_console(text: str) -> list[tuple[str, str]]:
    """Each command of a block with the text that follows it."""
    found: list[tuple[list[str], list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif (line == ">" or line.startswith("> ")) and found and not found[-1][1]:
            found[-1][0].append(line[2:])
        else:
            assert found, f"a console block begins with a command, not with {line!r}"
            found[-1][1].append(line)
    return [("\n".join(command), "".join(f"{line}\n" for line in shown)) for command, shown in found]


def assert_shown(shown: str, printed: str, where: str) -> None:
    """What a page shows is what is printed; three dots stand for any text. A page that shows nothing says nothing.

    Runs of spaces count as one: columns are as wide as what happens to be in them.
    """
    pattern = ".*".join(re.escape(part) for part in _narrow(shown).split("..."))
    if shown and re.fullmatch(pattern, _narrow(printed), re.DOTALL) is None:
        raise AssertionError(f"{where}\n--- shown ---\n{shown}\n--- printed ---\n{printed}")


def _narrow(text: str) -> str:
    return re.sub(" +", " ", text.strip())


def environment(folder: Path) -> Mapping[str, str]:
    """This environment's programs first; no proxy is in front of loopback, no variable names another store.

    Last come a plain `curl` and `psql` of ours, for machines that have none: the tests need Python and make, nothing
    else.
    """
    ours = folder / "bin"
    for name, script in (("curl", CURL), ("psql", PSQL)):
        if not (ours / name).exists():
            ours.mkdir(exist_ok=True)
            (ours / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n', "utf-8")
            (ours / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("SEMEL_URL", "SEMEL_ID_SECRET_FILE")}
    path = os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", ""), str(ours)))
    return {**kept, "PATH": path, "NO_PROXY": "*", "no_proxy": "*", "USER": "olga", "LOGNAME": "olga"}


# --- commands that are checked and not run ------------------------------------------------------


def check(command: str, folder: Path) -> str:
    """Check a command that the tests must not run to its end; what it prints first, where that is known."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        return check_make(words[1:])
    if words[0] == "pip":
        check_pip(words[2:], folder)
        return ""
    if words[0] == "uvicorn":
        assert (folder / f"{words[1].partition(':')[0]}.py").exists(), f"{command}: no block is that module"
        return ""
    parser, commands = grammar()
    parse(parser, commands, words[1:])
    return ""


def check_make(words: list[str]) -> str:
    """The target exists. `make run` greets as the service does."""
    subprocess.run(["make", "-n", *words], cwd=ROOT, check=True, capture_output=True, timeout=SECONDS_MAX)
    if words == ["run"]:
        return "\n".join(greeting(f"http://{ADDRESS}", Settings.read({"SEMEL_DEMO": "1"})))
    return ""


def check_pip(words: list[str], folder: Path) -> None:
    """The package can be installed from a checkout beside this folder, and has the extras. Nothing is installed."""
    ours = [word for word in words if word.partition("[")[0] == "../semel"]
    if len(ours) != 1:
        raise AssertionError(f"pip install {words}: only a checkout beside the project can be installed yet")
    locked = {found.name for found in metadata.distributions()}
    for name in {*words} - {*ours}:
        assert name.lower() in {each.lower().replace("_", "-") for each in locked}, f"{name} is not locked"
    copy = folder / "../semel"
    if not copy.exists():
        copy.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy / name)
        (copy / "src").symlink_to(ROOT / "src")
    report = folder / "pip.json"
    options = ["--dry-run", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--quiet", "--report", str(report), *ours],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert "does not provide the extra" not in done.stderr, done.stderr
    [installed] = json.loads(report.read_text("utf-8"))["install"]
    assert installed["metadata"]["name"] == "semel"
    assert installed["metadata"]["description"].strip(), "the package's page is empty: readme is missing"
