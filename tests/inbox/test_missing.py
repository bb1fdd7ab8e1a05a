"""A library that is not installed is named with what brings it."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from semel.errors import ConfigurationError
from semel.extras import install_command


@pytest.mark.parametrize("library", ["celery", "dramatiq", "faststream"])
def test_a_missing_library_is_named_with_its_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"semel.inbox.brokers.{library}", raising=False)
    with pytest.raises(ConfigurationError, match=re.escape(install_command(library))):
        importlib.import_module(f"semel.inbox.brokers.{library}")
