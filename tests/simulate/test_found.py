"""What the simulator has found, each as a test of its own: a seed may meet another schedule once the code has changed."""

from __future__ import annotations

import pytest

from semel.errors import StoreError, StoreTimeout, StoreUnavailable
from semel.model import Proceed
from semel.protocol.commands import reread
from semel.rules.decide import decide
from semel.stores.memory import MemoryStore
from semel.testing.attempts import attempt


@pytest.mark.parametrize(
    "error", [StoreUnavailable("no"), StoreTimeout("no reply")], ids=lambda error: type(error).__name__
)
def test_a_handler_that_ran_is_never_told_that_nothing_ran(error: StoreError) -> None:
    """Its settlement was refused, and the store could not say what holds instead: that is not known yet.

    Found by seed 1227 of format 1: an IDEMPOTENT handler, paused past its lease and superseded, was told
    StoreUnavailable ("the handler did not run"), since the look after the refusal had met that.
    """
    claim = attempt("k")
    verdict = decide(None, claim, 1)
    assert isinstance(verdict, Proceed)
    flow = reread(MemoryStore(), claim, verdict.grant, None)
    next(flow)
    with pytest.raises(StoreTimeout, match="refused"):
        flow.throw(error)
