"""`import semel` costs what the standard library costs: no third-party module, and no event loop until one is needed.

Only what is loaded is asserted, never how long it took: a time would be a statement about the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROBE = """
import json, sys
before = set(sys.modules)
import semel
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_importing_semel_loads_neither_third_party_code_nor_asyncio() -> None:
    loaded = modules_loaded_by_import()

    foreign = {name for name in loaded if name.split(".")[0] not in {*sys.stdlib_module_names, "semel"}}
    assert "semel" in loaded
    assert foreign == set()
    assert "asyncio" not in loaded


def modules_loaded_by_import() -> list[str]:
    # Coverage would hook into the new process and load modules of its own before the probe can look.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    loaded: list[str] = json.loads(done.stdout)
    return loaded
