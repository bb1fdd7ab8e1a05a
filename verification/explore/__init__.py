"""The protocol as a model that is explored whole: every state that a few workers on one key can reach.

The model does not repeat the state machine. The real ``semel.core`` decides, called by the real memory store;
the model adds who calls when: workers that crash at every step, messages that are lost or late, a clock that lets
leases lapse, a reaper, a purge, an operator, and a downstream in which effects can be counted. I1 to I4, I6 and I7 of
the design are checked in every state, by a notebook that trusts nothing the rules say.

    python -m verification.explore            every mode; exit code 1 and the shortest trace where one is broken
    python -m verification.explore --unsafe   every unsafe variant must be refused

What the model assumes, and so does not show: a handler's call arrives before the handler's deadline or never; an
operator says what is true once that deadline is over; an IDEMPOTENT downstream remembers a derived key for
``dedup_for`` and one deadline; a handler that runs a second time does not refuse. Several keys, batches, SQL and
threads are not in it: the other parts of ``semel.testing`` have those.
"""

from verification.explore.modes import MODES
from verification.explore.search import Explored, Violation, explore
from verification.explore.variant import Variant
from verification.explore.variants import VARIANTS
from verification.explore.world import Habits, Left, Mode

__all__ = ["MODES", "VARIANTS", "Explored", "Habits", "Left", "Mode", "Variant", "Violation", "explore"]
