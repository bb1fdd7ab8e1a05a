"""A forked child begins anew before any of its threads can meet what it inherited.

To look at the process id in each call is not enough: threads of one worker that take their first requests at the same
time replaced each other's state. A permit that is lost so is not renewed, and a parent's connection is spoken on
by two.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ENGINE = """
import os, sys
from semel import Answer, Engine
from semel.core.outcomes import Succeeded
from tests.engine.shells import command

engine = Engine.connect(sys.argv[1])
engine.migrate()
permit = engine.claim(command("parent"))
core, upkeep = engine.core, engine._upkeep
core.waiting_by_caller[("acme", "alice")] = core.waiting = 1
child = os.fork()
if child == 0:
    waiting = core.waiting or core.waiting_by_caller
    print(len(core.live), upkeep._thread is None, core.pid == os.getpid(), waiting, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(len(core.live), upkeep._thread is None, core.pid == os.getpid(), core.waiting)
engine.settle(permit, Succeeded(Answer(200, (), b"")))
engine.close()
"""

DRIVER = """
import os, sys
from semel.stores.urls import connect_backend

driver = connect_backend(sys.argv[1]).driver
held = [driver._threads, driver._loops]
child = os.fork()
if child == 0:
    print([now is then for now, then in zip([driver._threads, driver._loops], held)], flush=True)
    os._exit(0)
os.waitpid(child, 0)
print([now is then for now, then in zip([driver._threads, driver._loops], held)])
"""


def told(script: str, url: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script, url], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_engine_begins_anew(tmp_path: Path) -> None:
    assert told(ENGINE, f"sqlite:///{tmp_path}/semel.db") == ["0 True True {}", "1 False True 1"]


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/semel", "redis://127.0.0.1:1", "mysql://127.0.0.1:1/semel"])
def test_a_driver_does_not_touch_its_parents_connections(url: str) -> None:
    assert told(DRIVER, url) == ["[False, False]", "[True, True]"]
