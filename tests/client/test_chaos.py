"""Hundreds of random schedules against the real service; `python -m tests.client.soak` plays ten thousand."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from semel.client.sync_client import Client
from tests.client.breaking import FAULTS
from tests.client.chaos import play


def test_random_losses_leave_one_effect_and_the_first_answer(tmp_path: Path) -> None:
    counted = play(tmp_path, range(240), crashes=False)
    assert counted["Done"] > 120
    assert counted["Refused"] > 5
    assert [fault for fault in FAULTS if not counted[f"met {fault}"]] == []


def test_killed_workers_leave_one_effect_and_the_first_answer(tmp_path: Path) -> None:
    counted = play(tmp_path, range(1000, 1060), crashes=True)
    assert counted["Done"] > 20


def test_the_soak_detects_a_client_that_makes_a_new_key_for_each_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without its one key the client makes duplicates, and the judge sees them."""
    numbers = count()
    right = Client._build

    def wrong(self, method, url, headers, body):  # type: ignore[no-untyped-def]
        request = right(self, method, url, headers, body)
        if "idempotency-key" in request.headers:
            request.headers["idempotency-key"] = f"{headers['Idempotency-Key'].strip(chr(34))}:{next(numbers)}"
        return request

    monkeypatch.setattr(Client, "_build", wrong)
    with pytest.raises(AssertionError, match=r"[2-9] effects"):
        play(tmp_path, range(2000, 2030), crashes=False)
