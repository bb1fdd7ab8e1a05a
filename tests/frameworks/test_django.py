"""Django: a project that its own runner tests, in a process of its own, since Django's settings are a process's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SITE = "tests.frameworks.django_site"


def django(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SHOP_FOLDER": str(folder), "DJANGO_SETTINGS_MODULE": f"{SITE}.settings", **more}
    command = [sys.executable, "-W", "error", "-m", "django", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("atomic_requests", [False, True])
def test_the_project_passes_its_own_tests(tmp_path: Path, atomic_requests: bool) -> None:
    more = {"SHOP_ATOMIC_REQUESTS": "yes"} if atomic_requests else {}
    ran = django(tmp_path, "test", SITE, **more)
    assert ran.returncode == 0, ran.stderr
