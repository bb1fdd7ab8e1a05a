"""Runs an example's README as its reader would: every console block in its order, in one folder.

Commands that serve (``uvicorn``, ``flask``, ``node``, ``semel proxy``, ``python -m``, with ``--port``) are programs of
their own, started and awaited, on free ports. What installs Semel is skipped: it is installed. Everything else is run
in a shell, and prints what the page shows.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.docs.pages import ROOT, Block, blocks
from tests.docs.running import SECONDS_MAX, assert_shown, environment, parse_console
from tests.examples.serving import serving
from tests.servers.ports import free_port

SERVE = ("uvicorn ", "flask ", "node ", "semel proxy ", "python -m ")
_MARK = "--- the next command of this block ---"
_ADDRESS = re.compile(r"127\.0\.0\.1:(\d{4})")


def run_readme(name: str, folder: Path, told: Mapping[str, str]) -> None:
    """Run ``examples/NAME/README.md``; ``told`` are variables whose ports are replaced, too."""
    text = (ROOT / "examples" / name / "README.md").read_text("utf-8")
    ports: dict[str, str] = {}

    def replace_ports(words: str) -> str:
        return _ADDRESS.sub(lambda found: f"127.0.0.1:{ports.setdefault(found[1], str(free_port()))}", words)

    variables = {name: replace_ports(value) for name, value in told.items()}
    console = [block for block in blocks(text) if block.language == "console"]
    assert console, "the page runs nothing"
    if any(" examples/" in block.text for block in console):
        (folder / "examples").symlink_to(ROOT / "examples")
    with ExitStack() as stack:
        for block in console:
            command = parse_console(block.text)[0][0]
            if " --port " in command and command.startswith(SERVE):
                words = shlex.split(replace_ports(command.replace("--port ", "--port 127.0.0.1:")))
                port = int(words[words.index("--port") + 1].rpartition(":")[2])
                words[words.index("--port") + 1] = str(port)
                stack.enter_context(serving(folder / f"served-{port}", words, variables, port=port, at=folder))
            else:
                run_block(block, replace_ports(block.text), name, folder, variables)


def run_block(block: Block, text: str, name: str, folder: Path, variables: Mapping[str, str]) -> None:
    """Run one block's commands in one shell, and compare."""
    commands = [(command, shown) for command, shown in parse_console(text) if not command.startswith("pip install")]
    done = subprocess.run(
        ["bash", "-c", "".join(f"echo '{_MARK}'\n{command}\n" for command, _ in commands)],
        cwd=folder,
        env={**environment(folder), "PYTHONPATH": str(ROOT), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS_MAX,
    )
    said = done.stdout.decode().replace("\r\n", "\n").split(f"{_MARK}\n")[1:]
    assert len(said) == len(commands), done.stdout.decode()
    for (command, shown), printed in zip(commands, said, strict=True):
        assert_shown(shown, printed, f"examples/{name}/README.md:{block.line}: {command}")
