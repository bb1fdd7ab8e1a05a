"""Where the peers are installed: ``.venv-peers`` beside ``.venv``, so that their dependencies never meet Semel's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peers.registry import PEERS, Peer

ROOT: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = ROOT / ".venv-peers" / "bin" / "python"
REMEDY: Final = "make peers"
_SERVED_BY: Final = ("starlette", "fastapi", "uvicorn")
_ASK: Final = """\
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """The versions of what is installed, and the interpreter that can import it."""

    python: str
    versions: Mapping[str, str]

    def peers(self) -> list[Peer]:
        """The peers that can be measured."""
        return [peer for peer in PEERS if peer.name in self.versions]

    def left_out(self) -> str | None:
        """Which peers cannot be measured and what installs them; None where none is missing."""
        missing = [peer.name for peer in PEERS if peer.name not in self.versions]
        return f"not installed: {', '.join(missing)} (`{REMEDY}` installs them)" if missing else None

    def describe(self, peers: Sequence[Peer]) -> str:
        """These peers with their versions, and what serves them."""
        names = [*(peer.name for peer in peers), *_SERVED_BY]
        return ", ".join(f"{name} {self.versions[name]}" for name in names if name in self.versions)


def find_installed(python: Path = PYTHON) -> Installed:
    """Ask the environment of the peers; it is empty where there is none."""
    if not python.exists():
        return Installed(str(python), {})
    names = [*(peer.name for peer in PEERS), *_SERVED_BY]
    done = subprocess.run([str(python), "-c", _ASK, *names], capture_output=True, text=True, check=False)
    return Installed(str(python), json.loads(done.stdout) if done.returncode == 0 else {})
