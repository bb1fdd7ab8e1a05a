"""What is measured: Semel's own service, the shop under Semel on every store, and each public package that is there."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.peers.environment import ROOT, find_installed

NODE_MODULES: Final = ROOT / ".venv-peers/node/node_modules"
STORES: Final = ("memory", "sqlite", "postgresql", "mariadb", "redis")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One column of the results.

    Parameters: ``kind`` "service" (Semel's reference service), "python" (the shop under an adapter of ``bench``) or
    "node"; ``module`` the adapter; ``lease_seconds`` after which a claim of a killed process may lapse, or None;
    ``left_out`` requests of the shop that the package does not claim to serve, with the reason.
    """

    package: str
    version: str
    store: str
    kind: str
    module: str = ""
    python: str = ""
    lease_seconds: float | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        return f"{self.package}-{self.store}"


_NODE: Final[tuple[tuple[str, str, Mapping[str, str]], ...]] = (
    ("express-idempotency", "express_idempotency.js", {}),
    (
        "@node-idempotency/nestjs",
        "nest_idempotency.js",
        dict.fromkeys(
            ("empty_answer", "binary_answer", "stream_answer"), "An interceptor sees what a controller returns: JSON."
        ),
    ),
)
_NO_JSON: Final = "A function's result is JSON here."


def subjects() -> tuple[list[Subject], list[str]]:
    """Every subject that can be measured here, and words on what cannot."""
    import semel

    service = Subject(package="semel-service", version=semel.__version__, store="sqlite", kind="service")
    ours = [
        Subject(
            package="semel",
            version=semel.__version__,
            store=store,
            kind="python",
            module="bench.protected",
            lease_seconds=1.0,
        )
        for store in STORES
    ]
    found = find_installed()
    left_out = {"exactly-once": dict.fromkeys(("empty_answer", "binary_answer", "stream_answer"), _NO_JSON)}
    peers = [
        Subject(
            package=peer.name,
            version=found.versions[peer.name],
            store=store,
            kind="python",
            module=peer.module,
            python=found.python,
            lease_seconds=peer.lease_seconds,
            left_out=left_out.get(peer.name, {}),
        )
        for peer in found.peers()
        for store in peer.stores
    ]
    node = [
        Subject(package=package, version=_version(package), store=store, kind="node", module=module, left_out=lacks)
        for package, module, lacks in _NODE
        if shutil.which("node") is not None and _version(package)
        for store in ("memory", "redis")
    ]
    words = [text for text in (found.left_out(),) if text is not None]
    if not node:
        words.append("the packages for Node (`make conform` installs them where node and npm are)")
    return [service, *ours, *peers, *node], words


def _version(package: str) -> str:
    page = NODE_MODULES / package / "package.json"
    return str(json.loads(page.read_text("utf-8"))["version"]) if page.exists() else ""


def node_version() -> str:
    """Return the version that `node` prints; empty if there is none."""
    program = shutil.which("node")
    if program is None:
        return ""
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()


def node_file(subject: Subject) -> Path:
    """The server of a package for Node."""
    return Path(__file__).parent / "node" / subject.module
