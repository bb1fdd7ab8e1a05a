"""The examples in docstrings hold."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
DJANGO = "semel.integrations.django."  # its modules need a project; docs/django.md has their examples


def modules_with_examples() -> list[str]:
    found = [path for path in (SOURCE / "semel").rglob("*.py") if ">>> " in path.read_text("utf-8")]
    names = [".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for path in found]
    return sorted(name for name in names if not name.startswith(DJANGO))


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_in_the_docstrings_of_a_module_hold(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0, capsys.readouterr().out
